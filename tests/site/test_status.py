"""Who did what at a site: in its journal, by `site status`, and in its own log."""

import json
import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr import site_app
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.site.__main__ import main
from fedpca_flwr.site.audit import audit
from tests.families import cut, rows
from tests.harness import at_sites, context_of, finish, proxy_of, server_of
from tests.refusals import refused

PARTIES = cut(rows(90), 60, 30)


@pytest.fixture
def sites(tmp_path):
    """A server of two sites with rows and journals of their own; the folder of the first journal."""
    nodes = []
    for party, own in enumerate(PARTIES):
        np.save(tmp_path / f"rows{party}.npy", own)
        files = {"data": str(tmp_path / f"rows{party}.npy"), "journal": str(tmp_path / f"journal{party}")}
        nodes.append({**files, "split": "rows"})
    return at_sites(server_of("sub-it", PARTIES, n_components=2, block_size=4, max_rounds=3), nodes)


def journal_of(server, party):
    return context_of(server, party).node_config["journal"]


def kinds(server, party):
    return [(event.kind, event.about) for event in audit(journal_of(server, party)).events]


def test_the_first_line_of_a_run_says_what_it_is(sites, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "apps" / "lab.fedpca-flwr.0.2.0.ab12cd34"), *sys.path])
    finish(sites)
    (kind, about), *others = kinds(sites, 0)
    assert kind == "run"
    for said in ("sub-it", "block-size=4", "max-rounds=3", "n-components=2", "lab.fedpca-flwr.0.2.0.ab12cd34"):
        assert said in about
    assert "run" not in [kind for kind, _ in others]


def test_a_refusal_before_the_first_round_is_noted_once(sites):
    context_of(sites, 0).node_config["min-rows"] = 70
    for _ in range(2):
        with refused(DisclosureError, "client 0", "min-rows", 70):
            finish(sites)
    assert [kind for kind, _ in kinds(sites, 0)] == ["run", "refused"]
    assert kinds(sites, 0)[1] == ("refused", "DisclosureError")


def test_a_run_whose_configuration_is_wrong_is_noted_too(sites):
    context_of(sites, 0).run_config = {**context_of(sites, 0).run_config, "method": "strange"}
    with pytest.raises(Exception, match="strange"):
        finish(sites)
    assert [kind for kind, _ in kinds(sites, 0)] == ["run", "refused"]


def test_status_says_what_became_of_each_run(sites, capsys):
    finish(sites)
    context_of(sites, 0).run_id += 1
    context_of(sites, 0).node_config["min-rows"] = 70
    proxy_of(sites, 0).make().numpy_client.get_properties({})
    main(["status", journal_of(sites, 0), "--json"])
    first, second = json.loads(capsys.readouterr().out)
    answers = [event.bytes for event in audit(journal_of(sites, 0)).events]
    assert first["questions"] == answers.count(0) - 3 > 1  # without two lines that say what a run is, and a refusal
    assert first["bytes"] == sum(answers) > 0
    assert "sub-it" in first["about"]
    assert (second["questions"], second["bytes"], second["refused"]) == (0, 0, "DisclosureError")
    main(["status", journal_of(sites, 0)])
    said = capsys.readouterr().out
    assert f"{sum(answers):,} bytes" in said
    assert "refused: DisclosureError" in said


def test_the_log_of_a_site_has_time_run_phase_and_bytes(sites, monkeypatch, capfd):
    logger = logging.getLogger("fedpca_flwr.client")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    getattr(logger.manager, "_clear_cache")()  # noqa: B009 - of the standard library, and not in its types
    for party in (0, 1):
        context = context_of(sites, party)
        proxy_of(sites, party).make = lambda context=context: site_app.client_fn(context)
    finish(sites)
    answered = [event for event in audit(journal_of(sites, 0)).events if event.kind == "answer"]
    said = capfd.readouterr().err
    for event in answered:
        line = rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\S* INFO run {event.run}: '[\w-]+' .* {event.bytes} bytes$"
        assert re.search(line, said, re.M), said
    assert re.search(r"^\d{4}-.* WARNING there is no journal", said, re.M), "one that vanished would be told so too"


def test_a_party_of_a_simulation_shows_no_log(monkeypatch):
    logger = logging.getLogger("fedpca_flwr.client")
    monkeypatch.setattr(logger, "handlers", [])
    server = server_of("p-cov", PARTIES, n_components=2)
    site_app.client_fn(context_of(server, 0))
    assert not logger.handlers


def test_copies_of_rows_are_told_of_and_removed(sites, capsys):
    """A run that broke off leaves one, until another begins ten minutes later."""
    finish(sites)
    folder = Path(journal_of(sites, 0))
    main(["status", str(folder)])
    assert "--remove-rows" not in capsys.readouterr().out
    for name in ("rows.0123456789abcdef", "rows.0123456789abcdef.part", "rows.fedcba9876543210"):
        (folder / name).mkdir()
    main(["status", str(folder)])
    assert f"copies of rows of 2 runs are in {folder}" in capsys.readouterr().out
    main(["journal", str(folder), "--remove-rows"])
    assert "2" in capsys.readouterr().out
    assert not list(folder.glob("rows.*"))
    assert audit(str(folder)).events
