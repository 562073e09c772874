"""Checks of what every method must hold, for tests of methods of other packages too.

CHECKS = battery("my-method")

@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_my_method(check):
    check()
"""

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.testing import assert_allclose
from pydantic.fields import FieldInfo

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES, principal_angles
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, Stage
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports.recommendation import transports_of

COMPONENTS = 2
SECURE_DEGREES = 1e-4  # largest angle of a run in which only sums open to the run in clear
SURVIVORS = {"masked": 0, "surviving": 3}  # value of the key ``survivors``, by transport of sums


def battery(method: str | type[PCAStrategy], **options: Any) -> dict[str, Callable[[], object]]:
    """Return the tests that a method must pass; the method's card decides which tests these are.

    Parameters
    ----------
    method : str or type
        Name of a method, also of one from an entry point, or a class of your own.
    **options
        Options of the runs, in addition to those of the card's first example.

    Returns
    -------
    dict
        Functions without parameters, by name of the check.
    """
    card = METHODS.parse_method(METHODS.name_of(method)).strategy.card
    bench = _Bench(card, options)
    if card.loadings_source:  # a method that fits nothing
        return {"options": Check("options", bench.check_refused_options)}
    checks: dict[str, Callable[[], object]] = {"options": bench.check_refused_options}
    checks |= {"one party": bench.check_one_party, "bytes": bench.check_reply_bytes}
    if bench.exact:
        checks["exact"] = partial(bench.check_pooled, bench.parties())
    if not card.differentially_private:
        checks["order of parties"] = bench.check_order
        transports = SURVIVORS.keys() & set(transports_of(METHODS[card.name]))
        checks |= {transport: partial(bench.check_sums, transport) for transport in sorted(transports)}
    checks |= {f"stage {stage.__name__}": partial(bench.check_stage, stage) for stage in card.stages}
    return {name: Check(name, check) for name, check in checks.items()}


@dataclass(frozen=True)
class Check:
    """Check of a method, which a test calls without arguments; it raises an error if the method does not hold."""

    name: str
    function: Callable[[], object] = field(repr=False)

    def __call__(self) -> object:
        """Check the method, and return what the function returns, which is of no interest."""
        return self.function()


@dataclass(frozen=True)
class _Bench:
    """Checks of a method on small data, by its card and a run's options; a failed check raises AssertionError."""

    card: MethodCard
    options: dict[str, Any]

    @property
    def exact(self) -> bool:
        """True if the model must equal scikit-learn's PCA."""
        return self.card.exact and not self.card.variance_base

    def parties(self, count: int = 3) -> list[Array]:
        """Draw 60 rows (n_i, 6) with well separated variances for 1 or 3 parties; columns for a method for columns."""
        rng = np.random.default_rng(0)
        rows = (rng.standard_normal((60, 6)) / np.arange(1, 7)) @ np.linalg.qr(rng.standard_normal((6, 6)))[0] + 1
        columns = self.card.split == "columns"
        return np.split(rows, ([3, 5] if columns else [30, 50])[: count - 1], axis=int(columns))

    def fit(self, parties: list[Array], **changes: Any) -> PCAModel:
        """Run the method on the parties' data in this process, with changed options, and return the model."""
        example = {key.replace("-", "_"): value for key, value in self.card.examples[0].items()}
        with TemporaryDirectory() as folder:
            example |= {"state": str(Path(folder, "state"))} if "state" in example else {}
            options = {"n_components": COMPONENTS, "min_rows": 1, "progress": False, **example, **self.options}
            return run(self.card.name, parties, engine="loopback", **{**options, **changes})

    def check_one_party(self) -> None:
        """Check that a run with a single party gives a model."""
        parties = self.parties(1)
        model = self.check_pooled(parties) if self.exact else self.fit(parties)
        assert self.card.adapts_rank or model.n_components_ == COMPONENTS

    def check_pooled(self, parties: list[Array]) -> PCAModel:
        """Check that components and variances equal scikit-learn's PCA of the pooled rows, and return the model."""
        model, (pooled,) = self.fit(parties), self.parties(1)
        truth = pooled_pca(pooled, COMPONENTS)
        true = truth.transform(pooled) / truth.singular_values_ if model.components_ is None else _directions(truth)
        off = principal_angles(_directions(model), true)
        assert_allclose(off, 0, atol=EXACT_ANGLE_DEGREES, err_msg="degrees from the components of the pooled rows")
        assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)
        assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=1e-9)
        return model

    def check_order(self) -> None:
        """Check that the order of the parties does not change the model."""
        forward, backward = self.fit(self.parties()), self.fit(self.parties()[::-1])
        assert_allclose(forward.explained_variance_, backward.explained_variance_, rtol=1e-12)
        assert_allclose(_directions(forward), _directions(backward), rtol=0, atol=1e-9)

    def check_sums(self, transport: str) -> None:
        """Check that a run with a transport in which only sums open gives the model of the run in clear."""
        parties, (pooled,) = self.parties(), self.parties(1)
        secure = {"secure_aggregation": True, "bound": 2 * float(np.abs(pooled).max()), "min_parties": 2}
        clear, summed = self.fit(parties), self.fit(parties, survivors=SURVIVORS[transport], **secure)
        off = principal_angles(_directions(summed), _directions(clear))
        assert_allclose(off, 0, atol=SECURE_DEGREES, err_msg="degrees from the run in clear")
        assert_allclose(summed.explained_variance_, clear.explained_variance_, rtol=1e-6)

    def check_stage(self, stage: type[Stage]) -> None:
        """Check a stage (an addition to a run, such as clustering) against an exact method, and in secure runs."""
        parties, (pooled,) = (self.draw_genotypes(count, weighed=stage.Options is PCAOptions) for count in (3, 1))
        secure = {"secure_aggregation": True, "bound": 2 * float(np.abs(pooled).max()), "min_parties": 2}
        cards = (method.strategy.card for method in METHODS.values())
        reference = _Bench(next(card for card in cards if card.exact and stage in card.stages), {})
        plain = self.fit(parties).log
        for options in _stage_options(stage, pooled.shape[1]):
            if stage.sums_only:
                _require_same_model(self.fit(parties, **options, **secure), self.fit(parties), plain, SECURE_DEGREES)
                continue
            clear = self.fit(parties, **options)
            if self.exact:
                _require_same_model(clear, reference.fit(parties, **options), plain, EXACT_ANGLE_DEGREES)
            if "masked" in transports_of(METHODS[self.card.name]):
                _require_same_model(self.fit(parties, **options, **secure), clear, plain, SECURE_DEGREES)

    def draw_genotypes(self, count: int, *, weighed: bool) -> list[Array]:
        """Draw 60 people's 6 genotypes for 1 or 3 parties, every 20th an outlier; ``weighed``, with weights 1 to 4."""
        rows = np.random.default_rng(1).binomial(2, np.linspace(0.1, 0.4, 6), size=(60, 6)).astype(np.float64)
        rows[::20, :3] = 2
        rows = np.hstack([rows, 1 + np.arange(60)[:, None] % 4]) if weighed else rows
        return np.split(rows, [30, 50][: count - 1])

    def check_reply_bytes(self) -> None:
        """Check that a limit of the largest reply's bytes allows a run, and a single byte less refuses the run."""
        largest = max(max(entry["up"]) for entry in self.fit(self.parties()).log["rounds"])
        self.fit(self.parties(), max_reply_bytes=largest)
        try:
            self.fit(self.parties(), max_reply_bytes=largest - 1)
        except DisclosureError:
            return
        raise AssertionError(f"a run whose largest reply has {largest} bytes went through a limit of one less")

    def check_refused_options(self) -> None:
        """Check that values which an option does not allow are refused by the option's name."""
        for name, option in self.card.options.model_fields.items():
            for value in _refused_values(option):
                try:
                    self.card.options.parse({**self.options, name: value})
                except ConfigError as error:
                    if name.replace("_", "-") in str(error):
                        continue
                raise AssertionError(f"{name}={value!r} is allowed, or refused without its name")


def _stage_options(stage: type[Stage], width: int) -> Iterator[dict[str, Any]]:
    """Yield options that turn on a stage: its examples, else those of its options, or flags, choices, a column."""
    if stage.Options is PCAOptions:
        flags = {name for name in stage.option_names if RunConfig.model_fields[name].annotation is bool}
        yield {name: name in flags or str(width - 1) for name in stage.option_names}
    yield from map(dict, stage.examples)
    for name in () if stage.examples or stage.Options is PCAOptions else stage.option_names:
        field = stage.Options.model_fields[name]
        values = (True, False) if field.annotation is bool else typing.get_args(field.annotation)
        values = values if field.examples is None else tuple(field.examples)
        yield from ({name: value} for value in values if value != field.default)


def _require_same_model(model: PCAModel, reference: PCAModel, plain: Mapping[str, Any], tolerance: float) -> None:
    """Require components (degrees), variances and log entries that ``plain`` lacks to be equal within the tolerance."""
    assert_allclose(principal_angles(_directions(model), _directions(reference)), 0, atol=tolerance)
    assert_allclose(model.explained_variance_, reference.explained_variance_, rtol=tolerance)
    logs = (model.log, reference.log, plain)
    for log, reference_log, plain_log in (logs, [entries["measured"] for entries in logs]):
        for key in (log.keys() & reference_log.keys()) - plain_log.keys():
            if log[key] != []:  # of each party, where only sums open
                _require_close(log[key], reference_log[key], tolerance)


def _require_close(value: Any, reference: Any, tolerance: float) -> None:
    """Require numbers in lists and mappings within the tolerance, and other values equal, or raise AssertionError."""
    if isinstance(value, dict):
        assert value.keys() == reference.keys()
        for key in value:
            _require_close(value[key], reference[key], tolerance)
    elif isinstance(value, list) and not all(isinstance(item, int | float) for item in value):
        assert len(value) == len(reference)
        for item, reference_item in zip(value, reference, strict=True):
            _require_close(item, reference_item, tolerance)
    elif isinstance(value, int | float | list):
        assert_allclose(value, reference, rtol=tolerance, atol=tolerance)
    else:
        assert value == reference


def _directions(model: PCAModel) -> Array:
    """Return the components as columns (d, k), or the scores (n, k) scaled to unit length if there are no loadings."""
    if model.components_ is not None:
        return model.components_.T
    assert model.scores_ is not None
    return model.scores_ / model.singular_values_


def _refused_values(field: FieldInfo) -> Iterator[Any]:
    """Yield a value beyond each numeric limit of an option's field, and a wrong text for flags and choices."""
    for name, further in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
        yield from (getattr(part, name) + further for part in field.metadata if hasattr(part, name))
    if field.annotation is bool or typing.get_origin(field.annotation) is typing.Literal:
        yield "certainly not"
