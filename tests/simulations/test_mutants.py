"""The table of faults fits the code, and a fault that no test sees is told."""

import subprocess

import pytest

from fedpca_flwr.errors import FedPCAError
from simulations.mutants.faults import ROOT, Fault, changed_files, read
from simulations.mutants.running import BROKEN, SEEN, UNSEEN, outcomes

DOUBLED = Fault("doubled", "twice.py", "2 * x", "3 * x", ("test_twice.py",))

TESTS = """
from twice import twice

def test_twice():
    assert twice(2) == 4

def test_zero():
    assert twice(0) == 0
"""


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "twice.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "test_twice.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def test_every_entry_of_the_table_fits_the_code():
    faults = read()
    assert len(faults) > 50
    assert not [line for fault in faults for line in fault.misfits(ROOT)]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (DOUBLED, []),
        (Fault("n", "none.py", "a", "b", ("test_twice.py",)), ["none.py"]),
        (Fault("n", "twice.py", "4 * x", "b", ("test_twice.py",)), ["0 times"]),
        (Fault("n", "twice.py", "x", "b", ("test_twice.py",)), ["2 times"]),
        (Fault("n", "twice.py", "2 * x", "2 * x", ("test_twice.py",)), ["changes nothing"]),
        (Fault("n", "twice.py", "2 * x", "b", ()), ["names no test"]),
        (Fault("n", "twice.py", "2 * x", "b", ("test_twice.py::test_gone", "gone.py")), ["test_gone", "gone.py"]),
    ],
)
def test_an_entry_that_does_not_fit_is_told(fault, told, repository):
    found = fault.misfits(repository)
    assert len(found) == len(told)
    assert all(text in line for text, line in zip(told, found, strict=True))


def test_faults_are_seen_or_not_or_cannot_be_run(repository):
    unseen = Fault("unseen", "twice.py", "2 * x", "3 * x", ("test_twice.py::test_zero",))
    broken = Fault("broken", "twice.py", "2 * x", "2 *", ("test_twice.py",))
    found = dict(outcomes([DOUBLED, unseen, broken], 2, repository))
    assert found == {DOUBLED: SEEN, unseen: UNSEEN, broken: BROKEN}
    assert "2 * x" in (repository / "twice.py").read_text(), "only copies are changed"


def test_tests_that_are_red_without_a_fault_are_refused(repository):
    (repository / "twice.py").write_text("def twice(x):\n    return 2 * x + 1\n")
    with pytest.raises(FedPCAError):
        list(outcomes([DOUBLED], 1, repository))


def test_files_that_changed_choose_the_faults(repository):
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run([*git, "add", "."], cwd=repository, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], cwd=repository, check=True)
    assert not DOUBLED.touched_by(changed_files("HEAD", repository))
    (repository / "test_twice.py").write_text("")
    assert DOUBLED.touched_by(changed_files("HEAD", repository))
    with pytest.raises(FedPCAError):
        changed_files("nothing", repository)


def test_an_entry_with_other_keys_or_the_name_of_another_is_refused(tmp_path):
    entry = '[[fault]]\nname = "a"\nfile = "b"\nis = "c"\nbecomes = "d"\ntests = ["e"]\n'
    table = tmp_path / "some.toml"
    table.write_text(entry)
    assert [fault.name for fault in read(tmp_path)] == ["a"]
    table.write_text(entry * 2)
    with pytest.raises(FedPCAError):
        read(tmp_path)
    table.write_text(entry + "more = 1\n")
    with pytest.raises(FedPCAError):
        read(tmp_path)
