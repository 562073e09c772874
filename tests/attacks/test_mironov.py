"""Attack on dp-pca that tells from a run which of two neighbouring data sets it had (Mironov 2012).

The attacker knows both, and looks first for values that one of the two cannot have given: noise of floats reaches few
floats. Where that tells nothing he takes the likelihood ratio, which is the best test that there is.
"""

import math
from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from fedpca_flwr.maths.moments import diagonal_positions, packed_size
from fedpca_flwr.protocol.transport import relay
from fedpca_flwr.strategies.dp_pca import integer_sums
from fedpca_flwr.strategies.dp_pca.method import DPPCA
from fedpca_flwr.strategies.dp_pca.party import FIELD_STEPS, DPOptions
from fedpca_flwr.strategies.dp_pca.private_scatter import OCTAVES
from tests.families import rows
from tests.harness import client_of, context_of, finish, server_of

D, DELTA, CLIP = 6, 1e-5, 3.0
RUN = {"relation": "replace-one", "noise_seed": 0, "n_components": 2}
RELEASES = {"joint": {"release": "joint", "clip": CLIP}, "directions": {}}
"""By the question whose answer is attacked: what a run is asked it with."""
DISTRIBUTED = {"trust": "distributed", "honest_parties": 3, "secure_aggregation": True}
OTHERS = [rows(30, D, seed=seed) for seed in (1, 2)]
WORLDS = [np.vstack([rows(30, D), last]) for last in rows(2, D, seed=3) * [[1e2], [1e4]]]
"""Two data sets that differ in their last row: it is as long as the clip allows, and in another octave."""

every_release = pytest.mark.parametrize("phase", RELEASES)
BOUND = np.asarray(1.0)
SHELLS = np.array([[0.0, 100.0, 0.0], [100.0, 1000.0, 1000.0]])
"""The last row of one data set may be in another shell than that of the other."""
BEFORE = {"octaves": [], "centre": [BOUND], "nearer_octaves": [np.zeros(D)], "nearer_centre": [np.zeros(D), BOUND]}
"""What a server asks before the directions; here always about zero, as the attacker likes."""


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])


def shown_by_a_reply(phase):
    """Local trust: the server sees one party's reply."""

    @cache
    def server_before(world, epsilon):
        """Of a run in which all was asked that comes before, and what the party remembers of it."""
        server = server_of("dp-pca", [WORLDS[world]], **RUN, **RELEASES[phase], epsilon=epsilon)
        for name, asked in BEFORE.items() if phase == "directions" else ():
            client_of(server, 0).fit(asked, {"phase": name})
        return server, context_of(server, 0).state

    def shown(world, epsilon):
        server, remembered = server_before(world, epsilon)
        context_of(server, 0).state = deepcopy(remembered)
        asked = [] if phase == "joint" else [np.zeros(D), SHELLS]
        told, _, said = client_of(server, 0).fit(asked, {"phase": phase})
        assert "error" not in said
        return flat(told[phase == "joint" :])  # without the count

    return shown


class SeenError(Exception):
    """The sum that is attacked, with which the attacker ends the run."""


def shown_by_a_sum(phase, survivors, monkeypatch):
    """Distributed trust: the server sees one sum, of which the attacker knows the other parties' rows."""
    aggregate, chosen = DPPCA.aggregate, {"centre": np.zeros(D), "shells": SHELLS} if phase == "directions" else {}

    def ask(question):
        if question.phase == phase:
            raise SeenError((yield replace(question, request=chosen)))
        return (yield question)

    monkeypatch.setattr(DPPCA, "aggregate", lambda run: relay(aggregate(run), ask))
    known = np.sum([exact(phase, data) for data in OTHERS], axis=0)

    def shown(world, epsilon):
        given = {**RUN, **RELEASES[phase], **DISTRIBUTED, "survivors": survivors, "epsilon": epsilon}
        with pytest.raises(SeenError) as caught:
            finish(server_of("dp-pca", [WORLDS[world], *OTHERS], **given))
        (sums,) = caught.value.args
        return flat(sums[name] for name in ("octaves", "energies", "sum", "products") if name in sums) - known

    return shown


def exact(phase, data):
    about = data, np.zeros(D)
    if phase == "joint":
        return flat([integer_sums.integer_sum(*about, CLIP), integer_sums.integer_products(*about, CLIP)])
    in_shells = integer_sums.integer_energies, integer_sums.integer_shell_products
    return flat([integer_sums.integer_octave_counts(*about), *(function(*about, SHELLS) for function in in_shells)])


def deviations(phase, epsilon):
    deviations = DPOptions(relation="replace-one", **RELEASES[phase], epsilon=epsilon).noise(phase).deviations
    off = np.full(packed_size(D), math.isqrt(deviations["products"] ** 2 // 2) + 1)
    off[diagonal_positions(D)] = deviations["products"]
    if phase == "joint":
        return np.concatenate([np.full(D, deviations["sum"]), off])
    return np.concatenate([np.full(OCTAVES, deviations["octaves"]), np.full(2, deviations["energies"]), off, off])


def impossible(noise, scale):
    """How many of these values are neither whole nor ``scale * ndtri((k + 1/2) 2^-52)`` for a k."""
    count = 0
    for value, deviation in zip(noise, scale, strict=True):
        z = value / deviation
        width = 20 + int(3 * norm.pdf(z) * 2.0**52 * np.spacing(max(abs(value), 2.0**31)) / deviation)
        if value == round(value) or width > 300:
            continue
        reached = deviation * ndtri((np.floor(ndtr(z) * 2.0**52) + np.arange(-width, width + 1) + 0.5) * 2.0**-52)
        count += not (np.abs(reached - value) <= np.spacing(abs(value) + 2.0**31) / 2).any()
    return count


def right_answers(phase, shown, epsilon, trials):
    stats, right = np.array([exact(phase, data) for data in WORLDS]), 0
    telling = stats[0] != stats[1]  # the other values have the same noise in both
    scale, stats = deviations(phase, epsilon)[telling], stats[:, telling]
    for trial in range(trials):
        world = trial % 2
        seen = shown(world, epsilon)[telling]
        cannot = [impossible(seen - stat, scale) for stat in stats]
        far = [float((((seen - stat) / scale) ** 2).sum()) for stat in stats]
        right += (cannot[0] < cannot[1] or (cannot[0] == cannot[1] and far[0] < far[1])) == (world == 0)
    return right / trials


def allowed(epsilon, trials):
    """By the promise, and three standard errors."""
    most = (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))
    return most + 3 * math.sqrt(most * (1 - most) / trials)


@pytest.mark.engine
@every_release
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_one_reply_does_not_tell_which_of_two_data_sets_it_was(phase, epsilon):
    assert right_answers(phase, shown_by_a_reply(phase), epsilon, 80) <= allowed(epsilon, 80)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("phase", "survivors"),
    [("joint", 0), ("joint", 3), ("directions", 0), pytest.param("directions", 3, marks=pytest.mark.nightly)],
)
def test_one_sum_of_shared_noise_does_not_tell_it(phase, survivors, monkeypatch):
    assert right_answers(phase, shown_by_a_sum(phase, survivors, monkeypatch), 0.1, 24) <= allowed(0.1, 24)


def floats(size, deviation, source):
    return deviation * ndtri(((np.frombuffer(source(8 * size), dtype="<u8") >> np.uint64(12)) + 0.5) * 2.0**-52)


def small(self, phase, noise=DPOptions.noise):
    few = {name: deviation and FIELD_STEPS[name] // 9 for name, deviation in noise(self, phase).deviations.items()}
    return noise(self, phase)._replace(deviations=few)


@every_release
@pytest.mark.parametrize(
    ("place", "wrong", "epsilon"),
    [
        pytest.param(integer_sums, ("discrete_gaussian", floats), 0.1, marks=pytest.mark.engine),
        (DPOptions, ("noise", small), 0.1),
        (DPOptions, ("noise", DPOptions.noise), 50.0),
    ],
    ids=["floats", "too little", "epsilon 50"],
)
def test_noise_of_floats_or_too_little_would_tell(phase, place, wrong, epsilon, monkeypatch):
    """The same attack: of floats it is the numbers, not their distribution. An epsilon of 50 protects nobody."""
    monkeypatch.setattr(place, *wrong)
    assert right_answers(phase, shown_by_a_reply(phase), epsilon, 40) > 0.95
