"""What `make test` takes of cases that are many: the others have the marker `slow` and are run by `make test-all`.

A test names them itself where the risk tells them apart (`thinned`). `slow_cases.json` holds those that take 0.05
seconds or more and reach no line and no branch of the package that the cases left in `make test` do not reach; at least
one case of each test stays, of golden outputs one of each command and form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[Any], *, quick: Collection[Any] = (), slow: Collection[Any] = ()) -> list[Any]:
    """The cases, of which `make test` takes those in `quick`, or all but those in `slow`.

    A case is known by its stem as well, where it is a path.
    """

    def is_slow(case: Any) -> bool:
        names = (case, getattr(case, "stem", case))
        return any(name in slow for name in names) if slow else not any(name in quick for name in names)

    def values(case: Any) -> tuple[Any, ...]:
        return case if isinstance(case, tuple) else (case,)

    return [pytest.param(*values(case), marks=[pytest.mark.slow] * is_slow(case)) for case in cases]
