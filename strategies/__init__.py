"""The methods: a module or a folder each, and one line in `METHODS`."""

import difflib
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from fedpca_flwr.config.method_text import OF_THE_RUN, canonical, options_of, own_keys, words_of
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import LONGEST_KEY, RunConfig
from fedpca_flwr.data.categories import encoded
from fedpca_flwr.data.frames import as_rows, column_labels
from fedpca_flwr.data.table import Table, check
from fedpca_flwr.errors import ConfigError, FedPCAError, TravelError, together, value_text
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.client import PCAClient, RefusingClient
from fedpca_flwr.protocol.compatibility import require_compatible
from fedpca_flwr.protocol.journal import Context
from fedpca_flwr.protocol.question import Public, Questions
from fedpca_flwr.protocol.registry import Method, Registry
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.site.site import Load, Site
from fedpca_flwr.stages import composed
from fedpca_flwr.transports.choice import party_transport, server_transport

TRAVEL = {
    "clear": RunConfig(),
    "masked": RunConfig(secure_aggregation=True, bound=1.0),
    "surviving": RunConfig(secure_aggregation=True, bound=1.0, survivors=3),
}
"""A run-config for each transport."""

ROWS_OF_AN_APP = "rows of the app"
"""What stands for the file of a party whose rows an app has loaded."""

ALIKE = ("split", "differentially_private", "incomplete", "exposes")
"""What two methods must have in common for one to do instead of the other, on their cards."""

METHODS = Registry(
    "fedpca_flwr.strategies",
    {
        "p-cov": "pooled_covariance:PooledCovariance",
        "ap-cov": "approximate_covariance:ApproximateCovariance",
        "sub-it": "subspace_iteration:SubspaceIteration",
        "qr-pca": "qr_pca:QRPCA",
        "ap-stack": "approximate_stack:ApproximateStack",
        "compressed": "compressed:Compressed",
        "adaptive": "adaptive:Adaptive",
        "em": "em:EM",
        "dsa": "dsa:DSA",
        "fast-pca": "fast_pca:FastPCA",
        "streaming": "streaming:Streaming",
        "dp-pca": "dp_pca.method:DPPCA",
        "personalised": "personalised.method:Personalised",
        "robust": "robust.method:Robust",
        "sapca": "sapca:SAPCA",
        "vertical": "vertical:Vertical",
        "vertical-kernel": "vertical_kernel:VerticalKernel",
        "vertical-scores": "vertical_scores:VerticalScores",
        "vfedpca": "vfedpca:VFedPCA",
        "vfedakpca": "vfedakpca:VFedAKPCA",
    },
    composed,
)
"""By name, where the strategy is; a method is imported when it is first asked for."""


def method_named(name: str) -> Method:
    """A method by its name; a ConfigError has the names there are."""
    if name in METHODS:
        return METHODS[name]
    plain = name.lower() == "pca"  # whose nearest name is that of an approximate method
    near = ["p-cov"] if plain else difflib.get_close_matches(name[:LONGEST_KEY], METHODS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else ""
    raise ConfigError(
        f"run-config: 'method' is {value_text(name)}, expected one of: {', '.join(METHODS)}. {hint}".rstrip()
    )


def method_of(text: str, source: str = "run-config") -> Method:
    """The method that a text names, which may say its options too (`fedpca_flwr.config.method_text`)."""
    return method_named(words_of(text, source)[0])


def run_config_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The run-config of keys of the run and options of its method side by side, as Python's callers have them.

    Raises
    ------
    ConfigError
        For an unknown method, a key that is neither, an option given twice, and an option that is not allowed.
    """
    run = {key: value for key, value in values.items() if key in OF_THE_RUN}
    method = method_of(run["method"])
    beside = {key: value for key, value in values.items() if key not in run or key == "n-components"}
    options = _options(run, method, run["method"], beside)
    return {**run, "method": canonical(method.strategy.card.name, options)}


def build_strategy(run_config: Mapping[str, Any]) -> PCAStrategy:
    """The server's half of the run that ``run_config`` describes.

    Raises
    ------
    ConfigError
        For an unknown method, a key that no run has, an option that this method does not have, or a value that is not
        allowed.
    """
    kind = method_of(str(run_config.get("method", RunConfig().method))).strategy
    return prepared(kind.__new__(kind), run_config)


def prepared(made: PCAStrategy, run_config: Mapping[str, Any]) -> PCAStrategy:
    """A new strategy of the method that ``run_config`` names, ready for the run; errors as of `build_strategy`."""
    _refuse_options_as_keys(run_config)
    text = str(run_config.get("method", RunConfig().method))
    strategy = type(made)
    beside = {"n-components": run_config.get("n-components", RunConfig().n_components)}
    options = _options(run_config, method_of(text), text, beside)
    config = RunConfig.parse(run_config)
    require_compatible(config, strategy.card, options)
    try:
        made.prepare(config, options, server_transport(config))
    except TravelError as error:
        others = [name for name, other in METHODS.items() if config.transport in transports_of(other)]
        raise ConfigError(f"{error}. Methods that do: {', '.join(others)}") from None
    made.alternatives = partial(alternatives, strategy.card)
    return made


def _options(run: Mapping[str, Any], method: Method, text: str, beside: Mapping[str, Any]) -> PCAOptions:
    """The options of a method, if they and the keys of the run are allowed: all that is wrong is told at once."""
    faults: list[FedPCAError] = []
    options: PCAOptions | None = None
    try:
        options = options_of(text, method.strategy.card.options, beside)
    except ConfigError as error:
        faults.append(error)
    try:  # how many components, the method knows better
        RunConfig.parse({key: value for key, value in run.items() if key != "n-components" or not faults})
    except ConfigError as error:
        faults.append(error)
    if options is None or faults:
        raise together(faults)
    return options


def _refuse_options_as_keys(run_config: Mapping[str, Any]) -> None:
    """Options beside `method` are told where they stand; nothing is said of keys that no method has either."""
    text = str(run_config.get("method", RunConfig().method))
    method = method_of(text).strategy.card
    lines, words = [], []
    for key, value in run_config.items():
        if key in OF_THE_RUN:
            continue
        takers = [name for name, other in METHODS.items() if key in own_keys(other.strategy.card.options)]
        if takers and value != "":
            lines.append(f"run-config: '{key}' is no key of a run, but an option of {', '.join(takers)}")
            words += [f"{key}={value}"] if method.name in takers else []
    if lines:
        example = " ".join([text, *words]) if words else "sub-it block-size=10"
        raise ConfigError("\n".join([*lines, f"options stand in 'method', as in method='{example}'"]))


def build_client(context: Context, load: Load = local_table) -> PCAClient | RefusingClient:
    """A party's half of the run that ``context`` describes; ``load`` gives its rows (see `Site`).

    Whatever is in the run-config, nothing is raised: a client comes that refuses it.
    """
    site = Site(context, load)
    try:
        method = method_of(site.config.method)
        client = method.client(method.strategy.card, site, party_transport)
    except Exception as error:
        return RefusingClient(site.report(error))
    client.alternatives = partial(alternatives, method.strategy.card)
    return client


def client_of_rows(context: Context, rows: ArrayLike, run_config: Mapping[str, Any]) -> PCAClient | RefusingClient:
    """A party's half of a run in a Flower app of a user's own, which loads the ``rows`` (n, d) itself.

    ``rows`` are an array or a data frame (n, d). They are a site's own data, with the rules for such (a journal for
    secure sums, say), but in Flower's simulation.
    """
    own = {} if _in_a_simulation() else {"data": ROWS_OF_AN_APP}
    told = replace(context, run_config=dict(run_config), node_config={**own, **context.node_config})
    names = tuple(str(label) for label in column_labels(rows))

    def load(node: NodeConfig, config: RunConfig) -> Table:
        if config.levels:
            return encoded(rows, config.levels_by_column, "this site", node.min_rows, node.round_rows)
        return check(as_rows(rows, "this site"), names)

    return build_client(told, load)


def _in_a_simulation() -> bool:
    """Whether this process is an actor of Ray's, in which Flower simulates parties; what merely started Ray is none."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def alternatives(card: MethodCard, public: Public, rows: int, most: int) -> str:
    """The exact methods for the same data whose replies have at most so many bytes, as the end of an error."""
    found = []
    for name, method in METHODS.items():
        other = method.strategy.card
        own = {**other.examples[0], "n-components": public.config.n_components}
        script = script_of(method, public.config, own)
        unlike = any(getattr(card, what) != getattr(other, what) for what in ALIKE)
        if script is None or unlike or other.goes_on_as or other.after or not other.exact:
            continue
        known = replace(public, options=other.options.parse(own))
        asked = [(phase, {"n": rows, **phase.asked_sizes(known)}) for phase in script.values()]
        nbytes = max(phase.nbytes(sizes, whole=True) for phase, sizes in asked)
        if nbytes <= most:
            found.append((nbytes, f"{name} ({nbytes:,} bytes; rounds: {other.rounds.replace('`', '')})"))
    told = ", ".join(text for _, text in sorted(found))
    return f". Exact methods whose largest reply is smaller: {told}" if told else ". No exact method's are smaller"


def transports_of(method: Method) -> tuple[str, ...]:
    """How a method's answers can travel: what its phases allow."""
    examples = method.strategy.card.examples
    return tuple(
        name for name, config in TRAVEL.items() if any(script_of(method, config, own) is not None for own in examples)
    )


def script_of(method: Method, config: RunConfig, options: Mapping[str, Any]) -> Questions | None:
    """All that a run may ask, in its order; None where the method's answers cannot travel so."""
    card = method.strategy.card
    try:
        return server_transport(config).script(card.name, card.phases(config, card.options.parse(options)))
    except ConfigError:
        return None
