"""The sweeps of token reduction that were measured on an H200 and come with Warplens."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import warplens
from warplens.readers.measurements import read_measurements
from warplens.studies.sweeps.reading import sweep_of
from warplens.studies.sweeps.sweep import Sweep

FILE = Path(warplens.__file__).parent / "data" / "measurements" / "token_reduction.json.xz"


@cache
def token_reduction(attention: str = "explicit") -> Sweep:
    """TopK, keep 0.1, against no reduction; `attention` is the baseline's, `explicit` (as TopK needs it) or `fused`."""
    return sweep_of(
        read_measurements(FILE), {"method": "none", "attention": attention}, {"method": "topk", "keep": 0.1}
    )
