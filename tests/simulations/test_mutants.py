"""The table of faults fits the code, and a fault that no test sees is told."""

import subprocess
from dataclasses import replace

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
def repository(tmp_path, monkeypatch):
    """Beside those that are needed, no plugin is loaded: of some that takes seconds in each process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout,xdist.plugin")
    (tmp_path / "twice.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "test_twice.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def test_every_entry_of_the_table_fits_the_code():
    faults = read()
    assert len(faults) > 50
    assert not [line for fault in faults for line in fault.misfits(ROOT)]
    changed = [(one.file, (ROOT / one.file).read_text("utf-8").replace(one.before, one.after)) for one in faults]
    assert len(set(changed)) == len(changed)  # no fault stands there under two names


def test_an_entry_that_does_not_fit_is_told(repository):
    for fault, told in (
        (DOUBLED, []),
        (replace(DOUBLED, file="none.py"), ["none.py"]),
        (replace(DOUBLED, before="4 * x"), ["0 times"]),
        (replace(DOUBLED, before="x"), ["2 times"]),
        (replace(DOUBLED, after="2 * x"), ["changes nothing"]),
        (replace(DOUBLED, tests=()), ["names no test"]),
        (replace(DOUBLED, tests=("test_twice.py::test_gone", "gone.py")), ["test_gone", "gone.py"]),
    ):
        found = fault.misfits(repository)
        assert len(found) == len(told)
        assert all(text in line for text, line in zip(told, found, strict=True))


@pytest.mark.engine
def test_faults_are_seen_or_not_or_cannot_be_run_and_red_tests_are_refused(repository):
    unseen = replace(DOUBLED, name="unseen", tests=("test_twice.py::test_zero",))
    broken = replace(DOUBLED, name="broken", after="2 *")
    assert dict(outcomes([DOUBLED, unseen, broken], 2, repository)) == {DOUBLED: SEEN, unseen: UNSEEN, broken: BROKEN}
    assert "2 * x" in (repository / "twice.py").read_text(), "only copies are changed"
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
    (tmp_path / "some.toml").write_text(entry)
    assert [fault.name for fault in read(tmp_path)] == ["a"]
    for wrong in (entry * 2, entry + "more = 1\n"):
        (tmp_path / "some.toml").write_text(wrong)
        with pytest.raises(FedPCAError):
            read(tmp_path)
