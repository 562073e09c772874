"""A site's query, of a real PostgreSQL and of DuckDB: the rows that a file of them would give, and no secret told."""

import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr.config.node_config import OTHER_DATABASE, NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import require_complete
from fedpca_flwr.errors import ConfigError, DataError, PartyError
from fedpca_flwr.maths.rows import Blocks, to_array
from fedpca_flwr.site.readers import databases
from fedpca_flwr.site.readers.databases import Query, read_query
from fedpca_flwr.site.readers.files import read
from tests.deployment.postgresql import programs, running
from tests.families import rows
from tests.harness import at_sites, differences, finish, on_request, read_in_blocks, server_of
from tests.needed import need
from tests.refusals import refused

psycopg = pytest.importorskip("psycopg", reason="needs the extra 'sql'")
duckdb = pytest.importorskip("duckdb", reason="needs the extra 'sql'")

SELECT = 'SELECT age, dose, smokes, "Weight" FROM visit ORDER BY id'
RNG = np.random.default_rng(0)
CELLS = [
    [str(2**53 + 2 * i if i % 50 == 0 else RNG.integers(20, 90)), f"{RNG.normal():.10f}", str(i % 3 // 2), RNG.normal()]
    for i in range(200)
]
TABLE = pd.DataFrame(CELLS, columns=["age", "dose", "smokes", "Weight"]).astype(str)
X = TABLE.to_numpy(np.float64)


def fill(connection, mark, values):
    columns = 'age bigint, dose numeric(20, 10), smokes boolean, "Weight" double precision'
    connection.execute(f"CREATE TABLE visit (id integer, name varchar, born date, {columns})")
    people = [[i, f"patient {i}", "2000-01-01", *cells] for i, cells in enumerate(values.tolist())]
    connection.cursor().executemany(f"INSERT INTO visit VALUES ({', '.join(mark * 7)})", people[::-1])


@pytest.fixture(scope="module")
def server():
    need(programs(), "postgresql")
    with running() as server:
        with psycopg.connect(server.url, password=server.password) as connection:
            fill(connection, ["%s"], TABLE.to_numpy())
        yield server


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("databases")
    paths = {"duckdb": folder / "cohort.duckdb", "sqlite": folder / "cohort: 1.sqlite"}
    with duckdb.connect(paths["duckdb"]) as connection:
        fill(connection, ["?"], TABLE.to_numpy())
    with closing(sqlite3.connect(paths["sqlite"])) as connection, connection:
        fill(connection, ["?"], X)  # it reads no text of a number well
    return paths


@pytest.fixture
def postgres(server, monkeypatch):
    monkeypatch.setenv("PGPASSFILE", str(server.passfile))
    return server.url


@pytest.fixture(params=["postgresql", "duckdb", "sqlite"])
def url(request):
    kind = request.param
    if kind == "postgresql":
        return request.getfixturevalue("postgres")
    return f"{kind}:///{request.getfixturevalue('files')[kind]}"


@pytest.mark.engine
def test_a_query_gives_the_bits_and_the_run_of_a_csv(url, tmp_path, monkeypatch):
    """Both runs have the same journals, which refuse sums over other rows."""
    TABLE.to_csv(tmp_path / "visit.csv", index=False)
    ours, theirs = read_query(url, SELECT)[0], read(tmp_path / "visit.csv")
    assert ours.columns == theirs.columns
    assert ours.rows.tobytes() == to_array(theirs.rows).tobytes() == X.tobytes()
    parts = slice(120), slice(120, None)
    nodes = [{"min-parties": 2, "rare-values": "allow"} for _ in parts]
    for party, (node, part) in enumerate(zip(nodes, parts, strict=True)):
        place = f"{tmp_path}/{party}"
        TABLE[part].to_csv(f"{place}.csv", index=False)
        node |= {"data": f"{place}.csv", "scores": f"{place}.npy", "journal": f"{place}.journal"}
    models, scores, secure = [], [], {"secure_aggregation": True, "bound": 1e17}
    for _ in range(2):
        server = server_of("p-cov", [X[part] for part in parts], n_components=2, scale=True, **secure)
        models.append(finish(at_sites(server, nodes)))
        scores.append([Path(node["scores"]).read_bytes() for node in nodes])
        for node, start in zip(nodes, (0, 120), strict=True):
            node |= {"data": url, "query": f"SELECT * FROM ({SELECT}) q LIMIT 120 OFFSET {start} -- its own"}
    assert not differences(*models)
    assert scores[0] == scores[1]
    read_in_blocks(monkeypatch)
    loaded = read_query(url, f"{SELECT} ;")[0].rows
    assert isinstance(loaded, Blocks)
    for _ in range(2):
        assert 1 < len(list(loaded.read())) <= 4
        np.testing.assert_array_equal(to_array(loaded), X)
    np.testing.assert_array_equal(to_array(loaded[60:70]), X[60:70])


def test_a_label_is_left_out_and_ids_order_the_rows_and_join_columns(url, tmp_path):
    select = "SELECT id, ' ' || name AS name, age, dose FROM visit"
    loaded, ids = read_query(url, select, label="name", ids="id")
    assert ids == [str(i) for i in range(200)]
    np.testing.assert_array_equal(loaded.rows, X[:, :2])
    loaded, ids = read_query(url, select, label="0", ids="1")
    assert ids == sorted(f"patient {i}" for i in range(200))
    np.testing.assert_array_equal(loaded.rows, X[[int(name.split()[1]) for name in ids], :2])
    mixed = np.random.default_rng(1).permutation(200)
    other = pd.DataFrame({"person": [f"patient {i}" for i in mixed], "a": mixed % 7, "b": X[mixed, 3]})
    other.to_csv(tmp_path / "other.csv", index=False)
    queried = {"data": url, "query": "SELECT ' ' || name AS name, dose, smokes FROM visit", "ids": "name"}
    other = {"data": str(tmp_path / "other.csv"), "ids": "person"}
    nodes = [{**node, "split": "columns", "may-show": "inner products"} for node in (queried, other)]
    model = finish(at_sites(server_of("vertical", [X[:, 1:3], X[:, 2:]], n_components=2), nodes))
    together = np.column_stack([X[:, 1:3], np.arange(200) % 7, X[:, 3]])
    np.testing.assert_allclose(model.explained_variance_, np.linalg.eigvalsh(np.cov(together.T))[::-1][:2])


@pytest.mark.parametrize("url", ["postgresql", "duckdb"], indirect=True)
def test_numbers_of_every_type_are_those_of_their_texts(url):
    large = "123456789012345678901.2345678901"
    select = f"SELECT CAST({{}} AS bigint) a, CAST({large} AS numeric(38, 10)) b, CAST(0.1 AS real) c"
    for lost in (9007199254740993, -(2**60) - 1):
        with refused(DataError, "2^53"):
            read_query(url, select.format(lost))
    loaded = read_query(url, f"{select.format(9007199254740992)}, CAST(1 AS smallint) d, true e, 0.3 f")[0].rows
    np.testing.assert_array_equal(loaded, [[9007199254740992.0, float(large), float(np.float32(0.1)), 1, 1, 0.3]])
    some, _ = read_query(url, "SELECT nullif(age, 0) * 0 + id AS a, nullif(dose, dose) AS b FROM visit ORDER BY id")
    assert some.missing.tolist() == [0, 200]
    nulls, _ = read_query(url, "SELECT CASE WHEN id < 3 THEN NULL ELSE age END a, smokes FROM visit ORDER BY id")
    assert nulls.missing.tolist() == [3, 0]
    np.testing.assert_array_equal(nulls.rows[3:, 0], X[3:, 0])
    with refused(DataError, "NaN"):
        require_complete(nulls)
    for value in ("CAST('infinity' AS double precision)", "CAST(name AS integer)"):  # SQLite makes zeros of them
        with refused(DataError) as caught:
            read_query(url, f"SELECT {value} a FROM visit")
        assert "patient" not in str(caught.value) + caught.value.local


def test_sqlite_is_read_as_it_is_typed(files, tmp_path):
    url = f"sqlite:///{files['sqlite']}"
    with refused(DataError, 4, 1) as caught:
        read_query(url, "SELECT age, dose, CASE id WHEN 7 THEN 'patient 7' ELSE id END AS id, smokes FROM visit")
    assert caught.value.local == "id (str)"
    some, _ = read_query(url, "SELECT nullif(age, age) AS a, 'a:b' = 'a:b' AS b, 100 % 7 AS c FROM visit")
    assert some.missing.tolist() == [200, 0, 0]
    np.testing.assert_array_equal(some.rows[:, 1:], [[1, 2]] * 200)
    with refused(DataError, "2^53"):
        read_query(url, "SELECT 9007199254740993 AS a")
    before = files["sqlite"].read_bytes()
    for query in ("SELECT 1 AS a; DELETE FROM visit", "DELETE FROM visit", "WITH v AS (SELECT 1) DELETE FROM visit"):
        with pytest.raises((ConfigError, DataError)):
            read_query(url, query)
    assert files["sqlite"].read_bytes() == before
    with refused(DataError, "'data'"):
        read_query(f"sqlite:///{tmp_path}/none.sqlite", SELECT)
    with refused(ConfigError, "'data'", "mysql+nodriver", "mysql+pymysql://..."):
        read_query("mysql+nodriver://site@db/x", SELECT)
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_named_here_and_not_there(url):
    for select, kind, named, local in (
        ("SELECT age, name, born FROM visit", DataError, [3, 2], "name ("),
        ("SELECT age FROM visit WHERE id < 0", DataError, ["(0, 1)"], ""),
        ("SELECT 9e999 * dose AS a FROM visit", DataError, [], ""),
        ("SELECT weigth FROM visit", ConfigError, ["'query'"], "weigth"),
        ("SELECT age FROM nowhere", ConfigError, ["'query'"], "nowhere"),
        ("DELETE FROM visit", ConfigError, ["'query'"], ""),
        ("SELECT 1; SELECT 2", ConfigError, ["'query'"], ""),
        ("SELECT id AS label FROM visit", DataError, [], ""),  # and no column beside it
        ("SELECT age -- no label\nFROM visit", ConfigError, ["'label'"], ""),
    ):
        with refused(kind, *named) as caught:
            read_query(url, select, label="label" if "label" in select else "")
        assert local in caught.value.local
        assert "SELECT" not in caught.value.local  # which may have values
        for text in ("patient", "visit", "weigth", "born", "site@", "cohort"):
            assert text not in str(caught.value)
        assert "patient" not in caught.value.local


def test_a_pass_reads_one_state_in_one_order_for_an_hour_at_most_and_a_later_one_the_same(postgres, server):
    settings = "current_setting('max_parallel_workers_per_gather')::int AS workers"
    for name, value in (("transaction_isolation", "repeatable read"), ("transaction_read_only", "on")):
        settings += f", current_setting('{name}') = '{value}' AS {name}"
    settings += ", extract(epoch FROM current_setting('statement_timeout')::interval) AS seconds"
    np.testing.assert_array_equal(read_query(postgres, f"SELECT {settings}")[0].rows, [[0, 1, 1, 3600]])
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE visits")
        double = "SELECT age, dose AS age FROM visit", "'age'"  # DuckDB gives the second another name itself
        for select, local in (double, ("SELECT nextval('visits') AS a", "ReadOnly")):
            with refused(DataError) as caught:
                read_query(postgres, select)
            assert caught.value.local.startswith(local)
        connection.execute("CREATE TABLE moving AS SELECT i AS id, 1.5 * i AS a FROM generate_series(1, 100) i")
        select = "SELECT a FROM moving"
        unordered, ordered = Query(postgres, select), Query(postgres, f"{select} ORDER BY id")
        assert len(list(unordered.blocks())) == len(list(unordered.blocks()))
        connection.execute("UPDATE moving SET a = a WHERE id = 1")  # it is the last of the table now
        with refused(DataError, "ORDER BY"):
            list(unordered.blocks())
        list(ordered.blocks())
        connection.execute("UPDATE moving SET a = a WHERE id = 2")
        list(ordered.blocks())
        connection.execute("UPDATE moving SET a = 7 WHERE id = 2")
        with refused(DataError, "ORDER BY"):
            list(ordered.blocks())
        with_ids = Query(postgres, "SELECT id, 1.0 AS a FROM moving", ids="id")
        list(with_ids.blocks())
        connection.execute("UPDATE moving SET id = 1000 WHERE id = 3")
        with refused(DataError, "ORDER BY"):
            list(with_ids.blocks())


TWO = "SELECT 1.5 AS a) AS q; COPY (SELECT 1 AS b) TO 'written'; SELECT * FROM (SELECT 1.5 AS a"


def test_a_query_is_one_statement_of_an_hour_at_most(url, monkeypatch):
    """Written to fit between our parentheses: the second statement wrote a file."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # the server's account may write here
        with refused(ConfigError, "'query'"):
            read_query(url, TWO.replace("written", f"{folder}/written"))
        assert not list(Path(folder).iterdir())
    monkeypatch.setattr(databases, "MAX_PASS_SECONDS", 0.2)
    endless = "SELECT count(*) AS n FROM visit a, visit b, visit c, visit d, visit e"
    with refused(DataError, "3,600"):
        read_query(url, f"{endless} WHERE a.dose + b.dose < c.dose + d.dose * e.dose")


@pytest.mark.engine
@pytest.mark.parametrize("journal", [True, False])
def test_rows_that_change_between_two_rounds_end_the_run(journal, tmp_path, caplog):
    """Two values change places, which changes no mean, no variance and no number of rows. No journal has a copy."""
    copies = []

    def change(arrays):
        copies.extend(tmp_path.rglob("rows.*"))
        with duckdb.connect(tmp_path / "1.duckdb") as connection:
            connection.execute("UPDATE t SET b = CASE a WHEN 1 THEN sin(2) ELSE sin(1) END WHERE a IN (1, 2)")
        return arrays

    nodes = [{"query": "SELECT a, b, c FROM t ORDER BY a * a"} for _ in range(2)]
    for party, node in enumerate(nodes):
        with duckdb.connect(tmp_path / f"{party}.duckdb") as connection:
            connection.execute("CREATE TABLE t AS SELECT i AS a, sin(i) AS b, cos(3 * i) AS c FROM range(50) r(i)")
        node |= {"data": f"duckdb:///{tmp_path}/{party}.duckdb"}
        node |= {"journal": str(tmp_path / f"journal{party}")} if journal else {}
    server = at_sites(server_of("p-cov", [rows(50, 3)] * 2, n_components=2), nodes)
    on_request(server, 1, "project", change)
    with refused(PartyError, "client 1"):
        finish(server)
    assert "ORDER BY" in caplog.text
    assert not copies


@pytest.mark.engine
def test_a_lost_connection_is_named_at_the_site_only(postgres, server, monkeypatch, caplog):
    several = "FROM generate_series(1, 100000) i ORDER BY i"  # more than the buffers between hold
    nodes = [{"data": postgres, "query": f"SELECT i, sin(i) AS b, cos(i) AS c, sin(2 * i) AS d {several}"}] * 2
    running = at_sites(server_of("p-cov", [rows(30, 4)] * 2, n_components=2), nodes)
    read_rows = databases.PostgreSQL.numbers

    def torn(session, *arguments):
        blocks = read_rows(session, *arguments)
        yield next(blocks)
        with psycopg.connect(server.url) as other:
            other.execute(f"SELECT pg_terminate_backend({session.connection.info.backend_pid}, 10000)")
        yield from blocks

    change = partial(monkeypatch.setattr, databases.PostgreSQL, "numbers", torn)
    on_request(running, 1, "project", lambda arrays: change() or arrays)
    with refused(PartyError, "client 1"):
        finish(running)
    assert "connection" in caplog.text
    assert "site@" not in caplog.text


def test_who_is_not_let_in_is_told_without_a_name(server, monkeypatch, tmp_path):
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    user = "dr-jekyll"
    for url in (server.url.replace("site@", f"{user}@"), f"postgresql://{user}@127.0.0.1:1/x"):
        for opened in (partial(read_query, url, SELECT), databases.SESSIONS[OTHER_DATABASE](url).__enter__):
            with refused(DataError, "'data'") as caught:
                opened()
            assert user not in str(caught.value) + caught.value.local
            assert "127.0.0.1" in caught.value.local
    for place in ("postgresql://dr%ZZ@db/x", "postgresql://dr@db/x?colour=dr"):  # which libpq alone refuses
        with refused(ConfigError, "'data'") as caught:
            read_query(place, SELECT)
        assert "dr" not in str(caught.value).split("'data'")[0] + caught.value.local
        assert caught.value.__suppress_context__
    monkeypatch.setenv("PGPASSWORD", "4711")
    with refused(DataError, "'data'") as caught:
        read_query(server.url, SELECT)
    assert 'password authentication failed for user "..."' in caught.value.local
    monkeypatch.setenv("PGPASSWORD", server.password)
    assert read_query(server.url, SELECT)[0].rows.shape == (200, 4)
    monkeypatch.delenv("PGPASSWORD")
    port = server.url.partition("127.0.0.1:")[2].partition("/")[0]  # and a service names all of it
    service = ["[cohort]", "host=127.0.0.1", f"port={port}", "user=site", "dbname=postgres"]
    (tmp_path / "services").write_text("\n".join([*service, f"passfile={server.passfile}", ""]))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert read_query("postgresql://?service=cohort", SELECT)[0].rows.shape == (200, 4)
    monkeypatch.setenv("PGSERVICE", "cohort")
    assert read_query("postgresql+psycopg://", SELECT)[0].rows.shape == (200, 4)


PASSWORD = "hunter2"
UNKNOWN = ["mongodb://db/x", "sqlite://x", f"mssql://db:{PASSWORD}/x", "postgresql:/db/x", "duckdb://cohort.duckdb"]
UNKNOWN += [f"postgresql://db:{PASSWORD}/x", "duckdb:///", f"postgresql://me@{PASSWORD}@db/x", "postgresql://[::1/x"]
UNKNOWN += ["https://example.org/x.parquet", "duckdb:///x?y"]
WITH_PASSWORD = [
    *(f"postgresql://site:{PASSWORD}{rest}" for rest in ("@db/x", f"/{PASSWORD}@db/x", "#?@db:5432/x")),
    *(f"postgresql://db/x?{name}={PASSWORD}" for name in ("password", "user=me&pass%77ord", "sslpassword")),
    *(f"{scheme}site:{PASSWORD}@db/x" for scheme in ("postgresql+psycopg://", "mysql://", "postgresql:/")),
    f"host=db user=site password = {PASSWORD}",
]
SOURCES_WITH_PASSWORD = [
    f"dblink('host=db PASSWORD = ''{PASSWORD}''', 'SELECT a FROM t') AS t(a integer)",
    f"postgres_scan('host=db sslpassword={PASSWORD}', 'public', 't')",
    f"postgres_scan('postgresql://site:a b''''{PASSWORD}@db/x', 'public', 't')",
    f"postgres_scan($$postgresql://:{PASSWORD}@db/x$$, 'public', 't')",
    f"mysql_query('host=db passwd={PASSWORD}', 'SELECT a FROM t')",
    f"odbc_query('Driver=x;Pwd={PASSWORD};', 'SELECT a FROM t')",
    f"'s3://cohort/x.parquet?s3_access_key_id=me&s3_secret_access_key={PASSWORD}'",
    *(f"a_function({name} := '{PASSWORD}')" for name in ("password", "s3_session_token")),
    f"dblink('postgresql://site@db/x?pass%77ord={PASSWORD}', 'SELECT a FROM t') AS t(a integer)",
    *(f"'https://db/x.parquet?sv=60&{name}={PASSWORD}'" for name in ("sig", "X-Amz-Signature", "access_token")),
    f"""http_get('https://db/x', '{{"password": "{PASSWORD}"}}')""",
    f"http_get('https://db/x', MAP {{'Authorization': 'Bearer {PASSWORD}'}})",
]


def parsed(data, query=SELECT, **keys):
    node = {"partition-id": 0, "num-partitions": 2, "data": data, "query": query, **keys}
    return NodeConfig.parse({key: value for key, value in node.items() if value != ""}, source="node-config")


def test_no_refusal_shows_a_password():
    for data, query, named in (
        *((place, SELECT, ["'data'"]) for place in WITH_PASSWORD),
        *(("duckdb:///x.db", f"SELECT a FROM {source}", ["'query'"]) for source in SOURCES_WITH_PASSWORD),
        *((place, SELECT, ["'data'", "sslmode=verify-full"]) for place in UNKNOWN),
        ("postgresql://db/x", "", ["'query'"]),
        ("rows.csv", SELECT, ["'query'", "'data'"]),
        ("", SELECT, ["'query'", "'data'"]),
    ):
        with refused(ConfigError, *named) as caught:
            parsed(data, query)
        assert PASSWORD not in str(caught.value) + caught.value.local
        assert caught.value.__suppress_context__


def test_urls_of_every_form_are_taken():
    urls = ["postgresql://", "postgresql://db", "postgresql://a:1,b:2/x", "postgresql://[::1]:5432/x", "duckdb:///x.db"]
    urls += ["postgresql://me@db:5432/x?sslmode=verify-full&target_session_attrs=any", "duckdb:///:memory:"]
    urls += ["postgresql://%2Frun%2Fpostgresql/x", "postgresql:///x?host=/run/postgresql&passfile=/etc/pass"]
    urls += ["duckdb:////data/a b.duckdb", "sqlite:////data/a b.sqlite", "oracle+oracledb://db/?service_name=x"]
    urls += ["mssql+pyodbc://db/x?driver=ODBC+Driver+18+for+SQL+Server&Trusted_Connection=yes"]
    queries = [
        'SELECT a FROM visit WHERE "password" = 1 AND password_changed = 2',
        *("SELECT a, password FROM visit", "SELECT a FROM visit WHERE token = 1 AND sig = 2"),
        'SELECT "password"::int AS a FROM visit',
        "SELECT a FROM 's3://cohort/x.parquet?s3_region=eu-west-1&s3_url_style=path'",
        "SELECT a FROM dblink('host=db user=site', 'SELECT a FROM t') AS t(a integer)",
        "SELECT a FROM postgres_scan('postgresql://site@db:5432/x', 'public', 't')",
        "SELECT a FROM 'http://db:8080/x.parquet' WHERE kinds @> 'x' AND mail LIKE '%@%'",
    ]
    for data, query in (*((url, SELECT) for url in urls), *(("duckdb:///x.db", query) for query in queries)):
        node = parsed(data, query)
        assert (node.data, node.query) == (data, query)


def test_files_are_queried_without_a_database_and_none_is_written(tmp_path, monkeypatch):
    path = tmp_path / "visit.parquet"
    duckdb.sql(f"COPY (SELECT i AS id, 0.5 * i AS a FROM range(100) r(i)) TO '{path}' (FORMAT parquet)")
    large, integer = "46893016940215300.7544901999", 2**70 + 2**20  # where DuckDB itself errs, or did in 1.5
    guards = ("autoinstall_known_extensions", "autoload_known_extensions", "python_enable_replacements")
    settings = ", ".join(f"current_setting('{name}') AS {name}" for name in (*guards, "lock_configuration", "threads"))
    for query, expected in (
        (f"a, id * id AS b FROM '{path}' WHERE id >= 10 ORDER BY id", [[0.5 * i, i * i] for i in range(10, 100)]),
        (f"{integer}::HUGEINT a, {large}::DECIMAL(38, 10) b", [[integer, float(large)]]),
        (settings, [[0, 0, 0, 1, 1]]),
    ):
        np.testing.assert_array_equal(read_query("duckdb:///:memory:", f"SELECT {query}")[0].rows, expected)
    with refused(DataError, "2^53"):
        read_query("duckdb:///:memory:", "SELECT 66408803004970724931::HUGEINT a, 1 b")
    monkeypatch.chdir(tmp_path)
    for query in (
        *(TWO, TWO.replace("COPY (SELECT 1 AS b) TO", "ATTACH"), "ATTACH 'written'", "SET threads = 2"),
        *("COPY (SELECT 1) TO 'written'", "EXPLAIN ANALYZE COPY (SELECT 1) TO 'written'"),
        "WITH a AS (COPY (SELECT 1) TO 'written') SELECT * FROM a",
        "FROM query('COPY (SELECT 1) TO ''written''')",
    ):
        with pytest.raises((ConfigError, DataError)):
            read_query("duckdb:///:memory:", query)
    assert list(tmp_path.iterdir()) == [path]


def test_unusable_databases_are_named_and_stay(files, tmp_path, monkeypatch):
    file = files["duckdb"]
    before = file.read_bytes()
    with refused(DataError) as caught:
        read_query(f"duckdb:///{file}", "SELECT * FROM 'https://127.0.0.1:1/x.parquet'")
    assert "download" not in caught.value.local
    with refused(ConfigError, "'query'"):
        read_query(f"duckdb:///{file}", "CREATE TABLE x (a int)")
    assert file.read_bytes() == before
    with refused(DataError, "'data'"):
        read_query(f"duckdb:///{tmp_path}/none.duckdb", SELECT)
    assert not list(tmp_path.iterdir())
    (tmp_path / "text.duckdb").write_text("no database, patient 4711" * 1000)
    with refused(DataError, "DuckDB") as caught:
        read_query(f"duckdb:///{tmp_path}/text.duckdb", SELECT)
    assert "4711" not in caught.value.local
    with duckdb.connect(file), refused(DataError, "DuckDB"):
        read_query(f"duckdb:///{file}", SELECT)
    for place, module in (("postgresql://db/x", "psycopg"), (f"duckdb:///{file}", "duckdb")):
        monkeypatch.setitem(sys.modules, module, None)
        with refused(ConfigError, ".[sql]"):
            read_query(place, SELECT)
    for key in ("layer", "variants", "apart"):  # of files
        with refused(ConfigError, f"'{key}'", "'data'"):
            parsed("duckdb:///x.db", **{key: "counts"})
    with refused(ConfigError, "'query'"):
        RunConfig.parse({"query": SELECT})
