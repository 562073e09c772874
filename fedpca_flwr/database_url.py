"""The url of a site's database and its query: a url told from a path, and a secret in either seen."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

POSTGRESQL, DUCKDB = "postgresql", "duckdb"

_URL = re.compile(r"[A-Za-z][\w+.-]+:/")  # a drive of Windows has one letter
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@/?,\s]*)(?::\d+)?"
_KNOWN = {
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
    """Whether a text that says where data are is a url, and no path."""
    return bool(_URL.match(text))


def kind_of(url: str) -> str:
    """`POSTGRESQL`, `DUCKDB`, or nothing for a text that is no url of either."""
    return next((kind for kind, known in _KNOWN.items() if known.fullmatch(url)), "")


def has_secret(text: str) -> bool:
    """Whether a password is in a url, or in a text of keywords as libpq takes it too."""
    if _USER_AND_PASSWORD.search(text):
        return True
    try:
        given = parse_qsl(urlsplit(text).query, keep_blank_values=True) if is_url(text) else []
    except ValueError:  # no url: `kind_of` says so
        return False
    return any(_SECRET.search(name) for name, _ in given)


def query_has_secret(query: str) -> bool:
    """Whether a password or key is in a query, for functions that open another database or a file elsewhere.

    A column of such a name is told apart by quotes: ``"password" = 1``.
    """
    return any(_SECRET_IN_QUERY.search(text) for text in (query, unquote(query)))
