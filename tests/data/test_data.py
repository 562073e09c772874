"""Data sets: bundled ones, images, MNIST's file format, and what is said where one is missing."""

import os
import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedpca_flwr.data import datasets
from fedpca_flwr.data.table import Table, participating_rows
from fedpca_flwr.errors import ConfigError, DataError
from tests.refusals import refused


@pytest.mark.parametrize(
    ("name", "shape"),
    [("digits", (1797, 64)), ("breast-cancer", (569, 30)), ("wine", (178, 13)), ("synthetic", (2000, 50))],
)
def test_bundled_data_need_no_download(name, shape):
    source = datasets.load(name)
    assert source.all_rows().shape == shape
    assert source.labels.shape == shape[:1]
    np.testing.assert_array_equal(source.rows(np.array([3, 5])), source.all_rows()[[3, 5]])


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_is_read_where_torchvision_puts_it(name, folder, tmp_path):
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 784), dtype=np.uint8)
    for stem, n in (("train", 20), ("t10k", 5)):
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(b"\0" * 16 + pixels[:n].tobytes())
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(b"\0" * 8 + bytes(range(n)))
    source = datasets.load(name, str(tmp_path))
    np.testing.assert_array_equal(source.rows(np.array([1, 19])), pixels[[1, 19]])
    np.testing.assert_array_equal(source.labels, np.arange(20))
    test, truth = source.test()
    np.testing.assert_array_equal(test, pixels[:5])
    np.testing.assert_array_equal(truth, np.arange(5))
    for images, labels in ((0, 0), (10, 3), (16 + 784, 8 + 2), (16 + 5 * 784 + 1, 8 + 5)):
        (raw / "t10k-images-idx3-ubyte").write_bytes(bytes(images))
        (raw / "t10k-labels-idx1-ubyte").write_bytes(bytes(labels))
        with refused(DataError, "whole"):
            source.test()
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with refused(DataError, f"'{name}'", "--data-root"):
        source.test()


def test_an_openml_set_is_read_without_a_network(tmp_path, monkeypatch):
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
    stub.target = None
    datasets.download("openml:unlabelled", str(tmp_path))
    assert datasets.load("openml:unlabelled", str(tmp_path)).labels.tolist() == [0] * 6
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


@pytest.fixture
def image_maps(tmp_path, monkeypatch):
    """Return the folder of the memory maps of decoded images, below a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedpca_flwr" / "images"


@pytest.mark.usefixtures("image_maps")
def test_an_image_folder_is_rows_of_pixels_of_one_size(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        folder = tmp_path / ("train", "test")[i // 6] / ("cat", "dog")[i // 3 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).convert("RGBA" if i == 1 else "RGB").save(folder / f"{i % 3}.png")
    source = datasets.load("images", str(tmp_path))
    assert source.all_rows().dtype == np.uint8
    np.testing.assert_array_equal(source.all_rows(), pixels[:6].reshape(6, 60))
    np.testing.assert_array_equal(source.labels, [0, 0, 0, 1, 1, 1])
    test, truth = source.test()
    np.testing.assert_array_equal(test, pixels[6:].reshape(6, 60))
    np.testing.assert_array_equal(truth, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(source.rows(np.array([4, 1])), source.all_rows()[[4, 1]])
    of_train = datasets.load("images", str(tmp_path / "train"))
    assert of_train.test is None
    Image.new("RGB", (9, 9)).save(tmp_path / "train" / "cat" / "2.png")
    with refused(DataError, "(4, 5, 3)", "(9, 9, 3)"):
        of_train.all_rows()


def test_images_are_decoded_again_only_where_one_has_changed(tmp_path, monkeypatch, image_maps):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 12), dtype=np.uint8)
    folder, decoded = tmp_path / "pictures", []

    def save(number, row):
        (folder / "cat").mkdir(parents=True, exist_ok=True)
        Image.fromarray(row.reshape(3, 4)).save(folder / "cat" / f"{number}.bmp")

    def read_rows():
        datasets.load.cache_clear()
        return datasets.load("images", str(folder)).all_rows()

    open_image = Image.open
    monkeypatch.setattr(Image, "open", lambda file: decoded.append(file.name) or open_image(file))
    for number in (0, 1):
        save(number, pixels[number])
    for _ in range(2):
        np.testing.assert_array_equal(read_rows(), pixels[:2])
    assert decoded == ["0.bmp", "1.bmp"]
    save(2, pixels[2])
    np.testing.assert_array_equal(read_rows(), pixels)
    os.utime(folder / "cat" / "0.bmp", (0, 0))
    np.testing.assert_array_equal(read_rows(), pixels)
    assert len(decoded) == 2 + 3 + 3
    assert len(list(image_maps.iterdir())) == 1


def test_a_cache_folder_that_cannot_be_written_to_is_named_by_its_variable(tmp_path, monkeypatch):
    (tmp_path / "cat").mkdir()
    Image.new("L", (2, 2)).save(tmp_path / "cat" / "0.png")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cat" / "0.png"))
    with refused(ConfigError, "XDG_CACHE_HOME") as caught:
        datasets.load("images", str(tmp_path)).all_rows()
    assert str(tmp_path) not in str(caught.value)


def test_cifar10_is_read_by_torchvision(monkeypatch, tmp_path):
    class CIFAR10:
        def __init__(self, root, train, download):
            assert not download
            if root.name == "absent":
                raise RuntimeError("Dataset not found")
            self.targets = [0, 1, 0, 1] if train else [0, 1]
            self.data = np.add.outer(np.arange(len(self.targets)), np.full((32, 32, 3), 7)).astype(np.uint8)

    package: Any = types.ModuleType("torchvision")
    package.datasets = types.SimpleNamespace(CIFAR10=CIFAR10)
    monkeypatch.setitem(sys.modules, "torchvision", package)
    source = datasets.load("cifar10", str(tmp_path))
    assert source.all_rows().shape == (4, 3072)
    np.testing.assert_array_equal(source.rows(np.array([3, 1]))[:, 0], [10, 8])
    assert source.test()[0].shape == (2, 3072)
    with refused(DataError, "cifar10"):
        datasets.load("cifar10", str(tmp_path / "absent"))
    asked = []
    package.datasets.MNIST = lambda root, **how: asked.append((root, how["train"], how["download"]))
    datasets.download("mnist", "here")
    assert asked == [("here", True, True), ("here", False, True)]
    with refused(ConfigError, "'wine'", "mnist"):
        datasets.download("wine", "here")


def test_without_torchvision_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    for ask in (lambda: datasets.load("cifar10"), lambda: datasets.download("mnist", "somewhere")):
        with refused(ConfigError, ".[vision]"):
            ask()


def test_people_left_out_stay_out_of_weighted_rows():
    rows, missing = np.arange(8.0).reshape(4, 2), np.zeros(2, dtype=np.int64)
    table = Table(rows, missing, weights=np.array([1.0, 4.0, 1.0, 1.0]), excluded=np.arange(4) == 2)
    assert len(participating_rows(table, 1)) == 3
