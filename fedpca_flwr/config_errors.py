"""How errors of a configuration are told: every key at fault, its value where that may be shown, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

OLD_KEYS = {
    "ledger": "name a folder as 'journal', where what was spent is kept too; what the old file lists is not read, so "
    "lower 'epsilon-budget' by it",
    "group-secret": "sites know each other by 'identity', the file of a site's own private key, and 'identities', that "
    "of all sites' public keys ('python -m fedpca_flwr.site keys' makes them); a secret that only salts ids is named "
    "as 'ids-secret'",
}
"""Of node-configs of before, and what to do instead."""


def explain(source: str, faults: list[Any], strangers: list[str], known: Sequence[str], public: bool) -> str:
    """A line for each key at fault.

    Parameters
    ----------
    source : str
        How the text names the configuration.
    faults : list
        pydantic's.
    strangers : list of str
        Keys that there are not.
    known : sequence of str
        Those that there are.
    public : bool
        Whether values that are not numbers may be shown.
    """
    lines = []
    for key in strangers:
        near = difflib.get_close_matches(key.replace("_", "-"), known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(known)}"
        lines.append(f"{source}: unknown key '{key}'{hint}")
    by_key: dict[str, list[Any]] = {}
    for fault in faults:
        if not fault["loc"]:  # a check of several keys together; its text names them
            lines.append(f"{source}: {fault['msg']}")
            continue
        by_key.setdefault(str(fault["loc"][0]).replace("_", "-"), []).append(fault)
    for key, own in by_key.items():
        if own[0]["type"] == "missing":
            lines.append(f"{source}: '{key}' is missing")
            continue
        reasons = " or ".join(dict.fromkeys(fault["msg"][0].lower() + fault["msg"][1:] for fault in own))
        given = own[0]["input"]
        value = f"is {given!r}" if public or isinstance(given, int | float) else "has a value that is not allowed"
        lines.append(f"{source}: '{key}' {value}, {reasons}")
    return "\n".join(lines)
