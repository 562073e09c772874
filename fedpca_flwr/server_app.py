"""ServerApp of a run: configuration, method, rounds, model on disk, summary."""

import logging
import sys
from contextlib import ExitStack
from dataclasses import replace
from logging import WARNING, StreamHandler

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpca_flwr.data import datasets
from fedpca_flwr.data.transforms import transform_array
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.flower import run_on
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.output import Output
from fedpca_flwr.model.reference import captured_variance, pooled_pca, principal_angles
from fedpca_flwr.protocol.metrics import measured
from fedpca_flwr.protocol.progress import limit_flower_log, route_to
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.strategies import FACTORY

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the method of the run-config, write the model, and print the summary; print and raise an error of the run."""
    try:
        strategy = FACTORY.strategy(context.run_config)
        with ExitStack() as contexts, route_to(StreamHandler(sys.stdout)), limit_flower_log(WARNING):
            contexts.enter_context(measured(strategy, context.run_id))
            output = Output.of(strategy.config, context.run_id)
            strategy.before_questions = lambda: output.reserve(strategy.model_bytes)
            print(f"Federated PCA\n  model                 {output.model}, when the run has ended", flush=True)
            model = run_on(grid, strategy)
        written, faults = output.save(model)  # before anything else can go wrong
    except FedPCAError as error:
        print(f"\nThe run failed, and no model was written.\n  {type(error).__name__}: {error}\n", flush=True)
        _silence_flower(error)
        raise
    config = strategy.config
    if config.reference and strategy.quorum.simulated and not (config.weights or config.blind):
        model.log["measured"] |= _compare_with_pooled(model, strategy)
        written, reference_faults = written.save(model)
        faults += reference_faults
    files = f"  {'model':<22}{written.model}\n"
    if model.moments_ is not None:
        files += f"  {'moments':<22}{written.moments}\n"
    elsewhere = "".join(f"  not where it should be: {fault}\n" for fault in dict.fromkeys(faults))
    print(f"\nFederated PCA\n{model.summary(full=True)}\n{files}{elsewhere}", flush=True)


def _silence_flower(error: FedPCAError) -> None:
    """Keep Flower from logging an error that is already printed."""

    def is_news(record: logging.LogRecord) -> bool:
        """Return whether a log record is neither the printed error nor Flower's exit code."""
        already_printed = record.exc_info is not None and record.exc_info[1] is error
        return not already_printed and not str(record.msg).startswith("Exit Code")

    logging.getLogger("flwr").addFilter(is_news)


def _compare_with_pooled(model: PCAModel, strategy: PCAStrategy) -> dict[str, float]:
    """Return the captured share of variance (0 to 1), and largest and mean angle (degrees) to the PCA of all rows.

    Empty after adjustment for covariates, and for a model of another number of rows (which noise hides).
    """
    rows = datasets.load(strategy.config.dataset, strategy.config.data_root).all_rows()
    if strategy.config.transform:
        rows = transform_array(rows, strategy.config.transform)
    of_these = strategy.card.differentially_private or len(rows) == model.n_samples_  # noise tells no exact number
    options = model.log["options"]
    if not of_these or "kernel" in options or options.get("column-weights") or model.adjustment_ is not None:
        return {}
    center, scale = bool(options.get("center", True)), bool(options.get("scale", False))
    reference = pooled_pca(rows, model.n_components_, center=center, scale=scale)
    captured = captured_variance(model, reference, rows)
    if model.scores_ is not None:
        reference = replace(reference, scores_=reference.transform(rows))
    angles = principal_angles(model, reference)
    return {
        "captured_variance_share": captured,
        "angle_to_pooled_max_degrees": angles.max,
        "angle_to_pooled_mean_degrees": angles.mean,
    }
