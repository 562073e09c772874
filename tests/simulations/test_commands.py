"""What people type: its help, single cells and genotypes from files to one space."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from fedpca_flwr import PCAModel, analyses, cli, run
from tests.genotypes import linked_people, plinks_rule, standardised_by_hand
from tests.refusals import unnamed


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_argument_is_explained(command):
    parameters = cli.load(cli.COMMANDS[command][0]).params
    assert parameters
    assert [parameter.name for parameter in parameters if not parameter.help] == []


def test_without_arguments_the_commands_are_listed(capsys):
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    assert text.isascii(), "no box in a pipe"
    for command, (_, line) in cli.COMMANDS.items():
        if " " not in command:
            assert f"  {command:<11}{line}\n" in text
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"fedpca-flwr \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nothing"], ["'nothing'", "compare", "site"]),
        (["site", "nothing"], ["'nothing'", "journal"]),
        (["site"], ["keys", "status"]),
        (["compare", "--clients", "many"], ["'--clients'", "'many'"]),
        (["compare", "--methods", "--clients", "3"], ["'--methods'"]),
        (["compare", "--dataset", "cats"], ["'cats'", "'digits'"]),
        (["compare", "rows.csv"], ["rows.csv"]),
        (["cells", "a.h5ad"], ["'--output'"]),
        (["methods", "read"], ["read"]),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_one_line(words, named, capsys):
    assert cli.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert [text for text in [*named, "-h' lists"] if text not in printed.err] == []


@pytest.mark.parametrize(
    ("name", "substitute"), [("monitor", "analyses.drift(model, rows)"), ("rehearse", "site rehearse")]
)
def test_a_removed_command_is_answered_by_what_to_do_instead(name, substitute, capsys):
    assert cli.main([name, "some", "words"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not unnamed(printed.err, f"'{name}'", substitute)


@pytest.mark.parametrize(
    ("words", "code", "keys"),
    [
        ("methods", 0, {"method", "split"}),
        ("compare --methods p-cov --dataset wine --components 2", 0, {"max angle", "measured"}),
        ("compare --methods 'qr-pca rank=2' --dataset wine --components 3", 1, {"error"}),
        ("site doctor --node-config partition-id=0", 1, {"ok", "text"}),
        ("trace p-cov", 0, {"phase", "answer", "request", "reply"}),
    ],
)
def test_json_has_the_rows_of_the_table(words, code, keys, capsys):
    assert cli.main([*shlex.split(words), "--json"]) == code
    assert keys <= json.loads(capsys.readouterr().out)[0].keys()


def test_commands_that_print_findings_print_json_too():
    names = "audit, trace, compare, methods, site worth, site variants, site relatives"
    for name in [*names.split(", "), "site doctor", "site journal", "site status"]:
        assert "--json" in {word for option in cli.load(cli.COMMANDS[name][0]).params for word in option.opts}, name


def test_quiet_commands_print_errors_only(capsys):
    """A result and its finding are silent, a value that cannot be used is not."""
    for words, code in (("methods", 0), ("site doctor --node-config partition-id=0", 1)):
        assert cli.main([*words.split(), "--quiet"]) == code
        assert capsys.readouterr() == ("", "")
    assert cli.main(["compare", "--methods", "none", "--quiet"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("'none'")) == ("", 1)
    assert cli.main(["methods"]) == 0
    assert "p-cov" in capsys.readouterr().out


ROOT = Path(__file__).parents[2]
PAGES = [page for folder in ("docs", "simulations", "paper", "containers") for page in (ROOT / folder).rglob("*.md")]


def test_command_lines_of_the_documentation_are_understood():
    understood = set()
    for page in [*ROOT.glob("*.md"), *PAGES]:
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            text = block.replace("\\\n", " ").replace("$i", "0")
            for line in re.findall(r"python -m fedpca_flwr ([^>#|;)\n]+)", text):
                name = max((name for name in cli.COMMANDS if f"{line} ".startswith(f"{name} ")), key=len)
                cli.load(cli.COMMANDS[name][0]).make_context(name, shlex.split(line.removeprefix(name)))
                understood.add(name)
    assert {"compare", "cells", "launch", "site doctor", "site certificates"} <= understood


@pytest.mark.engine
@pytest.mark.parametrize(("words", "completed"), [("site k", ["keys"]), ("compare --partition s", ["shards"])])
def test_a_shell_completes_commands_and_values(words, completed):
    code = "import sys\nfrom fedpca_flwr import cli\nsys.argv = ['fedpca']\ncli.main()"
    count = str(words.count(" ") + 1)
    question = {"_FEDPCA_COMPLETE": "complete_bash", "COMP_WORDS": f"fedpca {words}", "COMP_CWORD": count}
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, **question}, capture_output=True, text=True)
    assert ended.stdout.split() == completed, ended.stderr


@pytest.mark.engine
def test_a_fault_shows_no_value_of_a_variable():
    """Tracebacks of typer have a box with local variables, which hold data."""
    code = "from fedpca_flwr import cli, site\nsite.certificates = None\ncli.main(['site', 'ids-secret', 'secret\\0'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError" in ended.stderr
    assert "locals" not in ended.stderr
    assert ended.stderr.isascii()


# Cells

GENES = [f"gene {j}" for j in range(40)]


def laboratory(folder, name, n, seed, genes=GENES, change=0.0):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.5, 4.0, len(genes)), (n, len(genes))) + change
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(X=sparse.csr_matrix(counts.astype(np.float32)), var={"var_names": genes})
    adata.write_h5ad(folder / f"{name}.h5ad")
    return counts


@pytest.mark.engine
def test_each_laboratory_has_its_cells_in_one_space(tmp_path, capsys):
    counts = {name: laboratory(tmp_path, name, n, n) for name, n in (("north", 60), ("south", 40))}
    given = [str(tmp_path / f"{name}.h5ad") for name in counts]
    options = ["--genes", "9", "--components", "3", "--clusters", "4", "--output", str(tmp_path / "out")]
    assert cli.main(["cells", *given, *options]) == 0
    model = PCAModel.load(tmp_path / "out/cells")
    assert "100 of 9 features" in capsys.readouterr().out
    places = [GENES.index(name) for name in model.feature_names_in_]
    normalised = {name: own * 1e4 / own.sum(axis=1, keepdims=True) for name, own in counts.items()}
    of_all = run("p-cov", normalised, n_components=1, scale=True)
    assert places == list(analyses.highly_variable(of_all, 9))
    for name, own in normalised.items():
        rows = pd.DataFrame(np.log1p(own)[:, places], columns=model.feature_names_in_)
        moved = np.loadtxt(tmp_path / f"out/{name}-harmony.csv", delimiter=",", skiprows=1)
        np.testing.assert_allclose(moved, analyses.harmonised(model, rows, name), atol=1e-6)


def test_dense_counts_give_the_result_of_sparse_ones(tmp_path, capsys):
    anndata = pytest.importorskip("anndata")
    laboratory(tmp_path, "north", 60, 1)
    (tmp_path / "dense").mkdir()
    options = ["--genes", "9", "--components", "3", "--clusters", "4", "--output"]
    held = anndata.read_h5ad(tmp_path / "north.h5ad")
    anndata.AnnData(X=held.X.toarray(), var=held.var).write_h5ad(tmp_path / "dense/north.h5ad")
    models = []
    for folder in (tmp_path, tmp_path / "dense"):
        assert cli.main(["cells", str(folder / "north.h5ad"), *options, str(folder / "out")]) == 0
        models.append(PCAModel.load(folder / "out/cells"))
    np.testing.assert_allclose(models[1].components_, models[0].components_, atol=1e-12)
    assert not unnamed(models[1].log["notes"][-1], "'north'")  # which is alone
    held.X = held.X * np.float32(0.3)
    held.write_h5ad(tmp_path / "logs.h5ad")
    files = [str(tmp_path / f"{name}.h5ad") for name in ("north", "logs")]
    assert cli.main(["cells", *files, *options, str(tmp_path / "o")]) == 0
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "--layer" in line)
    assert not unnamed(note, "'logs'")
    assert "'north'" not in note


@pytest.mark.parametrize("command", ["cells", "genotypes"])
def test_files_of_the_same_name_are_refused(command, tmp_path, capsys):
    files = [str(tmp_path / folder / "north.bed") for folder in "ab"]
    assert cli.main([command, *files, "--output", str(tmp_path / "out")]) == 2
    assert not unnamed(capsys.readouterr().err, files[0], files[1])


@pytest.mark.parametrize(
    ("genes", "change", "named"), [([*GENES[:-1], "other"], 0.0, "gene 39"), (GENES, -9.0, "--layer")]
)
def test_other_genes_and_what_is_no_count_are_refused(tmp_path, capsys, genes, change, named):
    laboratory(tmp_path, "north", 60, 1)
    laboratory(tmp_path, "south", 60, 2, genes, change)
    files = [str(tmp_path / f"{name}.h5ad") for name in ("north", "south")]
    assert cli.main(["cells", *files, "--output", str(tmp_path / "out")]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Genotypes


def test_nothing_is_written_where_files_share_no_variant(tmp_path, capsys):
    for name, position in (("a", 10), ("b", 20)):
        (tmp_path / f"{name}.bim").write_text(f"1 rs{position} 0 {position} A G\n")
    files = [str(tmp_path / f"{name}.bed") for name in "ab"]
    assert cli.main(["genotypes", *files, "--output", str(tmp_path / "out")]) == 2
    assert "no variant in common" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.engine
@pytest.mark.parametrize("secure", [False, True])
def test_people_of_all_files_are_in_one_space(tmp_path, capsys, secure):
    pytest.importorskip("bed_reader", reason="writes the tests' .bed files")
    from tests.site.test_bed import variants, write

    G, known = np.delete(linked_people(missing=0.02), 120, axis=1), variants(239)
    G[60] = G[40]  # the same person twice at one site
    parts = {"a": G[:30], "b": G[30:70], "c": G[70:]}
    files = [write(tmp_path / f"{name}.bed", own, known) for name, own in parts.items()]
    (tmp_path / "regions").write_text("# a region\nchr7 100 290 the first twenty\n8 1 9\n")
    given = ["--output", str(tmp_path / "out"), "--components", "2", "--exclude", str(tmp_path / "regions")]
    assert cli.main(["genotypes", *files, *given, "--kinship", "0.4", *["--secure"] * secure]) == 0
    told = capsys.readouterr()
    assert "20 variants lie in the regions" in told.err
    assert "1 relatives take no part" in told.out
    used = np.delete(G, 40, axis=0)[:, 20:]
    kept = plinks_rule(used, [0], 200, 25, 0.2)
    model = PCAModel.load(tmp_path / "out/people")
    vectors = np.linalg.svd(standardised_by_hand(used) * kept)[2][:2]
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * vectors, axis=1)), 1, atol=1e-6)
    assert len((tmp_path / "out/kept.bim").read_text().splitlines()) == kept.sum()
    scores = np.loadtxt(tmp_path / "out/b.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3))
    expected = np.nan_to_num((G[30:70, 20:] - model.mean_) / model.scale_) @ model.components_.T
    np.testing.assert_allclose(scores[:, :2], expected, atol=1e-9)
    np.testing.assert_array_equal(np.flatnonzero(scores[:, 2]), [10])
    of_plink = pd.read_csv(tmp_path / "out/b.eigenvec", sep="\t", float_precision="round_trip")
    assert of_plink.columns.tolist() == ["#FID", "IID", "PC1", "PC2"]
    assert of_plink["IID"].tolist() == [f"person_{i}" for i in range(40)]
    np.testing.assert_array_equal(of_plink[["PC1", "PC2"]], scores[:, :2])
    loadings = pd.read_csv(tmp_path / "out/loadings.tsv", sep="\t", float_precision="round_trip")
    assert loadings["ID"].tolist() == [f"rs{j}" for j in 20 + np.flatnonzero(kept)]
    np.testing.assert_array_equal(loadings[["PC1", "PC2"]].T, model.components_[:, kept])
    standardised = standardised_by_hand(used)[:, kept]
    relationship = np.linalg.eigvalsh(standardised @ standardised.T / kept.sum())
    np.testing.assert_allclose(np.loadtxt(tmp_path / "out/people.eigenval"), relationship[:-3:-1], rtol=1e-6)
    assert (tmp_path / "out/people.svg").read_text().count("<use ") > 80
