"""A site's own scores: its rows projected, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.files import site_file
from fedpca_flwr.maths.arrays import Array

SCORE_FILES = (".npy", ".csv")
"""Kinds of files that scores are written to."""


def unknown_score_file(target: Path) -> ConfigError:
    """What to raise for another kind."""
    return ConfigError(f"node-config: 'scores' ends in '{target.suffix}', expected {' or '.join(SCORE_FILES)}")


@contextmanager
def score_file(path: str, n: int, k: int) -> Iterator[Callable[[Array], object]]:
    """A function that appends scores to a site's own file (nowhere for an empty path), whole or not at all.

    Parameters
    ----------
    path : str
        ``.npy`` or ``.csv``; rows in the order of the site's data.
    n, k : int
        Rows and components.
    """
    target = Path(path).expanduser()
    if not path:
        yield lambda scores: None
    elif target.suffix == ".npy":
        with site_file("scores", target) as stream:
            header = {"descr": "<f8", "fortran_order": False, "shape": (n, k)}
            np.lib.format.write_array_header_1_0(stream, header)
            yield lambda scores: stream.write(scores.astype("<f8").tobytes())
    elif target.suffix == ".csv":
        with site_file("scores", target) as stream:
            stream.write((",".join(f"PC{j + 1}" for j in range(k)) + "\n").encode())
            yield lambda scores: np.savetxt(stream, scores, delimiter=",", fmt="%.17g")
    else:
        raise unknown_score_file(target)
