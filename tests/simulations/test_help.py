"""`--help` of what people type names the command as they type it, and explains every argument."""

import argparse

import pytest

from fedpca_flwr import cli
from fedpca_flwr.site import __main__ as site
from simulations import compare, genotypes, monitor, report

COMMANDS = {
    "python -m fedpca_flwr compare": compare.main,
    "python -m fedpca_flwr report": report.main,
    "python -m fedpca_flwr genotypes": genotypes.main,
    "python -m fedpca_flwr monitor": monitor.main,
    "python -m fedpca_flwr site": site.main,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_is_explained(command, monkeypatch, capsys):
    made = []
    add = argparse._ActionsContainer.add_argument
    monkeypatch.setattr(
        argparse._ActionsContainer, "add_argument", lambda *args, **given: made.append(add(*args, **given)) or made[-1]
    )
    with pytest.raises(SystemExit) as ended:
        COMMANDS[command](["--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {command} ")
    assert [action.dest for action in made if not action.help] == []
    assert len(made) > 1


def test_without_arguments_the_command_says_in_a_line_each_what_there_is(capsys):
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) == 3 + len(cli.COMMANDS)
    assert all(f"  {name} " in text for name in cli.COMMANDS)
