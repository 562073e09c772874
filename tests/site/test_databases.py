"""A site's query, of a real PostgreSQL and of DuckDB: the rows that a file of them would give, and no secret told."""

import csv
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data import table
from fedpca_flwr.data.table import complete
from fedpca_flwr.errors import ConfigError, DataError, PartyError
from fedpca_flwr.maths.rows import Blocks, whole
from fedpca_flwr.site import databases
from fedpca_flwr.site.databases import Query, read_query
from fedpca_flwr.site.readers import read
from simulations.benchmarks.postgresql_server import programs, running
from tests.families import rows
from tests.harness import at_sites, finish, identities, proxy_of, server_of
from tests.needed import need
from tests.refusals import refused

psycopg = pytest.importorskip("psycopg", reason="needs the extra 'sql'")
duckdb = pytest.importorskip("duckdb", reason="needs the extra 'sql'")

NAMES = ["age", "dose", "smokes", "Weight"]
KINDS = ["bigint", "numeric(20, 10)", "boolean", "double precision"]
SELECT = 'SELECT age, dose, smokes, "Weight" FROM visit ORDER BY id'


def values():
    """Rows of a whole number, a decimal one, 0 or 1, and a float64; the texts that a .csv file has of them."""
    rng = np.random.default_rng(0)
    return [
        [str(2**53 + 2 * i if i % 50 == 0 else rng.integers(20, 90)), f"{rng.normal():.10f}", str(i % 3 // 2)]
        + [repr(rng.normal())]
        for i in range(200)
    ]


VALUES = values()
X = np.array(VALUES, dtype=np.float64)


def fill(connection):
    """The table of these rows, its ids against their order."""
    columns = ", ".join(f'"{name}" {kind}' for name, kind in zip(NAMES, KINDS, strict=True))
    connection.execute(f"CREATE TABLE visit (id integer, name varchar, born date, {columns})")
    for i, cells in reversed(list(enumerate(VALUES))):
        cells = [*cells[:2], "true" if cells[2] == "1" else "false", cells[3]]
        connection.execute(f"INSERT INTO visit VALUES ({i}, 'patient {i}', '2000-01-01', {', '.join(cells)})")


@pytest.fixture(scope="module")
def server():
    need(programs(), "postgresql")
    with running() as server:
        with psycopg.connect(server.url, password=server.password) as connection:
            fill(connection)
        yield server


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("duckdb") / "cohort.duckdb"
    with duckdb.connect(path) as connection:
        fill(connection)
    return path


@pytest.fixture(params=["postgresql", "duckdb"])
def url(request, monkeypatch):
    if request.param == "duckdb":
        return f"duckdb:///{request.getfixturevalue('file')}"
    server = request.getfixturevalue("server")
    monkeypatch.setenv("PGPASSFILE", str(server.passfile))
    return server.url


@pytest.fixture
def postgres(server, monkeypatch):
    monkeypatch.setenv("PGPASSFILE", str(server.passfile))
    return server.url


def as_csv(folder, chosen=slice(None)):
    path = folder / "visit.csv"
    with open(path, "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([NAMES, *VALUES[chosen]])
    return str(path)


# The rows


def test_a_query_gives_the_bits_of_a_csv_of_its_rows(url, tmp_path):
    ours, theirs = read_query(url, SELECT)[0], read(as_csv(tmp_path))
    assert ours.columns == theirs.columns
    assert ours.rows.tobytes() == whole(theirs.rows).tobytes() == X.tobytes()


def test_what_is_not_kept_is_read_in_blocks_again_and_again(url, monkeypatch):
    monkeypatch.setattr(table, "HELD_BYTES", 0)
    monkeypatch.setattr(databases, "CACHE_ELEMENTS", 0)  # blocks of 64 rows
    found = read_query(url, f"{SELECT} ;")[0].rows
    assert isinstance(found, Blocks)
    for _ in range(2):
        assert 1 < len(list(found.read())) <= 4
        np.testing.assert_array_equal(whole(found), X)
    np.testing.assert_array_equal(whole(found[60:70]), X[60:70])


def test_a_run_over_databases_is_the_run_over_files(url, tmp_path):
    parts = [X[:120], X[120:]]
    models, scores = [], []
    for kind in ("file", "query"):
        nodes = []
        for party, chosen in enumerate((slice(120), slice(120, None))):
            home = tmp_path / kind / str(party)
            home.mkdir(parents=True)
            own = {"scores": str(home / "scores.npy"), "min-parties": 2, "journal": str(home / "journal")}
            if kind == "file":
                own["data"] = as_csv(home, chosen)
            else:
                own |= {"data": url, "query": f"SELECT * FROM ({SELECT}) q LIMIT 120 OFFSET {120 * party} -- its own"}
            nodes.append(own)
        models.append(finish(at_sites(server_of("p-cov", parts, n_components=2, scale=True), nodes)))
        scores.append([np.load(node["scores"]) for node in nodes])
    for name in ("components_", "mean_", "explained_variance_"):
        assert getattr(models[0], name).tobytes() == getattr(models[1], name).tobytes()
    for one, other in zip(*scores, strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_label_is_left_out_and_ids_order_the_rows(url):
    select = "SELECT id, name, age, dose FROM visit"
    found, ids = read_query(url, select, label="name", ids="id")
    assert ids == [str(i) for i in range(200)]
    np.testing.assert_array_equal(found.rows, X[:, :2])
    found, ids = read_query(url, select, label="0", ids="1")
    assert ids == sorted(f"patient {i}" for i in range(200))
    np.testing.assert_array_equal(found.rows, X[[int(name.split()[1]) for name in ids], :2])


def test_columns_of_one_cohort_meet_by_their_ids(url, tmp_path):
    mixed = np.random.default_rng(1).permutation(200)
    lines = [["person", "a", "b"], *([f"patient {i}", i % 7, X[i, 3]] for i in mixed)]
    with open(tmp_path / "other.csv", "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(lines)
    every = {"split": "columns", "may-show": "inner products"}
    nodes = [
        {"data": url, "query": "SELECT name, dose, smokes FROM visit", "ids": "name", **every},
        {"data": str(tmp_path / "other.csv"), "ids": "person", **every},
    ]
    model = finish(at_sites(server_of("vertical", [X[:, 1:3], X[:, 2:]], n_components=2), nodes))
    together = np.column_stack([X[:, 1:3], np.arange(200) % 7, X[:, 3]])
    expected = np.linalg.eigvalsh(np.cov(together.T))[::-1][:2]
    np.testing.assert_allclose(model.explained_variance_, expected)


def test_numbers_of_every_type_and_nulls_are_those_of_their_texts(url):
    large = "123456789012345678901.2345678901"
    select = f"SELECT CAST(9007199254740993 AS bigint) a, CAST({large} AS numeric(38, 10)) b, CAST(0.1 AS real) c"
    found = read_query(url, f"{select}, CAST(1 AS smallint) d, true e, 0.3 f")[0].rows
    np.testing.assert_array_equal(found, [[9007199254740992.0, float(large), float(np.float32(0.1)), 1, 1, 0.3]])
    some, _ = read_query(url, "SELECT nullif(age, 0) * 0 + id AS a, nullif(dose, dose) AS b FROM visit ORDER BY id")
    assert some.missing.tolist() == [0, 200]
    nulls, _ = read_query(url, "SELECT CASE WHEN id < 3 THEN NULL ELSE age END a, smokes FROM visit ORDER BY id")
    assert nulls.missing.tolist() == [3, 0]
    np.testing.assert_array_equal(nulls.rows[3:, 0], X[3:, 0])
    with refused(DataError, "NaN"):
        complete(nulls)


# What is refused


@pytest.mark.parametrize(
    ("select", "kind", "named", "local"),
    [
        ("SELECT age, name, born FROM visit", DataError, [3, 2], "name ("),
        ("SELECT age FROM visit WHERE id < 0", DataError, ["(0, 1)"], ""),
        ("SELECT CAST('infinity' AS double precision) a", DataError, [], ""),
        ("SELECT CAST(name AS integer) a FROM visit", DataError, [], ""),
        ("SELECT weigth FROM visit", ConfigError, ["'query'"], "weigth"),
        ("SELECT age FROM nowhere", ConfigError, ["'query'"], "nowhere"),
        ("DELETE FROM visit", ConfigError, ["'query'"], ""),
        ("SELECT 1; SELECT 2", ConfigError, ["'query'"], ""),
    ],
)
def test_what_is_wrong_is_named_here_and_not_there(select, kind, named, local, url):
    with refused(kind, *named) as caught:
        read_query(url, select)
    assert local in caught.value.local
    for text in ("patient", "visit", "weigth", "born", "site@", "cohort"):
        assert text not in str(caught.value)
    assert "patient" not in caught.value.local


def test_a_query_with_two_columns_of_one_name_or_that_writes_is_refused(postgres, server):
    """DuckDB gives the second another name itself."""
    with refused(DataError) as caught:
        read_query(postgres, "SELECT age, dose AS age FROM visit")
    assert caught.value.local == "age"
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE SEQUENCE IF NOT EXISTS visits")
    with refused(DataError) as caught:
        read_query(postgres, "SELECT nextval('visits') AS a")
    assert "ReadOnly" in caught.value.local


@pytest.mark.parametrize("own", [True, False], ids=["own", "memory"])
def test_a_query_is_one_statement(url, own):
    """Written to fit between our parentheses: the second statement wrote a file."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # the server's account may write here
        file = Path(folder) / "written"
        query = f"SELECT 1.5 AS a) AS q; COPY (SELECT 1 AS b) TO '{file}'; SELECT * FROM (SELECT 1.5 AS a"
        with refused(ConfigError, "'query'"):
            read_query(url if own else "duckdb:///:memory:", query)
        assert not file.exists()


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO 'written'",
        "SET threads = 2",
        "ATTACH 'written'",
        "WITH a AS (COPY (SELECT 1) TO 'written') SELECT * FROM a",
        "SELECT 1 AS a) AS q; ATTACH 'written'; SELECT * FROM (SELECT 1 AS a",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'written'",
        "FROM query('COPY (SELECT 1) TO ''written''')",
    ],
)
def test_a_query_over_files_writes_none(query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, DataError)):
        read_query("duckdb:///:memory:", query)
    assert not list(tmp_path.iterdir())


def test_a_query_that_takes_too_long_is_given_up(url, monkeypatch):
    monkeypatch.setattr(databases, "PASS_SECONDS", 0.2)
    endless = "SELECT count(*) AS n FROM visit a, visit b, visit c, visit d, visit e "
    endless += "WHERE a.dose + b.dose < c.dose + d.dose * e.dose"
    with refused(DataError, "3,600"):
        read_query(url, endless)


def test_a_query_is_the_sites_and_needs_a_column_beside_the_label(url):
    with refused(ConfigError, "'query'"):
        RunConfig.parse({"query": SELECT})
    with refused(DataError):
        read_query(url, "SELECT name FROM visit", label="name")
    with refused(ConfigError, "'label'"):
        read_query(url, "SELECT age FROM visit", label="name")


# Rows that change


def test_another_order_or_value_in_a_later_pass_is_refused(postgres, server):
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE moving AS SELECT i AS id, 1.5 * i AS a FROM generate_series(1, 100) i")
        asked = Query(postgres, "SELECT a FROM moving")
        assert len(list(asked.blocks())) == len(list(asked.blocks()))
        connection.execute("UPDATE moving SET a = a WHERE id = 1")  # it is the last of the table now
        with refused(DataError, "ORDER BY"):
            list(asked.blocks())
        ordered = Query(postgres, "SELECT a FROM moving ORDER BY id")
        list(ordered.blocks())
        connection.execute("UPDATE moving SET a = a WHERE id = 2")
        list(ordered.blocks())
        connection.execute("UPDATE moving SET a = 7 WHERE id = 2")
        with refused(DataError, "ORDER BY"):
            list(ordered.blocks())


@pytest.mark.parametrize("journal", [True, False])
def test_rows_that_change_between_two_rounds_end_the_run(journal, tmp_path, caplog):
    """Two values change places, which changes no mean, no variance and no number of rows."""
    for party in range(2):
        with duckdb.connect(tmp_path / f"{party}.duckdb") as connection:
            connection.execute("CREATE TABLE t AS SELECT i AS a, sin(i) AS b, cos(3 * i) AS c FROM range(50) r(i)")
    nodes = [
        {"data": f"duckdb:///{tmp_path}/{party}.duckdb", "query": "SELECT a, b, c FROM t ORDER BY a * a"}
        | ({"journal": str(tmp_path / f"journal{party}")} if journal else {})
        for party in range(2)
    ]
    server = at_sites(server_of("p-cov", [rows(50, 3)] * 2, n_components=2), nodes)
    honest = proxy_of(server, 1).fit

    def fit(ins, timeout, group_id):
        if ins.config["phase"] == "project":
            with duckdb.connect(tmp_path / "1.duckdb") as connection:
                connection.execute("UPDATE t SET b = CASE a WHEN 1 THEN sin(2) ELSE sin(1) END WHERE a IN (1, 2)")
        return honest(ins, timeout, group_id)

    proxy_of(server, 1).fit = fit
    with refused(PartyError, "client 1"):
        finish(server)
    assert "ORDER BY" in caplog.text


# Connections


def test_a_lost_connection_is_named_here_and_a_constant_text_there(postgres, server, monkeypatch, caplog):
    several = "FROM generate_series(1, 300000) i ORDER BY i"  # more than the buffers between hold
    nodes = [{"data": postgres, "query": f"SELECT i, sin(i) AS b, cos(i) AS c, tan(i) AS d {several}"}] * 2
    running = at_sites(server_of("p-cov", [rows(30, 4)] * 2, n_components=2), nodes)
    honest, read_rows = proxy_of(running, 1).fit, databases.PostgreSQL.numbers

    def torn(session, *arguments):
        blocks = read_rows(session, *arguments)
        yield next(blocks)
        pid = session.connection.info.backend_pid
        with psycopg.connect(server.url) as other:
            other.execute(f"SELECT pg_terminate_backend({pid}, 10000)")
        yield from blocks

    def fit(ins, timeout, group_id):
        if ins.config["phase"] == "project":
            monkeypatch.setattr(databases.PostgreSQL, "numbers", torn)
        return honest(ins, timeout, group_id)

    proxy_of(running, 1).fit = fit
    with refused(PartyError, "client 1"):
        finish(running)
    assert "connection" in caplog.text
    assert "site@" not in caplog.text


def test_who_is_not_let_in_is_told_without_a_name(server, monkeypatch, tmp_path):
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    user = "dr-jekyll"
    for url in (server.url.replace("site@", f"{user}@"), f"postgresql://{user}@127.0.0.1:1/x"):
        with refused(DataError, "'data'") as caught:
            read_query(url, SELECT)
        assert user not in str(caught.value) + caught.value.local
        assert "127.0.0.1" in caught.value.local
    monkeypatch.setenv("PGPASSWORD", "4711")
    with refused(DataError, "'data'") as caught:
        read_query(server.url, SELECT)
    assert 'password authentication failed for user "..."' in caught.value.local
    monkeypatch.setenv("PGPASSWORD", server.password)
    assert read_query(server.url, SELECT)[0].rows.shape == (200, 4)


@pytest.mark.parametrize("place", ["postgresql://dr%ZZ@db/x", "postgresql://dr@db/x?colour=dr"])
def test_a_url_that_only_libpq_refuses_is_not_shown(place):
    with refused(ConfigError, "'data'") as caught:
        read_query(place, SELECT)
    assert "dr" not in str(caught.value).split("'data'")[0] + caught.value.local
    assert caught.value.__suppress_context__


def test_a_service_names_all_of_it(server, monkeypatch, tmp_path):
    port = server.url.partition("127.0.0.1:")[2].partition("/")[0]
    (tmp_path / "services").write_text(
        f"[cohort]\nhost=127.0.0.1\nport={port}\nuser=site\ndbname=postgres\npassfile={server.passfile}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert read_query("postgresql://?service=cohort", SELECT)[0].rows.shape == (200, 4)
    monkeypatch.setenv("PGSERVICE", "cohort")
    assert read_query("postgresql+psycopg://", SELECT)[0].rows.shape == (200, 4)


PASSWORD = "hunter2"


@pytest.mark.parametrize(
    "place",
    [
        f"postgresql://site:{PASSWORD}@db/x",
        f"postgresql://site:{PASSWORD}/{PASSWORD}@db/x",
        f"postgresql://site:{PASSWORD}#?@db:5432/x",
        f"postgresql://db/x?password={PASSWORD}",
        f"postgresql://db/x?user=me&pass%77ord={PASSWORD}",
        f"postgresql://db/x?sslpassword={PASSWORD}",
        f"postgresql+psycopg://site:{PASSWORD}@db/x",
        f"mysql://site:{PASSWORD}@db/x",
        f"postgresql:/site:{PASSWORD}@db/x",
        f"host=db user=site password = {PASSWORD}",
    ],
)
def test_a_password_is_refused_and_never_shown(place):
    with refused(ConfigError, "'data'") as caught:
        NodeConfig.parse(site(data=place, query=SELECT), source="node-config")
    assert PASSWORD not in str(caught.value) + caught.value.local
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "source",
    [
        f"dblink('host=db user=site password={PASSWORD}', 'SELECT a FROM t') AS t(a integer)",
        f"dblink('host=db PASSWORD = ''{PASSWORD}''', 'SELECT a FROM t') AS t(a integer)",
        f"postgres_scan('host=db sslpassword={PASSWORD}', 'public', 't')",
        f"postgres_scan('postgresql://site:{PASSWORD}@db/x', 'public', 't')",
        f"postgres_scan('postgresql://site:a b''''{PASSWORD}@db/x', 'public', 't')",
        f"postgres_scan($$postgresql://:{PASSWORD}@db/x$$, 'public', 't')",
        f"mysql_query('host=db passwd={PASSWORD}', 'SELECT a FROM t')",
        f"odbc_query('Driver=x;Pwd={PASSWORD};', 'SELECT a FROM t')",
        f"'s3://cohort/x.parquet?s3_access_key_id=me&s3_secret_access_key={PASSWORD}'",
        f"a_function(password := '{PASSWORD}')",
        f"dblink('postgresql://site@db/x?pass%77ord={PASSWORD}', 'SELECT a FROM t') AS t(a integer)",
        f"'az://cohort/x.parquet?sv=2022-11-02&sig={PASSWORD}'",
        f"'https://cohort.s3.amazonaws.com/x.parquet?X-Amz-Expires=60&X-Amz-Signature={PASSWORD}'",
        f"'s3://cohort/x.parquet?s3_session_token={PASSWORD}'",
        f"'https://db/x.parquet?access_token={PASSWORD}'",
        f"""http_get('https://db/x', '{{"password": "{PASSWORD}"}}')""",
        f"http_get('https://db/x', MAP {{'Authorization': 'Bearer {PASSWORD}'}})",
    ],
)
def test_a_password_in_the_query_is_refused_and_never_shown(source):
    with refused(ConfigError, "'query'") as caught:
        NodeConfig.parse(site(data="duckdb:///x.db", query=f"SELECT a FROM {source}"), source="node-config")
    assert PASSWORD not in str(caught.value) + caught.value.local
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "query",
    [
        'SELECT a FROM visit WHERE "password" = 1 AND password_changed = 2',
        "SELECT a, password FROM visit",
        "SELECT a FROM visit WHERE token = 1 AND sig = 2",
        'SELECT "password"::int AS a FROM visit',
        "SELECT a FROM 's3://cohort/x.parquet?s3_region=eu-west-1&s3_url_style=path'",
        "SELECT a FROM dblink('host=db user=site', 'SELECT a FROM t') AS t(a integer)",
        "SELECT a FROM postgres_scan('postgresql://site@db:5432/x', 'public', 't')",
        "SELECT a FROM 'http://db:8080/x.parquet' WHERE kinds @> 'x' AND mail LIKE '%@%'",
    ],
)
def test_a_query_without_a_password_is_taken(query):
    assert NodeConfig.parse(site(data="duckdb:///x.db", query=query), source="node-config").query == query


@pytest.mark.parametrize(
    "place",
    ["mysql://db/x", "postgresql:/db/x", f"postgresql://db:{PASSWORD}/x", "duckdb://cohort.duckdb", "duckdb:///"]
    + [f"postgresql://me@{PASSWORD}@db/x", "https://example.org/x.parquet", "postgresql://[::1/x", "duckdb:///x?y=1"],
)
def test_a_url_of_nothing_known_is_refused(place):
    with refused(ConfigError, "'data'", "sslmode=verify-full") as caught:
        NodeConfig.parse(site(data=place, query=SELECT), source="node-config")
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "place",
    ["postgresql://", "postgresql://db", "postgresql://me@db:5432/x?sslmode=verify-full&target_session_attrs=any"]
    + ["postgresql://a:1,b:2/x", "postgresql://[::1]:5432/x", "postgresql://%2Frun%2Fpostgresql/x", "duckdb:///x.db"]
    + ["postgresql:///x?host=/run/postgresql&passfile=/etc/pass", "duckdb:///:memory:", "duckdb:////data/a b.duckdb"],
)
def test_urls_of_every_form_are_taken(place):
    assert NodeConfig.parse(site(data=place, query=SELECT), source="node-config").data == place


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"data": "postgresql://db/x"}, ["'query'"]),
        ({"data": "rows.csv", "query": SELECT}, ["'query'", "'data'"]),
        ({"query": SELECT}, ["'query'", "'data'"]),
        ({"data": "duckdb:///x.db", "query": SELECT, "layer": "counts"}, ["'layer'", "'data'"]),
    ],
)
def test_a_database_and_a_query_belong_together(given, named):
    with refused(ConfigError, *named):
        NodeConfig.parse(site(**given), source="node-config")


def site(**given):
    return {"partition-id": 0, "num-partitions": 2, **given}


# DuckDB


def test_files_are_queried_without_a_database_and_large_numbers_rounded_as_their_texts(tmp_path):
    path = tmp_path / "visit.parquet"
    duckdb.sql(f"COPY (SELECT i AS id, 0.5 * i AS a FROM range(100) r(i)) TO '{path}' (FORMAT parquet)")
    found, _ = read_query("duckdb:///:memory:", f"SELECT a, id * id AS b FROM '{path}' WHERE id >= 10 ORDER BY id")
    np.testing.assert_array_equal(found.rows, [[0.5 * i, i * i] for i in range(10, 100)])
    large = "66408803004970724931", "46893016940215300.7544901999"  # where DuckDB itself errs, or did in 1.5
    found, _ = read_query("duckdb:///:memory:", f"SELECT {large[0]}::HUGEINT a, {large[1]}::DECIMAL(38, 10) b")
    np.testing.assert_array_equal(found.rows, [[float(large[0]), float(large[1])]])


def test_nothing_is_downloaded_written_or_taken_from_this_program(file, tmp_path):
    guards = ("autoinstall_known_extensions", "autoload_known_extensions", "python_enable_replacements")
    select = ", ".join(f"current_setting('{name}') AS {name}" for name in guards)
    np.testing.assert_array_equal(read_query("duckdb:///:memory:", f"SELECT {select}")[0].rows, [[0, 0, 0]])
    before = file.read_bytes()
    for select, kind, named in (
        ("SELECT * FROM 'https://127.0.0.1:1/x.parquet'", DataError, []),
        ("CREATE TABLE x (a int)", ConfigError, ["'query'"]),
    ):
        with refused(kind, *named) as caught:
            read_query(f"duckdb:///{file}", select)
        assert "download" not in caught.value.local
    assert file.read_bytes() == before
    with refused(DataError, "'data'"):
        read_query(f"duckdb:///{tmp_path}/none.duckdb", SELECT)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_database_or_in_use_is_named(file, tmp_path):
    (tmp_path / "text.duckdb").write_text("no database, patient 4711" * 1000)
    with refused(DataError, "DuckDB") as caught:
        read_query(f"duckdb:///{tmp_path}/text.duckdb", SELECT)
    assert "4711" not in caught.value.local
    with duckdb.connect(file), refused(DataError, "DuckDB"):
        read_query(f"duckdb:///{file}", SELECT)


@pytest.mark.parametrize(("place", "module"), [("postgresql://db/x", "psycopg"), ("duckdb:///x.db", "duckdb")])
def test_a_driver_that_is_not_there_is_named(place, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with refused(ConfigError, ".[sql]"):
        read_query(place, SELECT)


def test_a_secure_run_notes_the_rows_of_a_query(url, tmp_path):
    """The digest of rows that a journal holds is that of a file with the same rows: `repeat` knows them again."""
    nodes = [
        {"min-parties": 2, "journal": str(tmp_path / f"journal{party}"), **keys}
        for party, keys in enumerate(identities(2))
    ]
    secure = {"n_components": 2, "secure_aggregation": True, "bound": 1e17}
    own = [{"data": url, "query": SELECT}, {"data": as_csv(tmp_path)}]
    models = []
    for here in (own, own[::-1]):
        given = [node | data for node, data in zip(nodes, here, strict=True)]
        models.append(finish(at_sites(server_of("p-cov", [X, X], **secure), given)))
    assert models[0].components_.tobytes() == models[1].components_.tobytes()
