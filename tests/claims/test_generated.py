"""Random programs and recordings of them: nothing said of any contradicts itself, and none ends in an error."""

from __future__ import annotations

import pytest

from tests.claims.checker import check
from tests.claims.pages import compared_traces, pages_of_trace
from tests.claims.programs import generated
from warplens.errors import MissingDataError, UsageError

#: Seeds that run always: two threads, two GPUs, lost tables, cut ends, graphs, copies alone, an unknown GPU.
_QUICK = (1, 4, 12, 22, 31, 165)
_MANY = 250


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in _QUICK else (pytest.mark.slow,)) for seed in range(_MANY)]
)
def test_what_is_said_of_a_random_program_does_not_contradict_itself(seed):
    reading = check(pages_of_trace(generated(seed)))
    assert reading.numbers > 0
    assert [str(each) for each in reading.contradictions] == []


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed == 10 else (pytest.mark.slow,)) for seed in range(0, _MANY, 10)]
)
def test_what_is_said_of_two_random_programs_does_not_contradict_itself(seed):
    try:
        page = compared_traces(generated(seed), generated(seed + 1000))
    except (MissingDataError, UsageError) as error:
        pytest.skip(str(error))
    assert [str(each) for each in check([page]).contradictions] == []
