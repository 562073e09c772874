"""Limits for outlying rows in the last round, and sums that show more than the moments.

A site that knows the variances of the scores, and the limits of T2 and SPE, judges each of its rows by itself, and
nothing leaves the site. How many rows are beyond the limits, and the fourth moments of the scores, do leave the site:
both are about how single rows lie, which moments hide, and whoever holds the server chooses the directions and the
limits. So a site reports these sums only if its `may-show` says so.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import MIN_VARIANCE_SHARE, robust_intervals, spe_limit, t_squared_limit, variance_units
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Public, Question, Questions, SumLimits, Total
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.rows_client import Closing, Observer, Projection, RowsClient, RowsStage
from fedpca_flwr.site import scores
from fedpca_flwr.site.scores import LIMIT_LEVEL
from fedpca_flwr.stages.declarations import OddRows

ABOVE, FOURTH = Field("above", ("2",), "int64"), Field("fourth", ("k",), kind="size")
"""Number of rows that exceed the limit of T2, and of SPE; sums of the fourth powers of scores of variance 1."""


class RowObserver(Observer):
    """Observer that computes Hotelling's T2 and SPE (squared prediction error) of each row, and counts outliers."""

    def __init__(self, party: RowsClient, request: Fields, projection: Projection, files: ExitStack) -> None:
        """Check the request, and open the file of outlier statistics, which ``files`` closes.

        The request has ``variances`` (k,), and ``limits`` (2,) if rows are judged. Raise ContractError for another k,
        or if rows are counted about a centre that would round them, and ConfigError if the file cannot be written.
        """
        variances, limits, node = request["variances"], request.get("limits", np.empty(0)), party.site.node
        if len(projection.components) != variances.size:
            raise ContractError(
                f"{SERVER}: it sent {variances.size} variances of {len(projection.components)} components"
            )
        stream = files.enter_context(scores.outlier_file(node.scores, limits))
        if party.options.outliers == "counts":  # else what rows are beyond stays at the site
            projection.require_near()
        self.projection, self.rows, self.min_rows = projection, len(party.selection), node.min_rows
        names = scores.row_names(node.data) if stream is not None else None
        self.judge = scores.OddRows(projection.components, variances, limits, party.site.participation, stream, names)

    @override
    def watch(self, chunks: Iterator[Any]) -> Iterator[Any]:
        return self.judge.watch(chunks)

    @override
    def reply(self) -> Fields:
        """Return ``above``, the rows beyond T2's and SPE's limit (`suppress_small_counts`), and ``fourth`` (k,)."""
        counts = [suppress_small_counts(int(count), self.rows, self.min_rows) for count in self.judge.exceeding]
        unit = variance_units(self.judge.variances)
        return {"above": np.array(counts), "fourth": self.projection.fourth_powers() / unit**2}


class OddRowsStage(OddRows, RowsStage):
    """Stage for outliers: limits of Hotelling's T2 and of SPE for each row, counts of rows beyond, kurtosis."""

    @override
    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Add variances, limits and the requested sums to the projection; raise ConfigError for other options."""
        if self.options.outliers != "nothing" and not self.options.centred:
            raise ConfigError("run-config: 'outliers' needs center=true: limits are about distances to a mean")
        if self.options.fourth_moments and (self.options.scaled or not self.options.centred):
            raise ConfigError(
                "run-config: 'fourth-moments' needs center=true and scale=false: its intervals are for variances"
            )
        options, question = self.options, questions.get("project")
        if question is None:  # the method goes on as another one, whose script has it
            return questions
        limits = (Field("limits", ("2",), kind="positive", optional=True),) if options.outliers != "nothing" else ()
        reply_fields = [ABOVE] * (options.outliers == "counts") + [FOURTH] * options.fourth_moments
        last = replace(
            question,
            request=Payload((*question.request.fields, Field("variances", ("<=k",), kind="size"), *limits)),
            reply=Payload((*question.reply.fields, *reply_fields)),
            limits=lambda request, public: _sum_limits(question, reply_fields, request, public),
        )
        return {**questions, "project": last}

    @override
    def observer(self, party: RowsClient, request: Fields, projection: Projection, files: ExitStack) -> Observer:
        return RowObserver(party, request, projection, files)

    @override
    def closing(self, run: PCAStrategy, model: PCAModel, request: Fields) -> Closing:
        """Return ``variances`` (k,), and for outliers ``limits`` (2,) or (0,), of the last request; ask nothing."""
        limits = {} if self.options.outliers == "nothing" else {"limits": outlier_limits(model)}
        return {"variances": model.explained_variance_, **limits}
        yield

    @override
    def conclude(self, model: PCAModel, fit: Total) -> None:
        """Add the counts of outliers, and kurtosis with robust intervals, to the model's log."""
        options, limits = self.options, outlier_limits(model)
        if options.outliers != "nothing" and not limits.size:
            model.log["notes"].append("the components leave nothing out, or are rounding: rows have no limits")
        if options.outliers == "counts" and limits.size:
            t_squared, spe = np.rint(fit["above"]).astype(np.int64).tolist()
            model.log["measured"] |= {"rows_above_t_squared_limit": t_squared, "rows_above_spe_limit": spe}
            model.log["outliers"] = [
                {
                    "party": reply.sender,
                    "rows": int(reply.fields["count"]),
                    "above_t_squared_limit": int(reply.fields["above"][0]),
                    "above_spe_limit": int(reply.fields["above"][1]),
                }
                for reply in fit.replies
            ]
        if options.fourth_moments:
            kurtosis = fit["fourth"] / int(fit["count"])
            model.log["kurtosis"] = kurtosis.tolist()
            (low, high), *_ = robust_intervals(model.explained_variance_, kurtosis, model.n_samples_, 0.95)
            model.log["measured"] |= {"first_variance_low": float(low), "first_variance_high": float(high)}


def outlier_limits(model: PCAModel) -> Array:
    """Return the limits (2,) of Hotelling's T2 and of SPE, or an empty array if the components do not define any."""
    directions = model.log["measured"].get("left_out_directions")
    variances, n = model.explained_variance_, model.n_samples_
    if directions is None or variances.size >= n - 1 or variances[-1] <= MIN_VARIANCE_SHARE * variances[0]:
        return np.empty(0)
    residual_variance = model.total_variance - float(variances.sum())
    t_squared = t_squared_limit(variances.size, n, LIMIT_LEVEL)
    return np.array([t_squared, spe_limit(residual_variance, directions, LIMIT_LEVEL)])


def suppress_small_counts(count: int, rows: int, min_rows: int) -> int:
    """Return the count that a site reports: 0 if below ``min_rows``, all rows if fewer than ``min_rows`` are left out.

    So a server cannot choose a limit around a few rows to learn about these rows.
    """
    if count < min_rows:
        return 0
    return rows if rows - count < min_rows else count


def _sum_limits(question: Question, reply_fields: Sequence[Field], request: Fields, public: Public) -> SumLimits:
    """Return the last question's limits with those of the added ``reply_fields``, ``above`` and ``fourth``."""
    assert question.limits is not None
    sums, variances = dict(question.limits(request, public)), request["variances"]
    squares = np.divide(sums["squared"], variances, out=np.zeros_like(variances), where=variances > 0)
    limits = {"above": sums["count"], "fourth": squares**2 / sums["count"]}
    return {**sums, **{field.name: limits[field.name] for field in reply_fields}}
