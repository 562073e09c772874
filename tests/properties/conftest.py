"""Profiles of hypothesis: `ci`, of seconds, and `nightly` (`HYPOTHESIS_PROFILE=nightly`)."""

import os

from hypothesis import settings

settings.register_profile("ci", max_examples=2, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=20, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
