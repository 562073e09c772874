"""Methods, stages and readers of another package are found by their entry points, and used by their names as ours."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.protocol import registry
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.strategies import METHODS
from tests.refusals import refused, unnamed

MODULE = """
from dataclasses import replace
from fedpca_flwr.protocol.registry import Method
from fedpca_flwr.strategies import METHODS
strategy, client = METHODS["p-cov"]
card = replace(strategy.card, name="foreign", title="A method of somebody else's")
METHOD = Method(type("Foreign", (strategy,), {"card": card}), client)
"""
STAGE_AND_READER = """
import numpy as np
from fedpca_flwr.protocol.card import PCAOptions
from fedpca_flwr.questions.rows_client import RowsStage
from fedpca_flwr.site.readers.file_format import FileFormat

class LoudOptions(PCAOptions):
    loud: bool = False

class Loud(RowsStage):
    Options, option_names = LoudOptions, ("loud",)
    def conclude(self, model, fit):
        model.log["notes"].append("LOUD")

WORDS = FileFormat(lambda file, selection: (np.loadtxt(file), []))
"""
RUN = """
import numpy as np
from fedpca_flwr import METHODS, battery, read, run
parties = [np.random.default_rng(i).normal(size=(20, 3)) for i in range(2)]
model = run("foreign scale=true", parties, n_components=2)
print(model.log["method"], "foreign" in METHODS, list(METHODS)[-1], model.rounds)
checks = battery("foreign")
checks["exact"]()
print(list(checks))
print(METHODS["p-cov"].strategy.__name__, list(METHODS).count("p-cov"))
print(METHODS["foreign"].strategy(n_components=2, clients=2).public.parties)
for number, party in enumerate(parties):
    np.savetxt(f"{number}.words", party)
model = run("foreign loud=true", [read("0.words").rows, read("1.words").rows], n_components=2)
print(model.n_samples_, model.log["notes"].count("LOUD"))
"""
POINTS = """
[fedpca_flwr.methods]
p-cov = foreign_pca:METHOD
foreign = foreign_pca:METHOD
[fedpca_flwr.stages]
adjust = foreign_steps:Loud
loud = foreign_steps:Loud
[fedpca_flwr.readers]
.npy = foreign_steps:WORDS
.words = foreign_steps:WORDS
"""


@pytest.mark.engine
def test_methods_stages_and_readers_are_used_by_their_names(tmp_path):
    (tmp_path / "foreign_pca.py").write_text(MODULE)
    (tmp_path / "foreign_steps.py").write_text(STAGE_AND_READER)
    (about := tmp_path / "foreign_pca-1.0.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-pca\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    code = f"import sys; sys.path[:0] = [{str(Path(__file__).parents[2])!r}, {str(tmp_path)!r}]\n{RUN}"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path, check=True)
    first, checks, ours, parties, read_and_staged = done.stdout.strip().splitlines()
    assert first == "foreign True foreign 1"
    assert not unnamed(checks, "'exact'", "'masked'")
    assert ours == "PooledCovariance 1"
    assert parties == "2", "its class takes keywords, too"
    assert read_and_staged == "40 1"


@pytest.mark.parametrize("given", [METHODS["p-cov"].strategy, METHODS["p-cov"]], ids=["no method", "of another name"])
def test_entry_points_without_a_method_name_their_package(given, monkeypatch):
    package = SimpleNamespace(name="foreign-pca")
    point = SimpleNamespace(name="foreign", value="foreign_pca:NONE", load=lambda: given, dist=package)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with refused(ConfigError, "'foreign'", "foreign_pca:NONE", "foreign-pca", registry.ENTRY_POINT_GROUP):
        registry.Registry("fedpca_flwr.strategies", {})["foreign"]
    # A class without registry says what to import.
    monkeypatch.delattr(PCAStrategy, "factory")
    with refused(ContractError, "PooledCovariance", "import fedpca_flwr.strategies"):
        METHODS["p-cov"].strategy(n_components=2)


def test_a_class_is_a_method_unless_another_has_its_name():
    kind = METHODS["p-cov"].strategy
    package, _, module = kind.__module__.rpartition(".")
    methods = registry.Registry(package, {"p-cov": f"{module}:{kind.__name__}"})
    own, *wrong = (type("Own", (kind,), {"card": replace(kind.card, name=name)}) for name in ("own", "p-cov", "OWN"))
    assert (methods.name_of(kind), methods.name_of(own), methods["own"].strategy.__name__) == ("p-cov", "own", "Own")
    assert methods.strategy_by_class(kind.__name__) is kind
    for name, named in zip(("p-cov", "OWN"), wrong, strict=True):
        with refused(ConfigError, "Own", f"'{name}'"):
            methods.name_of(named)
    # Its keywords are those of runs.
    ways = kind(n_components=2, clients=3), kind(n_components=2, secure_aggregation=True, bound=9.0)
    assert (ways[0].public.parties, [way.transport.parties_per_sum(7) for way in ways]) == (3, [1, 7])
    with refused(ConfigError, "'transform'", "'adjust_for'"):
        kind(n_components=2, transform="clr", adjust_for="0")
