"""Programs that some tests need beside Python's packages."""

import os
import sys

import pytest


def need(found: object, package: str) -> None:
    """Skip a test whose program was not found; on CI's Linux, where `.ci/programs` installs it, the test fails."""
    if not found:
        says = pytest.fail if os.environ.get("CI") == "true" and sys.platform == "linux" else pytest.skip
        says(f"a program is not installed: Debian's package '{package}'")
