"""The kernel for Hopper: its roles and barriers on a CPU, one thread a partition of warps, against float64.

What a GPU alone can show (layouts, registers, speed) is in `test_on_a_gpu.py` and in docs/results/attention.md.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from tests.workloads.attention.gluon_threads import Deadlock, Descriptor, Pointer, launch

WIDTH, KEYS = 16, 128


def _source() -> str:
    """The kernel's module, without what it imports and without what launches it."""
    found = importlib.util.find_spec("warplens.workloads.attention.hopper")
    assert found.origin is not None
    text = Path(found.origin).read_text(encoding="utf-8")
    return text[text.index("ROWS = ") : text.index("@cache")]


def _errors(seq_len, *, attenders, slots, causal, programs, heads=3, source=None):
    """Of the output, relative; of the log-sum-exp, absolute."""
    generator = np.random.default_rng(seq_len)
    q, k, v = (generator.standard_normal((heads, seq_len, WIDTH)).astype(np.float32) for _ in range(3))
    out, log_sum_exp = np.full_like(q, np.nan), np.full((heads, seq_len), np.nan, np.float32)
    scale = WIDTH**-0.5
    launch(
        source or _source(), "flash_forward_hopper_kernel", programs,
        queries=Descriptor(q, 64), keys=Descriptor(k, KEYS), values=Descriptor(v, KEYS), out=Descriptor(out, 64),
        log_sum_exp=Pointer(log_sum_exp), heads=heads, seq_len=seq_len, scale=scale * math.log2(math.e),
        ATTENDERS=attenders, SLOTS=slots, CAUSAL=causal,
    )  # fmt: skip
    scores = q.astype(float) @ k.astype(float).transpose(0, 2, 1) * scale
    if causal:
        scores[:, np.triu(np.ones((seq_len, seq_len), bool), 1)] = -np.inf
    weights = np.exp(scores)
    exact = weights / weights.sum(-1, keepdims=True) @ v
    return np.linalg.norm(out - exact) / np.linalg.norm(exact), np.abs(log_sum_exp - np.log2(weights.sum(-1))).max()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("attenders", "slots"), [(2, 4), (2, 8), (3, 8)])
@pytest.mark.parametrize(("seq_len", "programs"), [(1, 1), (64, 2), (65, 1), (300, 2), (513, 3), (1000, 4)])
def test_every_row_is_attended_to_by_somebody(seq_len, programs, attenders, slots, causal):
    output, log_sum_exp = _errors(seq_len, attenders=attenders, slots=slots, causal=causal, programs=programs)
    assert output < 1e-6
    assert log_sum_exp < 1e-5


def _planted(*defects):
    """The source with texts replaced, each of which stands in it once."""
    source = _source()
    for correct, wrong in defects:
        assert source.count(correct) == 1, correct
        source = source.replace(correct, wrong)
    return source


@pytest.mark.parametrize(
    "defect",
    [
        ("    _give_back(empty, used)\n    rows", "    rows"),
        ("mbarrier.init(empty.index(slot), count=ATTENDERS)", "mbarrier.init(empty.index(slot), count=ATTENDERS + 1)"),
        ("    mbarrier.arrive(q_empty.index(PART), count=1)\n", ""),
    ],
)
def test_a_forgotten_arrival_is_a_deadlock(defect):
    with pytest.raises(Deadlock):
        _errors(1000, attenders=2, slots=4, causal=True, programs=1, source=_planted(defect))


_VALUES = "        _give_back(empty, used + 1)\n"
_MULTIPLIED = "        scores = warpgroup_mma_wait(1, [next_scores])\n"
_WRITE = "    mine.reshape([ROWS, D]).store(output.to(out.dtype))\n"
_LEFT = "    tma.store_wait(0)  # the rows of the tile before have left\n"


@pytest.mark.parametrize(
    "defects",
    [
        # Values are given back while the tensor cores may still read them.
        ((_VALUES, ""), (_MULTIPLIED, _VALUES + _MULTIPLIED)),
        # Rows are written over those of the tile before.
        ((_LEFT, ""), (_WRITE, _WRITE + _LEFT)),
    ],
)
def test_memory_used_again_too_early_is_a_wrong_number(defects):
    source = _planted(*defects)
    output, _ = _errors(1000, attenders=2, slots=4, causal=False, programs=1, source=source)
    assert not output < 1e-2
