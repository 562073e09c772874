"""Data sets: bundled ones, images, MNIST's file format, and what is said where one is missing."""

import builtins
import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedpca_flwr.data import datasets
from fedpca_flwr.errors import ConfigError, DataError
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _fresh():
    datasets.load.cache_clear()


@pytest.mark.parametrize(
    ("name", "shape"),
    [("digits", (1797, 64)), ("breast-cancer", (569, 30)), ("wine", (178, 13)), ("synthetic", (2000, 50))],
)
def test_bundled_data_need_no_download(name, shape):
    source = datasets.load(name)
    assert source.all_rows().shape == shape
    assert source.labels.shape == shape[:1]
    np.testing.assert_array_equal(source.rows(np.array([3, 5])), source.all_rows()[[3, 5]])


def write_idx(root, folder="MNIST"):
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 784), dtype=np.uint8)
    for stem, n in (("train", 20), ("t10k", 5)):
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(b"\0" * 16 + pixels[:n].tobytes())
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(b"\0" * 8 + bytes(range(n)))
    return pixels


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_is_read_where_torchvision_puts_it(name, folder, tmp_path):
    pixels = write_idx(tmp_path, folder)
    source = datasets.load(name, str(tmp_path))
    np.testing.assert_array_equal(source.rows(np.array([1, 19])), pixels[[1, 19]])
    np.testing.assert_array_equal(source.labels, np.arange(20))
    test, truth = source.test()
    assert test.shape == (5, 784)
    assert truth.shape == (5,)


def test_a_set_of_openml_is_kept_at_its_download_and_read_without_a_network(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).integers(0, 256, (6, 3))
    stub = SimpleNamespace(data=rows, target=np.array(["b", "a", "b", "c", "a", "a"]), feature_names=["x", "y", "z"])
    asked = []
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda name, **how: asked.append((name, how)) or stub)
    with refused(DataError, "openml:three", "--data-root"):
        datasets.load("openml:three", str(tmp_path))
    assert not asked
    datasets.download("openml:three", str(tmp_path))
    source = datasets.load("openml:three", str(tmp_path))
    assert asked == [("three", {"as_frame": False})]
    np.testing.assert_array_equal(source.rows(np.array([5, 0])), rows[[5, 0]])
    assert (source.labels.tolist(), source.names) == ([1, 0, 1, 2, 0, 0], ("x", "y", "z"))
    stub.data = np.array([["red"]], dtype=object)
    with refused(DataError, "openml:words"):
        datasets.download("openml:words", str(tmp_path))
    for name in ("openml:../three", "openml:three/../../x", "openml:", "openml:.."):
        with refused(ConfigError, "openml"):
            datasets.load(name, str(tmp_path))


def test_data_sets_that_are_not_there_are_named(tmp_path):
    with refused(DataError, "'mnist'") as caught:
        datasets.load("mnist", str(tmp_path))
    assert str(tmp_path) not in str(caught.value)
    with refused(ConfigError, "'dataset'", "'mnits'"):
        datasets.load("mnits")
    with refused(DataError):
        datasets.load("images", str(tmp_path))


def write_images(root):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        for group in ("cat", "dog"):
            (root / part / group).mkdir(parents=True)
            for i in range(3):
                Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)).save(root / part / group / f"{i}.png")


def test_an_image_folder_is_rows_of_pixels(tmp_path):
    write_images(tmp_path)
    source = datasets.load("images", str(tmp_path))
    assert source.all_rows().shape == (6, 60)
    assert source.all_rows().dtype == np.uint8
    np.testing.assert_array_equal(source.labels, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(source.test()[1], [0, 0, 0, 1, 1, 1])
    assert len(np.unique(source.all_rows(), axis=0)) == 6
    np.testing.assert_array_equal(source.rows(np.array([4, 1])), source.all_rows()[[4, 1]])
    assert datasets.load("images", str(tmp_path / "train")).test is None


def test_images_of_different_size_are_refused(tmp_path):
    write_images(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "train" / "cat" / "z.png")
    with refused(DataError, "(4, 5, 3)", "(9, 9, 3)"):
        datasets.load("images", str(tmp_path)).all_rows()


def test_cifar10_is_read_by_torchvision(monkeypatch, tmp_path):
    class CIFAR10:
        def __init__(self, root, train, download):
            assert not download
            if root.name == "absent":
                raise RuntimeError("Dataset not found")
            self.data = np.arange(4 if train else 2, dtype=np.uint8)[:, None, None, None] + np.full(
                (32, 32, 3), 7, "u1"
            )
            self.targets = [0, 1, 0, 1][: len(self.data)]

    package: Any = types.ModuleType("torchvision")
    package.datasets = types.SimpleNamespace(CIFAR10=CIFAR10)
    monkeypatch.setitem(sys.modules, "torchvision", package)
    source = datasets.load("cifar10", str(tmp_path))
    assert source.all_rows().shape == (4, 3072)
    np.testing.assert_array_equal(source.rows(np.array([3, 1]))[:, 0], [10, 8])
    assert source.test()[0].shape == (2, 3072)
    with refused(DataError, "cifar10"):
        datasets.load("cifar10", str(tmp_path / "absent"))


def test_without_torchvision_the_extra_is_named(monkeypatch):
    def absent(name, *rest):
        if name.startswith("torchvision"):
            raise ImportError
        return imported(name, *rest)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", absent)
    with refused(ConfigError, ".[vision]"):
        datasets.load("cifar10")
    with refused(ConfigError, ".[vision]"):
        datasets.download("mnist", "somewhere")
