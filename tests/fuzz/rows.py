"""One case of the rows of a database: a table of any making, sound or damaged, and what the page decoder gives of it.

What is asked of each:

* what is decoded from the pages is what Python's own `sqlite3` reads, value for value; what it refuses is not decoded;
* what is left to SQLite comes out as `sqlite3` gives it, or is refused;
* the parts of a table are all of its rows, each once.

The exit code says how it ended: 0 as decoded from the pages, 1 left to SQLite, 2 refused.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.judge import Ended
from tests.fuzz.mutators import NUMBERS, pages, raw
from tests.fuzz.reading import bounded, place
from tests.fuzz.seeds import Seed
from warplens.readers import sqlite
from warplens.readers.sqlite import Part, SqliteFile, quoted

_TYPES = (
    *("INT", "INTEGER", "BIGINT", "int not null default 0", "TINYINT UNSIGNED") * 3,
    *("FLOATING POINT", "TEXT", "REAL", "BLOB", "NUMERIC", ""),
)
_NAMES = ("start", "end", "a b", 'q"q', "rowid", "oid", "_rowid_", "é", "select")
#: Columns beside which the head of a row takes two bytes, or nearly.
_WIDE = (60, 124, 125, 126, 127, 128, 129, 130, 140, 254, 255, 256, 260)
#: How many cases are sound; how often SQLite is asked for what is not decoded; how many tables are damaged in turn,
#: for a table takes ten times as long to make as to damage and to read.
_VALID, _SQL_TOO, _KEPT = 0.2, 0.25, 500


def made(random: Random) -> tuple[Seed, bytes, str]:
    """A table, and whether it stayed `valid` or was `damaged`; with the number of rows that are read at a time."""
    valid = random.random() < _VALID
    content = table(random) if valid else _kept(random.randrange(_KEPT))
    if not valid:
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            content = damaged(content, random)
    state = "valid" if valid else "damaged"
    return Seed("rows", "sqlite-rows", b"", ()), content, f"{state} {random.choice((250_000, 250_000, 7, 40, 300))}"


def empty(page: int, reserved: int, random: Random) -> sqlite3.Connection:
    """A database without tables, with so many bytes of each page kept for others."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(f"PRAGMA page_size = {page}")
    connection.execute(f"PRAGMA auto_vacuum = {random.choice((0, 0, 0, 1, 2))}")
    connection.execute(f"PRAGMA encoding = '{random.choice(('UTF-8', 'UTF-8', 'UTF-16le', 'UTF-16be'))}'")
    if not reserved:
        return connection
    connection.execute("CREATE TABLE gone (x)")
    connection.execute("DROP TABLE gone")
    connection.execute("VACUUM")
    content = bytearray(connection.serialize())
    content[20] = reserved
    content[105:107] = ((page - reserved) % 65536).to_bytes(2, "big")  # where the content of the first page begins
    connection.deserialize(bytes(content))
    return connection


def table(random: Random) -> bytes:
    """A database with a table `t` that holds whole numbers among other things, stored in any way that SQLite knows."""
    page = random.choice((512, 512, 512, 1024, 4096, 4096, 8192, 65536))
    connection = empty(page, random.choice((0, 0, 0, 0, 1, 8, 32)), random)
    with closing(connection):
        width = random.choice(_WIDE) if random.random() < 0.06 else random.randrange(1, 13)
        names = [f"c{n}" for n in range(width)]
        while random.random() < 0.15:
            names[random.randrange(width)] = random.choice(_NAMES)
        names = list(dict.fromkeys(names))
        types = [random.choice(_TYPES[: 15 if random.random() < 0.5 else None]) for _ in names]
        if random.random() < 0.06:
            types[random.randrange(len(types))] = random.choice(("INTEGER PRIMARY KEY", "INT PRIMARY KEY"))
        declared = ", ".join(f"{quoted(name)} {kind}" for name, kind in zip(names, types, strict=True))
        if random.random() < 0.03:
            declared += f", made INT AS ({quoted(names[0])}) {random.choice(('STORED', 'VIRTUAL'))}"
        without = " WITHOUT ROWID" if "PRIMARY" in declared and random.random() < 0.2 else ""
        with suppress(sqlite3.Error):
            connection.execute("CREATE TABLE other (x INT, y INT)")
            connection.execute(f"CREATE TABLE t ({declared}){without}")
            _filled(connection, names, random)
            for _ in range(random.choice((0, 0, 0, 1, 2, 4))):
                with suppress(sqlite3.Error):
                    _changed(connection, random)
        return connection.serialize()


@cache
def _kept(number: int) -> bytes:
    return table(Random(f"table {number}"))


def _filled(connection: sqlite3.Connection, names: Sequence[str], random: Random) -> None:
    height = random.choice((1, 2, 5, 20, 60, 60, 150, 400)) if len(names) < 20 else random.randrange(1, 12)
    if random.random() < 0.01:
        height = 4_000
    makers = [random.choice(_MAKERS) for _ in names]
    if random.random() < 0.7:  # as exports are: whole numbers, and nothing else
        makers = [random.choice(_MAKERS[:4]) for _ in names]
    rows = [tuple(maker(random, n) for maker in makers) for n in range(height)]
    if len(names) > 20 and random.random() < 0.5:
        rows = [tuple(1 if value is None else 5 for value in row) for row in rows]
    listed, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
    first = random.choice((1, 1, 1, 1, 0, -5, 100, 127, 16_380, 2**31 - 9, 2**56 - 20, 2**62))
    numbered = (first != 1 and not {"rowid", "oid", "_rowid_"} & set(names)) or random.random() < 0.1
    order = list(range(height))
    if random.random() < 0.15:
        random.shuffle(order)
        numbered = True
    numbers = [first + n if numbered else None for n in order]
    connection.execute("BEGIN")
    for at in range(0, height, 40):
        listing = f"_rowid_, {listed}" if numbered else listed
        some = [((number,) if numbered else ()) + rows[n] for number, n in zip(numbers, order, strict=True)][
            at : at + 40
        ]
        with suppress(sqlite3.Error):
            connection.executemany(f"INSERT INTO t ({listing}) VALUES ({marks}{', ?' * numbered})", some)
        if random.random() < 0.2:
            connection.executemany("INSERT INTO other VALUES (?, ?)", [(at, at * at)] * 30)
    connection.execute("COMMIT")


_MAKERS = (
    lambda random, n: 1_000_000 + 997 * n,
    lambda random, _: random.choice((0, 1)),
    lambda random, _: random.choice(NUMBERS),
    lambda random, _: random.choice((None, None, 5, 300)),
    lambda random, n: float(n),
    lambda random, n: str(n),
    lambda random, _: random.choice((0.5, 1e300, float("inf"), -0.0, 2**53 + 1.0)),
    lambda random, _: "x" * random.choice((0, 3, 57, 58, 59, 400, 5_000)),
    lambda random, _: bytes(random.choice((0, 6, 58, 700))),
    lambda random, _: random.choice((None, 1, -1, 2**40, 1.5, "7", "é", b"\0\xff")),
)


def _changed(connection: sqlite3.Connection, random: Random) -> None:
    columns = [row[1] for row in connection.execute("PRAGMA table_info(t)")]
    column = quoted(random.choice(columns))
    match random.randrange(12):
        case 0:
            connection.execute(
                "DELETE FROM t WHERE _rowid_ > (SELECT max(_rowid_) FROM t) - ?", (random.randrange(50),)
            )
        case 1:
            connection.execute("DELETE FROM t WHERE _rowid_ % ? = 0", (random.choice((2, 3, 17)),))
        case 2:
            default = random.choice(("", "DEFAULT 7", "DEFAULT 'text'", "DEFAULT 1.5", "NOT NULL DEFAULT -1"))
            connection.execute(f"ALTER TABLE t ADD COLUMN later INT {default}")
            connection.execute("INSERT INTO t SELECT * FROM t LIMIT ?", (random.choice((0, 30)),))
        case 3:
            connection.execute(f"ALTER TABLE t DROP COLUMN {column}")
        case 4:
            connection.execute(f"CREATE INDEX i ON t ({column})")
        case 5:
            connection.execute("VACUUM")
        case 6:
            new = random.choice(_MAKERS)(random, 3)
            connection.execute(f"UPDATE t SET {column} = ? WHERE _rowid_ % 5 = 1", (new,))
        case 7:
            connection.execute("UPDATE t SET _rowid_ = _rowid_ + ?", (random.choice((1_000, 2**33)),))
        case 8:
            connection.execute("DELETE FROM other")
            connection.execute(f"UPDATE t SET {column} = ?", ("y" * 300,))
            connection.execute(f"UPDATE t SET {column} = 3")
        case 9:
            connection.execute("CREATE TABLE keep AS SELECT * FROM t ORDER BY random()")
            connection.execute("DROP TABLE t")
            connection.execute("ALTER TABLE keep RENAME TO t")
        case 10:
            connection.execute("DELETE FROM t")
            connection.execute("INSERT INTO t DEFAULT VALUES")
        case 11:
            connection.execute(f"ALTER TABLE t RENAME COLUMN {column} TO {quoted(random.choice(_NAMES))}")


def damaged(content: bytes, random: Random) -> bytes:
    """One change of a page: its head, its pointers, a row's numbers, a child, or where a table begins."""
    out = bytearray(content)
    size = int.from_bytes(out[16:18], "big")
    size = 65536 if size == 1 else max(size, 512)  # the damage before may have changed it
    roll = random.random()
    kinds = {at: out[at] for at in range(size, len(out) - size + 1, size) if out[at] in (2, 5, 10, 13)}
    if roll < 0.08 or not kinds:
        return pages(content, random)
    if roll < 0.12:
        return raw(content, random)
    if roll < 0.16:
        at = random.choice((16, 20, 24, 28, 52, 56, 92)) + random.randrange(4)
        out[at] = random.choice((0, 1, 2, out[at] ^ 1, 255))
        return bytes(out)
    if roll < 0.2:
        return _begun_elsewhere(content, len(out) // size, random)
    leaves = [at for at, kind in kinds.items() if kind == 13] or list(kinds)
    inner = [at for at, kind in kinds.items() if kind == 5] or leaves
    page = random.choice(inner if roll < 0.4 else leaves)
    head = 12 if out[page] in (2, 5) else 8
    count = int.from_bytes(out[page + 3 : page + 5], "big")
    if roll < 0.45:  # another page in place of this one
        other = random.choice(list(kinds))
        out[page : page + size] = out[other : other + size]
        return bytes(out)
    if roll < 0.55:
        count = max(0, count + random.choice((1, -1, -2, 5, -count)))
        out[page + 3 : page + 5] = (count % 65536).to_bytes(2, "big")
        return bytes(out)
    place = page + head + 2 * random.randrange(max(count, 1))
    other = page + head + 2 * random.randrange(max(count, 1))
    cell = page + int.from_bytes(out[place : place + 2], "big")
    if roll < 0.62 and place + 2 <= len(out):
        out[place : place + 2], out[other : other + 2] = out[other : other + 2], out[place : place + 2]
    elif roll < 0.67:
        out[place : place + 2] = out[other : other + 2]
    elif roll < 0.72:
        moved = int.from_bytes(out[place : place + 2], "big") + random.choice((1, -1, 2, -2, 8))
        out[place : place + 2] = (moved % 65536).to_bytes(2, "big")
    elif roll < 0.76 and head == 12:  # a child: the last one, or one of a cell
        at = random.choice((page + 8, cell))
        out[at : at + 4] = (random.choice(list(kinds)) // size + 1).to_bytes(4, "big")
    else:  # within a row: its length, its number, the length of its head, the types of its values, or a value
        at = cell + random.choice((0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 6, 7, random.randrange(60)))
        if at < len(out):
            some = (0, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 127, 128, 129, 130, 255, out[at] ^ 1, out[at] + 1 & 255)
            out[at] = random.choice(some)
            if random.random() < 0.1:  # a number written longer than it must be
                out[at : at + random.choice((1, 2, 8))] = b"\x80" * random.choice((1, 2, 8))
    return bytes(out)


def _begun_elsewhere(content: bytes, pages: int, random: Random) -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        try:
            connection.deserialize(content)
            connection.execute("PRAGMA writable_schema = ON")
            change = random.choice((
                f"rootpage = {random.randrange(pages + 2)}",
                "rootpage = (SELECT max(rootpage) FROM sqlite_master)",
                "sql = replace(sql, 'INT', 'REAL')",
                "sql = replace(sql, 'c1', 'c0')",
                "sql = replace(sql, 'c2', 'c2 INT, d')",
                "name = upper(name)",
                "type = 'view'",
            ))  # fmt: skip
            connection.execute(f"UPDATE sqlite_master SET {change} WHERE name = 't'")
            return connection.serialize()
        except sqlite3.Error:
            return content


def rows_ended(seed: Seed, content: bytes, state: str) -> Ended:
    """Decodes a table from its pages and says what is wrong with how that ended."""
    path = place() / "case"
    path.write_bytes(content)
    how, at_once = state.split()
    random = Random(zlib.crc32(content))
    decoded = [0]

    def decode() -> str:
        earlier = sqlite.ROWS_PER_PART, sqlite._CHECKED_BYTES
        # Larger files are not checked as a whole: what stands in front of the tables is all that there is.
        sqlite.ROWS_PER_PART, sqlite._CHECKED_BYTES = int(at_once), 0 if random.random() < 0.9 else 2**23
        try:
            return _wrong(path, how, random, decoded)
        finally:
            sqlite.ROWS_PER_PART, sqlite._CHECKED_BYTES = earlier

    result = bounded(decode, "rows", seed)
    if result.code == 0 and not result.wrong and not decoded[0]:
        return type(result)(1, "", result.detail)
    return result


def _wrong(path: Path, how: str, random: Random, decoded: list[int]) -> str:
    with SqliteFile(path) as file:
        if "t" not in file.tables:
            return ""
        file.refuse_damage()
        parts = file.parts("t")
        for names in _asked(file, random):
            found = _found(file, names, parts, random, decoded)
            if found is not None and (wrong := _differs(found, _by_sqlite(path, names))):
                return f"{wrong} ({how})"
    return ""


def _asked(file: SqliteFile, random: Random) -> list[tuple[str, ...]]:
    columns = file.rows("PRAGMA table_xinfo(t)")
    # A name that is no UTF-8 can be asked for by no query: SQLite takes what is put there for a text.
    whole = [row[1].decode() for row in columns if b"INT" in row[2].upper() and _is_text(row[1])]
    some = tuple(name for name in whole if random.random() < 0.6)
    return [
        names
        for names in (tuple(whole), some, (random.choice(file.tables["t"]),))
        if names and "\ufffd" not in "".join(names)
    ]


def _is_text(name: bytes) -> bool:
    return "\ufffd" not in name.decode("utf-8", "replace")


def _found(
    file: SqliteFile, names: tuple[str, ...], parts: list[Part], random: Random, decoded: list[int]
) -> list[tuple[Any, ...]] | None:
    """The rows of all parts as a reader gets them; None where SQLite would have to be asked, and is not this time."""
    found: list[tuple[Any, ...]] = []
    too = random.random() < _SQL_TOO
    for part in parts:
        frame = file.numbers("t", names, part)
        if frame is not None:
            decoded[0] += 1
        elif not too:
            return None
        else:
            frame = file.frame("t", f"SELECT {', '.join(map(quoted, names))} FROM t WHERE {part.condition}")
            file.refuse_damage_in("t", part, frame.height)
        found += frame.rows()
    return found


def _differs(found: list[tuple[Any, ...]], rows: list[tuple[Any, ...]] | str) -> str:
    if isinstance(rows, str):
        return f"rows that SQLite refuses: {rows}"
    if len(found) != len(rows):
        return f"silently {'fewer' if len(found) < len(rows) else 'more'} rows"
    return "" if found == rows else "silently wrong values"


def _by_sqlite(path: Path, names: tuple[str, ...]) -> list[tuple[Any, ...]] | str:
    """Columns of `t` in the order of the rows' numbers, or why there are none; real numbers as texts, to differ."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as file:
        file.text_factory = bytes
        try:
            rows = file.execute(f"SELECT {', '.join(map(quoted, names))} FROM t NOT INDEXED").fetchall()
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            return str(error)
    return [tuple(str(value) if isinstance(value, float) else value for value in row) for row in rows]
