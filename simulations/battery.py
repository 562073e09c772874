"""What every method must hold, for tests of methods of other packages too.

CHECKS = battery("my-method")

@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_my_method(check):
    check()
"""

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.testing import assert_allclose
from pydantic.fields import FieldInfo

from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, Stage
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of

COMPONENTS = 2
EXACT, ALIKE = 1e-6, 1e-4
"""Degrees from the pooled rows' components up to which a method is exact, and from the run in clear where sums open."""
SURVIVORS = {"masked": 0, "surviving": 3}


def battery(method: str, **options: Any) -> dict[str, Callable[[], object]]:
    """The checks that a method's card calls for, by name; each raises `AssertionError` where the method fails it.

    Parameters
    ----------
    method : str
        A name of `METHODS`, of an entry point too.
    **options
        With which it runs, beside those of its card's first example.
    """
    card = METHODS.lookup(method).strategy.card
    bench = _Bench(card, options)
    if card.loadings_source:  # it fits nothing
        return {"options": bench.options_are_refused}
    checks: dict[str, Callable[[], object]] = {
        "options": bench.options_are_refused,
        "one party": bench.one_party,
        "bytes": bench.bytes_are_foretold,
    }
    if bench.exact:
        checks["exact"] = partial(bench.like_pooled, bench.parties())
    if not card.differentially_private:
        ways = SURVIVORS.keys() & set(transports_of(METHODS[method]))
        checks |= {"order of parties": bench.any_order, **{way: partial(bench.sums, way) for way in sorted(ways)}}
    checks |= {f"stage {stage.__name__}": partial(bench.like_reference, stage) for stage in card.stages}
    return checks


@dataclass(frozen=True)
class _Bench:
    """A method, by its card, and the options with which it is tried."""

    card: MethodCard
    options: dict[str, Any]

    @property
    def exact(self) -> bool:
        """Whether the model is that of scikit-learn's PCA."""
        return self.card.exact and not self.card.variance_base

    def parties(self, count: int = 3) -> list[Array]:
        """Parties, three or one, whose pooled rows have well separated variances."""
        rng = np.random.default_rng(0)
        rows = (rng.standard_normal((60, 6)) / np.arange(1, 7)) @ np.linalg.qr(rng.standard_normal((6, 6)))[0] + 1
        columns = self.card.split == "columns"
        return np.split(rows, ([3, 5] if columns else [30, 50])[: count - 1], axis=int(columns))

    def fit(self, parties: list[Array], **more: Any) -> PCAModel:
        """A run in this process, with a state of its own where the method keeps one."""
        own = {key.replace("-", "_"): value for key, value in self.card.examples[0].items()}
        with TemporaryDirectory() as folder:
            own |= {"state": str(Path(folder, "state"))} if "state" in own else {}
            given = {"n_components": COMPONENTS, "min_rows": 1, "progress": False, **own, **self.options, **more}
            return run(self.card.name, parties, engine="loopback", **given)

    def one_party(self) -> None:
        """One party alone is a federation, too."""
        alone = self.parties(1)
        found = self.like_pooled(alone) if self.exact else self.fit(alone)
        assert_allclose(found.n_components_, COMPONENTS)

    def like_pooled(self, parties: list[Array]) -> PCAModel:
        """Components and variances are those of scikit-learn's PCA of the pooled rows."""
        model, (pooled,) = self.fit(parties), self.parties(1)
        truth = pooled_pca(pooled, COMPONENTS)
        true = truth.transform(pooled) / truth.singular_values_ if model.components_ is None else _directions(truth)
        off = principal_angles(_directions(model), true)
        assert_allclose(off, 0, atol=EXACT, err_msg="degrees from the components of the pooled rows")
        assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)
        assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=1e-9)
        return model

    def any_order(self) -> None:
        """In whichever order parties come, the model is the same."""
        one, other = self.fit(self.parties()), self.fit(self.parties()[::-1])
        assert_allclose(one.explained_variance_, other.explained_variance_, rtol=1e-12)
        assert_allclose(_directions(one), _directions(other), rtol=0, atol=1e-9)

    def sums(self, way: str) -> None:
        """Where only sums open, the model is that of the run in clear."""
        parties, (pooled,) = self.parties(), self.parties(1)
        secure = {"secure_aggregation": True, "bound": 2 * float(np.abs(pooled).max()), "min_parties": 2}
        clear, summed = self.fit(parties), self.fit(parties, survivors=SURVIVORS[way], **secure)
        off = principal_angles(_directions(summed), _directions(clear))
        assert_allclose(off, 0, atol=ALIKE, err_msg="degrees from the run in clear")
        assert_allclose(summed.explained_variance_, clear.explained_variance_, rtol=1e-6)

    def like_reference(self, stage: type[Stage]) -> None:
        """With a stage an exact method gives what the first one gives, and sums open what the run in clear had."""
        parties, (pooled,) = (self.people(count, weighed=stage.Options is PCAOptions) for count in (3, 1))
        secure = {"secure_aggregation": True, "bound": 2 * float(np.abs(pooled).max()), "min_parties": 2}
        cards = (method.strategy.card for method in METHODS.values())
        reference = _Bench(next(card for card in cards if card.exact and stage in card.stages), {})
        plain = self.fit(parties).log
        for own in _trials(stage, pooled.shape[1]):
            clear = self.fit(parties, **own)
            if self.exact:
                _require_alike(clear, reference.fit(parties, **own), plain, EXACT)
            if "masked" in transports_of(METHODS[self.card.name]):
                _require_alike(self.fit(parties, **own, **secure), clear, plain, ALIKE)

    def people(self, count: int, *, weighed: bool) -> list[Array]:
        """Parties of genotypes, which are numbers as well, of whom three are unlike the others; maybe with weights."""
        rows = np.random.default_rng(1).binomial(2, np.linspace(0.1, 0.4, 6), size=(60, 6)).astype(np.float64)
        rows[::20, :3] = 2
        rows = np.hstack([rows, 1 + np.arange(60)[:, None] % 4]) if weighed else rows
        return np.split(rows, [30, 50][: count - 1])

    def bytes_are_foretold(self) -> None:
        """A limit of as many bytes as the largest reply has lets a run through, and one less does not."""
        most = max(max(entry["up"]) for entry in self.fit(self.parties()).log["rounds"])
        self.fit(self.parties(), max_reply_bytes=most)
        try:
            self.fit(self.parties(), max_reply_bytes=most - 1)
        except DisclosureError:
            return
        raise AssertionError(f"a run whose largest reply has {most} bytes went through a limit of one less")

    def options_are_refused(self) -> None:
        """Values that an option's field does not allow are refused by the option's name."""
        for name, field in self.card.options.model_fields.items():
            for value in _wrong(field):
                try:
                    self.card.options.parse({**self.options, name: value})
                except ConfigError as error:
                    if name.replace("_", "-") in str(error):
                        continue
                raise AssertionError(f"{name}={value!r} is allowed, or refused without its name")


def _trials(stage: type[Stage], width: int) -> Iterator[dict[str, Any]]:
    """Options that name a stage: its examples, else each value of its flags and lists; a key of every run names the
    last column."""
    if stage.Options is PCAOptions:
        yield dict.fromkeys(stage.option_names, str(width - 1))
    yield from map(dict, stage.examples)
    for name in () if stage.examples or stage.Options is PCAOptions else stage.option_names:
        field = stage.Options.model_fields[name]
        values = (True, False) if field.annotation is bool else typing.get_args(field.annotation)
        yield from ({name: value} for value in values if value != field.default)


def _require_alike(one: PCAModel, other: PCAModel, plain: Mapping[str, Any], tolerance: float) -> None:
    """The same components (degrees) and variances, and the same of what both logs have and a ``plain`` one has not."""
    assert_allclose(principal_angles(_directions(one), _directions(other)), 0, atol=tolerance)
    assert_allclose(one.explained_variance_, other.explained_variance_, rtol=tolerance)
    logs = (one.log, other.log, plain)
    for own, others, known in (logs, [log["measured"] for log in logs]):
        for key in (own.keys() & others.keys()) - known.keys():
            if own[key] != []:  # of each party, where only sums open
                _require_same(own[key], others[key], tolerance)


def _require_same(one: Any, other: Any, tolerance: float) -> None:
    """Numbers within the tolerance, wherever they stand in lists and mappings; all else the same."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _require_same(one[key], other[key], tolerance)
    elif isinstance(one, list) and not all(isinstance(item, int | float) for item in one):
        assert len(one) == len(other)
        for item, its in zip(one, other, strict=True):
            _require_same(item, its, tolerance)
    elif isinstance(one, int | float | list):
        assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    else:
        assert one == other


def _directions(model: PCAModel) -> Array:
    """Components as columns, or scores of length one."""
    if model.components_ is not None:
        return model.components_.T
    assert model.scores_ is not None
    return model.scores_ / model.singular_values_


def _wrong(field: FieldInfo) -> Iterator[Any]:
    """Values beyond the limits of a field, and one of no list."""
    for name, further in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
        yield from (getattr(part, name) + further for part in field.metadata if hasattr(part, name))
    if field.annotation is bool or typing.get_origin(field.annotation) is typing.Literal:
        yield "certainly not"
