"""Public classes for Flower users: a strategy of the Message API, and a ClientApp for rows of one's own.

Server::

    strategy = FedPCA("sub-it", n_components=5)
    result = strategy.start(grid)  # in a ServerApp's main
    strategy.model.save("model")

Client::

    app = client_app(lambda context: np.load(context.node_config["rows"]), "sub-it", n_components=5)

Both get the same method and options: a party answers only the questions of its own method and options, whatever the
server asks.
"""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import MessageTypeLegacy
from flwr.server import ServerConfig
from flwr.server.compat import start_grid
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import ArrayLike
from typing_extensions import override

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.server import PCAServer, numerical_libraries, watch_grid
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.strategies import FACTORY, METHODS


class FedPCA(Strategy):
    """Federated PCA as a strategy of Flower's Message API.

    Parameters
    ----------
    method : str
        A method of this project, as in ``flwr run``: ``"p-cov"``, or with options ``"sub-it block-size=10"``.
    **options
        The method's options and the keys of a run, with underscores: ``n_components``, ``clients``, ``scale``.

    Attributes
    ----------
    strategy : PCAStrategy
        The same method as a strategy of ``flwr.server``, which asks the questions.

    Raises
    ------
    ConfigError
        For a value that is not allowed; the error names the values that are.
    """

    def __init__(self, method: str = "p-cov", **options: Any) -> None:
        """Make the method's strategy, with the options checked."""
        self.strategy: PCAStrategy = FACTORY.strategy(_run_config(method, options))

    def __repr__(self) -> str:
        """Write the class, with its strategy in brackets."""
        return f"{type(self).__name__}({self.strategy!r})"

    @property
    def model(self) -> PCAModel:
        """Model of the finished run, once `start` has returned."""
        return self.strategy.model

    def start(  # type: ignore[override]  # nothing is trained: there are no arrays to begin with, nor a number of rounds
        self, grid: Grid, *, timeout: float | None = None
    ) -> Result:
        """Run all rounds of the method on a grid, and return the components and the bytes of each round.

        Parameters
        ----------
        grid : Grid
        timeout : float, optional
            Seconds that a round may take; by default the run's ``round_deadline``.

        Returns
        -------
        Result
            ``arrays``: components (k, d), mean (d,) and explained variances (k,); with data split by columns the scores
            (n, k) and variances. ``train_metrics_clientapp``: of each round its bytes up and down and its seconds.

        Raises
        ------
        FedPCAError
            If a party is missing, or something is wrong: a PCA of a part of the rows is never returned.
        """
        run_on(grid, self.strategy, timeout)
        model = self.model
        parameters = [model.scores_] if model.components_ is None else [model.components_, model.mean_]
        arrays = ArrayRecord([array for array in (*parameters, model.explained_variance_) if array is not None])
        result = Result(arrays=arrays)
        for number, entry in enumerate(model.log["rounds"], start=1):
            metrics = {"bytes-up": sum(entry["up"]), "bytes-down": sum(entry["down"]), "seconds": entry["seconds"]}
            result.train_metrics_clientapp[number] = MetricRecord(metrics)
        return result

    def summary(self) -> None:
        """Print the method's name, title and rounds, and what the server sees."""
        card = self.strategy.card
        print(f"{card.name}: {card.title}; rounds: {card.rounds}; the server sees {card.server_sees}")

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise NotImplementedError, because `start` asks the questions itself."""
        raise NotImplementedError("FedPCA.start(grid) asks the questions itself: they depend on the answers")

    @override
    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Raise NotImplementedError, because `start` takes the answers itself."""
        raise NotImplementedError("FedPCA.start(grid) takes the answers itself")

    configure_evaluate = configure_train

    @override
    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Raise NotImplementedError, because nothing is evaluated at clients."""
        raise NotImplementedError("FedPCA evaluates nothing at clients")


class PCAClientApp(ClientApp):
    """ClientApp that answers the questions of `FedPCA`, and passes all other messages to the user's own functions.

    Parameters
    ----------
    client_fn : callable
        Makes the client of a context.
    """

    def __init__(self, client_fn: Callable[[Context], Client]) -> None:
        """Make the inner ClientApp that answers the questions of `FedPCA`."""
        super().__init__()
        self._pca = ClientApp(client_fn, mods=[one_blas_thread])

    @override
    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a question of `FedPCA`, or pass another message to the user's functions."""
        fields = message.content.config_records.get("fitins.config", ConfigRecord())
        ours = message.metadata.message_type == MessageTypeLegacy.GET_PROPERTIES or "phase" in fields
        return self._pca(message, context) if ours else super().__call__(message, context)


def client_app(rows: Callable[[Context], ArrayLike], method: str = "p-cov", **options: Any) -> ClientApp:
    """Make a ClientApp for a party that holds an array or a data frame.

    Outside a simulation the rows are the site's own data, and its node-config may have all keys of a site. With
    functions of one's own, ``@app.train()`` say, the app also answers another strategy before or after the PCA.

    Parameters
    ----------
    rows : callable
        Returns the party's rows, an array or a data frame (n, d), for a Flower context.
    method : str
        A method, as for `FedPCA`; server and clients need the same.
    **options
        Options, as for `FedPCA`.

    Returns
    -------
    ClientApp
    """
    run_config = _run_config(method, options)

    def client_fn(context: Context) -> Client:
        """Make the party's client with the rows for its context."""
        return FACTORY.client_of_rows(context, rows(context), run_config).to_client()

    return PCAClientApp(client_fn)


def run_on(grid: Grid, strategy: PCAStrategy, timeout: float | None = None) -> PCAModel:
    """Run a strategy on a Flower grid and return its model.

    Parameters
    ----------
    grid : Grid
    strategy : PCAStrategy
    timeout : float, optional
        Seconds that a round may take; by default the run's ``round_deadline``.

    Returns
    -------
    PCAModel

    Raises
    ------
    FedPCAError
        What the strategy or a party raised, or what the grid itself raised at the server.
    """
    seconds = strategy.config.round_deadline if timeout is None else timeout
    config = ServerConfig(num_rounds=strategy.rounds, round_timeout=seconds)
    with watch_grid(grid) as errors:
        try:
            start_grid(grid=grid, server=PCAServer(strategy), config=config)
        except FedPCAError as error:
            if not errors:
                raise
            text = f"{type(errors[0]).__name__}: {errors[0]}"
            raise FedPCAError(f"the grid of the server failed, and no node, with {text} ({error})") from errors[0]
    return strategy.model


def one_blas_thread(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Handle a message with BLAS limited to one thread, so that results do not depend on the machine's threads.

    The number of threads changes the order in which BLAS adds, and so the last bits of the sums.

    Parameters
    ----------
    message : Message
    context : Context
    call_next : callable
        The next mod, or the app.

    Returns
    -------
    Message
    """
    with numerical_libraries().limit(limits=1, user_api="blas"):
        return call_next(message, context)


def _run_config(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the run-config of a method and its options, whose names may have underscores."""
    values = {key.replace("_", "-"): value for key, value in options.items()}
    return METHODS.run_config({**values, "method": method})
