"""Data sets, what is said where one is missing, and their parts: every row or column once, by a seed."""

import os
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import PARTITIONS, split, split_columns
from fedpca_flwr.data.table import Table, participating_rows
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.site.local_table import local_table
from tests.refusals import refused

LABELS = np.random.default_rng(0).integers(0, 10, 2000)
SHAPES = {"digits": (1797, 64), "breast-cancer": (569, 30), "wine": (178, 13), "synthetic": (2000, 50)}


@pytest.mark.parametrize("name", SHAPES)
def test_bundled_data_need_no_download(name):
    source = datasets.load(name)
    assert (source.all_rows().shape, source.labels.shape) == (SHAPES[name], SHAPES[name][:1])
    np.testing.assert_array_equal(source.rows(np.array([3, 5])), source.all_rows()[[3, 5]])


def test_data_sets_and_packages_that_are_not_there_are_named(tmp_path, monkeypatch):
    for name in ("mnist", "images"):
        with refused(DataError, *["'mnist'"] * (name == "mnist")) as caught:
            datasets.load(name, str(tmp_path))
        assert str(tmp_path) not in str(caught.value)
    with refused(ConfigError, "'dataset'", "'mnits'"):
        datasets.load("mnits")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    for ask in (lambda: datasets.load("cifar10"), lambda: datasets.download("mnist", "somewhere")):
        with refused(ConfigError, ".[vision]"):
            ask()


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_is_read_where_torchvision_puts_it(name, folder, tmp_path):
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)

    def write(stem, images, labels):
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(labels)

    pixels = np.random.default_rng(0).integers(0, 256, (20, 784), dtype=np.uint8)
    for stem, n in (("train", 20), ("t10k", 5)):
        write(stem, b"\0" * 16 + pixels[:n].tobytes(), b"\0" * 8 + bytes(range(n)))
    source = datasets.load(name, str(tmp_path))
    found = source.rows(np.array([1, 19])), source.labels, *source.test()
    for part, expected in zip(found, (pixels[[1, 19]], np.arange(20), pixels[:5], np.arange(5)), strict=True):
        np.testing.assert_array_equal(part, expected)
    for images, labels in ((0, 0), (10, 3), (16 + 784, 8 + 2), (16 + 5 * 784 + 1, 8 + 5)):
        write("t10k", bytes(images), bytes(labels))
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
    assert asked == [("three", {"as_frame": False})]
    source = datasets.load("openml:three", str(tmp_path))
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


def test_images_are_decoded_again_only_where_one_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 12), dtype=np.uint8)
    folder, decoded = tmp_path / "pictures" / "cat", []
    folder.mkdir(parents=True)

    def read_rows():
        datasets.load.cache_clear()
        return datasets.load("images", str(folder.parent)).all_rows()

    def save(number):
        Image.fromarray(pixels[number].reshape(3, 4)).save(folder / f"{number}.bmp")

    open_image = Image.open
    monkeypatch.setattr(Image, "open", lambda file: decoded.append(file.name) or open_image(file))
    save(0)
    save(1)
    for _ in range(2):
        np.testing.assert_array_equal(read_rows(), pixels[:2])
    assert decoded == ["0.bmp", "1.bmp"]
    save(2)
    np.testing.assert_array_equal(read_rows(), pixels)
    os.utime(folder / "0.bmp", (0, 0))
    np.testing.assert_array_equal(read_rows(), pixels)
    assert len(decoded) == 2 + 3 + 3
    assert len(list((tmp_path / "cache" / "fedpca_flwr" / "images").iterdir())) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "0.bmp"))
    with refused(ConfigError, "XDG_CACHE_HOME") as caught:
        read_rows()
    assert str(tmp_path) not in str(caught.value)


def test_an_image_folder_is_rows_of_pixels_of_one_size(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        folder = tmp_path / ("train", "test")[i // 6] / ("cat", "dog")[i // 3 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).convert("RGBA" if i == 1 else "RGB").save(folder / f"{i % 3}.png")
    source, of_train = (datasets.load("images", str(folder)) for folder in (tmp_path, tmp_path / "train"))
    assert source.all_rows().dtype == np.uint8
    for part, (found, labels) in enumerate(((source.all_rows(), source.labels), source.test())):
        np.testing.assert_array_equal(found, pixels[6 * part :][:6].reshape(6, 60))
        np.testing.assert_array_equal(labels, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(source.rows(np.array([4, 1])), source.all_rows()[[4, 1]])
    assert of_train.test is None
    Image.new("RGB", (9, 9)).save(tmp_path / "train" / "cat" / "2.png")
    with refused(DataError, "(4, 5, 3)", "(9, 9, 3)"):
        of_train.all_rows()


def test_cifar10_is_read_by_torchvision(monkeypatch, tmp_path):
    class CIFAR10:
        def __init__(self, root, train, download):
            assert not download
            if root.name == "absent":
                raise RuntimeError("Dataset not found")
            self.targets = [0, 1, 0, 1] if train else [0, 1]
            self.data = np.add.outer(np.arange(len(self.targets)), np.full((32, 32, 3), 7)).astype(np.uint8)

    package, asked = types.ModuleType("torchvision"), []
    vars(package)["datasets"] = SimpleNamespace(CIFAR10=CIFAR10, MNIST=lambda root, **how: asked.append((root, how)))
    monkeypatch.setitem(sys.modules, "torchvision", package)
    source = datasets.load("cifar10", str(tmp_path))
    assert (source.all_rows().shape, source.test()[0].shape) == ((4, 3072), (2, 3072))
    np.testing.assert_array_equal(source.rows(np.array([3, 1]))[:, 0], [10, 8])
    with refused(DataError, "cifar10"):
        datasets.load("cifar10", str(tmp_path / "absent"))
    datasets.download("mnist", "here")
    assert asked == [("here", {"train": train, "download": True}) for train in (True, False)]
    with refused(ConfigError, "'wine'", "mnist"):
        datasets.download("wine", "here")


@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_row_belongs_to_one_party_by_the_seed_and_in_order(kind):
    for rows, parties in ((2000, 1), (2000, 5), (2000, 50), (2000, 190), (40, 20), (7, 7)):
        parts = split(LABELS[:rows], parties, kind=kind, seed=1)
        assert len(parts) == parties
        assert min(map(len, parts)) >= min(10, rows // parties)
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(rows))
    one, same, other = (split(LABELS, 10, kind=kind, seed=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, one, same))
    assert not all(map(np.array_equal, one, other))
    for part in split(np.zeros(200, int), 2, kind=kind, seed=0, alpha=5.0):  # rows of one label are shuffled
        assert (np.diff(part) > 0).all()
        assert np.diff(part).max() > 1


def test_parts_of_rows_are_as_even_as_their_kind_says():
    in_order = np.sort(LABELS)
    assert min(len(np.unique(in_order[part])) for part in split(in_order, 10, kind="iid", seed=1)) == 10
    for alpha, least, most in ((0.1, 0.5, 1.0), (1000.0, 0.0, 0.2)):  # of rows with the label that most have
        parts = split(LABELS, 10, kind="dirichlet", seed=1, alpha=alpha)
        assert least < np.mean([np.bincount(LABELS[part]).max() / len(part) for part in parts]) < most
    shards = split(LABELS, 10, kind="shards", seed=1, shards_per_party=2)
    assert max(len(np.unique(LABELS[part])) for part in shards) <= 4
    sizes = [len(part) for part in split(LABELS, 10, kind="quantity", seed=1, alpha=0.5)]
    assert max(sizes) > 5 * min(sizes)
    with refused(ConfigError, 11, 10):
        split(LABELS[:10], 11, kind="iid", seed=1)
    # People left out stay out of weighted rows.
    table = Table(np.ones((4, 2)), np.zeros(2, int), weights=np.array([1.0, 4, 1, 1]), excluded=np.arange(4) == 2)
    assert len(participating_rows(table, 1)) == 3


def test_columns_are_split_evenly_by_sizes_or_by_names_also_for_a_simulated_party():
    for how, sizes in {"even": [22, 21, 21], "20 20 24": [20, 20, 24], "20,20,24": [20, 20, 24]}.items():
        assert all(map(np.array_equal, split_columns(64, 3, how), np.split(np.arange(64), np.cumsum(sizes)[:-1])))
    parts = split_columns(3, 2, "ash, hue; alcohol", ["alcohol", "ash", "hue"])
    assert [part.tolist() for part in parts] == [[1, 2], [0]]
    wine = datasets.load("wine")
    by_name = f"{', '.join(wine.names[:12])}; {wine.names[12]}"
    for parties, how, own in ((3, "3 4 6", np.s_[3:7]), (2, by_name, np.s_[12:])):
        node = NodeConfig(partition_id=1, num_partitions=parties)
        table = local_table(node, RunConfig(dataset="wine", partition="columns", columns=how))
        np.testing.assert_array_equal(table.rows, wine.all_rows()[:, own])
        assert table.split == "columns"
    assert local_table(node, RunConfig(dataset="wine")).split == "rows"


def test_columns_that_do_not_fit_are_named():
    sizes = {"20 20": ["20 20", 3, 1, 4], "2 2 0": ["2 2 0"], "a, b; c; d": [4, 3, "'even'"], "a, b; c": [3, 2]}
    lists = {"3 4": ["'3 4'", 2, 4], "a; b, x, d": ["c", "x"], "a; b, d": ["c"], "a, b; b, c, d": ["b"]}
    with refused(ConfigError, 5, 4):
        split_columns(4, 5, "even", [])
    for parties, names, texts in ((3, [], sizes), (2, list("abcd"), lists)):
        for how, named in texts.items():
            with refused(ConfigError, "'columns'", *named):
                split_columns(4, parties, how, names)
