"""How hypothesis runs, unless a test says why it needs more or less.

`make test` draws a few examples of each property, `make test-all` many (`--hypothesis-profile=many`). None has a
deadline, as machines may be slow, and in CI the examples are the same every time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A test that takes a folder writes the same file anew in every example, and structured data takes its time.
_ANYWHERE = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": bool(os.environ.get("CI"))}
settings.register_profile("few", max_examples=15, **_ANYWHERE)
settings.register_profile("many", max_examples=150, **_ANYWHERE)
settings.load_profile("few")
