"""Loggers of a site: each record is one printable line of limited length, whatever a server's message holds."""

import logging

from fedpca_flwr.errors import excerpt

MAX_LINE_CHARACTERS = 4000


def _join_lines(record: logging.LogRecord) -> bool:
    """Change a record's text to one line of at most `MAX_LINE_CHARACTERS`; return True, which passes the record."""
    record.msg = excerpt("; ".join(record.getMessage().splitlines()), MAX_LINE_CHARACTERS)
    record.args = ()
    return True


def _line_logger(name: str) -> logging.Logger:
    """Return the logger of a name, whose records are single lines."""
    logger = logging.getLogger(name)
    logger.addFilter(_join_lines)
    return logger


site_logger = _line_logger("fedpca_flwr.client")
"""Log of a site, which only the site reads."""

journal_logger = _line_logger("fedpca_flwr.journal")
"""Lines of a site's journal, for the system's log."""
