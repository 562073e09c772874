"""Options of EM, and the questions that a run of it may ask."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field as Limits
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.config import Count, RunConfig
from fedpca_flwr.protocol.card import PCAOptions
from fedpca_flwr.protocol.payload import Field
from fedpca_flwr.protocol.phase import Phases
from fedpca_flwr.statistics.incomplete import expected_phase, observed_phases
from fedpca_flwr.statistics.incomplete_factors import factor_phase
from fedpca_flwr.statistics.rows import projection_phase

MORE = 10
"""Factors than components: what is beside the components is not all noise (docs/missing.md measures it)."""


class EMOptions(PCAOptions):
    """Options of EM."""

    model: Literal["gaussian", "factors"] = "gaussian"
    """What missing values are expected by: 'gaussian', a covariance of all features; 'factors', for wide rows (more
    than some 500 features), few directions with equal noise in all others."""
    factors: Annotated[int, Limits(ge=0)] = 0
    """With model='factors': how many; 0 for ten more than components."""
    scale: bool = False
    """Divide each feature by its standard deviation: that of its expected values, by 'factors' of its observed ones."""
    prior: Annotated[float, Limits(gt=0, le=1e6, examples=[1e-3, 1.0, 100.0])] = 10.0
    """How many rows of unrelated features the model has seen before."""
    tolerance: Annotated[float, Limits(gt=0, le=90, examples=[1e-6, 1.0, 30.0])] = 0.01
    """The iteration ends where the last steps foretell fewer degrees to go than this. That is an estimate and no bound:
    in measurements more was left as often as not."""
    max_rounds: Annotated[Count, Limits(examples=[1, 2, 3])] = 100
    """At most so many steps; the model has an estimate of how far it still was."""

    @model_validator(mode="after")
    def _factors_are_counted(self) -> Self:
        if self.model == "gaussian" and self.factors:
            text = "'factors' is {q}, but 'model' is 'gaussian', which has none; set model='factors'"
            raise PydanticCustomError("factors", text, {"q": self.factors})
        if self.model == "factors" and self.n_components < 1:
            text = "'n-components' is {k}, and model='factors' takes a number, since it does not find all variances"
            raise PydanticCustomError("factors", text, {"k": self.n_components})
        if 0 < self.factors < self.n_components:
            text = "'factors' is {q}, expected at least n-components = {k}"
            raise PydanticCustomError("factors", text, {"q": self.factors, "k": self.n_components})
        return self


def phases(config: RunConfig, options: EMOptions) -> Phases:
    """What was observed, the steps, and the last question, with what rows are completed by."""
    if options.model == "factors":
        step = {"products": factor_phase(options.max_rounds, options.factors or int(options.n_components) + MORE)}
        expects = Field("factors", ("any", "d"))
    else:
        step = {"expected": expected_phase(options.max_rounds)}
        expects = Field("covariance", ("d(d+1)/2",), kind="scatter")
    return {
        **observed_phases(config, pairs=options.model == "gaussian"),
        **step,
        **projection_phase(config, further=(expects,)),
    }
