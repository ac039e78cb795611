"""Whole numbers decoded from the pages of an SQLite file, whole or damaged, are SQLite's, or left to it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.small_export import write_export
from warplens.errors import UnreadableInputError
from warplens.readers import read, sqlite, sqlite_rows
from warplens.readers.sqlite import Part, SqliteFile

#: Both sides of every width that SQLite stores numbers in: 1, 2, 3, 4, 6 and 8 bytes, and none at all for 0 and 1.
_EDGES = [
    0,
    1,
    -1,
    *(sign * 2**bits + less for bits in (7, 15, 23, 31, 47, 62) for sign in (1, -1) for less in (0, -1)),
]
_VALUES = st.one_of(st.none(), st.sampled_from(_EDGES), st.integers(-(2**63), 2**63 - 1))


def write(
    path: Path, rows: list[tuple[object, ...]], declared: str = "a INTEGER, b INT NOT NULL, c INTEGER", page: int = 4096
) -> None:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {page}")
    connection.execute(f"CREATE TABLE t ({declared})")
    marks = ",".join("?" * len(rows[0]))
    connection.executemany(f"INSERT INTO t VALUES ({marks})", rows)
    connection.commit()
    connection.close()


def decoded(path: Path, columns: tuple[str, ...] = ("a", "b", "c")) -> list[list[tuple[object, ...]] | None]:
    with SqliteFile(path) as file:
        frames = [file.numbers("t", columns, part) for part in file.parts("t")]
    return [None if frame is None else frame.rows() for frame in frames]


@given(
    rows=st.lists(st.tuples(_VALUES, _VALUES.map(lambda value: value or 0), _VALUES), min_size=1, max_size=60),
    page=st.sampled_from([512, 1024, 65536]),
)
def test_every_width_of_number_comes_out_as_it_went_in(tmp_path_factory, rows, page):
    path = tmp_path_factory.mktemp("pages") / "t.sqlite"
    write(path, rows, page=page)
    assert decoded(path) == [rows]
    assert decoded(path, ("c", "a")) == [[(c, a) for a, _, c in rows]]


@pytest.mark.parametrize("page", [512, 4096])
def test_tables_of_several_levels_are_read_part_by_part(tmp_path, page):
    generator = np.random.default_rng(7)
    numbers = generator.integers(-(2**40), 2**40, (30_000, 2)) >> generator.integers(0, 41, (30_000, 2))
    rows = [(int(a), int(b), None if a % 3 else 1) for a, b in numbers]
    path = tmp_path / "t.sqlite"
    write(path, rows, page=page)
    with SqliteFile(path) as file:
        for first, count in ((1, 30_000), (1, 1), (30_000, 1), (777, 12_345)):
            frame = file.numbers("t", ("a", "b", "c"), Part("", count, first, numbered=True))
            assert frame.rows() == rows[first - 1 : first - 1 + count]
        assert file.numbers("t", ("a",), Part("", 2, 30_000, numbered=True)) is None


@pytest.mark.parametrize("name", ["rowid", "OID", "_rowid_"])
def test_columns_called_like_the_number_of_a_row_hold_their_values(tmp_path, name):
    """Where such a column exists, its name stands for it and no longer for the number of the row."""
    path = tmp_path / "t.sqlite"
    rows = [(i % 3, None if i % 5 else i, 7) for i in range(400)]
    write(path, rows, f"{name} INT, b INT, c INT")
    assert decoded(path, (name, "b")) == [[row[:2] for row in rows]]


def test_a_table_with_all_names_of_the_number_of_a_row_is_refused(tmp_path):
    path = tmp_path / "t.sqlite"
    write(path, ROWS, "rowid INT, _rowid_ INT, oid INT")
    with pytest.raises(UnreadableInputError, match="table t has columns with all names of the numbers of its rows"):
        decoded(path, ("oid",))


@pytest.mark.parametrize("columns", [125, 126, 127, 128, 129, 130])
def test_rows_whose_head_is_longer_than_a_byte_tells_are_not_misread(tmp_path, columns):
    """With 128 columns the first of two bytes that hold the length looks like a length of one byte."""
    path = tmp_path / "t.sqlite"
    rows = [tuple(5 if place == columns - 1 else 300 + row for place in range(columns)) for row in range(9)]
    write(path, rows, ", ".join(f"c{place} INT" for place in range(columns)))
    assert decoded(path, ("c0", "c7")) in ([None], [[(row[0], row[7]) for row in rows]])


ROWS: list[tuple[object, ...]] = [(1, 2, 3), (4, 5, 6), (7, 8, 9)]


@pytest.mark.parametrize(
    ("change", "columns"),
    [
        ("UPDATE t SET b = 1.5 WHERE a = 4", "a, b, c"),
        ("UPDATE t SET c = 'text' WHERE a = 4", "a, b, c"),
        (f"UPDATE t SET c = '{'long' * 40}' WHERE a = 4", "a, b"),
        (f"UPDATE t SET c = '{'long' * 4000}' WHERE a = 4", "a, b"),
        ("DELETE FROM t WHERE a = 4", "a, b, c"),
        ("ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 5", "a, d"),
    ],
)
def test_what_is_stored_in_another_way_is_left_to_sqlite(tmp_path, change, columns):
    path = tmp_path / "t.sqlite"
    write(path, ROWS)
    connection = sqlite3.connect(path)
    connection.execute(change)
    connection.commit()
    connection.close()
    assert decoded(path, tuple(columns.split(", "))) == [None]


@pytest.mark.parametrize(
    "declared",
    [
        "a INTEGER PRIMARY KEY, b INT, c INT)",
        "a REAL, b INT, c INT)",
        "a INT PRIMARY KEY, b INT, c INT) WITHOUT ROWID",
    ],
)
def test_tables_whose_rows_hold_something_else_are_left_to_sqlite(tmp_path, declared):
    path = tmp_path / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE t ({declared}")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", ROWS)
    connection.commit()
    connection.close()
    with SqliteFile(path) as file:
        assert file.numbers("t", ("a", "b", "c"), Part("", 3, 1, numbered=True)) is None


_PAGE = 4096
_ROWS = 4_000
#: How a page of rows begins, and where it says how many.
_LEAF, _INTERIOR = 13, 5


@pytest.fixture(params=["small", "large"])
def export(tmp_path, request, monkeypatch):
    """An export with 4,000 kernels on some sixty pages; read as one that is too large for a check of all pages, too."""
    if request.param == "large":
        monkeypatch.setattr(sqlite, "_CHECKED_BYTES", 0)
    path = write_export(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as file:
        columns = [name for _, name, *_ in file.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")]
        one = ", ".join('n.i * 10 + "start"' if name in ("start", "end") else f'k."{name}"' for name in columns)
        one = one.replace('"start"', 'k."start"')
        file.execute(f"""
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {_ROWS - 8})
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT {one}
            FROM n JOIN (SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1) AS k""")
        file.commit()
    return path


def _leaves(content: bytes) -> list[int]:
    """Where the full pages of rows begin."""
    return [at for at in range(0, len(content), _PAGE) if content[at] == _LEAF and content[at + 4] > 20]


def _fewer_rows(content: bytearray) -> None:
    at = _leaves(content)[5]
    content[at + 4] -= 3


def _one_page_twice(content: bytearray) -> None:
    first, second = _leaves(content)[4:6]
    content[second : second + _PAGE] = content[first : first + _PAGE]


def _one_row_twice(content: bytearray) -> None:
    at = _leaves(content)[5] + 8
    content[at + 2 : at + 4] = content[at : at + 2]


def _another_number_of_a_row(content: bytearray) -> None:
    """The number of a row, in one byte behind its length, jumps ahead: a walk over some rows would end there."""
    page = _leaves(content)[6]
    cell = page + int.from_bytes(content[page + 8 + 20 : page + 8 + 22], "big")
    content[cell + 1] |= 0x40


def _an_earlier_page_at_the_end(content: bytearray) -> None:
    """The last child of the page above the leaves: the last row is an earlier one, and all before it are numbered."""
    pages = [at for at in range(0, len(content), _PAGE) if content[at] == _INTERIOR and content[at + 4] > 20]
    content[pages[0] + 8 : pages[0] + 12] = (_leaves(content)[3] // _PAGE + 1).to_bytes(4, "big")


@pytest.mark.parametrize(
    "damage",
    [_fewer_rows, _one_page_twice, _one_row_twice, _another_number_of_a_row, _an_earlier_page_at_the_end],
)
def test_damage_that_sqlite_reads_over_is_refused(export, damage):
    content = bytearray(export.read_bytes())
    damage(content)
    export.write_bytes(content)

    with pytest.raises(UnreadableInputError, match="the SQLite database is damaged: its pages contradict each other"):
        read(export)


def _updated(export: Path) -> None:
    with closing(sqlite3.connect(export)) as file:
        file.execute('UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start + 1, "end" = "end" + 1')
        file.commit()


def _replaced(export: Path) -> None:
    shutil.copy2(export, export.with_suffix(".new"))  # of the same time and size
    export.with_suffix(".new").replace(export)


def _shortened(export: Path) -> None:
    with export.open("r+b") as file:
        file.truncate(_PAGE * 10)


@pytest.mark.parametrize("change", [_updated, _replaced, _shortened])
def test_an_export_that_is_written_to_while_it_is_read_is_refused(export, change, monkeypatch):
    """Half of the tables would be of one time, and half of another."""
    unchanged = sqlite.SqliteFile.parts

    def parts(file: sqlite.SqliteFile, table: str) -> list[sqlite.Part]:
        if table == "CUPTI_ACTIVITY_KIND_KERNEL":
            change(export)
        return unchanged(file, table)

    monkeypatch.setattr(sqlite.SqliteFile, "parts", parts)
    with pytest.raises(UnreadableInputError, match=r"it was written to while it was read\. Wait"):
        read(export)


def test_a_sound_export_is_read(export):
    assert read(export).kernels.height == _ROWS


def test_gaps_between_the_numbers_of_rows_are_no_damage(export):
    with closing(sqlite3.connect(export)) as file:
        file.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 7 = 0")
        file.commit()

    assert read(export).kernels.height == _ROWS - _ROWS // 7


def test_expressions_of_the_file_are_not_carried_out(export):
    """A constraint or a computed column may say anything, and take forever."""
    endless = "length(hex(zeroblob(900000000)))"
    with closing(sqlite3.connect(export)) as file:
        file.execute("PRAGMA ignore_check_constraints = ON")
        file.execute(f"CREATE TABLE constrained (start INTEGER CHECK ({endless} = 0))")
        file.execute("INSERT INTO constrained VALUES (1)")
        file.commit()
        assert read(export).kernels.height == _ROWS

        file.execute(f"CREATE TABLE computing (start INTEGER, computed AS ({endless}) NOT NULL)")
    with pytest.raises(UnreadableInputError, match="a column of it is computed"):
        read(export)


def test_kinds_of_rows_that_sort_alike_are_told_apart_all_the_same():
    words = np.random.default_rng(0).integers(1, 2**62, 5_000).astype(np.uint64)
    mixed = words * np.uint64(0x9E3779B97F4A7C15)
    _, first, which = np.unique(mixed >> np.uint64(48), return_index=True, return_inverse=True)
    one = int(np.flatnonzero(first[which] != np.arange(len(words)))[0])  # agrees in 16 bits with an earlier one
    pair = words[[int(first[which][one]), one]]
    rows = np.tile(pair, 1_000)[np.newaxis]  # in turn, which is more changes than kinds are read

    kinds = sqlite_rows._rows_by_header(rows)
    assert sorted(map(len, kinds)) == [1_000, 1_000]
    assert all(len(set(rows[0, kind].tolist())) == 1 for kind in kinds)
