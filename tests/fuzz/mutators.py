"""Mutations that know the format: a damaged field, not a damaged checksum, is what reaches the code behind a reader.

Each function takes the bytes of a file and a `random.Random`, and gives other bytes. All are deterministic in both.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import sqlite3
import struct
from random import Random
from typing import Any

import lz4.block
import zstandard

from tests.readers.nsys_reports import varint

NUMBERS = (
    *(0, 1, -1, 2, 7, 127, 255, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**53 + 1),
    *(2**62, 2**63 - 1, -(2**63), 10**12, 10**15, 10**18, -(10**18)),
)
HUGE = (2**63, 2**64 - 1, 2**64, 10**30)
FLOATS = (0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"), 0.1 + 0.2, 1e18, 123456789.123456789)
TEXTS = (
    *("", " ", "\0", "a\0b", "\x1b[31m", "\x1b]0;x\x07", "\u202e", "\uffff", "\ufffe", "\u2028", "é" * 50, "x" * 5_000),
    *(
        "=1+1",
        "@SUM(A1)",
        "-2+3",
        "<script>alert(1)</script>",
        "'); DROP TABLE x; --",
        "../../etc/passwd",
        "NaN",
        "None",
    ),
    *("null", "1e999", "-1", "0x10", "[[[[", "{{x}}", "{0}", "%s%n", "$(id)", "|", "a|b\nc", "\t", "`", "]]>", "&amp;"),
    *("void at::native::f<int, (lambda(int)#1)>(int)", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pinned -> Device)"),
    *("step", "ProfilerStep#3", "aten::mm", "<" * 400, "(" * 3_000, "A<" * 1_500),
)


def number(random: Random, old: object = None) -> int:
    """A number that is at an edge, or beside the old one."""
    if isinstance(old, int) and random.random() < 0.5:
        return old + random.choice((1, -1, 1_000, -1_000, old, -2 * old, 10**9))
    return random.choice(NUMBERS)


def value(random: Random, old: object = None, *, json_only: bool = False) -> Any:
    """Anything that may stand in the place of another value."""
    roll = random.random()
    if roll < 0.4:
        return number(random, old)
    if roll < 0.55:
        return random.choice(FLOATS)
    if roll < 0.8:
        return random.choice(TEXTS)
    if roll < 0.9:
        return None
    if json_only:
        return random.choice((True, False, [], {}, [None], {"a": 1}, *HUGE, [[1, 2], [3]], {"": {"": []}}))
    return random.choice((b"", b"\xff\xfe", b"\x00" * 40, "\ud800".encode("utf-8", "surrogatepass")))


def raw(content: bytes, random: Random) -> bytes:
    """Bytes changed, cut out, doubled, put in, or the end cut off."""
    out = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at = random.randrange(len(out) + 1) if out else 0
        if random.random() < 0.3:
            at = min(at, random.choice((16, 100, 400)))
        size = random.choice((1, 1, 2, 4, 8, 60, 1_000))
        roll = random.random()
        if roll < 0.35 and out:
            out[min(at, len(out) - 1)] = random.randrange(256)
        elif roll < 0.5:
            out[at : at + size] = b""
        elif roll < 0.65:
            out[at:at] = out[at : at + size]
        elif roll < 0.8:
            out[at:at] = random.choice((b"\0", b"\xff", b"\x80", b" ", b'"', b"{", b"[", b",", b"\n")) * size
        elif roll < 0.9:
            out[at : at + 8] = struct.pack("<q", random.choice(NUMBERS))
        else:
            del out[at:]
    return bytes(out)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every member of every object and list, as holder and key."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])
    return found


def tree(content: bytes, random: Random) -> bytes:
    """A JSON document some of whose members were changed, removed, renamed, doubled or exchanged."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return raw(content, random)
    if not isinstance(document, (dict, list)):
        return raw(content, random)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        places = _places(document)
        if not places:
            break
        holder, key = random.choice(places)
        roll = random.random()
        if roll < 0.55:
            holder[key] = value(random, holder[key], json_only=True)
        elif roll < 0.7:
            del holder[key]
        elif roll < 0.75 and isinstance(holder, dict):
            holder[random.choice((*TEXTS, "ts", "dur", "args", "name"))] = holder.pop(key)
        elif roll < 0.85 and isinstance(holder, list):
            holder[key:key] = [holder[key]] * random.choice((1, 2, 30))
        elif roll < 0.95:
            other, place = random.choice(places)
            if place in other if isinstance(other, dict) else place < len(other):
                holder[key] = json.loads(json.dumps(other[place]))  # a copy: no circles
        else:
            holder[key] = [holder[key]]
    text = json.dumps(document, ensure_ascii=random.random() < 0.5)
    if random.random() < 0.1:
        text = text.replace(", ", "," + " " * random.choice((1, 100, 1_500)), random.choice((1, 50)))
    if random.random() < 0.05:
        text = text.replace("NaN", "1e999").replace("0,", "0" * random.choice((30, 400)) + ",", 1)
    out = text.encode("utf-8", "surrogatepass")
    return raw(out, random) if random.random() < 0.1 else out


def lines(content: bytes, random: Random) -> bytes:
    """A ledger: a JSON document a line, some of them changed, lost, doubled or cut."""
    rows = content.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(rows)) if rows else 0
        roll = random.random()
        if not rows:
            break
        if roll < 0.6:
            rows[at] = tree(rows[at], random)
        elif roll < 0.75:
            del rows[at]
        elif roll < 0.9:
            rows[at:at] = [rows[at]] * 2
        else:
            rows[at] = rows[at][: len(rows[at]) // 2]
    return b"\n".join(rows)


def names(content: bytes, random: Random) -> bytes:
    """Lines of text, of which parts were exchanged, doubled, or replaced by texts that mean something elsewhere."""
    rows = content.split(b"\n")
    for _ in range(random.choice((1, 2, 4))):
        at = random.randrange(len(rows))
        row, cut = rows[at], random.randrange(len(rows[at]) + 1)
        other = random.choice(
            (random.choice(rows), random.choice(TEXTS).encode("utf-8", "surrogatepass"), (row * 20)[:5_000])
        )
        rows[at] = row[:cut] + other + row[cut + random.choice((0, 1, 7)) :]
    return b"\n".join(rows)


def table(content: bytes, random: Random) -> bytes:
    """A table of text some of whose cells, rows and columns were changed."""
    rows = list(csv.reader(io.StringIO(content.decode("utf-8", "replace"))))
    for _ in range(random.choice((1, 1, 2, 4, 10))):
        if not any(rows):
            break
        row = random.choice([row for row in rows if row])
        at = random.randrange(len(row))
        roll = random.random()
        if roll < 0.6:
            row[at] = str(value(random, json_only=True))
        elif roll < 0.7:
            del row[at]
        elif roll < 0.8:
            row.insert(at, row[at])
        elif roll < 0.9:
            rows.insert(random.randrange(len(rows) + 1), list(row))
        else:
            rows.remove(row)
    sink = io.StringIO()
    quoting = random.choice((csv.QUOTE_ALL, csv.QUOTE_MINIMAL))
    csv.writer(sink, quoting=quoting, lineterminator=random.choice(("\n", "\n", "\r\n"))).writerows(rows)
    out = sink.getvalue().encode("utf-8", "surrogatepass")
    return raw(out, random) if random.random() < 0.15 else out


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def database(content: bytes, random: Random, *, valid: bool = False) -> bytes:
    """A database some of whose values, rows, columns and tables were changed; unless `valid`, pages as well."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.deserialize(content)
        connection.execute("PRAGMA writable_schema = OFF")
        for _ in range(random.choice((1, 1, 2, 3, 8))):
            try:
                _one_change(connection, random, valid)
            except (sqlite3.Error, OverflowError, UnicodeError):
                continue  # such a change cannot be made here
        out = connection.serialize()
    except sqlite3.Error:
        return raw(content, random)
    finally:
        connection.close()
    return out if valid or random.random() < 0.8 else pages(out, random)


def _one_change(connection: sqlite3.Connection, random: Random, valid: bool) -> None:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
    main = [name for name in tables if name.startswith(("CUPTI", "NVTX", "StringIds", "TARGET"))]
    name = _quoted(random.choice(main if main and random.random() < 0.8 else tables))
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
    column = _quoted(random.choice(columns))
    rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {name} LIMIT 500")]
    row = random.choice(rows) if rows else 0
    roll = random.random()
    if roll < 0.5:
        ((old,),) = connection.execute(f"SELECT {column} FROM {name} WHERE rowid = ?", (row,)).fetchall() or [(None,)]
        new = number(random, old) if valid and isinstance(old, int) else value(random, old)
        connection.execute(f"UPDATE {name} SET {column} = ? WHERE rowid = ?", (new, row))
    elif roll < 0.6:
        connection.execute(f"UPDATE {name} SET {column} = ?", (number(random) if valid else value(random),))
    elif roll < 0.68:
        connection.execute(f"DELETE FROM {name} WHERE rowid % ? = 0", (random.choice((1, 2, 3)),))
    elif roll < 0.76:
        listed = ", ".join(map(_quoted, columns[1:] if "id" in columns[:1] else columns))
        connection.execute(f"INSERT INTO {name} ({listed}) SELECT {listed} FROM {name} WHERE rowid = ?", (row,))
    elif roll < 0.82:
        connection.execute(f"UPDATE {name} SET {column} = {column} + ?", (number(random),))
    elif roll < 0.86:
        connection.execute(f"ALTER TABLE {name} DROP COLUMN {column}")
    elif roll < 0.9:
        connection.execute(f"DROP TABLE {name}")
    elif roll < 0.92:
        connection.execute(f"DELETE FROM {name}")
    elif valid:
        connection.execute("CREATE TABLE IF NOT EXISTS later (x)")
    elif roll < 0.94:
        connection.execute(f"ALTER TABLE {name} RENAME COLUMN {column} TO {_quoted(random.choice(TEXTS) or 'x')}")
    elif roll < 0.96:
        connection.execute(f"ALTER TABLE {name} RENAME TO kept")
        loop = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS start FROM r"
        connection.execute(f"CREATE VIEW {name} AS {random.choice((loop, 'SELECT * FROM kept', 'SELECT 1'))}")
    elif roll < 0.98:
        connection.execute(f"CREATE TRIGGER t AFTER INSERT ON {name} BEGIN DELETE FROM {name}; END")
    else:
        connection.execute(f"UPDATE {name} SET rowid = rowid + ?", (random.choice((10**6, 2**40, -(2**62))),))


def pages(content: bytes, random: Random) -> bytes:
    """A database damaged where its pages say what they hold: kinds, numbers of cells, pointers, lengths."""
    out = bytearray(content)
    size = int.from_bytes(out[16:18], "big") or 4096
    for _ in range(random.choice((1, 2, 5))):
        page = random.randrange(max(len(out) // size, 1)) * size
        at = page + (100 if page == 0 else 0) + random.choice((0, 1, 3, 5, 7, 8, 9, 10, 12, random.randrange(size)))
        if at < len(out):
            out[at] = random.choice((0, 1, 2, 5, 10, 13, 127, 128, 255, random.randrange(256)))
    return raw(bytes(out), random) if random.random() < 0.2 else bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("not a number")


def _fields(data: bytes) -> list[tuple[int, bytes | int]]:
    """The fields of a message as key and value; an error where it is none."""
    at, found = 0, []
    while at < len(data):
        key, at = _read_varint(data, at)
        if key >> 3 == 0 or key & 7 not in (0, 1, 2, 5):
            raise ValueError("no message")
        content: bytes | int
        if key & 7 == 0:
            content, at = _read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, at = _read_varint(data, at)
            if at + size > len(data):
                raise ValueError("too short")
            content, at = data[at : at + size], at + size
        found.append((key, content))
    return found


def _written(found: list[tuple[int, bytes | int]]) -> bytes:
    out = bytearray()
    for key, content in found:
        out += varint(key)
        if isinstance(content, int):
            out += varint(content)
        else:
            out += (varint(len(content)) if key & 7 == 2 else b"") + content
    return bytes(out)


def message(data: bytes, random: Random, depth: int = 0) -> bytes:
    """A message one of whose fields, at any depth, was changed, removed, doubled, or given another type."""
    try:
        found = _fields(data)
    except (ValueError, IndexError):
        return raw(data, random)
    if not found:
        return varint(random.randrange(1, 200) << 3) + varint(random.choice(NUMBERS))
    at = random.randrange(len(found))
    key, content = found[at]
    if isinstance(content, bytes) and key & 7 == 2 and len(content) > 1 and depth < 12 and random.random() < 0.85:
        try:
            _fields(content)
            found[at] = key, message(content, random, depth + 1)
            return _written(found)
        except (ValueError, IndexError):
            pass
    roll = random.random()
    if roll < 0.5:
        if isinstance(content, int):
            found[at] = key, number(random, content)
        elif key & 7 == 2:
            found[at] = key, random.choice((raw(content, random), random.choice(TEXTS).encode(), content * 2, b""))
        else:
            found[at] = key, random.choice((bytes(len(content)), b"\xff" * len(content)))
    elif roll < 0.65:
        del found[at]
    elif roll < 0.8:
        found[at:at] = [found[at]] * random.choice((1, 2, 40))
    elif roll < 0.9:
        found[at] = (key & ~7) | (2 if key & 7 == 0 else 0), b"\x08\x01" if key & 7 == 0 else 5
    else:
        found[at] = random.randrange(1, 300) << 3 | key & 7, content
    return _written(found)


def counters(content: bytes, random: Random) -> bytes:
    """A report of Nsight Compute: one of its messages, each behind its length in four bytes, was changed."""
    at, parts = 4, []
    while at + 4 <= len(content):
        (size,) = struct.unpack_from("<I", content, at)
        parts.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    for _ in range(random.choice((1, 1, 2, 4))):
        if not parts:
            break
        place = random.randrange(len(parts))
        roll = random.random()
        if roll < 0.8:
            parts[place] = message(parts[place], random)
        elif roll < 0.9:
            del parts[place]
        else:
            parts[place:place] = [parts[place]]
    out = content[:4] + b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return raw(out, random) if random.random() < 0.15 else out


def events(content: bytes, random: Random) -> bytes:
    """A report of Nsight Systems: messages in its compressed blocks and around them were changed, lengths kept true."""
    from tests.readers.nsys_reports import GPU, STRINGS, block, bytes_field, framed, packed, small_events
    from tests.readers.nsys_reports import message as made

    chosen = small_events()
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at = random.randrange(len(chosen))
        roll = random.random()
        if roll < 0.8:
            chosen[at] = message(chosen[at], random)
        elif roll < 0.9:
            chosen[at:at] = [chosen[at]] * random.choice((1, 2, 30))
        else:
            del chosen[at]
        if not chosen:
            break
    target, options = made({17: 5_000, 18: 9_000}), made({26: {1: 4, 20: 1, 21: 1}})
    tail, origin = made({1: {1: 2**48, 2: [{7: GPU}, {9: {1: 0, 2: 0, 3: 1018}}]}}), made({6: b"2025.3.1.0"})
    strings = list(STRINGS)
    roll = random.random()
    if roll < 0.1:
        tail = message(tail, random)
    elif roll < 0.15:
        target = message(target, random)
    elif roll < 0.2:
        options = message(options, random)
    elif roll < 0.25:
        origin = message(origin, random)
    elif roll < 0.35:
        strings[random.randrange(len(strings))] = random.choice(TEXTS).encode("utf-8", "surrogatepass")
    cut = random.randrange(len(chosen) + 1)
    counted = len(chosen) + (random.choice((1, -1, 10**6)) if random.random() < 0.05 else 0)
    inner = [block(chosen[:cut]), block(chosen[cut:])]
    if random.random() < 0.05:
        inner.append(packed(framed(bytes_field(1, b"") * random.choice((1, 5_000)))))
    counts = made({1: max(counted, 0), 3: len(strings), 5: 0, 9: b"lz4"})
    before = framed(target) + framed(counts) + b"".join(inner)
    texts = packed(framed(b"".join(bytes_field(1, one) for one in strings)))
    sections = {
        b"Analysis Options Data": options,
        b"Raw Sampling Data": b"QDTEXT00" + before + texts + framed(b"") + framed(tail),
        b"Sampling Data Offsets": made({1: b"lz4", 2: len(before)}),
        b"UI Data": origin,
    }
    out, index = b"NVIDIA Tegra Profiler Report 2025@3@1@90-0.", []
    for name, part in sections.items():
        index.append({1: name, 2: len(out), 3: len(part)})
        out += part
    contents = made({1: index})
    if random.random() < 0.05:
        contents = message(contents, random)
    out += contents + len(out).to_bytes(8, "little") + b"U3w[END]"
    return raw(out, random) if random.random() < 0.1 else out


def gzipped(content: bytes) -> bytes:
    """The content as gzip without the time of writing: a case is the same whenever it is made."""
    return gzip.compress(content, mtime=0)


def packed(content: bytes, random: Random) -> bytes:
    """The file compressed, whole or damaged, alone or twice."""
    pack = random.choice((gzipped, lzma.compress, zstandard.compress, lz4.block.compress))
    out = pack(content)
    if random.random() < 0.1:
        out = random.choice((gzipped, zstandard.compress))(out)
    if random.random() < 0.1:
        out += out
    return raw(out, random) if random.random() < 0.6 else out


#: Kind of file → what changes it, the more meaningful the likelier.
MUTATORS = {
    "sqlite": (*(database,) * 8, pages, raw),
    "trace": (*(tree,) * 8, raw),
    "nsys-rep": (*(events,) * 10, raw),
    "ncu-rep": (*(counters,) * 10, raw),
    "csv": (*(table,) * 8, raw),
    "document": (*(tree,) * 10, raw),
    "ledger": (*(lines,) * 5, raw),
    "names": (*(names,) * 4, raw),
}


def mutated(kind: str, content: bytes, random: Random) -> bytes:
    """A file of this kind after one to three mutations; now and then compressed."""
    out: bytes = content
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        try:
            out = random.choice(MUTATORS[kind])(out, random)
        except (
            ValueError,
            TypeError,
            IndexError,
            csv.Error,
            RecursionError,
            MemoryError,  # so says SQLite of a database without a byte
        ):  # the mutation before left nothing of this kind
            out = raw(out, random)
    return packed(out, random) if random.random() < 0.04 else out
