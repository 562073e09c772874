"""Load the profile of hypothesis before any test of this folder."""

from tests.properties import profiles  # noqa: F401
