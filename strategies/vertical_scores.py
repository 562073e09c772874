"""VERTICAL-SCORES: exact scores of new rows, from the loadings that the sites kept of a run with `vertical`.

Site i kept the loadings V_i (k x d_i) of its columns. For n new rows X = [X_1, ..., X_p], each site centres and
scales its columns as in the earlier run, and sends its part ``X_i V_i'``. All sites receive the sum of the parts for
their files `scores`.

Nothing is fitted. The model holds the scores, and the share of the new rows' squared distances from the old means that
the scores explain.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from typing_extensions import override

from fedpca_flwr.maths.columns import Columns
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.solution import Certainty
from fedpca_flwr.questions import columns
from fedpca_flwr.questions import columns_method as method
from fedpca_flwr.questions.digits import digits_questions
from fedpca_flwr.questions.pooling import COUNT


class ScoresOptions(method.CountOptions):
    """Options of VERTICAL-SCORES: the number of components."""

    n_components: method.Count = 10
    """Number of the loadings' components, from the first on."""


SCALED_FIELD = method.Field("scaled", (), "int64", kind="size", constant="scaled")


def scores_script(config: method.RunConfig, options: ScoresOptions) -> method.Questions:
    """Return the questions of VERTICAL-SCORES: rows and loadings' run, parts of the scores, and their sum."""
    loadings_fields = (
        method.Field("run", (), "uint64"),
        method.Field("components", (), "int64", kind="count"),
        SCALED_FIELD,
    )
    scaled = method.by_transport(config, clear=(), masked=(SCALED_FIELD,))
    of_loadings = columns.LocalStatistic(loadings_fields, _loadings_info)
    scores = method.Question(
        request=method.Payload((method.Field("components", ("<=k",), "int64", kind="size"), *scaled)),
        reply=method.Payload((method.Field("scores", ("n", "k")),)),
        answer=_answer_scores,
        sizes=columns.component_sizes,
        limits=_score_limits,
    )
    project = method.Question(
        request=method.Payload((method.Field("scores", ("n", "<=k")),)),
        reply=method.Payload((COUNT,)),
        answer=_store_scores,
        sizes=columns.component_sizes,
        in_clear=True,
        closing=True,
    )
    return {
        **columns.rows_questions(config, columns.energy_question(None, *scaled), of_loadings),
        **digits_questions(config, "scores", scores),
        "project": project,
    }


def _score_limits(request: method.Fields, public: method.Public) -> method.SumLimits:
    """Return the limit ``scores``, sqrt(P) |x|: P parties' loadings have length up to 1 each, and |x| bounds a row."""
    product = columns.product_limit(None, public, scaled=bool(request["scaled"]))
    return {"scores": np.sqrt(public.parties * product)}


def _answer_scores(party: VerticalScoresClient, request: method.Fields) -> method.Fields:
    """Return a party's part of the scores (n, k): its columns times its loadings of the request's ``components``."""
    return {"scores": party.local_columns @ party.fitted_loadings.components[request["components"]].T}


def _store_scores(party: VerticalScoresClient, request: method.Fields) -> method.Fields:
    """Write the scores (n, k) that the server sent to the site's file, and return the number of rows."""
    with np.errstate(all="ignore"):  # whatever was sent, nothing of the rows shows in an error
        party.write_scores(request["scores"])
    return {"count": np.asarray(len(party.selection))}


def _loadings_info(party: VerticalScoresClient, request: method.Fields) -> method.Fields:
    """Return the fields ``run`` (digest of the run that made the loadings), ``components`` (number) and ``scaled``."""
    return {
        "run": np.asarray(party.fitted_loadings.run, np.uint64),
        "components": np.asarray(len(party.fitted_loadings.components)),
        "scaled": np.asarray(int(party.scaled)),
    }


CARD = method.MethodCard(
    name="vertical-scores",
    title="Scores of new rows",
    exact=True,
    result="",
    rounds="2",
    upload="5, then n k for n rows",
    server_sees="each party's part of the scores",
    disclosure=method.Disclosure(
        "its numbers of rows and columns, a digest of the earlier run, the squared distances of the new rows from the "
        "old means in its columns, and its part of their scores",
        "the scores of all new rows",
    ),
    summed_disclosure=method.Disclosure(
        "the sum of squares of the columns, and the scores; about each site its numbers of rows and columns, a digest "
        "of its ids, and a digest of the earlier run",
        "the scores of all new rows",
    ),
    options=ScoresOptions,
    script=scores_script,
    reference="Cheung et al. 2022, equation 10",
    differences="The paper has no scores of new rows. The scores here are `X V` with the loadings V of columns.",
    split="columns",
    exposes="scores",
    loadings_source="vertical",
)


class VerticalScoresClient(method.Client):
    """Client of VERTICAL-SCORES, which projects new rows by the loadings of an earlier run."""

    @override
    def require_ready(self) -> None:
        """Raise as `fitted_loadings` and `ColumnsClient.require_ready`, before any answer."""
        assert self.fitted_loadings  # loadings that do not fit are said before anything is answered
        super().require_ready()

    @cached_property
    def fitted_loadings(self) -> Loadings:
        """Loadings that this party stored in the earlier run.

        Raise ConfigError if the site names no file, or the file no run or another `transform`, ContractError for a file
        that is missing or damaged, and DataError if the number or the names of the new rows' columns differ.
        """
        path, width = self.site.node.loadings, self.selection.shape[1]
        if not path:
            raise method.ConfigError(
                "this site's node-config names no 'loadings': the file that a run with the method 'vertical' wrote here"
            )
        try:
            loadings = Loadings.load(path)
        except method.ContractError as error:
            raise method.ContractError(
                "the file of this site's 'loadings' is missing or not whole", local=str(error)
            ) from None
        if loadings.mean.size != width:
            raise method.DataError(
                f"this site's new rows have {width} columns, its loadings are of {loadings.mean.size}"
            )
        if self.site.table.names_digest and loadings.columns not in ("", self.site.table.names_digest):
            raise method.DataError(
                "this site's new rows have other column names, or another order of them, than the rows that its "
                "loadings are of"
            )
        if loadings.transform != self.site.config.transform:
            raise method.ConfigError(
                f"this site's loadings are of a run with transform='{loadings.transform}', and this run has "
                f"'{self.site.config.transform}': give both runs the same"
            )
        if not loadings.run:
            raise method.ConfigError("this site's loadings do not say of which run they are; fit again with 'vertical'")
        return loadings

    @property
    def scaled(self) -> bool:
        """True if the stored loadings divide columns by standard deviations."""
        return bool((self.fitted_loadings.scale != 1).any())

    @override
    def store_request(self, request: method.Fields) -> None:
        """Raise ContractError for a request that denies scaling although this party's loadings are scaled."""
        if self.scaled and not request.get("scaled", 1):
            raise method.ContractError("the server says that no party's loadings divide by deviations; this site's do")

    @cached_property
    @override
    def local_columns(self) -> Columns:
        """Columns of the new rows, centred and scaled by the stored loadings' means and scales."""
        loadings = self.fitted_loadings
        remainder = np.zeros_like(loadings.mean) + loadings.remainder
        return Columns(self.selection.rows, loadings.mean, remainder, loadings.scale, np.zeros(remainder.size, bool))


class VerticalScores(method.Run):
    """Strategy of VERTICAL-SCORES: scores of new rows as the sum of the parties' parts, without any fit.

    A row x of all columns has the scores ``V (x - m) / s = sum_i V_i (x_i - m_i) / s_i``, with the means m and the
    scales s of the earlier run (Cheung et al. 2022, Vertical Federated Principal Component Analysis and Its Kernel
    Extension on Feature-wise Distributed Data, equation 10). The model's values are the energies of the scores.
    """

    card = CARD
    party = VerticalScoresClient
    options: ScoresOptions

    @override
    def n_components(self, rows: int, columns: int) -> int:
        """Return the requested number of components, whatever the number of rows."""
        return self.options.n_components  # nothing is fitted: one row is enough

    @override
    def set_total(self, total: float) -> None:
        """Store the new rows' sum of squares about the old means; raise DataError for zero or infinity."""
        if not 0 < total < np.inf:
            raise method.DataError(
                "the new rows have no energy about the means of the fitted ones: all are equal to these"
            )
        self.total = total

    @override
    def program(self) -> method.Program:
        """Sum the parties' parts of the scores, make the model, send the sum; raise as `common_component_count`."""
        replies = yield from columns.aligned_rows(self)
        available = common_component_count(replies)
        scaled = {"scaled": np.asarray(max(int(reply.fields["scaled"]) for reply in replies))}
        scaled = method.by_transport(self.config, clear={}, masked=scaled)
        yield from columns.total_energy(self, replies, **scaled)
        k = min(self.options.n_components, available)
        sums: method.Total = yield from columns.sum_in_digits(
            self, "scores", {"components": np.arange(k), **scaled}, self.total**0.5
        )
        notes = [] if k == available else [f"the first {k} of the {available} components of the loadings"]
        log = self.history(Certainty(self.exact, []), [*notes, *self.order_notes()], {})
        scores = sums["scores"]
        values = np.einsum("ij,ij->j", scores, scores)  # of the new rows, about the means of the fitted ones
        model = method.PCAModel.of_scores(scores, values, total=self.total, features=self.columns, log=log)
        yield method.Round("project", {"scores": scores})
        self._model = model


def common_component_count(replies: list[method.Reply]) -> int:
    """Return the number of components in all first replies; raise ConfigError for loadings of different runs."""
    witness = replies[0]
    for reply in replies:
        if any(reply.fields[name] != witness.fields[name] for name in ("run", "components")):
            raise method.ConfigError(
                f"{reply.sender}: its loadings are of another run than those of {witness.sender}; name in every "
                "node-config the 'loadings' of one run"
            )
    return int(witness.fields["components"])
