"""Texts of errors about keys of a run-config, in the spelling of Python's keyword arguments."""

import re
from collections.abc import Iterable


def keyword_text(text: str, keys: Iterable[str]) -> str:
    """Rewrite an error's text for callers in Python: `keys` with underscores, True and False, no "run-config"."""
    text = re.sub(r"run-config:? (?=')|run-config: ", "", text)
    text = re.sub(r"(?:no option|unknown key) '[\w-]+'", lambda match: match[0].replace("-", "_"), text)
    dashed = sorted({key for key in keys if "-" in key}, key=len, reverse=True)
    pattern = rf"(?<![\w./-])(?:{'|'.join(dashed)})(?![\w./-])"
    text = re.sub(pattern, lambda match: match[0].replace("-", "_"), text)
    text = text.replace("expected true or false", "expected True or False")
    return re.sub(r"(?<=\w=)(true|false)\b|(?<=' is )(true|false)\b", lambda match: match[0].capitalize(), text)
