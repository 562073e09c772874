"""Configuration of a site, never sent to the server: place in the run, data and policy, validated once."""

import math
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedpca_flwr.config.run_config import (
    Config,
    Count,
    FeatureNames,
    LocalPath,
    Name,
    RowTransform,
    refusal,
    require_distinct_names,
    require_possible_path,
    split_names,
)

MISSING_METRICS_EXTRA = (
    "'metrics' needs prometheus-client, which is not installed; run pip install 'fedpca-flwr[metrics]'"
)
POSTGRESQL, DUCKDB, OTHER_DATABASE = "postgresql", "duckdb", "sqlalchemy"
_URL = re.compile(r"[A-Za-z][\w+.-]+:/")  # a drive of Windows has one letter
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@/?,\s]*)(?::\d+)?"
_URL_PATTERNS = {
    POSTGRESQL: re.compile(
        rf"postgresql(?:\+psycopg)?://(?:[^:@/?\s]*@)?{_HOST}(?:,{_HOST})*(?:/[^@?\s]*)?(?:\?[^@\s]*)?"
    ),
    DUCKDB: re.compile(r"duckdb:///[^?]+"),
    OTHER_DATABASE: re.compile(
        rf"sqlite:///[^?]+|(?:mysql|mariadb|mssql|oracle)(?:\+\w+)?://(?:[^:@/?\s]*@)?{_HOST}(?:/[^@?\s]*)?(?:\?[^@\s]*)?"
    ),
}
_USER_AND_PASSWORD = re.compile(r":/+[^@]*:[^@]*@|\bpassword\s*=")
_SECRET = re.compile(r"password|secret|scram_\w+_key", re.IGNORECASE)
_SECRET_IN_QUERY = re.compile(
    r"://(?:[^@'\n]|'')*:(?:[^@'\n]|'')*@"  # of one literal: a quote within is doubled
    r"|\b(?:\w*passw(?:or)?d|pwd|\w*secret\w*|scram_\w+_key|accountkey|\w*session_token)\s*:?="
    r"|[?&][\w-]*(?:sig|signature|token|api_?key)="  # with which a cloud's url lets anybody in
    r"|[\"'](?:password|secret)[\"']\s*:(?!:)"
    r"|\bbearer\s+\w",
    re.IGNORECASE,
)


def is_url(text: str) -> bool:
    """Return whether a text that names data is a URL, and not a path."""
    return bool(_URL.match(text))


def database_kind(url: str) -> str:
    """Return a kind of database by the form of its URL; empty for any other text."""
    return next((kind for kind, pattern in _URL_PATTERNS.items() if pattern.fullmatch(url)), "")


def _check_data_location(text: str) -> str:
    """Return a path or a database URL unchanged; raise `refusal` for a secret, another URL or an impossible path."""
    try:
        parameters = parse_qsl(urlsplit(text).query, keep_blank_values=True) if is_url(text) else []
    except ValueError:  # no url: `database_kind` says so
        parameters = []
    if _USER_AND_PASSWORD.search(text) or any(_SECRET.search(name) for name, _ in parameters):
        raise refusal(
            "a node-config must not hold a password, because lists of processes show it. Put the password into the "
            "file that PGPASSFILE names (~/.pgpass), or into a service in the file that PGSERVICEFILE names, or for "
            "another database into the file of its driver, on the machine of this node"
        )
    if not is_url(text):
        return require_possible_path(text)
    if not database_kind(text):
        raise refusal(
            "this is not the url of a database, expected "
            "'postgresql://[user@]host[:port]/database[?sslmode=verify-full]' or 'duckdb:///path' "
            "('duckdb:////data/cohort.duckdb' from the root, 'duckdb:///:memory:' for a query over files), or one of "
            "SQLAlchemy for sqlite, mysql, mariadb, mssql or oracle ('mssql+pyodbc://host/database?driver=...'); in a "
            "user's name write : / ? # @ as %3A %2F %3F %23 %40"
        )
    return text


def _check_query(text: str) -> str:
    """Return an SQL query unchanged; raise `refusal` for a password or a key, unless it is a column in quotes."""
    if _SECRET_IN_QUERY.search(text) or _SECRET_IN_QUERY.search(unquote(text)):
        raise refusal(
            "a node-config must not hold a password or a key, because lists of processes show it. Leave it out of the "
            "query (PostgreSQL stores the password of another database in the user mapping of a foreign server). If a "
            "column has such a name, put quotes around the name"
        )
    return text


def _number_as_text(value: Any) -> Any:
    """Return a finite number as text, since Flower parses ``leave-out=0`` as a number; other values unchanged."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return str(value) if number else value


ColumnNames = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(require_distinct_names)]
TEXT_KEYS = ("header", "delimiter", "decimal", "thousands", "encoding", "comment", "missing", "skip")
FILE_KEYS = ("columns", "leave_out", *TEXT_KEYS, "sheet")
"""Keys that control how a file is read; `fedpca_flwr.read` has the same parameters."""


class NodeConfig(Config):
    """Configuration of a site: its place in the run, its rows, its scores and its policy."""

    public: ClassVar[bool] = False
    long_keys: ClassVar[Mapping[str, int]] = {"query": 10**6}

    partition_id: Annotated[int, Field(ge=0)]
    num_partitions: Count
    name: Name = ""
    data: Annotated[str, AfterValidator(_check_data_location)] = ""
    """Rows of the site: path of a file (docs/data.md lists the formats), or url of a database (postgresql://,
    duckdb:///, or of SQLAlchemy) without a password. If empty, the site has a partition of the run's data set."""
    query: Annotated[str, AfterValidator(_check_query)] = ""
    """With a database: SELECT that returns the rows, with one number for each feature and without a password."""
    label: str = ""
    """Column of the file that is not a feature (name, or number from 0). It is left out and never sent."""
    columns: ColumnNames = ""
    """Columns of the file that are features, by name, number from 0 or pattern ('age, gene_*'). If empty, all are."""
    leave_out: ColumnNames = ""
    """Columns of the file that are not features, by name, number from 0 or pattern ('id, label, 31'). They are never
    sent."""
    header: bool | Literal[""] = ""
    """Whether the first line of a text file or a sheet has the names of the columns. If empty, the site detects it, or
    refuses the file if it cannot tell."""
    delimiter: str = ""
    """Character between the cells of a text file, or 'tab'. If empty, the site detects it."""
    decimal: Literal["", ".", ","] = ""
    """Decimal sign of a text file. If empty, the site detects it."""
    thousands: str = ""
    """Sign between the thousands in a text file (. , ' or a space). If empty, numbers have no such sign."""
    encoding: str = ""
    """Encoding of a text file ('utf-8', 'cp1252'). If empty, the site detects it."""
    comment: ColumnNames = ""
    """Beginnings of lines in a text file that are not rows ('#, Total'). A line of numbers is always a row."""
    skip: ColumnNames = ""
    """Lines of a text file or a sheet that are not rows, by their numbers from 1 ('1-3, 5')."""
    sheet: Annotated[str, BeforeValidator(_number_as_text)] = ""
    """Sheet of a workbook, by name or number from 1. If empty, the site reads the first."""
    missing: ColumnNames = ""
    """Marks of missing values in a file ('-999, ?'), in addition to NA, NaN, N/A, null, None and empty cells. A number
    matches all cells of the same value."""
    weights: str = ""
    """Column of the data with a weight for each row (name, or number from 0). It is not a feature and never sent. A run
    with `weights` must name the same column. If empty, the site refuses such a run."""
    categories: FeatureNames = ""
    """Columns of a .csv or .parquet file that contain categories ('sex, "ward, bed"'). A run may declare `levels` for
    these columns only, and a run without levels leaves them out."""
    transform: RowTransform = ""
    """Function of each value before the PCA (docs/data.md). A site with data of its own refuses a run with another
    `transform`, and with this key a run without any."""
    layer: str = ""
    """Layer of an .h5ad file. If empty, the site reads X."""
    variants: LocalPath = ""
    """For a .bed file: path of a .bim file with the variants of all sites. Features are in its order and count its
    first alleles (`fedpca site variants` makes such a file). If empty, the variants are those of the
    .bed file."""
    ambiguous: Literal["refuse", "keep"] = "refuse"
    """Action if the list of `variants` has A/T or C/G variants, whose alleles do not show the strand."""
    apart: LocalPath = ""
    """For a .bed file: path of a file with the family and person ids, one person in a line, of people who take no part
    in a run but receive scores (`fedpca site relatives` makes such a file). If empty, all people take
    part."""
    ids: str = ""
    """Column of the file with ids, by which the sites match their rows (with split='columns')."""
    ids_secret: LocalPath = ""
    """With `ids`: path of a file with secret bytes that all sites share and the server must not have. They salt the
    ids."""
    split: Literal["", "rows", "columns"] = ""
    """Split of the data: the site has some rows of all features, or all rows of some features. The site refuses methods
    for the other split. If empty, it accepts both."""
    scores: LocalPath = ""
    """File to which the site writes the scores of its own rows (.npy, .csv, or for a .bed file PLINK's .eigenvec). If
    empty, the site does not write scores."""
    loadings: LocalPath = ""
    """File (.npz) to which the site writes the components with which it projects its rows; with data split by columns,
    those of its own columns, which 'vertical-scores' reads. If empty, the site does not write components."""
    may_show: Literal["", "nothing", "distribution", "scores", "inner products"] = ""
    """Largest amount of information about single rows that others may see. "distribution" is information beyond count,
    mean and scatter of all rows (docs/security/server.md). If empty, it is nothing for a site's own file, and
    everything for a data set."""
    show_names: bool = False
    """Whether the server learns the names of this site's columns. The model has names if all sites show them."""
    min_rows: Count = 10
    """Smallest number of rows about which the site answers."""
    rare_values: Literal["", "refuse", "allow"] = ""
    """Action if few of a site's own rows, or a single one, stand out in a column, because moments show these rows.
    'refuse' refuses the run, and the site's own log names the columns. If empty, it is 'refuse' for a file or a
    database, and 'allow' for rows that your own Flower app loads."""
    gaps: Literal["shared", "all"] = "shared"
    """Rows of a site's own file that take part if values may be missing. With `em`, 'shared' stands for rows whose gaps
    at least `min_rows` rows share (other rows receive scores), and 'all' for all rows. With genotypes=true, a site with
    missing calls refuses the run with 'shared', and all rows take part with 'all'."""
    round_rows: Count = 1
    """Leave out the last rows, so that the number of rows, which replies show, is a multiple of this number."""
    allowed_methods: str = ""
    """Names of methods, with spaces or commas between them. If empty, the site allows every method that `may_show`
    allows. A named method may show the "distribution" of rows (`spca`, `sapca`)."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of threads that compute with dense rows. Results have the same bits for any number."""
    max_reply_bytes: Count = 2**31
    """Largest number of bytes of a reply. The site refuses to send a larger one."""
    secure_only: bool = False
    """Refuse a run without secure aggregation."""
    blind: Literal["", "only"] = ""
    """With 'only', refuse a run without `blind`. A blind run shows the server only the variances of rotated rows."""
    model: LocalPath = ""
    """Folder to which the site writes the model of a run with `blind`, because the server does not have the model. If
    empty, the site does not write the model."""
    min_parties: Annotated[int, Field(ge=2)] = 3
    """With secure aggregation: smallest number of sites of a sum. The site refuses a sum of fewer sites."""
    identity: LocalPath = ""
    """With secure aggregation: path of this site's own private key. A site with data of its own needs a key."""
    identities: LocalPath = ""
    """With secure aggregation: path of the file with all sites' public keys, one site in a line."""
    coordinator_key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = ""
    """For runs by post: public key of the coordinator. If set, the site answers only questions signed with it."""
    journal: LocalPath = ""
    """Folder in which this site records questions, answers and the epsilon that it has spent. A site with data of its
    own needs a journal for secure aggregation and for private methods. If empty, the record lasts for one run only."""
    metrics: LocalPath = ""
    """Path NAME: this site writes numbers about its runs, from its `journal`, to NAME.prom and NAME.jsonl (extra
    `metrics`). If empty, it writes none."""
    syslog: bool = False
    """Whether each line of `journal` also goes to the system's log (/dev/log)."""
    on_refusal: str = ""
    """Command of the site that runs when the site refuses a run. The environment variables FEDPCA_RUN and
    FEDPCA_REFUSAL hold the run and the kind of error. If empty, no command runs."""
    repeat: Literal["refuse", "refuse-same", "allow"] = "refuse"
    """Action if the answers of several runs, in clear or in secure sums, would together show one site's part of a sum,
    a few rows, or a largest value. With 'refuse-same', rows that are not the same as before count as completely new."""
    bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """With secure aggregation: public bound of this site on the size of its values. The site always answers a run with
    at least this `bound`, however many bounds were tried, and refuses a run with a smaller one without a look at the
    rows."""
    epsilon_budget: Annotated[float, Field(gt=0)] | None = None
    """Largest epsilon that all runs together may spend. The site also refuses methods that are not differentially
    private. This key needs `journal`. A site with data of its own needs this key for private methods."""
    delta_budget: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Delta for which the site computes the epsilon that it has spent."""
    max_epsilon: Annotated[float, Field(gt=0)] | None = None
    """Largest `epsilon` of a private run. If empty, it is 10 for a site's own file, and unlimited for a data set."""
    max_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Largest `delta` of a private run. If empty, it is 1e-5 for a site's own file, and unlimited for a data set."""
    public_count: bool = False
    """Whether a private run may show this site's true number of rows (``count='public'``, or any run with
    ``relation='replace-one'``). The number of rows of a data set is public anyway."""
    honest_parties: Count = 1
    """Number of sites, including this site, that this site trusts to add their share of the noise and to keep it
    secret."""

    @property
    def category_names(self) -> tuple[str, ...]:
        """Names of the columns that the key `categories` lists."""
        return split_names(self.categories)

    @property
    def file_keys(self) -> dict[str, Any]:
        """Keys `FILE_KEYS` as keyword arguments of `fedpca_flwr.read`; ``header`` is None if it is empty."""
        return {key: getattr(self, key) for key in FILE_KEYS} | {"header": None if self.header == "" else self.header}

    @model_validator(mode="after")
    def _require_companion_keys(self) -> Self:
        """Raise `refusal` for keys that lack, or exclude, another key, and for a 'partition-id' that is too large."""
        database = is_url(self.data)
        if database and not self.query:
            raise refusal(
                "'data' names a database, but 'query' is not set: set 'query' to the SELECT that returns this site's "
                "rows"
            )
        if self.query and not database:
            raise refusal(
                "'query' is set, but 'data' does not name a database (postgresql://..., duckdb:///..., sqlite:///...)"
            )
        file_values = {"layer": self.layer, "variants": self.variants, "apart": self.apart, **self.file_keys}
        for key, value in file_values.items():
            if value not in ("", None) and database:
                name = key.replace("_", "-")
                raise refusal(f"'{name}' is a key for files, but 'data' names a database: write it into the 'query'")
        if self.epsilon_budget is not None and not self.journal:
            raise refusal(
                "'epsilon-budget' needs 'journal', the folder in which this site records the epsilon that it has spent"
            )
        if self.syslog and not self.journal:
            raise refusal("'syslog' needs 'journal', whose lines it sends to the system's log")
        if self.metrics and not self.journal:
            raise refusal("'metrics' needs 'journal', the folder from which this site computes its numbers")
        if self.metrics and find_spec("prometheus_client") is None:
            raise refusal(MISSING_METRICS_EXTRA)
        if bool(self.identity) != bool(self.identities):
            present, absent = ("identity", "identities") if self.identity else ("identities", "identity")
            raise refusal(
                f"'{present}' is set, but '{absent}' is not; 'identity' names the file with the site's private key, "
                "and 'identities' the file with all sites' public keys ('fedpca site keys' makes both)"
            )
        if self.secure_only and self.data and not self.identity:
            raise refusal(
                "'secure-only' needs 'identity' and 'identities', the keys by which this site recognises the other "
                "sites. Without them the server could take the place of other sites. Make a key with 'python -m "
                "fedpca_flwr site keys'"
            )
        if self.partition_id >= self.num_partitions:
            raise refusal(
                f"'partition-id' is {self.partition_id}, expected 0 to {self.num_partitions - 1} "
                f"(num-partitions = {self.num_partitions})"
            )
        if self.ids and self.split != "columns":
            raise refusal("'ids' is for data split by columns; set split='columns' too")
        return self
