"""Data sets: bundled tables, images, synthetic data. A run never downloads: ``fedpca download mnist`` does, before."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from typer import Option

from fedpca_flwr.errors import ConfigError, DataError, excerpt, value_text
from fedpca_flwr.maths.description import represent_by_shapes
from fedpca_flwr.state.files import SHARED, atomic_file

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
VISION_ADVICE = "install the extra: pip install '.[vision]' in the repository"


@represent_by_shapes
@dataclass(frozen=True)
class Dataset:
    """Labelled data set of n rows, which are read only when asked for."""

    labels: NDArray[Any]  # (n,), by which rows are shared among simulated parties; never part of the data
    rows: Callable[[NDArray[np.int64]], NDArray[Any]]  # reads the rows (m, d) of indices (m,)
    test: Callable[[], tuple[NDArray[Any], NDArray[Any]]] | None = None  # reads rows and labels of a test set
    names: tuple[str, ...] = ()  # of the features; empty if unknown

    def all_rows(self) -> NDArray[Any]:
        """Read all rows (n, d)."""
        return self.rows(np.arange(len(self.labels)))


@lru_cache(maxsize=1)
def load(name: str, root: str = ".") -> Dataset:
    """Load a data set by its name in `DATASETS` or ``openml:NAME`` from the folder ``root``; pixels are 0 to 255."""
    if name.startswith(OPENML_PREFIX):
        file = _openml_file(name, Path(root).expanduser())
        if not file.is_file():
            raise _absent_error(name, file)
        with np.load(file, allow_pickle=False) as archive:
            rows, labels, names = archive["rows"], archive["labels"], tuple(map(str, archive["names"]))
        return Dataset(labels, rows.__getitem__, names=names)
    if name not in DATASETS:
        expected = f"expected one of: {', '.join(DATASETS)}, openml:NAME"
        raise ConfigError(f"run-config: 'dataset' is {value_text(name)}, {expected}")
    return DATASETS[name](Path(root).expanduser())


def _load_bundled(name: str, root: Path) -> Dataset:
    """Load a data set that is installed with scikit-learn."""
    from sklearn import datasets  # takes seconds to import, and a site with a file of its own does not need it

    bunch = getattr(datasets, f"load_{name}")()
    names = tuple(str(name) for name in bunch.feature_names)
    return Dataset(labels=bunch.target, rows=lambda indices: bunch.data[indices], names=names)


def _absent_error(name: str, expected: Path) -> DataError:
    """Return the error for a data set that is not in the folder of downloaded data."""
    return DataError(
        f"data set {value_text(name)} is not under data-root; download it first: "
        f"fedpca download {excerpt(name)} --data-root DEST",
        local=f"expected under {expected}",
    )


def _load_idx(name: str, folder: str, root: Path) -> Dataset:
    """Load images in MNIST's file format, memory-mapped; raise DataError if the files are absent or damaged."""
    raw = root / folder / "raw"

    def part(stem: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return pixels (n, 784) and labels of the files that begin with a stem."""
        images, labels = raw / f"{stem}-images-idx3-ubyte", raw / f"{stem}-labels-idx1-ubyte"
        if not images.exists() or not labels.exists():
            raise _absent_error(name, raw)
        y = np.fromfile(labels, np.uint8)[8:]
        if not y.size or images.stat().st_size != 16 + 784 * y.size:
            raise DataError(
                "the files of the data set under data-root are not whole, or not of each other; download it again",
                local=f"{images}, {labels}",
            )
        return np.memmap(images, np.uint8, "r", offset=16, shape=(len(y), 784)), y

    X, y = part("train")
    return Dataset(labels=y, rows=lambda indices: X[indices], test=lambda: part("t10k"))


def _torchvision() -> Any:
    """Import torchvision's data sets, or raise ConfigError if torchvision is not installed."""
    try:
        from torchvision import datasets as vision
    except ImportError:
        raise ConfigError(f"this data set is read by torchvision, which is not installed; {VISION_ADVICE}") from None
    return vision


def _cifar10(root: Path) -> Dataset:
    """Load CIFAR-10 from its folder by torchvision, or raise DataError if it is not there."""

    def part(train: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return pixels (n, 3072) and labels of the training or the test set."""
        try:
            source = _torchvision().CIFAR10(root, train=train, download=False)
        except RuntimeError:
            raise _absent_error("cifar10", root) from None
        return source.data.reshape(len(source.data), -1), np.array(source.targets)

    X, y = part(True)
    return Dataset(labels=y, rows=lambda indices: X[indices], test=lambda: part(False))


def _images(root: Path) -> Dataset:
    """Load images in a subfolder for each class (of ``train`` if there is ``test``); raise DataError without images."""
    has_test = (root / "train").is_dir() and (root / "test").is_dir()
    train = root / "train" if has_test else root
    files, labels = _image_files(train)
    pixels = cache(partial(_decoded_rows, train, files))

    def test() -> tuple[NDArray[Any], NDArray[Any]]:
        """Return pixels and labels of the folder ``test``."""
        test_files, test_labels = _image_files(root / "test")
        return _decoded_rows(root / "test", test_files), test_labels

    return Dataset(labels, lambda indices: pixels()[indices], test if has_test else None)


def _decoded_rows(folder: Path, files: list[Path]) -> NDArray[np.uint8]:
    """Return the memory map of a folder's decoded images, written when names, sizes or times of images change."""
    maps = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedpca_flwr" / "images"
    stats = [(str(file.relative_to(folder)), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    place, content = (sha256(repr(value).encode()).hexdigest()[:16] for value in (str(folder.resolve()), stats))
    target = maps / f"{place}-{content}.npy"
    if not target.is_file():
        try:
            with atomic_file(target) as stream:
                for row in _decode(files):
                    if not stream.tell():
                        header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), row.size)}
                        np.lib.format.write_array_header_1_0(stream, header)
                    stream.write(row.data)
        except OSError as error:
            raise ConfigError(
                "decoded images cannot be stored: set the environment variable XDG_CACHE_HOME to a folder that can be "
                "written to",
                local=f"{maps}: {error.strerror}",
            ) from None
        for old in maps.glob(f"{place}-*.npy"):
            if old != target:
                with suppress(OSError):  # Windows does not remove a file that another process has mapped
                    old.unlink()
    return np.asarray(np.load(target, mmap_mode="r", allow_pickle=False))


def _image_files(folder: Path) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the image files in a folder's subfolders, and their subfolders' numbers; raise DataError if none."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    files = [[file for file in sorted(group.iterdir()) if file.suffix.lower() in IMAGE_SUFFIXES] for group in classes]
    if not any(files):
        fault = "data-root holds no images: expected one subfolder a class, with image files in it"
        raise DataError(fault, local=str(folder))
    return list(chain.from_iterable(files)), np.repeat(np.arange(len(files)), list(map(len, files)))


def _decode(files: list[Path]) -> Iterator[NDArray[np.uint8]]:
    """Decode images of equal size and mode, and yield the pixels of each as a row."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(f"images are read by Pillow, which is not installed; {VISION_ADVICE}") from None
    shapes = set()
    for file in files:
        try:
            with Image.open(file) as image:
                pixels = np.asarray(image if image.mode in {"L", "RGB"} else image.convert("RGB"))
        except OSError:
            raise DataError("an image cannot be read: it is damaged", local=str(file)) from None
        shapes.add(pixels.shape)
        if len(shapes) > 1:
            raise DataError(
                f"images differ in size or in number of colours ({' and '.join(map(str, sorted(shapes)))}); "
                "make them alike first",
                local=str(file),
            )
        yield pixels.reshape(-1)


def _synthetic(root: Path) -> Dataset:
    """Draw 2,000 rows of 50 features in ten groups: noise with spectrum 1/j about group means from -5 to 5."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 200)
    basis, _ = np.linalg.qr(rng.standard_normal((50, 50)))
    noise = (rng.standard_normal((2000, 50)) / np.sqrt(np.arange(1, 51))) @ basis.T
    rows = noise + rng.uniform(-5, 5, size=(10, 50))[labels]
    return Dataset(labels, rows.__getitem__)


DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "digits": partial(_load_bundled, "digits"),
    "breast-cancer": partial(_load_bundled, "breast_cancer"),
    "wine": partial(_load_bundled, "wine"),
    "synthetic": _synthetic,
    "mnist": partial(_load_idx, "mnist", "MNIST"),
    "fashion-mnist": partial(_load_idx, "fashion-mnist", "FashionMNIST"),
    "cifar10": _cifar10,
    "images": _images,
}
OPENML_PREFIX = "openml:"


def _openml_file(name: str, root: Path) -> Path:
    """Return the path of a downloaded OpenML data set; raise ConfigError for a name that is no plain file name."""
    short = name.removeprefix(OPENML_PREFIX)
    if not re.fullmatch(r"[\w.()-]*\w[\w.()-]*", short):
        raise ConfigError(f"'dataset' is {value_text(name)}, expected openml: and a name of letters, digits and ._-()")
    return root / "openml" / f"{short}.npz"


def download(name: str, data_root: Annotated[str, Option(metavar="FOLDER")]) -> None:
    """Fetch a data set of torchvision (extra 'vision') or OpenML.

        fedpca download mnist --data-root DEST

    No other command uses the network.

    Parameters
    ----------
    name : str
        mnist, fashion-mnist, cifar10 or openml:NAME.
    data_root : str
        Folder to download into.

    Raises
    ------
    ConfigError, DataError
        If the data set cannot be downloaded, or has columns that are no numbers.
    """
    if name.startswith(OPENML_PREFIX):
        from sklearn.datasets import fetch_openml

        file = _openml_file(name, Path(data_root))
        bunch = fetch_openml(name.removeprefix(OPENML_PREFIX), as_frame=False)
        rows = np.asarray(bunch.data)
        if rows.dtype.kind not in "fiu":
            raise DataError(f"data set {value_text(name)} has columns that are no numbers; name one of numbers only")
        labels = np.zeros(len(rows), int) if bunch.target is None else np.unique(bunch.target, return_inverse=True)[1]
        with atomic_file(file, SHARED) as stream:
            np.savez_compressed(stream, rows=rows, labels=labels, names=np.array(bunch.feature_names, dtype=str))
        return
    classes = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10"}
    if name not in classes:
        raise ConfigError(f"'{name}' cannot be downloaded; name one of: {', '.join(classes)}, openml:NAME")
    source = getattr(_torchvision(), classes[name])
    for train in (True, False):
        source(data_root, train=train, download=True)
