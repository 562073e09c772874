"""Public classes for Flower users: a strategy of the Message API, and a ClientApp for the user's own rows.

Server::

    strategy = FedPCA("sub-it", n_components=5)
    result = strategy.start(grid)  # in a ServerApp's main
    strategy.model.save("model")

Client::

    app = client_app(lambda context: np.load(context.node_config["rows"]), "sub-it", n_components=5)

Both get the same method and options: a party answers only the questions of its own.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common import Parameters
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import ArrayLike
from typing_extensions import override

from fedpca_flwr.config.explain import keyword_text
from fedpca_flwr.config.method_text import settings_digest
from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol import messages
from fedpca_flwr.protocol.client import PCAClient, RefusingClient
from fedpca_flwr.protocol.provenance import describe_run
from fedpca_flwr.protocol.quorum import DEFAULT_PCA_NAME, Results, require_pca_name
from fedpca_flwr.protocol.replies import NodeFailure
from fedpca_flwr.protocol.server import remind, watch_grid
from fedpca_flwr.protocol.strategy import PCAStrategy, numerical_libraries
from fedpca_flwr.strategies import FACTORY, METHODS

LOADINGS_ARRAYS = ("components", "mean", "scale", "remainder", "transform")  # of a party's loadings in an app's state
STATE_SEPARATOR = ": "  # between the name of a PCA, which has no colon, and that of a record in an app's state

MakeClient = Callable[[Context, Context], PCAClient | RefusingClient]
"""Function of a PCA's own context, and of the app's, that returns the party's client."""


class FedPCA(Strategy):
    """Federated PCA as a strategy of Flower's Message API.

    Parameters
    ----------
    method : str, type or PCAStrategy
        Name of a method of this project, such as ``"p-cov"``, alone or with options, such as
        ``"sub-it block-size=10"``; a class of your own, which `client_app` must also receive; or a strategy of
        `flwr.server`, such as ``PooledCovariance(n_components=5)``.
    name : str
        Name of this PCA, if an app has several (`PCAClientApp.add_pca`): at most 64 letters, digits, '-', '_' and
        spaces.
    **options
        Options of the method and keys of a run, with underscores, such as ``n_components``, ``clients``, ``scale``.

    Attributes
    ----------
    strategy : PCAStrategy
        Strategy of ``flwr.server`` for the same method, which asks the questions.

    Raises
    ------
    ConfigError
        If a value is not allowed; the error names the allowed values.
    """

    def __init__(
        self, method: str | type[PCAStrategy] | PCAStrategy = "p-cov", *, name: str = DEFAULT_PCA_NAME, **options: Any
    ) -> None:
        if isinstance(method, PCAStrategy):
            if options:
                raise ConfigError(f"{method!r} has its options already: give {', '.join(options)} to its class")
            self.strategy: PCAStrategy = method
        else:
            try:
                self.strategy = FACTORY.strategy(_run_config(method, options))
            except FedPCAError as error:
                raise type(error)(keyword_text(str(error), METHODS.run_keys()), local=error.local) from None
        self.strategy.quorum.pca_name = require_pca_name(name)
        self._nodes: messages.GridNodes | None = None
        self._awaited: dict[str, ClientProxy] = {}
        self._deadline = self.strategy.config.round_deadline

    def __repr__(self) -> str:
        """Return the name of the class, with the strategy in brackets."""
        return f"{type(self).__name__}({self.strategy!r})"

    @property
    def model(self) -> PCAModel:
        """Model of the run, after `start` has returned."""
        if not self.strategy.done:
            raise ContractError(f"{self!r} has no model yet: call start(grid) first, in the main of a ServerApp")
        return self.strategy.model

    @override
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds of the method on a grid, and return the components and the bytes of each round.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        initial_arrays : ArrayRecord, optional
            Must be empty or None, because a PCA does not start from arrays.
        num_rounds : int, optional
            Must be at least ``strategy.rounds`` if given. The method itself decides when to end.
        timeout : float, optional
            Seconds that a round may take; by default the run's ``round_deadline``.
        train_config, evaluate_config : ConfigRecord, optional
            Must be empty or None, because `FedPCA` takes the options, and clients evaluate nothing.
        evaluate_fn : callable, optional
            Function that is called once, at the end, with the number of the last round and the model's arrays.

        Returns
        -------
        Result
            ``arrays`` has ``components`` (k, d), ``mean`` (d,), ``scale`` (d,), which divides centred rows and is 1
            without scaling, and ``variances`` (k,). With data split by columns it has ``scores`` (n, k) and
            ``variances``. ``train_metrics_clientapp`` has the bytes up, bytes down and seconds of each round.

        Raises
        ------
        ConfigError
            If an argument has a value that has no meaning for a PCA.
        FedPCAError
            If a party is missing or a reply is wrong. The method never returns a PCA of a part of the rows.
        """
        faults, card = [], self.strategy.card
        if initial_arrays:
            faults.append(f"initial_arrays has {len(initial_arrays)} arrays, and a PCA begins with none: leave it out")
        if num_rounds is not None and num_rounds < self.strategy.rounds:
            rounds = self.strategy.rounds
            faults.append(f"num_rounds is {num_rounds}, and '{card.name}' takes up to {rounds} rounds: leave it out")
        for key, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if config:
                names = ", ".join(map(str, config))
                faults.append(f"{key} has {names}, which no client of a PCA reads: give options to FedPCA")
        if faults:
            raise ConfigError("\n".join(faults))
        self._deadline = self.strategy.config.round_deadline if timeout is None else timeout
        result = Result()
        settings = settings_digest(card.name, self.strategy.options, self.strategy.config)
        self.strategy.provenance = describe_run(grid, settings)
        with watch_grid(grid, drops_absent=self.strategy.config.survivors > 0) as errors:
            try:
                for server_round in itertools.count(1):
                    questions = self.configure_train(server_round, ArrayRecord(), ConfigRecord(), grid)
                    replies = grid.send_and_receive(questions, timeout=self._deadline)
                    arrays, metrics = self.aggregate_train(server_round, replies)
                    if metrics is not None:
                        result.train_metrics_clientapp[server_round] = metrics
                    if arrays is not None:
                        result.arrays = arrays
                        break
            except Exception as error:
                if not errors:
                    raise
                if isinstance(errors[0], FedPCAError):  # of a grid of ours, which says what to do
                    raise errors[0] from None
                consequence = f" ({error})" if isinstance(error, FedPCAError) else ""
                text = f"{type(errors[0]).__name__}: {errors[0]}{consequence}"
                raise FedPCAError(f"the grid of the server failed, and no node, with {text}") from errors[0]
        if evaluate_fn is not None:
            evaluation = evaluate_fn(server_round, result.arrays)
            if evaluation is not None:
                result.evaluate_metrics_serverapp[server_round] = evaluation
        return result

    @override
    def summary(self) -> None:
        """Print the method's name and title, and this run's rounds and what the server learns."""
        strategy = self.strategy
        whose = "each site" if strategy.sees_single_replies else "all sites together"
        print(f"{strategy.card.name}: {strategy.card.title}; at most {strategy.rounds} rounds; ", end="")
        print(f"the server learns of {whose}: {strategy.server_learns}")

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round's question, one for each party, and no messages after the last round."""
        if self._nodes is None or server_round == 1:
            self._nodes = messages.GridNodes(grid)
            self.strategy.quorum.ask_properties = self._nodes.ask_properties
            self.strategy.initialize_parameters(self._nodes)  # refuses a second run
        questions = self.strategy.configure_fit(server_round, Parameters([], ""), self._nodes)
        if not questions:
            return []
        self._awaited = {node.cid: node for node, _ in questions}
        fields, ttl = self.strategy.request_fields, self._deadline
        return [messages.question_message(node.cid, ins, fields, server_round, ttl) for node, ins in questions]

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies to a round's question as they arrive, and add them up if the method needs only the sum."""
        if self.strategy.done:
            return None, None
        results: Results = []
        failures: list[BaseException] = []
        with remind(lambda: self.strategy.log_awaited_parties(list(self._awaited.values()))):
            for reply in replies:
                node = self._awaited.pop(str(reply.metadata.src_node_id), None)
                if node is None:  # nobody asked it
                    continue
                try:
                    result = messages.fit_result(reply)
                except Exception as failure:  # of the node, its app, or a reply without our records
                    failures.append(NodeFailure(node.cid, failure))
                    continue
                self.strategy.receive(node, result)
                results.append((node, result))
                del reply  # its arrays, before the next reply is pulled
        self.strategy.aggregate_fit(server_round, results, failures)
        entry = self.strategy.round_log[-1]
        metrics = {"bytes-up": sum(entry["up"]), "bytes-down": sum(entry["down"]), "seconds": entry["seconds"]}
        if not self.strategy.done:
            return None, MetricRecord(metrics)
        model = self.model
        if model.mean_ is None:
            arrays = {"scores": model.scores_}
        else:
            scale = np.ones_like(model.mean_) if model.scale_ is None else model.scale_
            arrays = {"components": model.components_, "mean": model.mean_, "scale": scale}
        arrays["variances"] = model.explained_variance_
        record = ArrayRecord({name: Array(array) for name, array in arrays.items() if array is not None})
        return record, MetricRecord(metrics)

    @override
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None


class _PCA(NamedTuple):
    """Name, client and context of the PCA that a question is for."""

    name: str
    client: PCAClient | RefusingClient
    context: Context


class PCAClientApp(ClientApp):
    """ClientApp that answers the questions of `FedPCA`, and passes all other messages to the user's own functions.

    Each PCA has its own part of the context's state, so other PCAs and the user's functions do not see its records.

    Parameters
    ----------
    client : callable
        Function that makes the client, from the PCA's own context and the app's context, for the PCA with the
        default name.
    mods : list of callable, optional
        Flower's mods, which surround the answers to questions, masked in secure runs. Functions of your
        own have mods of their own, as in ``@app.train(mods=[...])``.
    name : str
        Name of the PCA that `client` answers.
    """

    def __init__(self, client: MakeClient, mods: list[Mod] | None = None, name: str = DEFAULT_PCA_NAME) -> None:
        super().__init__()
        self._clients = {require_pca_name(name): client}
        self._answer_mods: list[Mod] = [*(mods or []), one_blas_thread]
        self.train(messages.ACTION, mods=self._answer_mods)(self._answer)
        self.query(messages.ACTION, mods=[one_blas_thread])(self._answer)  # statements, which have no arrays

    def __repr__(self) -> str:
        """Write the names of the PCAs."""
        return f"{type(self).__name__}({', '.join(map(repr, self._clients))})"

    def add_pca(
        self, name: str, rows: Callable[[Context], ArrayLike], method: str | type[PCAStrategy] = "p-cov", **options: Any
    ) -> None:
        """Add another PCA to the app. `FedPCA` with the same name may run it once in a Flower run.

        Parameters
        ----------
        name : str
            Name of the PCA.
        rows : callable
            Function that returns the party's rows for a Flower context, as for `client_app`.
        method : str or type
            Method, as for `FedPCA`.
        **options
            Options, as for `FedPCA`.

        Raises
        ------
        ConfigError
            If the app already has a PCA of this name, or if a value is not allowed.
        """
        if require_pca_name(name) in self._clients:
            raise ConfigError(f"this app has a PCA '{name}' already: give each PCA a name of its own")
        self._clients[name] = _client_of_rows(rows, method, options)

    @override
    def __call__(self, message: Message, context: Context) -> Message:
        config = messages.question_config(message)
        if config is None or message.metadata.message_type in (messages.QUERY, messages.TRAIN):
            return super().__call__(message, context)
        with self._pca(message, config, context) as pca:  # of Flower's classic server
            client = pca.client.to_client()
            mods: list[Mod] = self._answer_mods if messages.asks_for_arrays(message) else [one_blas_thread]
            return ClientApp(lambda _: client, mods=mods)(message, pca.context)

    def _answer(self, message: Message, context: Context) -> Message:
        """Answer a message of `FedPCA`, and store the loadings at the end of the run."""
        config = messages.question_config(message)
        assert config is not None, message.metadata.message_type
        with self._pca(message, config, context) as pca:
            answer, loadings = messages.answer_message(message, pca.client)
        if loadings is not None:
            arrays = {name: np.asarray(getattr(loadings, name)) for name in LOADINGS_ARRAYS}
            record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
            context.state[_loadings_record(pca.name)] = record
        return answer

    @contextmanager
    def _pca(self, message: Message, config: ConfigRecord, context: Context) -> Iterator[_PCA]:
        """Yield the PCA of a question, with a client that refuses if the app lacks the name or has answered the run."""
        try:
            name = messages.pca_name(config)
            if name not in self._clients:
                raise ConfigError(f"this app has no PCA of that name; it has {', '.join(map(repr, self._clients))}")
        except ConfigError as error:
            yield _PCA("", FACTORY.refusing_client(context, error, is_noted=False), context)
            return
        with _pca_context(context, name) as pca_context:
            if message.metadata.message_type == messages.QUERY and _loadings_record(name) in context.state:
                text = f"this app has answered its PCA '{name}' of this Flower run: "
                remedy = "give each PCA a name of its own, with FedPCA(..., name=...) and app.add_pca(name, ...)"
                client: PCAClient | RefusingClient = FACTORY.refusing_client(pca_context, ContractError(text + remedy))
            else:
                client = self._clients[name](pca_context, context)
            yield _PCA(name, client, pca_context)


def client_app(
    rows: Callable[[Context], ArrayLike],
    method: str | type[PCAStrategy] = "p-cov",
    *,
    mods: list[Mod] | None = None,
    name: str = DEFAULT_PCA_NAME,
    **options: Any,
) -> PCAClientApp:
    """Make a ClientApp for a party that holds an array or a data frame.

    Outside a simulation the rows are the site's own data, and the site's node-config may have all keys of a site. If
    you add your own functions, for example with ``@app.train()``, the app also answers another strategy before or after
    the PCA.

    Parameters
    ----------
    rows : callable
        Function that returns the party's rows, an array or a data frame (n, d), for a Flower context.
    method : str or type
        Method, as for `FedPCA`. Server and clients must have the same method.
    mods : list of callable, optional
        Flower's mods, which surround the answers to questions, masked in secure runs. Functions of your
        own have mods of their own, as in ``@app.train(mods=[...])``.
    name : str
        Name of this PCA, as for `FedPCA`.
    **options
        Options, as for `FedPCA`.

    Returns
    -------
    PCAClientApp
        The ClientApp; `PCAClientApp.add_pca` adds further PCAs.
    """
    return PCAClientApp(_client_of_rows(rows, method, options), mods, name)


def client_loadings(context: Context, name: str = DEFAULT_PCA_NAME) -> Loadings:
    """Return the loadings that a finished PCA of this Flower run left at a client.

    ``client_loadings(context).part_of_scores(rows)`` computes the scores of rows without any further message. With
    data split by columns it computes the party's part of the scores.

    Parameters
    ----------
    context : Context
        Flower's context of the client.
    name : str
        Name of the PCA, as for `FedPCA`.

    Returns
    -------
    Loadings
        Components, mean and scale.

    Raises
    ------
    ContractError
        If no PCA of this name has ended at this client in this run.
    """
    record = context.state.array_records.get(_loadings_record(name))
    if record is None:
        raise ContractError(f"no PCA '{name}' has ended at this client: run FedPCA(..., name='{name}') first")
    arrays: dict[str, Any] = {name: record[name].numpy() for name in LOADINGS_ARRAYS}
    return Loadings(**{**arrays, "transform": str(arrays["transform"])})


def run_on(grid: Grid, strategy: PCAStrategy) -> PCAModel:
    """Run a strategy on a Flower grid and return its model; raise a FedPCAError as `FedPCA.start` does."""
    FedPCA(strategy).start(grid)
    return strategy.model


def one_blas_thread(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a message by `call_next` with a single BLAS thread, so that last bits do not depend on the machine."""
    with numerical_libraries().limit(limits=1, user_api="blas"):
        return call_next(message, context)


def _client_of_rows(
    rows: Callable[[Context], ArrayLike], method: str | type[PCAStrategy], options: dict[str, Any]
) -> MakeClient:
    """Return a function that makes the client of a party whose rows the app loads; ConfigError for no function."""
    if not callable(rows):
        raise ConfigError(
            f"'rows' is of type {type(rows).__name__}, expected a function of Flower's context that returns the "
            "party's rows: client_app(lambda context: rows)"
        )
    return partial(_make_client, rows, method, _run_config(method, options))


def _make_client(
    rows: Callable[[Context], ArrayLike],
    method: str | type[PCAStrategy],
    run_config: dict[str, Any],
    pca_context: Context,
    context: Context,
) -> PCAClient | RefusingClient:
    """Return the client of a party in whichever process the app runs, where a user's class may be new."""
    METHODS.name_of(method)
    return FACTORY.client_of_rows(pca_context, partial(rows, context), run_config)


@contextmanager
def _pca_context(context: Context, name: str) -> Iterator[Context]:
    """Yield the context of a PCA, whose state is written to the app's; a named PCA is a run of its own for the site."""
    owner = f"fedpca {name}"
    keys = [key for key in context.state if key.partition(STATE_SEPARATOR)[:2] == (owner, STATE_SEPARATOR)]
    state = RecordDict({key.partition(STATE_SEPARATOR)[2]: context.state[key] for key in keys})
    run_id: Any = context.run_id if name == DEFAULT_PCA_NAME else f"{context.run_id} {name}"
    yield replace(context, run_id=run_id, state=state)
    for key in keys:
        del context.state[key]
    context.state.update({f"{owner}{STATE_SEPARATOR}{key}": record for key, record in state.items()})


def _loadings_record(name: str) -> str:
    """Return the name of the record with the loadings of a PCA."""
    return f"fedpca loadings of {name}"


def _run_config(method: str | type[PCAStrategy], options: dict[str, Any]) -> dict[str, Any]:
    """Return the run-config of a method and its options, whose names may have underscores; ConfigError for others."""
    values = {key.replace("_", "-"): value for key, value in options.items()}
    return METHODS.run_config({**values, "method": METHODS.name_of(method)})
