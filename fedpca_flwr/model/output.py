"""Where a run from the command line leaves its model: never in the place of another run's."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.model_file import model_file
from fedpca_flwr.state.files import writable


@dataclass(frozen=True)
class Output:
    """The files of a run's result."""

    model: Path  # absolute, as the other one
    moments: Path
    run_id: int
    overwrite: bool  # whether what another run left there may go

    @classmethod
    def of(cls, config: RunConfig, run_id: int) -> Output:
        """The files that ``config`` names; a path that is not absolute is in the run's own folder.

        A SuperLink does not know in which folder somebody typed ``flwr run``, and may have been started in any.

        `ConfigError`: before anything is computed: where nothing can be written, or another run's model is.
        """
        home = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser().absolute()  # Flower's own folder
        model = model_file(home / "fedpca-runs" / str(run_id) / Path(config.output).expanduser())
        output = cls(model, model.with_name(f"{model.stem}-moments.npz"), run_id, config.overwrite)
        writable(model.parent)
        if taken := output.taken():
            raise ConfigError(
                f"run-config: 'output' is '{config.output}', but {' and '.join(map(str, taken))} is there already; "
                "give another name, or overwrite=true"
            )
        return output

    def taken(self) -> list[Path]:
        """Files that must not be overwritten."""
        return [] if self.overwrite else [path for path in (self.model, self.moments) if path.exists()]

    def save(self, model: PCAModel) -> Output:
        """Write the model, and its moments if it kept them; beside, under the run's number, where another run that went
        on at the same time has been faster."""
        here = self
        if self.taken():
            stem = f"{self.model.stem}-{self.run_id}"
            names = (self.model.with_name(f"{stem}.npz"), self.model.with_name(f"{stem}-moments.npz"))
            here = Output(*names, self.run_id, overwrite=True)
        replace(model, moments_=None).save(here.model)
        if model.moments_ is not None:
            model.moments_.save(here.moments)
        return here
