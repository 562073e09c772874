"""A site's own files about its rows: their scores, and next to the scores which rows are outliers (T2, SPE, limits)."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import t_squared
from fedpca_flwr.maths.rows import dense_rows
from fedpca_flwr.site.readers.file_format import FORMATS, file_suffix
from fedpca_flwr.state.files import open_site_file

SCORE_FILES = (".npy", ".csv", ".eigenvec")  # suffixes


def require_score_file(scores: str, data: str) -> None:
    """Raise ConfigError for scores with an unknown suffix, or in PLINK's format of rows that are not of a .bed file."""
    suffix = Path(scores).suffix
    if scores and suffix not in SCORE_FILES:
        raise ConfigError(f"node-config: 'scores' ends in '{suffix}', expected {' or '.join(SCORE_FILES)}")
    if suffix == ".eigenvec" and Path(data).suffix != ".bed":
        raise ConfigError(
            "node-config: 'scores' ends in '.eigenvec', which takes people's names from the .fam file beside a .bed "
            "file, but 'data' is not a .bed file; expected .npy or .csv"
        )


@contextmanager
def score_file(path: str, n: int, k: int, data: str = "") -> Iterator[Callable[[Array], object]]:
    """Open a file for scores (n, k), and yield a function that appends scores (m, k) in the order of the data.

    The suffix is ``.npy``, ``.csv`` or PLINK's ``.eigenvec``, with the people of ``data``, a .bed file. Without a path
    scores are dropped. The file appears complete or not at all; raise ConfigError if it cannot.
    """
    if not path:
        yield lambda scores: None
        return
    require_score_file(path, data)
    target, names = Path(path).expanduser(), [f"PC{j + 1}" for j in range(k)]
    with open_site_file("scores", target) as stream:
        if target.suffix == ".npy":
            header = {"descr": "<f8", "fortran_order": False, "shape": (n, k)}
            np.lib.format.write_array_header_1_0(stream, header)
            yield lambda scores: stream.write(scores.astype("<f8").tobytes())
        elif target.suffix == ".eigenvec":
            people = iter(_names(data))
            stream.write(("\t".join(["#FID", "IID", *names]) + "\n").encode())

            def append(scores: Array) -> None:
                """Write lines of the next people."""
                for row in scores:
                    cells = [*next(people).split(), *map("{:.17g}".format, row)]
                    stream.write(("\t".join(cells) + "\n").encode())

            yield append
        else:
            stream.write((",".join(names) + "\n").encode())
            yield lambda scores: np.savetxt(stream, scores, delimiter=",", fmt="%.17g")


LIMIT_LEVEL = 0.99  # confidence level of a limit: the share of new rows of the model's kind that do not exceed it
TOP_FEATURES = 3  # named for each row: those that add most to its SPE
OUTLIER_HEADER = b"T2,T2 limit,SPE,SPE limit,odd,features,row\n"


def row_names(data: str) -> Iterator[str]:
    """Return, as .csv cells, the names of a file's rows (a .bed file's people), or numbers from 0 without end."""
    names = _names(data)
    if not names:
        return map(str, itertools.count())
    return ('"' + name.replace('"', '""') + '"' for name in names)


def _names(data: str) -> Sequence[str]:
    """Return the names of a file's rows; none if files of this kind have no such names."""
    suffix = file_suffix(data)
    names = FORMATS[suffix].row_names if suffix else None
    return names(Path(data).expanduser()) if names else ()


class OddRows:
    """Examiner of rows for outliers, by Hotelling's T2 and squared prediction error (SPE).

    Without limits rows are not compared. ``exceeding`` counts those of the ``counted`` (n,) rows above the limits of T2
    and SPE. ``stream`` receives a line for each row with its name, by default its number from 0. Shapes: components (k,
    d), variances (k,), limits (2,) or (0,), exceeding (2,).
    """

    def __init__(
        self,
        components: Array,
        variances: Array,
        limits: Array,
        counted: NDArray[np.bool_],
        stream: BinaryIO | None = None,
        names: Iterator[str] | None = None,
    ) -> None:
        self.components, self.variances, self.limits = components, variances, limits
        self.exceeding: NDArray[np.int64] = np.zeros(2, np.int64)
        self._counted, self._position, self._stream = counted, 0, stream
        self._names = row_names("") if names is None else names

    def watch(self, chunks: Iterable[Any]) -> Iterator[Any]:
        """Yield the chunks of centred rows unchanged, after each was examined."""
        for centred in chunks:
            for part in dense_rows(centred):
                self.add(part)
            yield centred

    def add(self, centred: Array) -> None:
        """Examine centred and scaled rows (m, d): count those above the limits, and write a line for each row."""
        scores = centred @ self.components.T
        counted = self._counted[self._position : self._position + len(centred)]
        self._position += len(centred)
        if not self.limits.size:
            return
        errors = (centred - scores @ self.components) ** 2
        statistics = np.column_stack([t_squared(scores, self.variances), errors.sum(axis=1)])
        outlying = statistics > self.limits
        self.exceeding += outlying[counted].sum(axis=0)
        if self._stream is None:
            return
        t2_limit, spe_limit = (f"{limit:.9g}" for limit in self.limits)
        is_odd = np.any(outlying, axis=1).tolist()
        for (t2, spe), is_outlier, row_errors in zip(statistics.tolist(), is_odd, errors, strict=True):
            top = " ".join(map(str, np.argsort(-row_errors, kind="stable")[:TOP_FEATURES].tolist()))
            line = f"{t2:.9g},{t2_limit},{spe:.9g},{spe_limit},{int(is_outlier)},{top},{next(self._names)}\n"
            self._stream.write(line.encode())


@contextmanager
def companion_file(scores: str, suffix: str, header: bytes) -> Iterator[BinaryIO | None]:
    """Open the .csv file ``<scores>-<suffix>.csv``, complete or not at all, with its header; None without scores."""
    if not scores:
        yield None
        return
    target = Path(scores).expanduser()
    with open_site_file("scores", target.with_name(f"{target.stem}-{suffix}.csv")) as stream:
        stream.write(header)
        yield stream


def outlier_file(scores: str, limits: Array) -> AbstractContextManager[BinaryIO | None]:
    """Open the .csv file of outliers next to the file of scores; None without scores, or without limits."""
    return companion_file(scores if limits.size else "", "outliers", OUTLIER_HEADER)
