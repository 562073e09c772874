"""What holds however many methods, stages and kinds of file there are: `test_rooms` deletes them in turn."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr import METHODS, cli, read
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.card import Stage
from fedpca_flwr.questions.rows_client import RowsStage
from fedpca_flwr.stages import STAGES
from tests.families import cut, rows
from tests.harness import fit
from tests.refusals import refused

ROOT = Path(__file__).parents[1]
FOLDERS = ("fedpca_flwr", "strategies", "simulations")


def module_name(file: str) -> str:
    parts = ("fedpca_flwr", *Path(file).with_suffix("").parts)
    return ".".join(parts[file.startswith("fedpca_flwr") :]).removesuffix(".__init__")


def missing_imports(root: Path) -> list[str]:
    """Return what modules of a tree import that is not there; examples are pages."""
    files = [file for folder in FOLDERS for file in (root / folder).rglob("*.py") if "examples" not in file.parts]
    known = {module_name(str(file.relative_to(root))): file.read_text("utf-8") for file in files}
    bound: dict[str, set[str]] = {name: set() for name in known}
    imported = []
    for name, code in known.items():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                bound[name].add(node.name)
            elif isinstance(node, ast.Name):
                bound[name].add(node.id)
            elif isinstance(node, ast.ImportFrom):
                bound[name] |= {alias.asname or alias.name for alias in node.names}
                imported += [(name, str(node.module), alias.name) for alias in node.names]
            elif isinstance(node, ast.Constant) and re.fullmatch(r"fedpca_flwr(\.\w+)+", str(node.value)):
                home, _, last = node.value.rpartition(".")  # in a table of what is imported when it is named
                imported += [(name, home, last)] if home != "fedpca_flwr" else []
    return [
        f"{name}: {home}.{last}"
        for name, home, last in imported
        if home.startswith("fedpca_flwr") and f"{home}.{last}" not in known and last not in bound.get(home, ())
    ]


def test_every_command_says_what_it_does(capsys):
    for command in cli.COMMANDS:
        assert cli.main([*command.split(), "-h"]) == 0
        assert capsys.readouterr().out.startswith(f"Usage: fedpca {command} ")


@pytest.mark.parametrize(
    "method", [name for name, method in METHODS.items() if not method.strategy.card.loadings_source]
)
def test_every_method_makes_a_plain_run(method):
    card = METHODS[method].strategy.card
    by_rows = card.split == "rows"
    parties = cut(rows(60, 6), 30, 20, 10) if by_rows else np.split(rows(60, 6), 3, axis=1)
    assert fit(method, parties, n_components=2).n_components_ == 2 or card.adapts_rank


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.__name__)
def test_what_a_stage_declares_is_true_of_methods_and_its_implementation(stage):
    cards = [method.strategy.card for method in METHODS.values() if stage in method.strategy.card.stages]
    assert all(stage.Options.model_fields.keys() <= card.options.model_fields.keys() for card in cards)
    implementation = type(stage.enter(None))
    assert issubclass(implementation, stage)
    assert issubclass(implementation, RowsStage)
    declared = [name for name in Stage.__annotations__ if name != "options"]
    assert [getattr(implementation, name) for name in declared] == [getattr(stage, name) for name in declared]


def test_a_file_of_an_unknown_kind_is_told_which_there_are(tmp_path):
    np.save(tmp_path / "rows.npy", rows(9, 3))
    assert read(tmp_path / "rows.npy").rows.shape == (9, 3)
    with refused(ConfigError, ".npy", ".npz"):
        read(tmp_path / "rows.other")
