"""A party that cannot take part: its run-config is none."""

from __future__ import annotations

from typing import Any

from flwr.client import NumPyClient
from numpy.typing import NDArray


class RefusingClient(NumPyClient):
    """Answers whatever it is asked with why it takes no part.

    Nothing is raised where Flower makes a client: an exception's text would travel with it.

    Parameters
    ----------
    report : dict
        What is told (`Site.report`).
    """

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__()
        self.report = report

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        return self.report

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        return [], 0, self.report

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return 0.0, 0, self.report
