"""What `make test` takes of cases that are many: the others have the marker `slow` and are run by `make test-all`.

A test names them itself where the risk tells them apart (`thinned`). `slow_cases.json` holds those that take 0.05
seconds or more and reach no line and no branch of the package that the cases left in `make test` do not reach; at least
one case of each test stays, of golden outputs one of each command and form.

Of tests that hold for each of more than a thousand recordings, `make test-all` takes one recording in four, always the
same (`in_sample`); the others have the marker `every`, and `make test-every` runs them as well.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Any, Final

import pytest

#: Of the recordings of a test that holds for all, `make test-all` takes one in so many.
_ONE_IN: Final = 4


def in_sample(recording: str) -> bool:
    """Whether `make test-all` takes this recording, known by its name, where it does not take all."""
    return zlib.crc32(recording.encode()) % _ONE_IN == 0


def marks_of(recording: str) -> list[pytest.MarkDecorator]:
    """The markers of a case that is one of more than a thousand recordings, and none that `make test` takes."""
    return [pytest.mark.slow] if in_sample(recording) else [pytest.mark.slow, pytest.mark.every]


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
