"""Cards and options of methods, and the base class of stages; code, tests and documentation read the same cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, methodcaller
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import override

from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.run_config import ComponentChoice, Config, Count, Fraction, RunConfig, refusal
from fedpca_flwr.data.categories import Levels, indicator_names
from fedpca_flwr.maths.description import represent_by_shapes
from fedpca_flwr.protocol.question import Public, Questions

Size = Annotated[int, Field(ge=0)] | Literal["n-components"]  # 0 stands for another default
Components = Annotated[Count | Fraction, Field(union_mode="left_to_right")]


class PCAOptions(Config):
    """Options that every method has.

    Tests try all values of flags and choices, and the `examples` of other fields, with "k", "n" and "d" for sizes.
    """

    unavailable: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("adjust-for", "harmonise", "numbers"), "it needs the moments of covariates and features together: take p-cov"
    )

    n_components: Annotated[Components, Field(examples=[0.3, 0.9, 0.99])] = 10
    """Number of components, or the fraction of the variance that they must exceed."""

    def product_columns(self, public: Public) -> int:
        """Return about how many columns a run multiplies with a party's scatter (d, d) in total; 0 without products."""
        return 0

    def max_gram_columns(self, rows: int) -> int:
        """Return the most columns of products with ``X X'`` of a party of `rows` rows that a run may request, or 0."""
        return 0

    @property
    def centred(self) -> bool:
        """True if the pooled mean is subtracted from the rows."""
        return not isinstance(self, CentreOptions) or self.center

    @property
    def scaled(self) -> bool:
        """True if features are divided by their standard deviations."""
        return isinstance(self, ScaleOptions) and self.scale

    @property
    def feature_weights(self) -> tuple[float, ...]:
        """Weights of the features, by whose roots they are multiplied after scaling; empty for 1."""
        return ()

    @property
    def divided(self) -> bool:
        """True if features are divided by their standard deviations, by roots of weights, or both."""
        return self.scaled or bool(self.feature_weights)

    @property
    def could_scale(self) -> bool:
        """True if the method can divide features by their standard deviations, and the options do not request that."""
        return isinstance(self, ScaleOptions) and not self.scale

    @property
    def covariates(self) -> list[str]:
        """Names or numbers of the columns that the run regresses out of all others; the base has none."""
        return []

    def covariate_names(self, levels: Levels) -> list[str]:
        """Return the names or numbers of the covariates' columns: all indicators of a covariate with levels."""
        names = {name: indicator_names({name: levels[name]}) if name in levels else (name,) for name in self.covariates}
        return [column for name in self.covariates for column in names[name]]

    @property
    def exposes(self) -> str:
        """Kind of numbers about single rows that the options show in addition to `MethodCard.exposes`; empty for none.

        Options that weigh, cut, order or select rows show at least the "distribution": answers that are no function of
        the count, mean and scatter of all rows that take part.
        """
        return ""

    @property
    def sum_disclosures(self) -> Mapping[str, str]:
        """Texts by keyword that say what sums over all parties reveal about a single party.

        The keys are the words by which a site permits these sums (node-config `allowed-methods`): the method's name, or
        the name of an option's choice. Empty if the sums are functions of the pooled rows, however these are divided.
        """
        return {}

    @property
    def stage_option_names(self) -> frozenset[str]:
        """Names of the options that select a `Stage`, a step before or after the method; the base has none."""
        return frozenset()

    @property
    def stages(self) -> tuple[type[Stage], ...]:
        """Classes of the stages (steps before or after the method) that the options select, in their order."""
        return ()

    def stored_moments_count(self, parties: int) -> int:
        """Return how many sets of moments the server stores with the model of a run of `parties` parties; 0 here."""
        return 0


def _require_count(value: object) -> object:
    """Return a number of components unchanged; raise `refusal` for a fraction and for text."""
    if isinstance(value, float | str):
        raise refusal(
            "expected a whole number from 1. Only methods that know all variances take a fraction or 'auto' "
            "(docs/which-method.md)"
        )
    return value


class CountOptions(PCAOptions):
    """Options of a method that takes a number of components, but no fraction of the variance."""

    n_components: Annotated[Count, BeforeValidator(_require_count)] = 10
    """Number of components."""


class VariantOptions(Config):
    """Options of a method whose defaults are not those of its publication; a method lists these in `published`."""

    variant: Literal["ours", "paper"] = "ours"
    """Defaults of the other options: those of this project ('ours'), or the formulas, numbers and start of the
    publication ('paper')."""

    @model_validator(mode="before")
    @classmethod
    def _fill_published(cls, values: Any) -> Any:
        """Return the values, with those of `published` for options that ``variant='paper'`` leaves open."""
        if not isinstance(values, dict) or values.get("variant") != "paper":
            return values
        names = {str(key).replace("-", "_") for key in values}
        return {**{name: value for name, value in cls.published.items() if name not in names}, **values}


class CentreOptions(PCAOptions):
    """Options of a method that may skip the subtraction of the pooled mean (``center=False``)."""

    center: bool = True
    """Subtract the mean of all rows."""


class ScaleOptions(CentreOptions):
    """Options of a method that can scale features, with variances known before the products begin."""

    scale: bool = False
    """Divide each feature by its standard deviation over all rows (divisor n, as `StandardScaler`)."""


class WeightOptions(ScaleOptions):
    """Options of a method that can give each feature a weight."""

    column_weights: str = ""
    """Weight of each feature ('4 1 0.5'), by whose root it is multiplied after scaling. If empty, all weigh 1."""

    @property
    @override
    def feature_weights(self) -> tuple[float, ...]:
        """Weights of the features, split from the option ``column_weights``."""
        return tuple(map(float, self.column_weights.replace(",", " ").split()))

    @model_validator(mode="after")
    def _require_weights(self) -> Self:
        """Raise `refusal` for weights that are no numbers above 0, or beside stored moments or stages."""
        try:
            is_valid = all(1e-100 < weight < 1e100 for weight in self.feature_weights)
        except ValueError:
            is_valid = False
        if not is_valid:
            raise refusal("'column-weights' has others than numbers above 0; leave out columns that shall not count")
        if self.column_weights and (others := self.non_defaults & {"keep", *self.stage_option_names}):
            advice = "moments.scaled(1 / numpy.sqrt(weights)) weighs the columns of stored moments"
            raise refusal(f"'column-weights' does not go with '{min(others).replace('_', '-')}'; {advice}")
        return self


class ScaledOptions(ScaleOptions):
    """Options of a method that knows all variances, and so takes a fraction of variance or 'auto'."""

    n_components: Annotated[ComponentChoice, Field(examples=[0.3, 0.9, 0.99, "auto"])] = 10  # type: ignore[assignment]  # wider than the type of the base class
    """Number of components, or the fraction of the variance that they must exceed, or 'auto': the components whose
    variances exceed those of unrelated features with the same variances (parallel analysis)."""

    @property
    def solve_options(self) -> dict[str, Any]:
        """Keyword arguments n_components, center, scale and weights for `fedpca_flwr.model.solution.solve`."""
        keywords = {"n_components": self.n_components, "center": self.center, "scale": self.scale}
        return {**keywords, "weights": self.feature_weights}

    @model_validator(mode="after")
    def _require_centre_for_auto(self) -> Self:
        """Raise `refusal` for n_components='auto' without centring."""
        if self.n_components == "auto" and not self.center:
            raise refusal("'n-components' is 'auto', which needs center=true, because it compares variances")
        return self


class MomentsOptions(ScaledOptions):
    """Options of a method whose server has count, mean and scatter of all rows, and may keep the moments."""

    keep: Literal["nothing", "moments", "parties"] = "nothing"
    """Moments that the server stores with the model (docs/statistics.md): those of all rows ('moments'), and in clear
    also those of each site ('parties')."""

    @override
    def stored_moments_count(self, parties: int) -> int:
        """Return 0 with keep='nothing', 1 with 'moments', and 1 more for each party with 'parties'."""
        return {"nothing": 0, "moments": 1, "parties": 1 + parties}[self.keep]


class Disclosure(NamedTuple):
    """Texts that say what the server, other parties and the network learn about a party."""

    server: str
    """Information on a party that the server gets."""
    parties: str = "the pooled components and mean"
    """Information on a party that the other parties get."""
    network: str = "sizes and times of messages"
    """Information on a party that an observer of the network gets."""


@lru_cache(maxsize=32)
def method_questions(
    script: Callable[[RunConfig, Any], Questions], config: RunConfig, options: PCAOptions
) -> Questions:
    """Return a method's questions by name, in the order of a run, from its `script` function; cache the result."""
    return script(config, options)


@represent_by_shapes
@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """Declaration of a method: its name, options, questions and what the method reveals."""

    name: str
    """Name of the method, as in ``method='p-cov'``."""
    title: str
    """Name of the method in pages and tables."""
    exact: bool
    """Whether the model equals the PCA of the pooled rows up to rounding."""
    rounds: str
    """Number of rounds before the parties project their rows. This text, `upload`, `server_sees` and `disclosure` are
    about a run in clear."""
    options: type[PCAOptions]
    """Class of the method's own options. The key `method` holds them after the name; `n_components` is a key of every
    run."""
    script: Callable[[RunConfig, Any], Questions]
    """Function of the run-config and the options that returns the run's script, without the questions of the
    transport."""
    reference: str
    """Publication of the method."""
    upload: str
    """Size of a party's replies, in float64 values of d features, k components and n rows."""
    server_sees: str
    """Numbers that the server sees, in a few words."""
    disclosure: Disclosure
    """Texts on everything that others learn about a party."""
    summed_disclosure: Disclosure | None = None
    """Texts on everything that others learn about all parties together, if they see only sums; None if these are the
    texts of `disclosure`."""
    pools_moments: bool = False
    """Whether the server adds up the parties' moments, or factors of them. If the server sees the moments, the model
    states the influence of each party."""
    result: str = ""
    """Sentences without the last period that a reader of the result must know besides `exact`."""
    differences: str = ""
    """Sentences on how the method's defaults differ from its publication: what, why, and how far on one data set."""
    examples: Sequence[Mapping[str, Any]] = ({},)
    """Options with which the method runs, beginning with the required options. The scripts of the examples contain
    every question that a run may ask; docs/security/questions.md lists them."""
    successors: Sequence[str] = ()
    """Methods of the registry with which a run may continue after its own questions, at most with two of them in
    turn."""
    incomplete: bool = False
    """Whether rows may have missing values."""
    mixed: bool = False
    """Whether columns may be categories (run-config ``levels``)."""
    weighted: bool = False
    """Whether rows may have weights (`fedpca_flwr.stages.weights`)."""
    rotatable: bool = False
    """Whether the server needs only the pooled scatter. Rotated features then give rotated components (run-config
    ``blind``)."""
    differentially_private: bool = False
    """Whether everything that leaves a party is differentially private. A party's messages then contain no number of
    rows, and its answer in the last round is constant."""
    split: Literal["rows", "columns"] = "rows"
    """Data of a party: some rows of all features, or all rows of some features."""
    exposes: Literal["", "distribution", "scores", "inner products"] = ""
    """Kind of numbers about single rows that the method shows beyond the model: their distribution beyond moments;
    their scores (with products of the same kind); or all inner products or distances between rows."""
    loadings_source: str = ""
    """Method whose run leaves the loadings with which this method projects new rows; empty for a method that fits."""
    open_membership: bool = False
    """Whether members of the federation may be absent from a run."""
    adapts_rank: bool = False
    """Whether ``n_components`` is where the number of components begins, and the data decide how many there are."""
    local_components: Literal["", "iterates", "personal"] = ""
    """Whether each party projects its rows with its own components: "iterates" that have not converged to those of the
    other parties, or "personal" components, which need not converge."""
    non_mean_centre: bool = False
    """Whether rows have another centre than their mean, and are divided by other deviations."""
    variance_base: str = ""
    """Total that shares of variance refer to, if not the variance of the pooled rows."""
    stages: Sequence[type[Stage]] = ()
    """Stages that a run may compose with the method; the registry sets them (`fedpca_flwr.stages`)."""
    needs: Sequence[Literal["groups", "rows"]] = ()
    """Data that the answers need besides functions of the moments of all rows that take part: sums over groups of
    rows, or single rows. The vault of a party offers these to methods that need them, and to no others."""
    beyond_moments: str = ""
    """Reason why a party's answers show more than count, mean and scatter of all its rows that take part; empty if they
    show no more. Such a method must declare `exposes`, unless noise hides the rows, or a site's key `gaps` decides
    which rows take part."""

    @property
    def pools_rows(self) -> bool:
        """True if all parties get the same components, of all rows, in the data's unit."""
        special = self.differentially_private or self.incomplete or self.non_mean_centre or self.open_membership
        return self.split == "rows" and not (
            special or self.local_components or self.beyond_moments or self.loadings_source
        )

    def active_stages(self, config: RunConfig, options: Any) -> tuple[Any, ...]:
        """Return the stages (steps before or after the method) that this run's keys and options select, in their order.

        Parameters
        ----------
        config : RunConfig
            Configuration, whose keys select the stages without options.
        options : PCAOptions
            Options of the method, which select the others.

        Returns
        -------
        tuple of Stage
            New ones. A stage that composes takes the place of those that the options select.
        """
        keys = config.non_defaults
        kinds: list[type[Stage]] = []
        for stage in self.stages:
            if stage.Options is PCAOptions and keys & set(stage.option_names):
                kinds.append(stage)
        if not any(map(attrgetter("composes"), kinds)):
            kinds += options.stages
        return tuple(map(methodcaller("enter", options), kinds))


class Stage:
    """Base of stages: optional steps before or after a method, which a run's options select, new for each run."""

    Options: ClassVar[type[PCAOptions]] = PCAOptions
    """Class of the stage's options."""
    option_names: ClassVar[tuple[str, ...]] = ()
    """Names of options (or, for a stage without options, of keys of a run). A run selects the stage if one of them
    differs from its default."""
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Options with which a method's script has all questions of the stage, as `MethodCard.examples`."""
    needs: ClassVar[Sequence[Literal["groups", "rows"]]] = ()  # as `MethodCard.needs`
    sums_only: ClassVar[bool] = False  # whether it goes with secure sums only
    accepts_missing: ClassVar[bool] = False  # whether rows may have missing values
    composes: ClassVar[bool] = False  # whether it takes the place of all stages that options select, and calls them
    options: Any

    implementation: ClassVar[str] = ""
    """Path (`load_entry`) of the derived class that a run enters, if this class only declares the stage."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def enter(cls, options: Any) -> Any:
        """Return a new stage for a run with these options, an instance of the implementation."""
        kind = load_entry(cls.implementation) if cls.implementation else cls
        return kind(options)

    @classmethod
    def fits(cls, card: MethodCard) -> bool:
        """Return whether a method with this card allows the stage; by default, if the method pools all rows."""
        return card.pools_rows

    @property
    def exposes(self) -> str:
        """Kind of numbers about single rows that the stage shows beyond the model; empty for none."""
        return ""

    @property
    def sum_disclosures(self) -> Mapping[str, str]:
        """Texts by keyword on what the stage's sums over all parties reveal about a single party (`PCAOptions`)."""
        return {}

    def method_config(self, config: RunConfig) -> RunConfig:
        """Return the run-config from which the method derives its questions; the base returns it unchanged."""
        return config

    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Add the stage's questions and fields to a script; raise ConfigError if options contradict the stage."""
        return questions
