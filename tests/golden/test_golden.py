"""Output is what it was: every command, document and format, held against what is stored.

After a change of output that is meant: `python -m tests.golden.update`, read what it says, and declare the change in
`CHANGES.md`.
"""

from __future__ import annotations

from itertools import islice

import pytest

from tests.golden.cases import CASES
from tests.golden.running import run
from tests.golden.stored import differences, expected

#: Lines that a failure shows; `python -m tests.golden.update --dry-run --only ID` shows more.
_SHOWN = 40


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.id, marks=[pytest.mark.slow] if case.slow else []) for case in CASES],
)
def test_output_is_what_it_was(case):
    before = expected(case.group).get(case.id)
    assert before is not None, "nothing is stored for this case: run python -m tests.golden.update"
    changed = list(islice(differences(before, run(case)), _SHOWN + 1))
    if changed:
        rest = ["…"] if len(changed) > _SHOWN else []
        pytest.fail("\n".join([f"warplens {' '.join(case.words)}", *changed[:_SHOWN], *rest]), pytrace=False)


def test_nothing_is_stored_for_cases_that_are_gone():
    known = {case.id for case in CASES}
    assert not {name for group in {case.group for case in CASES} for name in expected(group)} - known
