"""Databases whose pages are damaged so that SQLite reads other rows without an error: refused, whatever their size."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.cli.small_export import write_export
from warplens.errors import UnreadableInputError
from warplens.readers import read, sqlite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PAGE = 4096
_ROWS = 4_000
#: How a page of rows begins, and where it says how many.
_LEAF, _INTERIOR = 13, 5


@pytest.fixture(params=["small", "large"])
def export(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def test_damage_that_sqlite_reads_over_is_refused(export: Path, damage: Callable[[bytearray], None]) -> None:
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
def test_an_export_that_is_written_to_while_it_is_read_is_refused(
    export: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the tables would be of one time, and half of another."""
    unchanged = sqlite.SqliteFile.parts

    def parts(file: sqlite.SqliteFile, table: str) -> list[sqlite.Part]:
        if table == "CUPTI_ACTIVITY_KIND_KERNEL":
            change(export)
        return unchanged(file, table)

    monkeypatch.setattr(sqlite.SqliteFile, "parts", parts)
    with pytest.raises(UnreadableInputError, match=r"it was written to while it was read\. Wait"):
        read(export)


def test_a_sound_export_is_read(export: Path) -> None:
    assert read(export).kernels.height == _ROWS


def test_gaps_between_the_numbers_of_rows_are_no_damage(export: Path) -> None:
    with closing(sqlite3.connect(export)) as file:
        file.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 7 = 0")
        file.commit()

    assert read(export).kernels.height == _ROWS - _ROWS // 7


def test_expressions_of_the_file_are_not_carried_out(export: Path) -> None:
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
