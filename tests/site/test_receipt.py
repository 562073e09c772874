"""The receipt of a model: sites sign what they were shown, and any change afterwards is named by `verify`."""

import json
import shutil

import numpy as np
import pytest

from fedpca_flwr import ConfigError, ContractError, FedPCA, LocalGrid, PCAModel, run, site_app
from fedpca_flwr.cli import main
from fedpca_flwr.model.receipt import read_receipt, receipt_faults
from fedpca_flwr.site.identity import make_key, simulated_identity
from tests.families import cut, rows
from tests.harness import fail_at, finish, server_of, tamper_arrays
from tests.refusals import refused
from tests.site.test_comparison import rewritten

PARTS = cut(rows(150, 5), 60, 50, 40)


def signed_run(folder, method="p-cov", sites=3, **options):
    """Run a method with a receipt on sites with journals and identities; return model, list of members, journals."""
    nodes, members = [], folder / "members"
    for party, values in enumerate(PARTS[:sites]):
        header = ",".join(f"column {j}" for j in range(values.shape[1]))
        np.savetxt(folder / f"{party}.csv", values, delimiter=",", header=header, comments="")
        node = {
            "data": f"{party}.csv",
            "journal": f"journal{party}",
            "identity": f"key{party}",
            "identities": "members",
        }
        nodes.append({key: str(folder / name) for key, name in node.items()} | {"name": f"hospital {party}"})
    if not members.exists():
        lines = [make_key(node["identity"], party, node["name"]) for party, node in enumerate(nodes)]
        members.write_text("\n".join(lines))
    strategy = FedPCA(method, n_components=2, receipt=True, **options)
    config = strategy.strategy.config.model_dump(by_alias=True)
    grid = LocalGrid(site_app.app, nodes, {**config, "method": f"{method} receipt=true"})
    strategy.start(grid)
    return strategy.model.save(folder / "model.npz"), members, [folder / f"journal{party}" for party in range(sites)]


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    return signed_run(tmp_path_factory.mktemp("signed"), features=",".join(f"column {j}" for j in range(5)))


def verified(capsys, model, members, *journals):
    """Exit code of `verify`, its page, and its error."""
    capsys.readouterr()
    code = main(["verify", str(model), "--members", str(members), *map(str, journals)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_signed_model_is_verified_with_its_journals(signed, capsys):
    model, members, journals = signed
    code, page, _ = verified(capsys, model, members, *journals)
    assert code == 0
    for text in (
        "party 1 hospital 1",
        "method: p-cov",
        "n-components: 2",
        "questions: moments, project",
        "components  ",
    ):
        assert text in page, page
    assert main(["verify", str(model), "--members", str(members), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["manifest"]["phases"] == ["moments", "project", "witness", "sign"]
    assert content["faults"] == []


def other(change):
    """Return a function that changes a model in a file, and returns the new file."""

    def changed(file, folder):
        model = PCAModel.load(file)
        change(model)
        return model.save(folder / "changed.npz")

    return changed


def signature(model):
    text = model.log["receipt"]["signatures"]["1"]
    model.log["receipt"]["signatures"]["1"] = text[:-1] + ("0" if text[-1] != "0" else "1")


CHANGES = {
    "an eigenvalue": (lambda m: np.multiply(m.explained_variance_, 1 + 1e-15, m.explained_variance_), ["variances"]),
    "a loading": (lambda m: np.negative(m.components_, m.components_), ["components"]),
    "a mean": (lambda m: np.add(m.mean_, 1, m.mean_), ["mean"]),
    "the error": (lambda m: m.log["measured"].update(squared_error_per_row=0.1), ["squared error"]),
    "a party's name": (lambda m: m.log["parties"][0].update(name="clinic"), ["other parties"]),
    "a feature's name": (lambda m: m.feature_names_in_.__setitem__(0, "weight"), ["names of the model's features"]),
    "an option": (lambda m: m.log["options"].update(scale=True), ["'scale'"]),
    "a signed option": (lambda m: m.log["receipt"]["manifest"]["settings"].update(scale=True), ["'scale'", "party 0"]),
    "the run": (lambda m: m.log["provenance"].update(run="7"), ["of run 7"]),
    "the method": (lambda m: m.log.update(method="sub-it"), ["'method'"]),
    "the purpose": (lambda m: m.log["receipt"]["manifest"].update(purpose="it is right"), ["purpose", "party 2"]),
    "a signature": (signature, ["signature of party 1 (hospital 1)"]),
    "a missing signature": (lambda m: m.log["receipt"]["signatures"].pop("2"), ["signature of party 2 (hospital 2)"]),
    "a signer": (lambda m: m.log["receipt"]["signatures"].update({"9": "ab" * 64}), ["signature of party 9 (unknown)"]),
}


@pytest.mark.parametrize(("change", "named"), CHANGES.values(), ids=CHANGES)
def test_a_change_after_the_signatures_is_named(signed, tmp_path, capsys, change, named):
    code, page, _ = verified(capsys, other(change)(signed[0], tmp_path), signed[1])
    verdict = page.partition("## Verdict")[2]
    assert code == 1
    for text in named:
        assert text in verdict, verdict


def test_another_list_of_members_is_named(signed, tmp_path, capsys):
    lines = signed[1].read_text().splitlines()
    (tmp_path / "members").write_text("\n".join([*lines[:2], make_key(str(tmp_path / "key"), 2)]))
    code, page, _ = verified(capsys, signed[0], tmp_path / "members")
    assert (code, "another list of members" in page, "signature of party 2" in page) == (1, True, True)
    assert "signature of party 1" not in page
    (tmp_path / "none").write_text("")
    assert verified(capsys, signed[0], tmp_path / "none")[0] == 1


def test_the_receipt_of_another_run_is_named(signed, tmp_path, capsys):
    for name in ("members", "key0", "key1", "key2"):
        shutil.copy(signed[1].parent / name, tmp_path / name)
    model, _, _ = signed_run(tmp_path)
    replayed = PCAModel.load(model)
    replayed.log["receipt"] = PCAModel.load(signed[0]).log["receipt"]
    code, page, _ = verified(capsys, replayed.save(tmp_path / "replayed.npz"), signed[1])
    assert (code, "the receipt is of run" in page) == (1, True)


def test_a_journal_with_other_answers_is_named(signed, tmp_path, capsys):
    model, members, journals = signed
    shutil.copytree(journals[1], tmp_path / "journal")
    rewritten(tmp_path / "journal", digest="ab" * 32)
    code, page, _ = verified(capsys, model, members, tmp_path / "journal")
    assert (code, "party 1 has other answers" in page, "had another journal" in page) == (1, True, True)
    (tmp_path / "later").mkdir()
    _, _, later = signed_run(tmp_path / "later")
    assert "has no commitment of run" in verified(capsys, model, members, later[0])[1]


def test_a_damaged_or_missing_receipt_is_said(signed, tmp_path, capsys):
    damaged = other(lambda model: model.log["receipt"].pop("signatures"))(signed[0], tmp_path)
    assert verified(capsys, damaged, signed[1])[::2] == (
        2,
        f"python -m fedpca_flwr verify: {damaged}: its receipt is damaged (1 faults)\n",
    )
    without = other(lambda model: model.log.pop("receipt"))(signed[0], tmp_path)
    code, page, error = verified(capsys, without, signed[1])
    assert (code, page, "receipt=true" in error) == (2, "", True)


METHODS = ("p-cov", "ap-cov", "sub-it", "qr-pca", "ap-stack", "compressed", "em", "robust", "sapca")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_one_result_has_a_receipt(method):
    model, identity = run(method, PARTS, n_components=2, receipt=True), simulated_identity(3, 0)
    assert receipt_faults(model, read_receipt(model.log), identity.member_keys, identity.digest.hex()) == []


def test_secure_sums_and_noise_have_a_receipt():
    identity = simulated_identity(3, 0)
    for method, options in (
        ("p-cov", {"secure_aggregation": True, "bound": 100.0}),
        ("dp-pca", {"epsilon": 5.0, "delta": 1e-5}),
    ):
        model = run(method, PARTS, n_components=2, receipt=True, **options)
        assert receipt_faults(model, read_receipt(model.log), identity.member_keys, identity.digest.hex()) == []


def test_a_site_signs_no_other_statement_as_its_own():
    """The adversary holds the server, and shows a party what another one has said as that party's own."""
    for name in ("nonce", "answers"):
        server = server_of("p-cov", PARTS, n_components=2, receipt=True)
        strategy = server.strategy
        ask = strategy.transport.plain_rounds

        def hostile(program, run, ask=ask, name=name):
            rounds = ask(program, run)
            question = next(rounds)
            while True:
                if question.phase == "sign":
                    question.request[name] = question.request[name][::-1].copy()
                try:
                    question = rounds.send((yield question))
                except StopIteration:
                    return

        strategy.transport.plain_rounds = hostile
        with refused(ContractError, "client 0", "not what this party has sent"):
            finish(server)


def test_sites_of_two_lists_do_not_sign_together(tmp_path):
    server = server_of("p-cov", PARTS, n_components=2, receipt=True)

    def changed(arrays):
        words = json.loads(bytes(arrays[-1]))
        return [*arrays[:-1], np.frombuffer(json.dumps({**words, "members": "ab" * 32}).encode(), np.uint8)]

    tamper_arrays(server, 1, changed, "witness")
    with refused(ContractError, "client 1", "another run or list of members"):
        finish(server)


def test_adaptive_and_personal_results_have_no_receipt():
    for method in ("adaptive", "personalised", "vertical"):
        with refused(ConfigError, "'receipt'"):
            run(method, PARTS, n_components=2, receipt=True)


def test_a_run_that_a_party_has_left_has_no_receipt():
    """The party leaves before its rows are projected, which survivors allow."""
    parties = [*PARTS, PARTS[0] + 1]
    server = server_of("p-cov", parties, n_components=2, receipt=True, secure_aggregation=True, bound=100, survivors=3)
    fail_at(server, 1, "project")
    model = finish(server)
    assert "receipt" not in model.log
    assert any("there is no receipt" in note for note in model.log["notes"])
