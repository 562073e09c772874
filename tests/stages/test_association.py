"""Association of a phenotype with variants: the T statistics of regressions on the pooled table, whoever holds whom."""

import json
import shutil
import subprocess
import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from fedpca_flwr import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.cli import main
from tests.families import rows
from tests.genotypes import people
from tests.harness import at_sites, context_of, finish, fit, on_request, server_of
from tests.refusals import refused

N = 240
G = people(N, 60, seed=2)
RNG = np.random.default_rng(7)
AGE, SEX = RNG.uniform(20, 80, N), RNG.permutation(np.repeat([0.0, 1.0], N // 2))
COLUMNS = {
    "height": 160 + 5 * G[:, 3] + 0.1 * AGE + 9 * SEX + RNG.normal(0, 6, N),
    "case": (RNG.random(N) < expit(G[:, 3] - 1 + 0.02 * (AGE - 50))).astype(float),
    "age": AGE,
    "sex": SEX,
}
COVARIATES = {"phenotype_covariates": "age, sex"}
CUTS = {3: [100, 170], 5: [60, 110, 150, 200]}
MISSING = [3, 4, 77, 130, 215]
SECURE = {"secure_aggregation": True, "min_parties": 2}


def files(folder, parts, columns=COLUMNS, missing=()):
    """Write a file of phenotypes for each part of the people, and return the paths."""
    table = np.column_stack(list(columns.values()))
    table[list(missing), :2] = np.nan
    paths = []
    for party, places in enumerate(parts):
        cells = [["NA" if np.isnan(value) else repr(float(value)) for value in row] for row in table[places]]
        paths.append(folder / f"{party}.csv")
        paths[-1].write_text("\n".join(map(",".join, [columns.keys(), *cells])))
    return paths


def association(folder, method="p-cov", *, sites=3, X=G, columns=COLUMNS, missing=(), **options):
    """Run a method with an association, and return the model and its entry of the log."""
    parts = np.split(np.arange(N), CUTS[sites])
    options = {"n_components": 3, "genotypes": True, "associate": "linear", "phenotype": "height", **options}
    paths = files(folder, parts, columns, missing)
    model = fit(method, [X[places] for places in parts], phenotypes=paths, **options)
    return model, model.log["association"]


def design(model, covariates, X=G):
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # X has no names, and a .bed file has
        scores = model.transform(X)
    return np.column_stack([np.ones(N), scores, *(COLUMNS[name] for name in covariates)])


def least_squares(y, Z, X=G):
    """Return slopes and T statistics of ordinary least squares, variant after variant."""
    slopes, statistics = [], []
    for x in X.T:
        full = np.column_stack([x, Z])
        b, (squares,), *_ = np.linalg.lstsq(full, y, rcond=None)
        variance = squares / (len(full) - full.shape[1]) * np.linalg.pinv(full)[0] @ np.linalg.pinv(full)[0]
        slopes.append(b[0])
        statistics.append(b[0] / np.sqrt(variance))
    return np.array(slopes), np.array(statistics)


def require_equal(entry, slopes, statistics, tolerance=1e-9):
    np.testing.assert_allclose(entry["beta"], slopes, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(np.divide(entry["beta"], entry["se"]), statistics, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sites", CUTS)
@pytest.mark.parametrize("missing", [[], MISSING], ids=["all", "some"])
@pytest.mark.parametrize("covariates", [{}, COVARIATES], ids=["alone", "covariates"])
@pytest.mark.parametrize("way", [{}, SECURE], ids=["clear", "masked"])
def test_linear_statistics_are_those_of_the_pooled_table(tmp_path, sites, missing, covariates, way):
    model, entry = association(tmp_path, sites=sites, missing=missing, **covariates, **way)
    who = np.setdiff1d(np.arange(N), missing)
    Z = design(model, ["age", "sex"] if covariates else [])
    assert (entry["people"], entry["covariates"]) == (who.size, Z.shape[1])
    require_equal(entry, *least_squares(COLUMNS["height"][who], Z[who], G[who]))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "sub-it", "tolerance": 1e-3},
        {"method": "sub-it", "prune": 0.05, "prune_window": 60},
        {"method": "qr-pca"},
        {"X": np.where(np.random.default_rng(1).random(G.shape) < 0.03, np.nan, G)},
        {"X": np.where(np.arange(60) == 9, 2.0, G)},
        {"X": rows(N, 60) + 50, "genotypes": False},
        {"X": rows(N, 60) + 50, "genotypes": False, "scale": True, "bound": 90.0, **SECURE},
        {"columns": COLUMNS | {"height": COLUMNS["height"] + 1e6}},
        {"columns": COLUMNS | {"height": COLUMNS["height"] + 1e6}, **SECURE},
        {"clusters": 2, "receipt": True},
    ],
    ids=[
        "inexact",
        "pruned",
        "factors",
        "missing calls",
        "constant",
        "rows",
        "scaled and masked",
        "far",
        "far and masked",
        "stages",
    ],
)
def test_statistics_hold_for_all_rows_that_a_method_takes(tmp_path, options):
    X = options.get("X", G)
    model, entry = association(tmp_path, **options)
    X = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    varying = X.std(axis=0) > 0
    assert [value is None for value in entry["beta"]] == [value is None for value in entry["se"]] == list(~varying)
    entry = {name: np.array(entry[name], float)[varying] for name in ("beta", "se")}
    slopes, statistics = least_squares(COLUMNS["height"], design(model, [], X), X[:, varying])
    require_equal(entry, slopes, statistics, 1e-8)


@pytest.mark.parametrize("way", [{}, SECURE], ids=["clear", "masked"])
@pytest.mark.parametrize("missing", [[], MISSING], ids=["all", "some"])
def test_logistic_statistics_are_those_of_the_score_test(tmp_path, missing, way):
    options = {"associate": "logistic", "phenotype": "case", **COVARIATES}
    model, entry = association(tmp_path, missing=missing, **options, **way)
    who = np.setdiff1d(np.arange(N), missing)
    Z, y = design(model, ["age", "sex"])[who], COLUMNS["case"][who]
    Q, _ = np.linalg.qr(Z)

    def loss(b):
        return np.logaddexp(0, Q @ b).sum() - y @ Q @ b

    def hessian(b):
        p = expit(Q @ b)
        return Q.T @ ((p * (1 - p))[:, None] * Q)

    start = np.zeros(Z.shape[1])
    b = minimize(loss, start, jac=lambda b: Q.T @ (expit(Q @ b) - y), hess=hessian, method="Newton-CG", tol=1e-12).x
    b -= np.linalg.solve(hessian(b), Q.T @ (expit(Q @ b) - y))
    p = expit(Q @ b)
    w = p * (1 - p)
    u = G[who].T @ (y - p)
    cross = Q.T @ (w[:, None] * G[who])
    v = w @ G[who] ** 2 - np.einsum("ij,ij->j", cross, np.linalg.solve(hessian(b), cross))
    require_equal(entry, u / v, u / np.sqrt(v), 1e-8)


def test_sums_with_the_scores_are_asked_only_where_they_do_not_follow(tmp_path):
    sizes = []
    for missing in ([], MISSING):
        model, _ = association(tmp_path, missing=missing)
        sizes.append(next(entry["up"][0] for entry in model.log["rounds"] if entry["phase"] == "variants"))
    assert sizes[1] - sizes[0] == 4 * 60 * 8  # the column 1 and three scores


# Sites with files of their own

ALLOWED = {"allowed-methods": "p-cov association", "may-show": "distribution", "rare-values": "allow", "min-rows": 5}


def at_own_sites(folder, data, phenotypes, **options):
    """Return a run at sites that read both files, with keys of their own."""
    run = {"n_components": 3, "associate": "linear", "phenotype": "height", "genotypes": True, **options}
    nodes = [
        {**ALLOWED, "data": str(one), "phenotypes": str(other), "journal": str(folder / f"journal{party}")}
        for party, (one, other) in enumerate(zip(data, phenotypes, strict=True))
    ]
    server = server_of("p-cov", np.split(G, CUTS[3]), **run)
    return at_sites(server, nodes)


@pytest.fixture
def tables(tmp_path):
    """Return files of rows and of phenotypes of three sites."""
    parts = np.split(np.arange(N), CUTS[3])
    data = [tmp_path / f"{party}.npy" for party in range(3)]
    for file, places in zip(data, parts, strict=True):
        np.save(file, G[places])
    return tmp_path, data, files(tmp_path, parts)


def write_bed(path, places):
    bed_reader = pytest.importorskip("bed_reader", reason="writes the tests' .bed files")
    names = {"fid": [f"f{i}" for i in places], "iid": [f"p{i}" for i in places], "sid": [f"rs{j}" for j in range(60)]}
    variants = {"chromosome": ["1"] * 30 + ["2"] * 30, "bp_position": [*range(10, 610, 10)]}
    alleles = {"allele_1": ["A"] * 60, "allele_2": ["G"] * 60}
    bed_reader.to_bed(path, G[places], properties={**names, **variants, **alleles})
    return path


def hits_of(folder):
    """Return the variants of genome-wide significance in the table that `associate` writes."""
    lines = [line.split("\t") for line in (folder / "association.tsv").read_text().splitlines()[1:]]
    return [line[2] for line in lines if float(line[-1]) < 5e-8]


def write_plink(path, columns, order):
    """Write columns of people as PLINK reads them, with -9 for NaN."""
    lines = [
        " ".join([f"f{i}", f"p{i}", *("-9" if np.isnan(v[i]) else repr(float(v[i])) for v in columns.values())])
        for i in order
    ]
    path.write_text("\n".join([" ".join(["#FID", "IID", *columns]), *lines, ""]))
    return path


@pytest.mark.parametrize("way", [{}, SECURE], ids=["clear", "masked"])
@pytest.mark.parametrize("covariates", [{}, COVARIATES], ids=["alone", "covariates"])
def test_people_are_found_by_their_ids_and_results_are_those_of_plink(tmp_path, monkeypatch, capsys, way, covariates):
    parts = np.split(np.arange(N), CUTS[3])
    data = [write_bed(tmp_path / f"{party}.bed", places) for party, places in enumerate(parts)]
    height = np.where(np.isin(np.arange(N), range(0, N, 20)), np.nan, COLUMNS["height"])
    columns = {**COLUMNS, "height": height}
    orders = [np.random.default_rng(party).permutation(places)[:-1] for party, places in enumerate(parts)]
    phenotypes = [write_plink(tmp_path / f"{party}.txt", columns, order) for party, order in enumerate(orders)]
    server = at_own_sites(tmp_path, data, phenotypes, **covariates, **way)
    for party in range(3):
        context_of(server, party).node_config["min-rows"] = 1
    model = finish(server)
    entry = model.log["association"]
    who = np.sort(np.concatenate(orders))
    who = who[np.isfinite(height[who])]
    Z = design(model, ["age", "sex"] if covariates else [])
    require_equal(entry, *least_squares(height[who], Z[who], G[who]))
    model.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert main(["associate", "model.npz", "0.bim", "--output", "out", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["variants"], [hit["ID"] for hit in content["hits"]]) == (60, hits_of(tmp_path / "out"))
    table = [line.split("\t") for line in (tmp_path / "out" / "association.tsv").read_text().splitlines()]
    assert table[0] == ["#CHROM", "POS", "ID", "A1", "BETA", "SE", "T", "P"]
    assert table[31][:4] == ["2", "310", "rs30", "A"]
    assert all((tmp_path / "out" / name).stat().st_size > 5000 for name in ("manhattan.png", "qq.png"))
    (tmp_path / "0.bim").write_text("1 rs0 0 10 A G\n")
    assert main(["associate", "model.npz", "0.bim", "--output", "out"]) == 2
    plink = shutil.which("plink2") or pytest.skip("needs plink2")
    write_bed(tmp_path / "all.bed", np.arange(N))
    write_plink(tmp_path / "pheno", {"height": height}, who)
    write_plink(tmp_path / "covar", {f"c{j}": Z[:, j] for j in range(1, Z.shape[1])}, range(N))
    words = "--bfile all --pheno pheno --covar covar --glm hide-covar omit-ref --threads 1 --out plink"
    subprocess.run([plink, *words.split()], check=True, capture_output=True)
    lines = [line.split() for line in (tmp_path / "plink.height.glm.linear").read_text().splitlines()]
    values = {name: [float(line[lines[0].index(name)]) for line in lines[1:]] for name in ("BETA", "SE", "T_STAT", "P")}
    ours = {name: [float(line[table[0].index(name)]) for line in table[1:]] for name in ("BETA", "SE", "T", "P")}
    for name, mine in (("BETA", "BETA"), ("SE", "SE"), ("T_STAT", "T"), ("P", "P")):
        np.testing.assert_allclose(ours[mine], values[name], rtol=6e-6)  # which PLINK prints with six digits


def test_a_site_permits_it_by_name_and_by_what_it_shows(tables):
    folder, data, phenotypes = tables
    for key, value, named in [
        ("allowed-methods", "p-cov", ["client 1", "'association'", "allowed-methods"]),
        ("allowed-methods", "", ["client 1", "'association'", "allowed-methods"]),
        ("may-show", "", ["client 1", "may-show", "distribution"]),
        ("phenotypes", "", ["client 1", "'phenotypes'"]),
        ("phenotypes", str(folder / "none"), ["client 1", "'phenotypes'"]),
        ("rare-values", "refuse", ["client 1", "rare-values"]),
    ]:
        for way in ({}, {"secure_aggregation": True}):
            server = at_own_sites(folder, data, phenotypes, **way)
            context_of(server, 1).node_config[key] = value
            with refused((DisclosureError, ConfigError, DataError), *named):
                finish(server)


@pytest.mark.parametrize(
    "text", ["height\n1\n2", "height,age\n" + "1\n" * 100, "height\n" + "tall\n" * 100, "", "height,height\n1,2"]
)
def test_a_file_that_is_none_of_phenotypes_is_refused(tables, text):
    folder, data, phenotypes = tables
    phenotypes[0].write_text(text)
    server = at_own_sites(folder, data, phenotypes)
    with refused((DataError, ConfigError), "client 0", "phenotypes"):
        finish(server)


@pytest.mark.parametrize("phase", ["null", "variants"])
def test_a_site_answers_no_other_questions(tmp_path, phase):
    parts = np.split(np.arange(N), CUTS[3])
    for number, wrong in enumerate(([np.zeros(3)], [np.zeros(4), np.array([5])], [np.zeros(4), np.array([-1])])):
        if phase == "null" and number:
            continue
        run = {"n_components": 3, "genotypes": True, "associate": "linear", "phenotype": "height"}
        server = server_of("p-cov", np.split(G, CUTS[3]), **run)
        for party, file in enumerate(files(tmp_path, parts)):
            context_of(server, party).node_config["phenotypes"] = str(file)
        on_request(server, 1, phase, lambda arrays, wrong=wrong: [*wrong, *arrays][: len(arrays)])
        with refused(ContractError, "client 1"):
            finish(server)


@pytest.mark.parametrize("phase", ["null", "variants"])
def test_no_coefficients_leave_a_few_people_in_the_sums(tmp_path, phase):
    parts, run = np.split(np.arange(N), CUTS[3]), {"associate": "logistic", "phenotype": "case", "min_rows": 10}
    server = server_of("p-cov", np.split(G, CUTS[3]), n_components=3, genotypes=True, **run)
    for party, file in enumerate(files(tmp_path, parts)):
        context_of(server, party).node_config["phenotypes"] = str(file)
    on_request(server, 1, phase, lambda arrays: [1e3 * np.ones(4), *arrays[1:]])
    with refused(DisclosureError, "client 1", "min-rows"):
        finish(server)


# What is refused


def other(**columns):
    return {"columns": COLUMNS | columns}


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"phenotype": "weight"}, ConfigError, ["'weight'", "phenotypes"]),
        ({"phenotype": ""}, ConfigError, ["'phenotype'"]),
        ({"associate": "nothing"}, ConfigError, ["'associate'"]),
        ({"phenotype_covariates": "height"}, ConfigError, ["'height'"]),
        ({"genotypes": False, "adjust_for": "1"}, ConfigError, ["'associate'", "'adjust_for'"]),
        ({"genotypes": False, "center": False}, ConfigError, ["'associate'", "center=True"]),
        ({**SECURE, "survivors": 3}, ConfigError, ["'associate'", "'survivors'"]),
        (other(height=np.full(N, 3.0)), DataError, ["'height'", "vary"]),
        ({**other(height=2 * AGE + 1), **COVARIATES}, DataError, ["'height'", "vary"]),
        ({**other(sex=2 * AGE), **COVARIATES}, DataError, ["covariates", "combination"]),
        (other(height=COLUMNS["height"] * 1e9), DataError, ["client 0", 2**30]),
        (other(height=np.full(N, np.inf)), DataError, ["client 0", "cell"]),
        ({"associate": "logistic"}, DataError, ["client 0", "'height'", 0, 1]),
        ({**other(case=np.ones(N)), "associate": "logistic", "phenotype": "case"}, DataError, ["'case'", 0, 1]),
        ({"associate": "logistic", "phenotype": "sex", **other(age=SEX), "phenotype_covariates": "age"}, DataError, []),
        ({"missing": MISSING, "min_rows": 4}, DisclosureError, ["client 0", "min_rows", "apart"]),
        ({"missing": range(3, N), "min_rows": 4}, DisclosureError, ["client 0", "min_rows"]),
    ],
    ids=str,
)
def test_phenotypes_and_options_that_do_not_go_are_refused(tmp_path, options, error, named):
    with refused(error, *named):
        association(tmp_path, **options)
