"""The same cases for Atheris, which looks for inputs that reach new code; laid out as OSS-Fuzz expects it.

    pip install atheris
    python -m tests.fuzz.atheris_targets -max_total_time=600 FOLDER          # `FOLDER` keeps what reached new code
    FUZZ_TIER=reader python -m tests.fuzz.atheris_targets -runs=10000 FOLDER

The first byte of an input says which seed the rest is read as; mutations are those of `mutators`, which keep lengths
and checksums true, and now and then libFuzzer's own.
"""

from __future__ import annotations

import os
import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["warplens"]):
    from tests.fuzz import parsing, reading

from tests.fuzz.mutators import mutated

_ENDED, _SEEDS = (
    (reading.read_ended, reading.read_by_readers())
    if os.environ.get("FUZZ_TIER") == "reader"
    else (parsing.parse_ended, parsing.parsed())
)
#: How often libFuzzer's own mutations are taken.
_BLIND = 0.2


class DefectError(Exception):
    """What the judge found wrong."""


def run(data: bytes) -> None:
    """One input."""
    if data and data[0] < len(_SEEDS):
        result = _ENDED(_SEEDS[data[0]], data[1:], "damaged")
        if result.wrong:
            raise DefectError(f"{result.wrong}: {result.detail}")


def mutate(data: bytes, longest: int, number: int) -> bytes:
    """Another input, made of this one."""
    random = Random(number)
    if len(data) < 2 or data[0] >= len(_SEEDS):
        seed = random.randrange(len(_SEEDS))
        data = bytes([seed]) + _SEEDS[seed].content
    if random.random() < _BLIND:
        return bytes(atheris.Mutate(data, longest))
    made = data[:1] + mutated(_SEEDS[data[0]].kind, data[1:], random)
    return made if len(made) <= longest else data


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-max_len=100000"], run, custom_mutator=mutate)
    atheris.Fuzz()
