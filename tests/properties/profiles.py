"""Profiles of hypothesis: `ci`, by day, and `hunt` (`HYPOTHESIS_PROFILE=hunt`), by night, which has a database."""

import os

from hypothesis import HealthCheck, settings

HUNT = os.environ.get("HYPOTHESIS_PROFILE") == "hunt"
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=CHECKS)
settings.register_profile("hunt", deadline=None, print_blob=True, suppress_health_check=CHECKS)
settings.load_profile("hunt" if HUNT else "ci")


def examples(number: int) -> settings:
    """Return settings of so many examples; of ninety times as many in a hunt."""
    return settings(max_examples=number * 90 if HUNT else number)
