"""Configuration of a site, never sent to the server: place in the run, data and policy, validated once.

The data are named by a path or by the url of a database. A password in the url or in the query is recognised and
refused.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedpca_flwr.config.run_config import (
    OLD_KEYS,
    Config,
    Count,
    FeatureNames,
    LocalPath,
    Name,
    refusal,
    require_distinct_names,
    require_possible_path,
    split_names,
)

POSTGRESQL, DUCKDB = "postgresql", "duckdb"
_URL = re.compile(r"[A-Za-z][\w+.-]+:/")  # a drive of Windows has one letter
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@/?,\s]*)(?::\d+)?"
_URL_PATTERNS = {
    POSTGRESQL: re.compile(
        rf"postgresql(?:\+psycopg)?://(?:[^:@/?\s]*@)?{_HOST}(?:,{_HOST})*(?:/[^@?\s]*)?(?:\?[^@\s]*)?"
    ),
    DUCKDB: re.compile(r"duckdb:///[^?]+"),
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
    """Return whether a text that names data is a URL, and not a path.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    bool
        Whether the text begins as a url.
    """
    return bool(_URL.match(text))


def database_kind(url: str) -> str:
    """Return "postgresql" or "duckdb" by the form of a database URL; empty for another URL.

    Parameters
    ----------
    url : str
        The url.

    Returns
    -------
    str
        `POSTGRESQL` or `DUCKDB`; empty for a text that is no url of either.
    """
    return next((kind for kind, pattern in _URL_PATTERNS.items() if pattern.fullmatch(url)), "")


def _has_secret(text: str) -> bool:
    """Return whether a database URL, or libpq's ``key=value`` text, contains a password or a secret."""
    if _USER_AND_PASSWORD.search(text):
        return True
    try:
        parameters = parse_qsl(urlsplit(text).query, keep_blank_values=True) if is_url(text) else []
    except ValueError:  # no url: `database_kind` says so
        return False
    return any(_SECRET.search(name) for name, _ in parameters)


def _check_data_location(text: str) -> str:
    """Return a path or a database URL unchanged; refuse an invalid location or a password."""
    if _has_secret(text):
        raise refusal(
            "a node-config must not hold a password, which lists of processes show: leave it out and put it into the "
            "file that PGPASSFILE names (~/.pgpass), or into a service of that which PGSERVICEFILE names, where this "
            "node runs",
        )
    if not is_url(text):
        return require_possible_path(text)
    if not database_kind(text):
        raise refusal(
            "no database has this url, expected 'postgresql://[user@]host[:port]/database[?sslmode=verify-full]' or "
            "'duckdb:///path' ('duckdb:////data/cohort.duckdb' from the root, 'duckdb:///:memory:' for a query over "
            "files); of a user's name encode : / ? # @ as %3A %2F %3F %23 %40",
        )
    return text


def _check_query(text: str) -> str:
    """Return an SQL query unchanged; refuse a query that contains a password or a key.

    Quotes tell a column of such a name apart: ``"password" = 1``.
    """
    if _SECRET_IN_QUERY.search(text) or _SECRET_IN_QUERY.search(unquote(text)):
        raise refusal(
            "a node-config must not hold a password or a key, which lists of processes show: leave it out of the "
            "query (PostgreSQL keeps what it needs for another database in the user mapping of a foreign server); put "
            "quotes around a column that has such a name",
        )
    return text


def _number_as_text(value: Any) -> Any:
    """Return a number as text, since Flower parses ``leave-out=0`` as a number; other values unchanged."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return str(value) if number else value


ColumnNames = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(require_distinct_names)]
FILE_KEYS = ("columns", "leave_out", "header", "delimiter", "decimal", "thousands", "encoding", "comment", "missing")
"""What says how a file is read; `fedpca_flwr.read` has them, too."""


class NodeConfig(Config):
    """Configuration of a site: its place in the run, its rows, its scores and its policy."""

    public: ClassVar[bool] = False
    long_keys: ClassVar[Mapping[str, int]] = {"query": 10**6}

    partition_id: Annotated[int, Field(ge=0)]
    num_partitions: Count
    name: Name = ""
    data: Annotated[str, AfterValidator(_check_data_location)] = ""
    """The site's rows: path of a file (docs/data.md lists which), or url of a database (postgresql://, duckdb:///),
    which holds no password; empty: a partition of the run's data set."""
    query: Annotated[str, AfterValidator(_check_query)] = ""
    """With a database: the SELECT that gives the rows, one number a feature; it holds no password either."""
    label: str = ""
    """Column of the file that is not a feature (its name, or its number from 0): left out, never sent."""
    columns: ColumnNames = ""
    """Columns of the file that alone are features, by name, number from 0 or pattern ('age, gene_*'); empty: all."""
    leave_out: ColumnNames = ""
    """Columns of the file that are no features, by name, number from 0 or pattern ('id, label, 31'), and never sent."""
    header: bool | Literal[""] = ""
    """Whether the first line of a text or a sheet holds the names of the columns. Empty: it is recognised, or
    refused."""
    delimiter: str = ""
    """The character between the cells of a text, or 'tab'. Empty: it is recognised."""
    decimal: Literal["", ".", ","] = ""
    """The sign before the decimals of a text. Empty: it is recognised."""
    thousands: str = ""
    """The sign between the thousands of a text (. , ' or a space); empty: there is none."""
    encoding: str = ""
    """How a text is encoded ('utf-8', 'cp1252'). Empty: it is recognised."""
    comment: ColumnNames = ""
    """How lines of a text begin that are no rows ('#, Total')."""
    missing: ColumnNames = ""
    """What stands for a missing value in a file, besides NA, NaN, N/A, null, None and nothing ('-999, ?'). A number
    stands for all cells of the same value."""
    weights: str = ""
    """Column of the data with a weight for each row (its name, or its number from 0): no feature, and never sent. A run
    with `weights` must name the same column. Empty: such a run is refused."""
    categories: FeatureNames = ""
    """Columns of a .csv or .parquet file that hold categories ('sex, "ward, bed"'): a run may declare `levels` of these
    only, and one that declares none leaves them out."""
    layer: str = ""
    """Layer of an .h5ad file; empty: its X."""
    variants: LocalPath = ""
    """Of a .bed file: path of a .bim file with the variants that all sites take, in its order and counting its first
    alleles (`python -m fedpca_flwr site variants` makes one); empty: those of the file."""
    ambiguous: Literal["refuse", "keep"] = "refuse"
    """What to do where the list of `variants` has A/T or C/G ones, whose strand the alleles do not tell."""
    apart: LocalPath = ""
    """Of a .bed file: path of a file with family and person id of people who take no part in a run and have scores, a
    line each (`python -m fedpca_flwr site relatives` makes one); empty: all take part."""
    phenotypes: LocalPath = ""
    """Text file with phenotypes and covariates of this site's people, by the ids of the .fam file or in the order of
    the rows (docs/association.md); empty: none."""
    ids: str = ""
    """Column of the file with the ids by which rows of different parties belong together (with split='columns')."""
    ids_secret: LocalPath = ""
    """With `ids`: path of a file with bytes that all sites share and the server does not know; it salts ids."""
    split: Literal["", "rows", "columns"] = ""
    """Some rows of all features, or all rows of some features: methods for the other are refused. Empty: not said."""
    scores: LocalPath = ""
    """Where the site's own scores are written (.npy, .csv, or for a .bed file PLINK's .eigenvec); empty: nowhere."""
    loadings: LocalPath = ""
    """Where the components by which the site projects its rows are written (.npz), with data split by columns those of
    its own columns; and where 'vertical-scores' reads them; empty: nowhere."""
    may_show: Literal["", "nothing", "distribution", "scores", "inner products"] = ""
    """The most that others may see of single rows; their "distribution" is what count, mean and scatter of all rows do
    not tell (docs/security/server.md). Empty: nothing for a site's own file, everything for a data set."""
    min_rows: Count = 10
    """Refuse to answer about fewer rows than this."""
    rare_values: Literal["", "refuse", "allow"] = ""
    """What to do with a site's own rows of which few, or one alone, stand out in a column: moments tell these rows.
    'refuse' refuses the run, and the site's own log names the columns. Empty: 'refuse' for a file or a database,
    'allow' for rows that a Flower app of one's own loads."""
    gaps: Literal["shared", "all"] = "shared"
    """Which rows of a site's own file take part where values may be missing. With `em` those whose gaps `min_rows` of
    its rows share, or all (the others get scores); with genotypes=true a site with missing calls refuses, or takes all
    rows."""
    round_rows: Count = 1
    """Leave out the last rows, so that their number, which replies tell, is a multiple of this."""
    allowed_methods: str = ""
    """Method names separated by spaces or commas; empty: every method that `may_show` allows. A method that is named
    may show its rows' "distribution" (`sapca`)."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many threads compute with dense rows, each with some rows of its own at a time; results have the same bits
    for any number."""
    max_reply_bytes: Count = 2**31
    """Refuse to send a larger reply."""
    secure_only: bool = False
    """Refuse a run without secure aggregation."""
    blind: Literal["", "only"] = ""
    """'only': refuse a run without `blind`, which shows the server the variances of rotated rows and nothing else."""
    model: LocalPath = ""
    """Folder in which the model of a run with `blind` is written, which the server does not have; empty: nowhere."""
    min_parties: Annotated[int, Field(ge=2)] = 3
    """With secure aggregation: refuse a sum of fewer parties."""
    identity: LocalPath = ""
    """With secure aggregation: path of this site's own private key; a site with data of its own needs one."""
    identities: LocalPath = ""
    """With secure aggregation: path of the file with all sites' public keys, a line for each party."""
    journal: LocalPath = ""
    """Folder in which this site keeps what it was asked, has answered and has spent of its privacy; a site with data of
    its own needs one for secure aggregation and for private methods. Empty: only for the length of a run."""
    metrics: LocalPath = ""
    """Where this site keeps numbers about its runs (NAME.prom and NAME.jsonl), made of `journal`; empty: nowhere."""
    syslog: bool = False
    """Whether each line of `journal` also goes to the system's log (/dev/log)."""
    on_refusal: str = ""
    """Command of the site's own that is run when the site refuses a run; it gets the run and the kind of error in the
    environment variables FEDPCA_RUN and FEDPCA_REFUSAL. Empty: none."""
    repeat: Literal["refuse", "refuse-same", "allow"] = "refuse"
    """What to do where the answers of several runs, in clear or in secure sums, would tell a party's share, a few rows,
    or a largest value; 'refuse-same' takes rows that are not the same ones for wholly new."""
    bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """With secure aggregation: the largest size of a value that this site says publicly of its rows. A run whose
    `bound` is not below it is answered however many were tried, any other is refused without a look at the rows."""
    epsilon_budget: Annotated[float, Field(gt=0)] | None = None
    """Refuse to spend more over all runs, and methods that spend without bound. Needs `journal`; a
    site with data of its own needs it for private methods."""
    delta_budget: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The delta at which epsilon is reckoned."""
    max_epsilon: Annotated[float, Field(gt=0)] | None = None
    """Refuse a private run whose `epsilon` is larger. Empty: 10 for a site's own file, any for a data set."""
    max_delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Refuse a private run whose `delta` is larger. Empty: 1e-5 for a site's own file, any for a data set."""
    public_count: bool = False
    """Whether a private run may tell this site's number of rows as it is (``count='public'``, or any with
    ``relation='replace-one'``). Of a data set everybody knows it."""
    honest_parties: Count = 1
    """How many parties, itself included, this site trusts to add their share of the noise and to keep it secret."""

    @property
    def category_names(self) -> tuple[str, ...]:
        """Names of the columns that the key `categories` lists."""
        return split_names(self.categories)

    @property
    def file_keys(self) -> dict[str, Any]:
        """Keys about the format of a file, as keyword arguments of `fedpca_flwr.read`."""
        return {key: getattr(self, key) for key in FILE_KEYS} | {"header": None if self.header == "" else self.header}

    @model_validator(mode="before")
    @classmethod
    def _refuse_old_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Refuse keys of former versions, with advice on the key to use now."""
        for key, text in OLD_KEYS.items():
            if key in values or key.replace("-", "_") in values:
                raise refusal(f"'{key}' is no key any more: {text}")
        return values

    @model_validator(mode="after")
    def _require_matching_data_keys(self) -> Self:
        """Refuse a database URL without 'query' or with keys of files, and 'query' without such a URL."""
        database = is_url(self.data)
        if database and not self.query:
            raise refusal("'data' names a database; name the SELECT that gives this site's rows as 'query'")
        if self.query and not database:
            raise refusal("'query' is of a database, and 'data' names none (postgresql://... or duckdb:///...)")
        file_values = {"layer": self.layer, "variants": self.variants, "apart": self.apart, **self.file_keys}
        for key, value in file_values.items():
            if value not in ("", None) and database:
                name = key.replace("_", "-")
                raise refusal(f"'{name}' is of a file, and 'data' names a database: say it in the 'query'")
        return self

    @model_validator(mode="after")
    def _require_companion_keys(self) -> Self:
        """Refuse keys that lack another key they need, such as 'metrics' without 'journal'."""
        if self.epsilon_budget is not None and not self.journal:
            raise refusal("'epsilon-budget' needs 'journal', a folder in which this site keeps what it has spent")
        if self.syslog and not self.journal:
            raise refusal("'syslog' needs 'journal', whose lines it sends to the system's log")
        if self.metrics and not self.journal:
            raise refusal("'metrics' needs 'journal', a folder in which this site keeps what its numbers are made of")
        if bool(self.identity) != bool(self.identities):
            present, absent = ("identity", "identities") if self.identity else ("identities", "identity")
            raise refusal(
                f"'{present}' is set, but '{absent}' is not; 'identity' is the file of a site's private key, "
                "'identities' that of all sites' public keys ('python -m fedpca_flwr site keys' makes them)"
            )
        if self.secure_only and self.data and not self.identity:
            raise refusal(
                "'secure-only' needs 'identity' and 'identities', by which this site knows the other sites: without "
                "them whoever holds the server acts in their place; make a key with 'python -m fedpca_flwr site keys'"
            )
        if self.partition_id >= self.num_partitions:
            raise refusal(
                f"'partition-id' is {self.partition_id}, expected 0 to {self.num_partitions - 1} "
                f"(num-partitions = {self.num_partitions})"
            )
        if self.ids and self.split != "columns":
            raise refusal("'ids' is for data split by columns; say so with split='columns'")
        return self
