"""Changed but valid files: what the readers give, and what Python's own `sqlite3` and `json` do."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.mutators import database
from tests.fuzz.reading import read_ended
from tests.fuzz.reference import changed_trace, of_database, of_trace, tables_of
from tests.fuzz.seeds import by_name
from tests.fuzz.test_fuzz import changes_databases
from tests.tiers import thinned
from warplens.readers import read

#: Changed files of each kind, in parts of which `make test` takes one.
CASES, PARTS = 150, 5


@changes_databases
@pytest.mark.parametrize("part", thinned(range(PARTS), quick=(0,)))
@pytest.mark.parametrize("seed", ["export", "extra", "plain"])
def test_a_changed_export_holds_what_sqlite_gives(seed, part):
    chosen = by_name(seed)
    results = [
        read_ended(chosen, database(chosen.content, Random(f"valid {number}"), valid=True), "valid")
        for number in range(part, CASES, PARTS)
    ]

    assert [result for result in results if result.wrong] == []
    assert sum(result.code == 0 for result in results) > len(results) // 2  # the others hold a number that is none


@pytest.mark.parametrize("part", thinned(range(PARTS), quick=(0,)))
@pytest.mark.parametrize("seed", ["trace", "links"])
def test_a_changed_trace_holds_what_json_gives(seed, part):
    chosen = by_name(seed)
    for number in range(part, CASES, PARTS):
        assert read_ended(chosen, changed_trace(chosen.content, Random(f"valid {number}")), "valid").wrong == "", number


def test_the_references_find_what_was_written(tmp_path):
    """A reference that finds nothing would agree with anything."""
    export, trace = tmp_path / "export", tmp_path / "trace"
    export.write_bytes(by_name("export").content)
    trace.write_bytes(by_name("trace").content)
    rows = of_database(export)

    assert isinstance(rows, dict)
    assert {name: len(found) for name, found in rows.items()} == {"kernels": 8, "copies": 4, "api_calls": 16}
    assert rows == tables_of(read(export), rows)
    assert [end - start for start, end, _ in of_trace(trace)["kernels"]] == [20_000, 30_000, 5_000] * 2
