"""Association of a phenotype with every feature (option ``associate``), by sums over people, after the projection.

With Z the column 1, the scores of the run's components and covariates of the sites' own files, two questions follow the
projection. ``null`` asks for sums about the null model, once more after each Newton step: one of a linear model, a few
of a logistic one. ``variants`` asks for the sums of each feature (`fedpca_flwr.maths.association`). People without
phenotype, or without a covariate, are in none of them. Where all people have both, and the components are those of an
eigendecomposition, X'T is V Lambda and no site is asked for it.

In secure sums limits are public: a site divides features and scores by what they can be within `bound`, phenotype and
covariates by `MAX_TRAIT`, and refuses larger ones.
"""

from collections.abc import Generator, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.association import MIN_RESIDUAL, NullSums, VariantSums, effects, residuals, variant_sums
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import (
    SERVER,
    Program,
    Public,
    Question,
    Questions,
    SumLimits,
    SumRound,
    Total,
    by_transport,
)
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.row_limits import MAX_ROWS
from fedpca_flwr.questions.rows_client import PROJECTION, Projection, RowsClient, RowsStage
from fedpca_flwr.site.phenotypes import read_phenotypes
from fedpca_flwr.site.policy import permit_rows
from fedpca_flwr.site.rare_values import conspicuous

WORD = "association"
"""Word by which a site permits these sums (node-config `allowed-methods`); also the key of the model's log."""

DISCLOSURE = (
    "sums of each feature over people with a phenotype, weighted by the phenotype. Whoever has a person's genotypes "
    "can tell from these sums whether the person is one of these people (Homer et al. 2008)"
)
MAX_TRAIT = 2.0**30
"""Largest absolute value of phenotypes and covariates."""

MAX_STEPS, MAX_DECREMENT = 25, 1e-9
"""Newton steps of a logistic null model, and the promised gain of the last one."""

NULL = (
    Field("people", (), "int64", kind="count"),
    Field("squares", (), kind="size"),
    Field("score", ("q",)),
    Field("information", ("q", "q")),
)
"""Sums about the null model (`NullSums`)."""

VARIANTS = (Field("score", ("d",)), Field("information", ("d",), kind="size"), Field("cross", ("d", "b")))
"""Sums of each feature (`VariantSums`)."""

STATE = {name: f"association {name}" for name in ("projection", "traits", "scores")}
"""Keys in a party's state for the run."""


class AssociationOptions(PCAOptions):
    """Options of the association: kind of model, and names of columns in the sites' files of phenotypes."""

    associate: Annotated[Literal["nothing", "linear", "logistic"], Limits(examples=[])] = "nothing"
    """Regress a phenotype on each feature, with components and covariates: by least squares ('linear'), or a phenotype
    of 0 and 1 by a score test ('logistic') (docs/association.md)."""
    phenotype: str = ""
    """Column of the phenotype in the sites' files (node-config 'phenotypes'), with `associate`."""
    phenotype_covariates: str = ""
    """Columns of covariates in these files, with commas between them, with `associate`."""


class Association(RowsStage):
    """Stage that asks for the sums of regressions on each feature, once the parties have projected their rows."""

    Options = AssociationOptions
    option_names = ("associate", "phenotype", "phenotype_covariates")
    needs = ("rows",)
    options: AssociationOptions

    @classmethod
    @override
    def fits(cls, card: MethodCard) -> bool:
        """Return whether the method pools rows, and does not go on as another one."""
        return card.pools_rows and not card.successors

    @property
    @override
    def exposes(self) -> str:
        """Kind of information on rows: "scores" if logistic, since the server's coefficients weigh rows."""
        return "scores" if self.options.associate == "logistic" else "distribution"

    @property
    @override
    def sum_disclosures(self) -> Mapping[str, str]:
        """Disclosure of the sums, which a site permits by `WORD`."""
        return {WORD: DISCLOSURE}

    @override
    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Check the options, and add both questions after the projection."""
        chosen = self.options.model_dump()
        conflicts = [name for name in ("adjust_for", "harmonise") if chosen.get(name, "nothing") not in ("", "nothing")]
        if conflicts or config.weights or config.survivors or not self.options.centred:
            raise ConfigError(
                "run-config: 'associate' goes only with center=true, without 'adjust-for', 'harmonise', 'weights' and "
                "'survivors'; name covariates as 'phenotype-covariates'"
            )
        names = trait_names(self.options)
        if self.options.associate == "nothing" or not self.options.phenotype or len(set(names)) < len(names):
            raise ConfigError(
                "run-config: 'associate' ('linear' or 'logistic') and 'phenotype' (a column of the sites' files) go "
                f"together, and 'phenotype-covariates' names other columns: they are {self.options.associate!r}, "
                f"{self.options.phenotype!r} and {self.options.phenotype_covariates!r}"
            )
        if "project" not in questions:  # the method goes on as another one, whose script has it
            return questions

        def sizes(public: Public) -> dict[str, int]:
            return {"q": public.features + len(names)}

        coefficients = Field("coefficients", ("<=q",))
        null = Question(
            request=Payload((coefficients,)),
            reply=Payload(NULL),
            answer=_null_sums,
            needs="rows",
            sizes=sizes,
            limits=_limits,
            words=3,
            times=1 + (MAX_STEPS if self.options.associate == "logistic" else 1),
            closing=True,
        )
        variants = Question(
            request=Payload((coefficients, Field("columns", ("<=b",), "int64"))),
            reply=Payload(VARIANTS),
            answer=_variant_sums,
            needs="rows",
            sizes=lambda public: {**sizes(public), "b": sizes(public)["q"]},
            limits=_limits,
            words=2,
            closing=True,
        )
        return {**questions, "null": null, "variants": variants}

    # A party

    @override
    def require_ready(self, party: RowsClient) -> None:
        """Refuse, before the first answer, a run that the site does not permit by name, or traits that do not fit."""
        node = party.site.node
        if node.data and WORD not in node.allowed_methods.replace(",", " ").split():
            raise DisclosureError(
                f"the run's option 'associate' asks for {DISCLOSURE}. This site's node-config does not permit that: "
                f"name '{WORD}' in 'allowed-methods', beside '{party.card.name}' and all others that it allows"
            )
        _traits(party)

    @override
    def store_request(self, party: RowsClient, request: Fields) -> None:
        """Store the components, mean and scale with which the party projects its rows."""
        if request.keys() >= set(PROJECTION):
            party.site.state[STATE["projection"]] = [request[name] for name in PROJECTION]

    # The server

    @override
    def seal(self, run: PCAStrategy, model: PCAModel, request: Fields) -> Program:
        """Fit the null model, ask for the variants' sums, and put effects and standard errors into the model's log."""
        logistic, V = self.options.associate == "logistic", request["components"]
        feature_unit, score_unit = sum_units(public_bound(run.config, self.options), *(request[n] for n in PROJECTION))
        coefficients, decrement = np.zeros(len(V) + len(trait_names(self.options))), np.inf
        null = first = yield from _pooled_null(coefficients)
        if logistic and not 0 < null.score[0] + null.people / 2 < null.people:
            raise DataError(f"all people have the same phenotype '{self.options.phenotype}', expected 0 and 1")
        for _ in range(MAX_STEPS if logistic else 1):
            step, decrement = null.step()
            coefficients = coefficients + step
            null = yield from _pooled_null(coefficients)
            if decrement <= MAX_DECREMENT:
                break
        if logistic and not decrement <= MAX_DECREMENT:
            raise DataError("the covariates tell cases from controls: the logistic model without variants has no end")
        if not logistic and null.squares <= MIN_RESIDUAL * first.squares:
            raise DataError(f"the phenotype '{self.options.phenotype}' does not vary beyond scores and covariates")
        columns, cross = np.arange(coefficients.size), np.empty((V.shape[1], 0))
        is_complete = (
            run.card.exact and run.certificate == 0 and null.people == model.n_samples_ and np.any(V, axis=0).all()
        )
        if is_complete and not logistic:
            projected = V.T * model.singular_values_**2 * feature_unit[:, None] / score_unit
            cross, columns = np.column_stack([np.zeros(len(projected)), projected]), columns[1 + len(V) :]
        total = yield SumRound("variants", {"coefficients": coefficients, "columns": columns})
        sums = VariantSums(total["score"], total["information"], np.column_stack([cross, total["cross"]]))
        scale = request["scale"] if request["scale"].size else 1.0
        unit = feature_unit / scale * (1 if logistic else MAX_TRAIT)
        beta, se = (
            [value if np.isfinite(value) else None for value in (numbers * unit).tolist()]
            for numbers in effects(null, sums, logistic=logistic)
        )
        chosen = self.options.model_dump(include=set(self.option_names))
        fit = {"people": int(null.people), "covariates": coefficients.size, "beta": beta, "se": se}
        model.log[WORD] = {**chosen, **fit}


def trait_names(options: Any) -> list[str]:
    """Return the columns of the sites' files that a run names: phenotype, then covariates.

    Parameters
    ----------
    options : PCAOptions

    Returns
    -------
    list of str
    """
    names = (name.strip() for name in options.phenotype_covariates.split(","))
    return [options.phenotype, *filter(None, names)]


def public_bound(config: RunConfig, options: PCAOptions) -> float:
    """Return the largest size of a value of the rows in secure sums, which stages may know, else 0.

    Parameters
    ----------
    config : RunConfig
    options : PCAOptions

    Returns
    -------
    float
    """
    for stage in options.stages:
        config = stage(options).method_config(config)
    return by_transport(config, clear=0.0, masked=config.bound)


def sum_units(bound: float, components: Array, mean: Array, scale: Array) -> tuple[Array, Array]:
    """Return a factor (d,) of projected features, and a divisor (k,) of scores, by which both are within 1.

    Parameters
    ----------
    bound : float
        Largest size of a value of the rows; 0: both units are 1.
    components : ndarray of shape (k, d)
    mean : ndarray of shape (d,)
    scale : ndarray of shape (d,) or (0,)

    Returns
    -------
    feature_unit : ndarray of shape (d,)
    score_unit : ndarray of shape (k,)
    """
    if not bound:
        return np.ones(mean.size), np.ones(len(components))
    size = (bound + np.abs(mean)) / (scale if scale.size else 1.0)
    return 1 / size, np.abs(components) @ size


def _limits(request: Fields, public: Public) -> SumLimits:
    """Return limits of all sums: features, scores and traits are within 1."""
    linear = 1 + float(np.abs(request["coefficients"]).sum()) if public.options.associate == "linear" else 1.0
    limits = {"score": linear, "information": 1.0}
    limits |= {"cross": 1.0} if "columns" in request else {"people": 1.0, "squares": linear**2}
    return {name: np.array(MAX_ROWS * limit) for name, limit in limits.items()}


def _traits(party: RowsClient) -> Array:
    """Return phenotype and covariates (n, 1 + c) of the party's rows, NaN for all of a person who lacks one."""
    state, site = party.site.state, party.site
    if STATE["traits"] in state:
        return state[STATE["traits"]][0]
    names, table, rows = trait_names(party.options), site.table, len(party.participants.rows)
    if not site.node.phenotypes:
        raise ConfigError(
            "the run associates a phenotype (option 'associate'), and this site's node-config names no file as "
            "'phenotypes'"
        )
    values = read_phenotypes(site.node.phenotypes, names, site.node.data, len(table.rows))
    values = (values if table.excluded is None else values[~table.excluded])[:rows]
    people = np.asarray(~np.isnan(values).any(axis=1))
    permit_rows(site.node, int(people.sum()))
    if 0 < rows - people.sum() < site.node.min_rows:
        raise DisclosureError(
            "fewer people of this site than its own minimum (node-config 'min-rows') have no phenotype or covariate: "
            "sums with and without them would tell of these few; let node-config 'apart' name them, or lower 'min-rows'"
        )
    if np.abs(values[people]).max() > MAX_TRAIT:
        raise DataError(f"this site's phenotypes or covariates are beyond {MAX_TRAIT:.0f} in size; change their unit")
    if party.options.associate == "logistic" and not np.isin(values[people, 0], (0, 1)).all():
        raise DataError(
            f"this site's phenotype '{names[0]}' has other values than 0 (control) and 1 (case), which "
            "associate='logistic' needs"
        )
    if site.node.data and site.refuses_rare_values:
        columns = conspicuous(values[people], site.node.min_rows).text(names)
        if columns:
            raise DisclosureError(
                "this site's phenotypes or covariates have values of so few people that sums would tell of "
                "these; leave such columns out, or, if this site is content with that, set rare-values='allow' in its "
                "node-config",
                local=columns,
            )
    state[STATE["traits"]] = [np.where(people[:, None], values, np.nan)]
    return _traits(party)


def _people(party: RowsClient, request: Fields) -> tuple[Array, Array, Array]:
    """Return Z (m, q) of the party's people with a phenotype, their residuals (m,) and weights (m,)."""
    state, traits, logistic = party.site.state, _traits(party), party.options.associate == "logistic"
    traits = traits[~np.isnan(traits[:, 0])]
    if STATE["scores"] not in state:
        scores = np.concatenate(list(_projection(party).scores(party.participants.rows)))
        _, score_unit = sum_units(public_bound(party.site.config, party.options), *state[STATE["projection"]])
        state[STATE["scores"]] = [scores[~np.isnan(_traits(party)[:, 0])] / score_unit]
    Z = np.column_stack([np.ones(len(traits)), state[STATE["scores"]][0], traits[:, 1:] / MAX_TRAIT])
    coefficients = request["coefficients"]
    if coefficients.size != Z.shape[1]:
        raise ContractError(f"{SERVER}: sent {coefficients.size} coefficients of {Z.shape[1]} covariates")
    residual, weights = residuals(traits[:, 0] / (1 if logistic else MAX_TRAIT), Z, coefficients, logistic=logistic)
    if logistic:  # coefficients that are no estimate might leave a few people in the sums
        for shares in (np.abs(residual), weights):
            permit_rows(party.site.node, len(shares), np.maximum(shares, np.finfo(np.float64).tiny))
    return Z, residual, weights


def _projection(party: RowsClient) -> Projection:
    """Return the party's projection by the stored components, mean and scale."""
    return party.projection(dict(zip(PROJECTION, party.site.state[STATE["projection"]], strict=True)))


def _null_sums(party: RowsClient, request: Fields) -> Fields:
    """Return a party's sums about the null model."""
    Z, residual, weights = _people(party, request)
    return {
        "people": np.asarray(residual.size),
        "squares": np.asarray(residual @ residual),
        "score": Z.T @ residual,
        "information": Z.T @ (weights[:, None] * Z),
    }


def _variant_sums(party: RowsClient, request: Fields) -> Fields:
    """Return a party's sums of each feature, with the columns of Z that the request names."""
    Z, residual, weights = _people(party, request)
    columns = request["columns"]
    if columns.size and not 0 <= columns.min() <= columns.max() < Z.shape[1]:
        raise ContractError(f"{SERVER}: names columns beyond the {Z.shape[1]} covariates")
    people = ~np.isnan(_traits(party)[:, 0])
    sums = variant_sums(_projection(party).centred(party.participants.rows), people, residual, weights, Z[:, columns])
    bound = public_bound(party.site.config, party.options)
    unit, _ = sum_units(bound, *party.site.state[STATE["projection"]])
    return {"score": sums.score * unit, "information": sums.information * unit**2, "cross": sums.cross * unit[:, None]}


def _pooled_null(coefficients: Array) -> Generator[SumRound, Any, NullSums]:
    """Ask for the sums about the null model."""
    total: Total = yield SumRound("null", {"coefficients": coefficients})
    return NullSums(float(total["people"]), float(total["squares"]), total["score"], total["information"])
