"""Output files of a run from the command line: never in place of another run's model, and somewhere in any case."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.model_file import model_path
from fedpca_flwr.state.files import SHARED, require_writable_folder

OTHER_USER_ADVICE = (
    "This run has the rights of whoever started the SuperLink. If that is another user of this machine, set "
    "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT and FLWR_LOCAL_CONTROL_API_PORT to two free ports before 'flwr run' "
    "(docs/flower-app.md)"
)


@dataclass
class Output:
    """Paths of a run's result files, whether they may be overwritten, and the file that reserves their space."""

    model: Path  # absolute, as is `moments`
    moments: Path
    run_id: int
    overwrite: bool
    reserved_file: IO[bytes] | None = None

    @classmethod
    def of(cls, config: RunConfig, run_id: int) -> Output:
        """Choose the paths of the result files by the run-config, and check that they can be written.

        A SuperLink does not know in which folder somebody typed ``flwr run``, and may have been started in any folder:
        a path that is not absolute is placed in the run's own folder.
        """
        model = model_path(_run_folder(run_id) / Path(config.output).expanduser())
        output = cls(model, model.with_name(f"{model.stem}-moments.npz"), run_id, config.overwrite)
        try:
            require_writable_folder(model.parent, SHARED)
        except ConfigError as error:
            raise ConfigError(f"{error}. {OTHER_USER_ADVICE}") from None
        if existing := output.existing_files():
            raise ConfigError(
                f"run-config: 'output' is '{config.output}', but {' and '.join(map(str, existing))} is there already; "
                "give another name, or overwrite=true"
            )
        return output

    def existing_files(self) -> list[Path]:
        """Return the result files that exist already; [] if overwriting is allowed."""
        return [] if self.overwrite else [path for path in (self.model, self.moments) if path.exists()]

    def reserve(self, nbytes: int) -> None:
        """Reserve ``nbytes`` of disk space by a temporary file, or raise ConfigError if there is too little."""
        try:
            self.reserved_file = TemporaryFile(dir=self.model.parent)  # noqa: SIM115  # is gone with this process, or in `save`
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.reserved_file.fileno(), 0, nbytes)
        except OSError as error:
            if self.reserved_file:
                self.reserved_file.close()
            raise ConfigError(
                f"run-config: 'output' is in {self.model.parent}, where the result's {nbytes:,} bytes have no place "
                f"({error.strerror}): free some, or name another folder"
            ) from None

    def save(self, model: PCAModel) -> tuple[Output, list[str]]:
        """Write the model, and its moments if any; return the files written, and why others could not be written.

        Names that another run has taken get the run's number. Where a folder cannot be written, the run's folder, then
        a new temporary one, is taken. Raise ConfigError if none can be written.
        """
        if self.reserved_file:
            self.reserved_file.close()
        written, faults = replace(self, overwrite=True), list[str]()
        if self.existing_files():
            stem = f"{self.model.stem}-{self.run_id}"
            written.model, written.moments = (self.model.with_name(f"{stem}{end}.npz") for end in ("", "-moments"))
        written.model = self._save_to_first_folder(written.model, replace(model, moments_=None).save, faults)
        if model.moments_ is not None:
            written.moments = self._save_to_first_folder(written.moments, model.moments_.save, faults)
        return written, faults

    def _save_to_first_folder(self, target: Path, save: Callable[[Path], Path], faults: list[str]) -> Path:
        """Return what ``save`` returns for the first writable folder; ``faults`` get why earlier ones failed."""
        causes = []
        for folder in (target.parent, _run_folder(self.run_id), None):
            try:
                saved = save((folder or Path(mkdtemp(prefix=f"fedpca-{self.run_id}-"))) / target.name)
            except OSError as error:
                causes.append(error.strerror or type(error).__name__)
            else:
                if causes:
                    faults.append(f"{target} could not be written ({'; '.join(causes)})")
                return saved
        why = "; ".join(causes)
        raise ConfigError(f"the run has ended, but its result is lost: {target} cannot be written ({why})")


def _run_folder(run_id: int) -> Path:
    """Return the folder of a run's results inside Flower's home folder."""
    home = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser().absolute()
    return home / "fedpca-runs" / str(run_id)
