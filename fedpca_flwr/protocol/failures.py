"""Why a client did not answer: Flower's failures in our words, since its texts may quote anything."""

from __future__ import annotations

from typing import Any

REASONS = (
    ("expired due to its TTL", "the round-deadline passed"),
    ("within its deadline", "the round-deadline passed"),
    ("ActorDied", "its process died"),
    ("stopped responding", "its process died"),
    ("Node Unavailable", "its node is offline"),
)
"""Flower's texts, and what we say instead."""


def reason_of(failure: Any) -> str:
    """What to say of a failure that Flower reports."""
    text = f"{type(failure).__name__} {failure}" if isinstance(failure, BaseException) else ""
    return next((ours for theirs, ours in REASONS if theirs in text), "it failed; see its own log")
