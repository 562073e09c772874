"""The url of a site's database: told from a path, and refused where it is none or holds a secret."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

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
