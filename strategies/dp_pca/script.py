"""What a run of DP-PCA asks: the questions of its release, and the answers to each."""

from __future__ import annotations

from fedpca_flwr.config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.spherical import OCTAVES
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.phase import Phase, Phases
from fedpca_flwr.statistics.rows import moments_phases, projection_phase

from .options import WEIGHTS, DPOptions, kind

REPLIES = {
    "rows": Field("rows", ()),
    "octaves": Field("octaves", ("octaves",)),
    "sum": Field("sum", ("d",)),
    "products": Field("products", ("d(d+1)/2",)),
    "squares": Field("squares", ("k+1",)),
}
CENTRE, BOUND = Field("centre", ("d",)), Field("bound", (), kind="positive")
COMPONENTS = Field("components", ("k", "d"), kind="orthonormal rows")
ASKED = {
    "octaves": (),
    "centre": (BOUND,),
    "nearer_octaves": (CENTRE,),
    "nearer_centre": (CENTRE, BOUND),
    "directions": (CENTRE,),
    "variances": (CENTRE, BOUND, COMPONENTS),
    "products": (CENTRE,),
    "joint": (),
}


def _noisy(phase: str, options: DPOptions) -> Phase:
    asked = () if phase == "centre" and options.release == "two-stage" else ASKED[phase]
    return Phase(
        asked=Payload(asked),
        reply=Payload(tuple(REPLIES[name] for name in WEIGHTS[kind(phase)])),
        sizes=lambda public: {"octaves": OCTAVES, "k": options.n_components, "k+1": options.n_components + 1},
        differentially_private=True,
        limits=lambda asked, public: public.options.limits(phase, public.features, public.parties),
    )


def phases(config: RunConfig, options: DPOptions) -> Phases:
    """The noisy sums of the release."""
    if not options.private:
        if config.secure_aggregation:
            raise ConfigError(
                "run-config: 'epsilon' is 'infinity', which is p-cov; with secure-aggregation run p-cov itself"
            )
        return {**moments_phases(config), **projection_phase(config, differentially_private=True)}
    if config.survivors and options.trust == "distributed" and options.honest_parties > config.survivors:
        raise ConfigError(
            f"run-config: 'honest-parties' is {options.honest_parties}, at most {config.survivors} = 'survivors': "
            "fewer parties would not add noise enough"
        )
    return {
        **{name: _noisy(name, options) for name in options.phases},
        **projection_phase(config, differentially_private=True),
    }
