"""Own kernels run in Triton's interpreter where there is no GPU: one program after the other, in NumPy's arithmetic.

With a GPU they are compiled for it, and `test_on_a_gpu.py` and the tests that take `device` run there.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from pathlib import Path

import pytest

#: Asked of the driver's device file: importing PyTorch to ask it would import Triton as well.
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
# Triton decides when it is imported, and any test may be the first to do that.
_IN_TIME = "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1"
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

#: Triton's interpreter turns one-element arrays into integers, which NumPy refuses from 2.4 on; Triton 3.7 knows.
_FIXED_IN_TRITON, _REFUSED_FROM_NUMPY = (3, 7), (2, 4)


def _release(package: str) -> tuple[int, int]:
    major, minor, *_ = importlib.metadata.version(package).split(".")
    return int(major), int(minor)


@pytest.fixture(scope="session")
def interpreter():
    """Own kernels can run; skips where torch or triton is absent, or this triton's interpreter cannot run here."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="triton is not installed")
    if HAS_GPU:
        pytest.skip("there is a GPU: own kernels are compiled for it, and tested by test_on_a_gpu.py")
    if not _IN_TIME:
        pytest.skip("triton was imported before its interpreter could be chosen")
    if _release("triton") < _FIXED_IN_TRITON and _release("numpy") >= _REFUSED_FROM_NUMPY:
        pytest.skip("this triton's interpreter does not work with NumPy 2.4 and later")


@pytest.fixture
def float64():
    """Tensors are float64 unless they say otherwise, and the same each time."""
    import torch

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


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
