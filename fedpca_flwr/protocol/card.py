"""What a method says of itself, once, for the code, the tests and the reader; and what a stage is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from fedpca_flwr.config.run_config import ComponentChoice, Config, Count, Fraction, RunConfig
from fedpca_flwr.protocol.question import Public, Questions

Components = Annotated[Count | Fraction, Field(union_mode="left_to_right")]


class PCAOptions(Config):
    """Options that every method has.

    Tests and the hunt try every value of an option that is a flag or lists its values, and of another those that its
    field has as `examples`; where these are empty, none. In them "k", "n" and "d" stand for the components, rows and
    features of what is tried (`fedpca_flwr.simulations.hunt.options`).
    """

    n_components: Annotated[Components, Field(examples=[0.3, 0.9, 0.99])] = 10
    """How many components, or the fraction of the variance that they must exceed."""

    def product_columns(self, public: Public) -> int:
        """About how many columns a party's scatter will be multiplied with in the whole run."""
        return 0

    def max_gram_columns(self, rows: int) -> int:
        """Columns of products with a party's ``X X'`` (rows x rows) that a run may ask for in all, at most."""
        return 0

    @property
    def centred(self) -> bool:
        """Whether rows are about their mean."""
        return not isinstance(self, CentreOptions) or self.center

    @property
    def scaled(self) -> bool:
        """Whether features are divided by their deviations."""
        return isinstance(self, ScaleOptions) and self.scale

    @property
    def could_scale(self) -> bool:
        """Whether features are not divided by their deviations, and could be."""
        return isinstance(self, ScaleOptions) and not self.scale

    @property
    def exposes(self) -> str:
        """What these options show of single rows, where that is more than `MethodCard.exposes` says.

        Options that weigh, cut, order or select rows show at least the "distribution": answers that are no function of
        count, mean and scatter of all rows that take part.
        """
        return ""

    @property
    def sum_disclosures(self) -> Mapping[str, str]:
        """What sums over the parties tell of single ones with these options, as the end of "the server learns ...".

        The keys are the words by which a site permits it (node-config `allowed-methods`): the method's name, or that of
        what an option chooses. Empty where the sums are functions of the pooled rows, however these are divided.
        """
        return {}

    @property
    def stage_option_names(self) -> frozenset[str]:
        """Names of those that belong to stages."""
        return frozenset()

    @property
    def stages(self) -> tuple[type[Stage], ...]:
        """The stages that they name."""
        return ()

    @property
    def additive(self) -> bool:
        """Whether the same pooled rows give the same sums, however they are divided among the parties."""
        return not self.sum_disclosures

    def stored_moments_count(self, parties: int) -> int:
        """Of how many sets of rows the server keeps the moments."""
        return 0


def _require_count(value: object) -> object:
    if value == "auto" or (isinstance(value, float) and 0 < value < 1):
        raise PydanticCustomError(
            "count",
            "expected a whole number from 1: a fraction, and 'auto', are for methods that know all variances "
            "(docs/which-method.md)",
        )
    return value


class CountOptions(PCAOptions):
    """Options of a method that cannot tell in advance how many components a fraction of the variance needs."""

    n_components: Annotated[Count, BeforeValidator(_require_count)] = 10
    """How many components."""


class CentreOptions(PCAOptions):
    """The option of methods that can leave rows as they are."""

    center: bool = True
    """Subtract the pooled mean."""


class ScaleOptions(CentreOptions):
    """The option of methods that know every variance in time."""

    scale: bool = False
    """Divide each feature by its pooled standard deviation (z-scores)."""


class ScaledOptions(ScaleOptions):
    """Options of the methods that know every variance."""

    n_components: Annotated[ComponentChoice, Field(examples=[0.3, 0.9, 0.99, "auto"])] = 10  # type: ignore[assignment]  # what others cannot tell, these can
    """How many components, the fraction of the variance that they must exceed, or 'auto': those that stand out of
    unrelated features of the same variances (parallel analysis)."""

    @property
    def solve_options(self) -> dict[str, Any]:
        """What `fedpca_flwr.model.solution.solve` needs of them."""
        return {"n_components": self.n_components, "center": self.center, "scale": self.scale}

    @model_validator(mode="after")
    def _require_centre_for_auto(self) -> Self:
        if self.n_components == "auto" and not self.center:
            raise PydanticCustomError(
                "auto", "'n-components' is 'auto', which needs center=true: it is about variances"
            )
        return self


class MomentsOptions(ScaledOptions):
    """Options of a method that has the moments of all rows, and shows the server no less."""

    keep: Literal["nothing", "moments", "parties"] = "nothing"
    """'moments': keep the moments of all rows at the server (docs/statistics.md); 'parties': in clear also each
    party's."""

    def stored_moments_count(self, parties: int) -> int:
        return {"nothing": 0, "moments": 1, "parties": 1 + parties}[self.keep]


class Disclosure(NamedTuple):
    """Who learns what of a party, in the words of the pages in docs/methods."""

    server: str
    parties: str = "the pooled components and mean"
    network: str = "sizes and times of messages"


@lru_cache(maxsize=32)
def method_questions(
    script: Callable[[RunConfig, Any], Questions], config: RunConfig, options: PCAOptions
) -> Questions:
    """Return a method's own questions in a run (`MethodCard.phases`): every message of the run has the same."""
    return script(config, options)


@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """All that a method says of itself."""

    name: str  # as in ``method='p-cov'``
    title: str
    exact: bool  # whether the model equals the PCA of the pooled rows up to rounding
    rounds: str
    """How many rounds before the parties project their rows, in clear; so are `upload`, `server_sees` and `shows`."""
    options: type[PCAOptions]
    """The method's own options, which `method` holds beside the name; `n_components` is a key of every run."""
    script: Callable[[RunConfig, Any], Questions]
    """The run's script but for what the transport adds: what the run-config and the options say that it may ask."""
    reference: str
    upload: str  # what a party sends, in float64 values of d features, k components, n rows
    server_sees: str  # in a few words
    disclosure: Disclosure  # all that others learn
    summed_disclosure: Disclosure | None = None
    """The same where only sums over the parties open, about these; None where it is what `shows` says, of all."""
    pools_moments: bool = False
    """Whether the server adds up the parties' moments, or factors of them. Where it sees them, the model says what
    influence each party has."""
    result: str = ""  # what a reader must know of the result besides `exact`
    examples: Sequence[Mapping[str, Any]] = ({},)
    """Options with which it runs, those that it needs first. All questions that a run of it may ask are in the script
    of one of them: docs/security/questions.md is made of these."""
    successors: Sequence[str] = ()
    """Methods of the registry, as one of which a run goes on after its own questions, and once more as another."""
    incomplete: bool = False  # whether rows may have missing values
    mixed: bool = False  # whether columns may be categories (run-config ``levels``)
    weighted: bool = False  # whether rows may have weights (`fedpca_flwr.questions.weights`)
    differentially_private: bool = False
    """Whether all that leaves a party is differentially private: then its messages tell no row count, and its answer
    in the last round is constant."""
    split: Literal["rows", "columns"] = "rows"
    """What the parties' data are: some rows of all features, or all rows of some features."""
    exposes: Literal["", "distribution", "scores", "inner products"] = ""
    """What is shown of single rows, beyond what the model of pooled rows tells: how they are distributed, beyond their
    moments; their scores (with products of the same kind); or all inner products or distances between them."""
    loadings_source: str = ""
    """The method whose run leaves the loadings by which this one projects new rows; empty where it fits components."""
    open_membership: bool = False  # whether members of the federation may be absent from a run
    local_components: Literal["", "iterates", "personal"] = ""
    """Whether each party projects its rows with components of its own: with iterates that have not met those of the
    others, or with personal ones, which need not meet."""
    non_mean_centre: bool = (
        False  # whether rows are about another centre than their mean, and divided by other deviations
    )
    variance_base: str = ""  # what the shares of variance are of, where that is not the variance of the pooled rows
    stages: Sequence[type[Stage]] = ()
    """What a run of it may compose with the method; the registry sets them (`fedpca_flwr.stages`)."""
    needs: Sequence[Literal["groups", "rows"]] = ()
    """What its answers need beside functions of the moments of all rows that take part: sums over groups of rows, or
    single rows. Whoever answers for it has a vault of these; for others the vault has none."""
    beyond_moments: str = ""
    """Why a party's answers tell more than count, mean and scatter of all its rows that take part; empty where they do
    not. Such a method exposes something, unless noise hides it, or a site's `gaps` decide which rows it reads."""

    @property
    def pools_rows(self) -> bool:
        """Whether it gives components of all rows that take part, the same for all parties, in the unit of the data."""
        special = self.differentially_private or self.incomplete or self.non_mean_centre or self.open_membership
        return self.split == "rows" and not (
            special or self.local_components or self.beyond_moments or self.loadings_source
        )

    def active_stages(self, config: RunConfig, options: Any) -> tuple[Any, ...]:
        """Return the stages that the options of a run name."""
        run_stages = [stage for stage in self.stages if stage.Options is PCAOptions and stage.is_selected(config)]
        return tuple(stage(options) for stage in (*run_stages, *options.stages))


class Stage:
    """One step before a method, or after it. A method and a stage never name each other.

    A run composes the stages that its options name (`names`), and enters no other. One is made for each run and side.

    Parameters
    ----------
    options : PCAOptions
        Those of the run, which have the stage's own.
    """

    Options: ClassVar[type[PCAOptions]] = PCAOptions
    """What a user may choose."""
    option_names: ClassVar[tuple[str, ...]] = ()
    """Of these, or where it has none of the keys of every run, those of which one that is not its default names it."""
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Options with which a method's script has all questions of the stage, as `MethodCard.examples`."""
    needs: ClassVar[Sequence[Literal["groups", "rows"]]] = ()  # as `MethodCard.needs`
    accepts_missing: ClassVar[bool] = False  # whether rows may have missing values
    options: Any

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def is_selected(cls, values: Config) -> bool:
        """Return whether options, or the keys of every run, name the stage."""
        fields = type(values).model_fields
        return any(getattr(values, name) != fields[name].default for name in cls.option_names)

    @classmethod
    def fits(cls, card: MethodCard) -> bool:
        """Return whether methods with this card can have the stage."""
        return card.pools_rows

    @property
    def exposes(self) -> str:
        """What it shows of single rows, as `PCAOptions.exposes`."""
        return ""

    @property
    def sum_disclosures(self) -> Mapping[str, str]:
        """What its sums tell of single parties, as `PCAOptions.site_sums`."""
        return {}

    def method_config(self, config: RunConfig) -> RunConfig:
        """Return the run-config by which the method's own questions are made."""
        return config

    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Add the stage's questions and fields to the script of a run; a `ConfigError` where options contradict it."""
        return questions
