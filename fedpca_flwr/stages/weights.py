"""Weights of rows (run-config ``weights``): a row of weight w enters every sum w times.

With w_i the weights of all rows, N = sum w_i takes the place of the number of rows, as if row i stood there w_i times::

    m = sum w_i x_i / N,    S = sum w_i (x_i - m)(x_i - m)^T,    variances = eigenvalues of S / (N - 1)

A site multiplies its centred rows by the roots of their weights (`fedpca_flwr.maths.moments`), so its answers are
moments as those of other rows, and secure sums have the same limits. Only N is no longer an integer. No row of a site
may weigh more than one of ``min-rows`` equal rows (`fedpca_flwr.site.weights`).
"""

from dataclasses import replace

from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.protocol.payload import Payload
from fedpca_flwr.protocol.question import Questions
from fedpca_flwr.questions.rows_client import RowsStage
from fedpca_flwr.stages.declarations import Weights

UNWEIGHTED_OPTIONS = {"keep", "certify", "warm_start", "warm_rank", "wire"}
"""Options that need the number of independent rows, or factors of rows; so do all options of other stages."""


class WeightsStage(Weights, RowsStage):
    """Stage for weighted rows: turns every count field into a positive float, the sum of weights."""

    @override
    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Raise ConfigError for options that do not go with weights; turn all row counts into sums of weights."""
        options = self.options
        chosen = options.model_dump(exclude_defaults=True).keys()
        unweighted = sorted(chosen & (UNWEIGHTED_OPTIONS | options.stage_option_names))
        conflicts = [name.replace("_", "-") for name in unweighted]
        conflicts += ["n-components='auto'"] * isinstance(options.n_components, str)
        if conflicts:
            raise ConfigError(
                f"run-config: 'weights' is {value_text(config.weights)}, which does not go with {', '.join(conflicts)}:"
                " leave out one or the other"
            )
        return {
            name: replace(question, request=_float_counts(question.request), reply=_float_counts(question.reply))
            for name, question in questions.items()
        }


def _float_counts(payload: Payload) -> Payload:
    """Return the payload with its integer count fields replaced by positive float fields for sums of weights."""
    fields = (
        replace(field, dtype="float64", kind="positive") if field.kind == "count" else field for field in payload.fields
    )
    return Payload(tuple(fields))
