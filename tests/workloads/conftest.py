from __future__ import annotations

import time

import pytest


class Clock:
    """A host clock that moves when it is told to, so that times are exact on a busy machine."""

    def __init__(self) -> None:
        self.now_ns = 0

    def pass_ms(self, milliseconds: float) -> None:
        self.now_ns += round(milliseconds * 1e6)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.now_ns)
    return clock
