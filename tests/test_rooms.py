"""Every room of the house can be deleted: but for the lines of the tables that list it, nothing names it.

A room is a stage, a method, a kind of file, or what one domain adds. Of a copy of the tree its files and its own tests
are deleted, and its lines in tables; what is left must import nothing that is gone, and pass the core's tests. By day
one room is tried, with the tests that name no room; the night tries all.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from fedpca_flwr import METHODS
from fedpca_flwr.site.readers.file_format import FORMATS
from fedpca_flwr.stages import STAGES

ROOT = Path(__file__).parents[1]
TREE = ("fedpca_flwr", "strategies", "simulations", "tests", "pyproject.toml")
EVERYWHERE = ("test_core.py", "maths/test_eigen.py", "maths/test_columns.py", "maths/test_factors.py")
"""Tests that name no room."""
OF_RUNS = ("questions/test_rows.py", "maths/test_moments.py", "protocol/test_question.py", "protocol/test_payload.py")
"""Tests that name methods as examples."""


class Room(NamedTuple):
    """What is deleted: files and folders, and by table the lines in which one of these patterns is found."""

    files: Sequence[str]
    lines: Mapping[str, Sequence[str]]
    core: Sequence[str] = (*EVERYWHERE, *OF_RUNS)


STAGES_TABLE = "fedpca_flwr/stages/__init__.py"
READERS = "fedpca_flwr/site/readers/files.py"
TABLE_STEPS = "fedpca_flwr/site/local_table.py"
ANALYSES = "fedpca_flwr/analyses/__init__.py"
COMMANDS = "fedpca_flwr/cli.py"
BENCHMARKS = "simulations/benchmarks/__main__.py"


def _together(*rooms: Room) -> Room:
    """Rooms that are one domain."""
    lines: dict[str, list[str]] = {}
    for room in rooms:
        for table, patterns in room.lines.items():
            lines.setdefault(table, []).extend(patterns)
    return Room([file for room in rooms for file in room.files], lines)


def _stage(file: str, name: str, *tests: str) -> Room:
    return Room(
        [f"fedpca_flwr/stages/{file}", *(f"tests/stages/{test}.py" for test in tests)], {STAGES_TABLE: [rf"\b{name}\b"]}
    )


def _method(name: str) -> Room:
    strategy = METHODS[name].strategy
    whole = strategy.__module__.split(".")[2]
    folder = Path(ROOT, "strategies", whole).is_dir()
    files = [f"strategies/{whole}" if folder else f"strategies/{whole}.py"]
    lines = {"strategies/__init__.py": [rf'"{name}": "'], "fedpca_flwr/__init__.py": [rf"\b{strategy.__name__}\b"]}
    if name == "personalised":  # the paper that it is of
        files.append("simulations/papers/personalised.py")
        lines["simulations/papers/__main__.py"] = ['    "personalised",']
    return Room([*files, "tests/strategies"], lines, EVERYWHERE)


BED = Room(
    [
        "fedpca_flwr/genetics/bed_file.py",
        "fedpca_flwr/genetics/relatives.py",
        "fedpca_flwr/genetics/command.py",
        "tests/site/test_bed.py",
    ],
    {
        READERS: [r"\bBED\b"],
        COMMANDS: ['"genotypes"', '"site variants"', '"site relatives"'],
        TABLE_STEPS: [r"\bpeople_apart\b"],
    },
)
CELLS = Room(
    ["fedpca_flwr/cells/h5ad_file.py", "fedpca_flwr/cells/command.py", "tests/site/test_readers.py"],
    {READERS: [r"\bH5AD\b"], COMMANDS: ['"cells"']},
)
GENOTYPES = _stage("genotypes", "Genotypes", "test_genotypes_of_people")

ROOMS = {
    "stage weights": _together(
        _stage("weights.py", "Weights", "test_weights"),
        Room(["fedpca_flwr/site/weights.py"], {TABLE_STEPS: [r"\bweights_apart\b"]}),
    ),
    "stage adjust": _stage("adjust.py", "Adjust", "test_adjusting"),
    "stage genotypes": GENOTYPES,
    "stage clusters": _together(
        _stage("clusters.py", "Clusters", "test_clusters"), Room(["fedpca_flwr/stages/harmony.py"], {})
    ),
    "stage blind": _together(
        _stage("blind.py", "Blind", "test_blind"),
        Room(
            [
                "fedpca_flwr/blind/rotated_vault.py",
                "tests/attacks/test_blind.py",
                "tests/deployment/test_blind.py",
            ],
            {},
        ),
    ),
    "stage odd rows": _stage("odd_rows.py", "OddRows", "test_odd_rows"),
    "reader parquet": Room(
        ["fedpca_flwr/site/readers/parquet_file.py", "tests/site/test_readers.py"], {READERS: [r"\bPARQUET\b"]}
    ),
    "reader bed": BED,
    "reader office": Room(
        ["fedpca_flwr/site/readers/office_files.py", "tests/site/test_readers.py"],
        {READERS: [r"\b(SPREADSHEET|STATISTICS)\b"]},
    ),
    "reader texts": Room(
        [
            *(f"fedpca_flwr/site/{name}.py" for name in ("csv_file", "csv_faults", "csv_header", "office_files")),
            *(f"tests/site/{name}.py" for name in ("test_readers", "test_header", "test_texts")),
        ],
        {READERS: [r"\b(CSV|SPREADSHEET|STATISTICS)\b"]},
    ),
    "databases": Room(
        [
            "fedpca_flwr/site/readers/databases.py",
            "tests/site/test_databases.py",
        ],
        {READERS: [r"\bread_query\b"]},
    ),
    "genotypes": _together(
        GENOTYPES,
        BED,
        Room(
            [
                "fedpca_flwr/genetics/genotypes.py",
                "fedpca_flwr/genetics/linkage.py",
                "simulations/benchmarks/genotypes.py",
            ],
            {BENCHMARKS: ['"genotypes"']},
        ),
        Room(["tests/maths/test_linkage.py"], {}),
    ),
    "cells": CELLS,
    "metrics": Room(
        ["fedpca_flwr/protocol/metrics.py", "fedpca_flwr/site/node/metrics.py", "tests/protocol/test_metrics.py"],
        {
            "fedpca_flwr/server_app.py": [r"import measured$", r"^    measured,$"],
            "fedpca_flwr/site_app.py": [r"\bmetrics_of_site\b"],
        },
    ),
    "sparse components": Room(
        [
            *(f"fedpca_flwr/{name}.py" for name in ("analyses/sparse", "maths/sparse_pca")),
            *(f"tests/{name}.py" for name in ("analyses/test_sparse_components", "maths/test_sparse_pca")),
        ],
        {ANALYSES: [r"\b(SparseComponents|sparse_components)\b"]},
    ),
    "groups of features": Room(
        ["fedpca_flwr/analyses/groups.py", "tests/analyses/test_groups.py"],
        {ANALYSES: [r"\b(MultipleFactorAnalysis|multiple_factor_analysis)\b"]},
    ),
    "doctor": Room(["fedpca_flwr/site/node/doctor.py", "tests/site/test_doctor.py"], {COMMANDS: ['"site doctor"']}),
    "worth": Room(
        [
            "simulations/subspace_error.py",
            "simulations/worth.py",
            "tests/maths/test_subspace_error.py",
            "tests/simulations/test_worth.py",
        ],
        {COMMANDS: ['"site worth"']},
    ),
    **{f"method {name}": _method(name) for name in METHODS},
}
BY_DAY = "stage clusters"


def test_all_stages_and_kinds_of_file_are_rooms():
    deleted = [file for room in ROOMS.values() for file in room.files]
    homes = {stage.__module__ for stage in STAGES} | {kind.read_rows.__module__ for kind in FORMATS.values()}
    for home in homes - {"fedpca_flwr.site.readers.numpy_files", "functools"}:
        file = f"{home.replace('.', '/')}.py"
        assert any(file.startswith(part) for part in deleted), file


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "core"),
    [(BY_DAY, EVERYWHERE), *(pytest.param(name, room.core, marks=pytest.mark.nightly) for name, room in ROOMS.items())],
)
def test_without_a_room_the_rest_is_as_it_was(name, core, tmp_path):
    room = ROOMS[name]
    for part in TREE:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tmp_path / part, symlinks=True)
        else:
            shutil.copy(ROOT / part, tmp_path)
    for file in room.files:
        gone = tmp_path / file
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    for table, patterns in room.lines.items():
        lines = (tmp_path / table).read_text(encoding="utf-8").splitlines(keepends=True)
        left = [line for line in lines if not any(re.search(pattern, line) for pattern in patterns)]
        assert len(left) < len(lines), table
        (tmp_path / table).write_text("".join(left), encoding="utf-8")
    tests = [f"tests/{test}" for test in core]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not engine", *tests],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
