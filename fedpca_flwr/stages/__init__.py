"""Stages of a run, in the order in which they are put around a method whose card they accept, a line each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedpca_flwr.config.entries import Entries
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, Stage
from fedpca_flwr.protocol.question import Questions

STAGES: Entries[type[Stage]] = Entries(
    {
        "weights": "fedpca_flwr.stages.declarations:Weights",
        "adjust": "fedpca_flwr.stages.declarations:Adjust",
        "genotypes": "fedpca_flwr.genetics:Genotypes",
        "clusters": "fedpca_flwr.stages.declarations:Clusters",
        "odd rows": "fedpca_flwr.stages.declarations:OddRows",
        "blind": "fedpca_flwr.blind:Blind",
    },
    "fedpca_flwr.stages",
)
"""Declarations of the stages, in the order in which they are put around a method."""


@dataclass(frozen=True, eq=False)
class ComposedScript:
    """Script of a method, extended by the questions of the fitting stages that the options select."""

    method: MethodCard
    stages: tuple[type[Stage], ...]

    def __call__(self, config: RunConfig, options: Any) -> Questions:
        """Return the questions of a run with these options."""
        active = replace(self.method, stages=self.stages).active_stages(config, options)
        inner = config
        for stage in active:
            inner = stage.method_config(inner)
        script = self.method.script(inner, options)
        for stage in active:
            script = stage.script(config, script)
        return script


def compose(card: MethodCard) -> MethodCard:
    """Return a card extended by the options and questions of all stages that fit; a composed card is unchanged."""
    if isinstance(card.script, ComposedScript):
        return card
    stages = tuple(stage for stage in STAGES.values() if stage.fits(card))
    kinds = [stage.Options for stage in stages if stage.Options is not PCAOptions]
    options: type[PCAOptions] = card.options
    if kinds:
        extra = {"__module__": __name__, "__doc__": options.__doc__, **_stage_properties(card.options, stages)}
        options = type(options.__name__, (options, *kinds), extra)

    examples = (*card.examples, *({**card.examples[0], **extra} for stage in stages for extra in stage.examples))
    return replace(card, options=options, stages=stages, script=ComposedScript(card, stages), examples=examples)


def _stage_properties(base: type[PCAOptions], fitting: tuple[type[Stage], ...]) -> dict[str, Any]:
    """Return the attributes of a composed options class: selected stages, and what they disclose, as properties."""
    names = frozenset[str]().union(*(stage.Options.model_fields for stage in fitting)).difference(base.model_fields)

    def stages(options: Any) -> tuple[type[Stage], ...]:
        """Return the stages that the options select; none for a stage without options of its own."""
        kinds = [stage for stage in fitting if stage.Options is not PCAOptions]
        return tuple([stage for stage in kinds if options.non_defaults & set(stage.option_names)])

    def exposes(options: Any) -> str:
        """Return the first non-empty disclosure of single rows by a stage, else the method's."""
        shown = [stage(options).exposes for stage in options.stages]
        return str(next(filter(None, shown), base.exposes.__get__(options)))

    def sum_disclosures(options: Any) -> Mapping[str, str]:
        """Return what sums of the method and of its stages disclose about single parties."""
        sums = dict(base.sum_disclosures.__get__(options))
        for stage in options.stages:
            sums |= stage(options).sum_disclosures
        return sums

    return {
        "stage_option_names": property(lambda options: names),
        "stages": cached_property(stages),
        "exposes": property(exposes),
        "sum_disclosures": property(sum_disclosures),
    }
