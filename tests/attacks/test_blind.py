"""A server that attacks a blind run: what it would read without each of the protections, and that it reads nothing."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import block_diag, hadamard
from scipy.stats import ks_2samp, random_correlation

from fedpca_flwr import DisclosureError, FedPCAError
from fedpca_flwr.blind import rotated_vault, tagged_sums, transport
from fedpca_flwr.blind import stage as blind
from fedpca_flwr.blind.tagged_sums import PRIME, elements_from_bytes, elements_to_bytes, scaled_integer
from fedpca_flwr.blind.transport import BlindParty
from fedpca_flwr.maths.moments import unpack_symmetric
from fedpca_flwr.model.solution import solve
from tests.attacks.test_repeats import sites
from tests.blind.test_blind import BLIND, PARTIES, X, blind_server
from tests.families import cut, rows
from tests.genotypes import people
from tests.harness import client_of, finish, heard, messages_of, on_request, tamper_arrays
from tests.refusals import refused


def first_of(exchanged, phase):
    """Return the first question of a phase that a party received, with the party's answer."""
    return next(entry for entry in exchanged if entry.phase == phase)


def secrets_of(server):
    """Return a list that fills with the secret of a run, which the journal forgets at the end."""
    secrets, load = [], partial(client_of(server, 0).journal.load_secret, "secret")
    on_request(server, 0, "check", lambda arrays: secrets.append(load()) or arrays)
    return secrets


def require_refusal(server, phase, change, named, kind=DisclosureError):
    for party in range(len(server.client_manager().all())):
        on_request(server, party, phase, change)
    with refused(kind, named):
        finish(server)


def test_two_spectra_with_and_without_covariates_tell_loadings(monkeypatch):
    """Without the journal's rule: the eigenvector-eigenvalue identity (Denton et al. 2022) for inverses."""
    feature, centred = 3, X - X.mean(0)
    S = centred.T @ centred
    values, vectors = np.linalg.eigh(S)
    residual = S - np.outer(S[feature], S[feature]) / S[feature, feature]
    before = np.trace(S) * np.linalg.eigvalsh(opened(monkeypatch, PARTIES, 1)[0])
    after = np.trace(residual) * np.linalg.eigvalsh(opened(monkeypatch, PARTIES, 1, adjust_for=str(feature))[0])[1:]
    found = [np.prod((1 / v - 1 / after) / np.delete(1 / v - 1 / before, i)) for i, v in enumerate(before)]
    np.testing.assert_allclose(before, values, rtol=1e-9)
    np.testing.assert_allclose(found, vectors[feature] ** 2, atol=1e-8)


def change_place(place, change):
    def changed(arrays):
        elements = elements_from_bytes(arrays[0])
        elements[place] = (elements[place] + change) % PRIME
        return [elements_to_bytes(elements), *arrays[1:]]

    return changed


@pytest.mark.parametrize(
    ("options", "place", "change", "named"),
    [
        # A step, a delta, and what other moduli wrap at.
        *(({}, *one, "'sums'") for one in product((0, 3, 7, -1), (1, -(2**150), 2**61 - 1, 2**256, 2**320))),
        *(({"adjust_for": "3,0"}, place, 2**300, "'covariates'") for place in (0, 3, 11, -1)),
    ],
)
def test_no_number_is_added_to_the_first_sums_unseen(options, place, change, named):
    """Places are the count, a sum, the squares and the tag, or products of covariates with features, and the tag."""
    require_refusal(blind_server(**options), "moments", change_place(place, change), named)


def test_sums_beyond_public_limits_are_refused(monkeypatch):
    """Parties that lie by more than any rows can have: the tag is right, and the sum is not."""
    with monkeypatch.context() as patched:
        patched.setattr(blind, "centred_scatter", lambda *asked: 2.0**90 * rotated_vault.centred_scatter(*asked))
        with refused(DisclosureError, "'covariates'"):
            finish(blind_server(adjust_for="3"))
    more = {2 * (blind.SUM_BITS - 10): 60}  # of squares alone
    monkeypatch.setattr(blind, "scaled_integer", lambda parts, bits: scaled_integer(parts, bits) << more.get(bits, 0))
    for scale in (False, True):
        with refused(DisclosureError, "'sums'"):
            finish(blind_server(scale=scale))


def test_no_element_is_written_in_another_way():
    def beyond(arrays):
        elements = [int.from_bytes(row.tobytes(), "little") for row in arrays[0]]
        small = min(range(len(elements)), key=elements.__getitem__)
        elements[small] += PRIME
        return [elements_to_bytes(elements)]

    require_refusal(blind_server(), "moments", beyond, "'sums'")


@pytest.mark.parametrize("weights", [(2, 2, 2), (2, 1, 0), (1, 1, 0), (1, 1, 2), (0, 0, 1)], ids=str)
def test_other_sums_of_the_answers_open_for_nobody(weights):
    server = blind_server()
    exchanged = [heard(server, party) for party in range(3)]

    def other_sum(arrays):
        answers = [first_of(own, "sums").said[0] for own in exchanged]
        elements = [0] * len(answers[0])
        for answer, weight in zip(answers, weights, strict=True):
            elements = tagged_sums.combine_elements(elements, [weight * e for e in elements_from_bytes(answer)])
        return [elements_to_bytes(elements)]

    require_refusal(server, "moments", other_sum, "'sums'")


def test_no_sum_of_another_run_phase_or_kind_or_of_fewer_parties_opens():
    exchanged = heard(server := blind_server(), 0)
    finish(server)
    sums = first_of(exchanged, "moments").asked[:1]
    require_refusal(blind_server(), "moments", lambda arrays: sums, "'sums'")
    exchanged = heard(server := blind_server(), 0)
    require_refusal(
        server, "project", lambda arrays: [*arrays[:-1], first_of(exchanged, "moments").asked[0]], "'check'"
    )
    exchanged = heard(server := blind_server(adjust_for="3"), 0)
    require_refusal(server, "moments", lambda arrays: first_of(exchanged, "covariates").asked[:1], "'covariates'")
    assert not [entry for entry in exchanged if entry.phase == "moments" and entry.said]
    tamper_arrays(server := blind_server(), 1, lambda arrays: [np.zeros_like(arrays[0])], "moments")
    with refused(FedPCAError, 3):
        finish(server)


def test_an_honest_run_asks_once_and_ends_in_constants_and_its_secret_travels_nowhere():
    server = blind_server()
    sent, secrets, exchanged = messages_of(server), secrets_of(server), [heard(server, party) for party in range(3)]
    finish(server)
    phases = [entry["phase"] for entry in server.strategy.round_log]
    assert phases == ["keys", "secrets", "agree", "sums", "moments", "check", "project"]
    assert all(question.max_times(server.strategy.public) == 1 for question in server.strategy.script.values())
    assert len(first_of(exchanged[0], "check").said[0]) == 40 * 3 + 1  # forty sign vectors
    assert all([array.tolist() for array in own[-1].said] == [1, 0.0] for own in exchanged)
    assert len(secrets[0]) == 32
    assert not any(secrets[0] in message for message in sent)


def test_every_sealed_sum_of_every_run_has_a_pad_of_its_own():
    """Without pads the server would read sums in what it hands back; with one pad twice, the difference of two sums."""
    sealed = []
    for _ in range(2):
        exchanged = heard(server := blind_server(), 0)
        finish(server)
        words = first_of(exchanged, "moments").asked[0], first_of(exchanged, "project").asked[-1]
        sealed.append([element for array in words for element in elements_from_bytes(array)])
    assert not set(sealed[0]) & set(sealed[1])
    for one, other in chain.from_iterable(combinations([0, *elements], 2) for elements in sealed):
        assert abs(tagged_sums.signed_integer((one - other) % PRIME)) > 2**480


def test_a_secret_of_equal_contributions_is_for_one_run_only(monkeypatch):
    """The secret depends on the run and its keys too: a party that repeats its contribution repeats no rotation."""
    monkeypatch.setattr(transport, "secrets", SimpleNamespace(token_bytes=bytes))
    servers = blind_server(), blind_server()
    one, other = map(secrets_of, servers)
    for server in servers:
        finish(server)
    assert len(one + other) == len({*one, *other}) == 2


@pytest.mark.parametrize(
    "change", [lambda array: array[[1, 0, 2]], lambda array: array ^ (np.arange(array.shape[-1]) == 5)]
)
@pytest.mark.parametrize("phase", ["secrets", "agree", "sums"])
def test_keys_contributions_and_signatures_are_not_changed_unseen(phase, change):
    on_request(server := blind_server(), 2, phase, lambda arrays: [change(arrays[0]), *arrays[1:]])
    with refused(DisclosureError, "party"):
        finish(server)


def test_a_party_with_another_secret_stops_all_before_the_first_sum(monkeypatch):
    """A party that sends different contributions to different parties: the digests that all sign are not the same."""
    exchanged, honest = heard(server := blind_server(), 0), BlindParty.answer

    def inconsistent(self, party, phase, request):
        answer = honest(self, party, phase, request)
        if phase == "secrets" and self.policy.signer.identity.party == 1:
            answer["encrypted"][0] = honest(self, party, phase, request)["encrypted"][0]
        return answer

    monkeypatch.setattr(BlindParty, "answer", inconsistent)
    with refused(DisclosureError, "run secret"):
        finish(server)
    assert [entry.phase for entry in exchanged if entry.said] == ["keys", "secrets", "agree"]


def honest(vectors, values, scatter):
    return vectors, values


def watch_solve(patched, seen, change=honest):
    """Note the moments that the server opens, and let it make other components of them."""

    def watching(moments, diagonal, **options):
        scatter = unpack_symmetric(moments.scatter, diagonal.size)
        seen.append((moments, scatter))
        solution = solve(moments, diagonal, **options)
        vectors, values = change(solution.pairs.vectors, solution.pairs.values, scatter)
        return replace(solution, pairs=replace(solution.pairs, vectors=vectors, values=values))

    patched.setattr(blind, "solve", watching)


def unit_vectors(vectors, values, scatter):
    """Rows of the rotation itself, if anybody publishes the model."""
    largest = np.argsort(-np.diagonal(scatter))[:3]
    return np.eye(len(scatter))[:, largest], np.diagonal(scatter)[largest]


def tilted(vectors, values, scatter):
    first = np.cos(2e-13) * vectors[:, 0] + np.sin(2e-13) * np.linalg.eigh(scatter)[1][:, 0]
    return np.column_stack([first, vectors[:, 1:]]), values


def smallest(vectors, values, scatter):
    """Eigenvectors with less variance than the mean of all that are left."""
    values, vectors = np.linalg.eigh(scatter)
    return vectors[:, 2::-1], values[2::-1]


TURN = block_diag([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]], 1.0)
FALSE = {
    "unit vectors": unit_vectors,
    "turned": lambda vectors, values, scatter: (vectors @ TURN, values),
    "tilted": tilted,
    "smallest": smallest,
    "longer": lambda vectors, values, scatter: (vectors * (1 + 1e-8), values),
    "other values": lambda vectors, values, scatter: (vectors, values + 1e-9),
    "twice the first": lambda vectors, values, scatter: (vectors[:, [0, 0, 1]], values[[0, 0, 1]]),
    "rising": lambda vectors, values, scatter: (vectors[:, ::-1], values[::-1]),
}


@pytest.mark.parametrize("change", FALSE.values(), ids=FALSE)
def test_false_components_make_no_model(monkeypatch, tmp_path, change):
    watch_solve(monkeypatch, [], change)
    with refused(FedPCAError, "components"):
        finish(blind_server(site={"model": str(tmp_path)}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "named", "kind"),
    [
        (lambda arrays: [np.eye(6)[:3], *arrays[1:]], "'components'", FedPCAError),
        (lambda arrays: [*arrays[:-1], change_place(4, 1)([arrays[-1]])[0]], "'check'", DisclosureError),
    ],
)
def test_nothing_that_is_not_of_the_check_makes_a_model(tmp_path, change, named, kind):
    require_refusal(blind_server(site={"model": str(tmp_path)}), "project", change, named, kind)
    assert not list(tmp_path.iterdir())


def use_rotation(patched, Q, *, noise):
    """Let all parties draw this rotation, and noise or none."""
    known = SimpleNamespace(rotated=lambda symmetric: Q.T @ symmetric @ Q, turned_back=lambda vectors: Q @ vectors)
    for module in (blind, rotated_vault):
        patched.setattr(module, "HaarRotation", lambda key, d: known)
    if not noise:
        patched.setattr(rotated_vault, "symmetric_noise", lambda key, d: np.zeros(d * (d + 1) // 2))


def dyadic_rotation(rng):
    """Product of signed permutations and blocks of 4 x 4 Hadamard matrices over 2, which rounds nothing."""
    Q = np.eye(8)
    for _ in range(2):
        Q = Q @ np.eye(8)[rng.permutation(8)] * rng.choice([-1, 1], 8) @ block_diag(*[hadamard(4) / 2] * 2)
    return Q


def view(monkeypatch, parties, rotation, change):
    """Return the bytes that a server opens of a run, and the verdict of the parties on its components."""
    seen: list = []
    with monkeypatch.context() as patched:
        watch_solve(patched, seen, change)
        use_rotation(patched, rotation, noise=False)
        patched.setattr(blind, "NOISE", 2.0**-44)
        try:
            verdict = finish(blind_server(parties, min_parties=2)).log["method"]
        except FedPCAError as error:
            verdict = str(error).partition(": ")[2]
    return [(moments.count, moments.scatter.tobytes()) for moments, _ in seen], verdict


@pytest.mark.parametrize("seed", range(4))
def test_two_tables_of_one_spectrum_look_alike_to_the_last_bit(monkeypatch, seed):
    """Table A under Q, and A P under P' Q divided otherwise; whole numbers and powers of two, which nothing rounds."""
    rng = np.random.default_rng(seed)
    P, Q = dyadic_rotation(rng), dyadic_rotation(rng)
    half = 16 * rng.choice([-1.0, 1.0], (8, 8))
    A = np.vstack([half, -half])[rng.permutation(16)] + 64 * rng.integers(-3, 4, 8)
    first, second = cut(A, 8, 4, 4), cut(A @ P, 4, 8, 4)
    assert abs(A.T @ A - (A @ P).T @ (A @ P)).max() > 1
    drawn = np.linalg.qr(rng.standard_normal((8, 3))).Q
    for change in (honest, unit_vectors, lambda vectors, values, scatter: (drawn, values)):
        one, other = view(monkeypatch, first, Q, change), view(monkeypatch, second, P.T @ Q, change)
        assert one == other
        assert len(one[0]) == 1


def opened(monkeypatch, parties, runs, **options):
    seen: list = []
    with monkeypatch.context() as patched:
        watch_solve(patched, seen)
        for _ in range(runs):
            finish(blind_server(parties, **options))
    return np.array([scatter for _, scatter in seen])


@pytest.mark.engine
def test_scaled_tables_of_one_spectrum_are_seen_alike(monkeypatch):
    """Correlation matrices of the same eigenvalues: entries of what the server opens have the same distribution."""
    views, bare, runs = [], [], 8
    for seed in (1, 2):
        correlation = random_correlation.rvs([2.2, 0.5, 0.3], random_state=seed)
        normal = np.random.default_rng(seed).standard_normal((60, 3))
        white = np.linalg.svd(normal - normal.mean(0), full_matrices=False)[0]
        table = white @ np.linalg.cholesky(correlation).T * [1, 20, 300] * np.sqrt(60)
        bare.append(np.corrcoef(table.T))
        views.append(opened(monkeypatch, np.array_split(table, 3), runs, scale=True, n_components=2))
    assert abs(bare[0] - bare[1]).max() > 0.2
    pvalues = [ks_2samp(views[0][:, i, j], views[1][:, i, j]).pvalue for i in range(3) for j in range(i, 3)]
    assert min(pvalues) > 0.01 / 6
    for scatters in views:
        np.testing.assert_allclose(np.linalg.eigvalsh(scatters) * 3, [[0.3, 0.5, 2.2]] * runs, atol=1e-10)


def test_a_rare_value_shows_no_row(monkeypatch):
    """The row that alone has a value stands in the covariance, and in nothing that the server opens of a blind run."""
    table = np.column_stack([rows(120, 40), np.zeros(120)])
    table[17, -1] = 1
    row = table[17] - table.mean(0)

    def likeness(scatter):
        return (np.abs(scatter @ row) / np.linalg.norm(scatter, axis=1) / np.linalg.norm(row)).max()

    assert likeness(np.cov(table.T)) > 0.999
    assert likeness(opened(monkeypatch, np.array_split(table, 3), 1)[0]) < 0.9


def test_noise_is_in_each_entry_that_the_server_opens_and_far_above_rounding(monkeypatch):
    """Under a known rotation; of the same rows divided otherwise the difference is what the noise has to hide."""
    share = np.cov(X.T, bias=True) / np.cov(X.T, bias=True).trace()
    use_rotation(monkeypatch, np.eye(6), noise=True)
    differences = opened(monkeypatch, PARTIES, 12) - share
    assert 0.6 < differences[(slice(None), *np.triu_indices(6, 1))].std() / 2.0**-44 < 1.4
    assert 0.6 < np.diagonal(differences, axis1=1, axis2=2).std() / 2.0**-43.5 < 1.4
    assert all(abs(one - other).max() > 2.0**-46 for one, other in pairwise(differences))
    use_rotation(monkeypatch, np.linalg.qr(np.random.default_rng(3).standard_normal((6, 6))).Q, noise=False)
    one, other = (opened(monkeypatch, parties, 1)[0] for parties in (PARTIES, cut(X, 10, 60, 20)))
    assert 0 < np.linalg.norm(one - other) < 2.0**-44 / 100


PEOPLE = cut(people(90, 6), 40, 30, 20)
OTHER_SETTINGS = "'n-components'", "'seed'"


@pytest.mark.parametrize(
    ("parties", "options", "then", "then_options", "named"),
    [
        (PARTIES, {}, PARTIES, {"n_components": 2, "seed": 5}, ()),
        *((PARTIES, {}, PARTIES, other, OTHER_SETTINGS) for other in ({"scale": True}, {"bound": 2e3})),
        (PARTIES, {}, PARTIES, {"adjust_for": "3"}, OTHER_SETTINGS),
        (PEOPLE, {}, PEOPLE, {"genotypes": True}, OTHER_SETTINGS),
        (PEOPLE, {"adjust_for": "0"}, PEOPLE, {"adjust_for": "1"}, OTHER_SETTINGS),
        (PARTIES, {}, [np.delete(part, 2, axis=1) for part in PARTIES], {}, ["'min-rows'"]),
        (PARTIES, {}, [part[1:] for part in PARTIES], {}, ["'min-rows'"]),
    ],
)
def test_blind_runs_over_the_same_rows_have_the_same_settings(tmp_path, parties, options, then, then_options, named):
    rules = {"rare_values": "allow"} if parties is PEOPLE else {}
    finish(sites(tmp_path, parties, options={**BLIND, **options}, **rules))
    again = sites(tmp_path, then, options={**BLIND, **then_options}, **rules)
    with refused(DisclosureError, *named) if named else nullcontext():
        finish(again)


def test_a_blind_run_that_broke_off_counts_and_a_site_that_is_blind_only_answers_no_other(tmp_path):
    require_refusal(sites(tmp_path, PARTIES, options=BLIND), "moments", change_place(0, 1), "'sums'")
    with refused(DisclosureError, "'n-components'", "'seed'"):
        finish(sites(tmp_path, PARTIES, options={**BLIND, "scale": True}))
    finish(sites(tmp_path, PARTIES, options=BLIND))
    with refused(DisclosureError, "'blind'"):
        finish(sites(tmp_path / "2", PARTIES, options={**BLIND, "blind": False}, blind="only"))
    finish(sites(tmp_path / "2", PARTIES, options=BLIND, blind="only"))
