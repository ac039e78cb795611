"""What the numbers in an nsys export stand for: its strings, its enumerations, and the names and nesting of NVTX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.nesting import nest
from warplens.profile.schema import Int64s, encode_names
from warplens.readers.nsys.tables import Tables
from warplens.readers.sqlite import quoted

# --- Text in an nsys export -------------------------------------------------------------------------------------------
# the numbered strings that tables refer to, and text that stands in the tables themselves. Only strings that an event
# refers to are ever read. The rest of `StringIds` holds the process's environment, command lines and paths, which must
# not reach anything that Warplens shows.

#: Ids of one `IN (…)` list; SQLite looks each of them up in the table's key.
_IDS_PER_QUERY = 5_000

#: Up to this id a table of codes by id (32 MB at most) replaces the binary search, at a twentieth of its time.
_MAX_ID_IN_TABLE = 2**23


def decoded(raw: bytes) -> tuple[str, bool]:
    """The text of a string of an export, and whether bytes of it had to be replaced.

    Strings come from C programs: the text ends at the first NUL. Those of Windows captures are in the code page of
    that machine, which the file does not name; bytes that are not UTF-8 become �.
    """
    text = raw.split(b"\x00", 1)[0]
    try:
        return text.decode("utf-8"), False
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace"), True


def distinct_ids(columns: Iterable[pl.Series]) -> Int64s:
    """The different ids in these columns, ascending, nulls left out."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *map(_distinct, columns)]))


def _distinct(column: pl.Series) -> Int64s:
    """The same of one column. A mark for each id that there may be takes a tenth of the time of hashing the rows."""
    ids = column.drop_nulls().to_numpy()
    if not len(ids) or ids.min() < 0 or ids.max() > _MAX_ID_IN_TABLE:
        return column.unique().drop_nulls().sort().to_numpy()
    marks = np.zeros(int(ids.max()) + 1, dtype=np.bool_)
    marks[ids] = True
    return np.flatnonzero(marks)


class Strings:
    """Those strings of `StringIds` that events refer to.

    Attributes:
        missing: ids for which the file has no string.
        unnamed: those of them that a name was asked for.
        replaced: how many of the texts, those of `decode_all` included, were not UTF-8.
    """

    def __init__(self, file: Tables, ids: Int64s) -> None:
        self._texts: dict[int, str] = {}
        self.replaced = 0
        if "StringIds" in file.tables:
            for part in range(0, len(ids), _IDS_PER_QUERY):
                wanted = ",".join(map(str, ids[part : part + _IDS_PER_QUERY].tolist()))
                query = f"SELECT id, CAST(value AS BLOB) FROM StringIds WHERE id IN ({wanted}) AND value IS NOT NULL"  # noqa: S608
                for identifier, raw in file.rows(query):
                    self._texts[identifier], replaced = decoded(raw)
                    self.replaced += replaced
        self.missing = frozenset(ids.tolist()) - self._texts.keys()
        self.unnamed: set[int] = set()

    def __getitem__(self, identifier: int) -> str:
        if identifier in self.missing:
            self.unnamed.add(identifier)
            return f"unnamed ({identifier})"
        return self._texts[identifier]

    def encode(self, column: pl.Series, rewrite: Mapping[str, str] | None = None) -> pl.Series:
        """Dictionary-encoded names for a column of ids; null for null."""
        used = distinct_ids([column])
        texts = pl.Series([self[identifier] for identifier in used.tolist()], dtype=pl.String)
        for pattern, replacement in (rewrite or {}).items():
            texts = texts.str.replace(pattern, replacement)
        return encode_names(_codes(column, used), texts)

    def decode_all(self, column: pl.Series) -> pl.Series:
        """Text (`String`) for a column of raw bytes (`Binary`); null for null."""
        try:
            plain = column.cast(pl.String)  # fails on bytes that are not UTF-8
        except pl.exceptions.PolarsError:
            pass
        else:
            if not plain.str.contains("\x00", literal=True).any():
                return plain
        values = column.drop_nulls().unique()
        pairs = [decoded(raw) for raw in values.to_list()]
        self.replaced += sum(replaced for _, replaced in pairs)
        return column.replace_strict(values, pl.Series([text for text, _ in pairs], dtype=pl.String), default=None)


def _codes(column: pl.Series, used: Int64s) -> pl.Series:
    """For each id its place in the ascending array `used`, which holds it; null for null."""
    empty = column.is_null() if column.null_count() else None
    ids = column.fill_null(int(used[0]) if len(used) else 0).to_numpy()
    if not len(used):
        codes = np.zeros(len(ids), np.uint32)
    elif used[0] >= 0 and used[-1] <= _MAX_ID_IN_TABLE:
        table = np.zeros(int(used[-1]) + 1, np.uint32)
        table[used] = np.arange(len(used), dtype=np.uint32)
        codes = table[ids]
    else:
        codes = np.searchsorted(used, ids).astype(np.uint32)
    encoded = pl.Series(codes)
    return encoded if empty is None else encoded.set(empty, None)


def codes_of(file: Tables, enumeration: str, defaults: Mapping[int, str]) -> dict[int, str]:
    """What an export's numbers mean: its own table of them (`Host-to-Device` → `host-to-device`), else the defaults."""
    codes = dict(defaults)
    if {"id", "label"} <= set(file.tables.get(enumeration, ())):
        for code, label in file.rows(f"SELECT id, label FROM {quoted(enumeration)}"):  # noqa: S608
            if isinstance(code, int) and isinstance(label, bytes):
                codes[code] = label.decode("utf-8", "replace").strip().lower().replace(" ", "-")
    return codes


def encoded_codes(values: pl.Series, codes: Mapping[int, str]) -> pl.Series:
    """Dictionary-encoded meanings for a column of numbers; `unknown` for those without one."""
    used = values.drop_nulls().unique(maintain_order=True)
    texts = [codes.get(code, "unknown") for code in used.to_list()]
    places = values.replace_strict(used, pl.Series(range(used.len()), dtype=pl.UInt32), return_dtype=pl.UInt32)
    return encode_names(places, texts)


# --- NVTX ranges of an nsys export: their names, and which of them encloses which -------------------------------------
# Nesting. Push-pop ranges of one NVTX domain nest on their thread by construction, but each domain has a stack of its
# own, and start-end ranges may end whenever the program likes. In practice they nest across domains, too (a library's
# ranges lie inside the application's), and that is what a reader of the profile wants to see. So all ranges of a thread
# are nested together wherever they do nest. Where some of a thread cross, its start-end ranges are set apart; where the
# others still cross, each domain of that thread is nested on its own. Other threads are not touched by this.

#: ENUM_NSYS_EVENT_TYPE: NVTX's ranges and those of its text importer (NVTXT). Marks, names and domains are no ranges.
RANGE_KINDS = {59: "push-pop", 60: "start-end", 70: "push-pop", 71: "start-end"}
_RANGE_TYPE_NAMES = {
    "NvtxPushPopRange": "push-pop",
    "NvtxStartEndRange": "start-end",
    "NvtxtPushPopRange": "push-pop",
    "NvtxtStartEndRange": "start-end",
}


def range_kinds(file: Tables) -> Mapping[int, str]:
    """The event types of this export that are ranges: its own table of them, else the numbers of all known versions."""
    kinds = {}
    if {"id", "name"} <= set(file.tables.get("ENUM_NSYS_EVENT_TYPE", ())):
        for code, name in file.rows("SELECT id, name FROM ENUM_NSYS_EVENT_TYPE"):
            kind = _RANGE_TYPE_NAMES.get(name.decode("utf-8", "replace")) if isinstance(name, bytes) else None
            if kind is not None and isinstance(code, int):
                kinds[code] = kind
    return kinds or RANGE_KINDS


def ranges_of(loaded: pl.DataFrame, strings: Strings, kinds: Mapping[int, str], capture_end_ns: int) -> pl.DataFrame:
    """The trace's table of ranges; one that was still open at the end of the capture ends there."""
    end_ns = pl.max_horizontal(pl.col("end_ns").fill_null(capture_end_ns), "start_ns")
    kind_codes = loaded.get_column("kind").replace_strict(kinds, return_dtype=pl.String)
    frame = loaded.with_columns(
        end_ns,
        pl.col("domain").fill_null(0),
        _names(loaded, strings),
        kind_codes.cast(pl.Enum(["push-pop", "start-end"])).alias("kind"),
    )
    return with_nesting(frame)


def _names(loaded: pl.DataFrame, strings: Strings) -> pl.Series:
    """The text of each range: its registered string where it has one, as nsys's own reports decide, else its own."""
    texts = strings.decode_all(loaded.get_column("text"))
    registered = loaded.get_column("registered")
    if registered.null_count() < registered.len():
        known = registered.set(registered.is_in(list(strings.missing)) & (texts != ""), None)
        texts = strings.encode(known).cast(pl.String).zip_with(known.is_not_null(), texts)
    return texts.cast(pl.Enum(texts.unique(maintain_order=True))).alias("name")


def with_nesting(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with their `depth` and `parent`; see the module's text for which of them are nested together."""
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    thread = _group_numbers(ranges["process"].to_numpy(), ranges["thread"].to_numpy())
    style = (ranges["kind"].cast(pl.String) == "start-end").to_numpy()
    domain = ranges["domain"].to_numpy()
    group = thread
    for finer in (style, domain):
        crossing = _crossing_groups(start, end, group) if len(np.unique(finer)) > 1 else np.empty(0, np.int64)
        if len(crossing):
            group = _group_numbers(group, np.where(np.isin(group, crossing), finer, 0))
    # Start-end ranges that were set apart may still cross each other. They get a call of their own, so that the others
    # keep the fast method of `nest`.
    apart = style & (np.isin(group, np.unique(group[~style]), invert=True))
    depth = np.empty(len(start), np.int64)
    parent = np.full(len(start), -1, np.int64)
    for rows in (np.flatnonzero(~apart), np.flatnonzero(apart)):
        nesting = nest(start[rows], end[rows], group[rows])
        depth[rows] = nesting.depth
        parent[rows] = np.where(nesting.parent >= 0, rows[nesting.parent], -1) if len(rows) else -1
    return ranges.with_columns(
        pl.Series("depth", depth, dtype=pl.Int32), pl.Series("parent", parent).replace(-1, None).alias("parent")
    )


def _group_numbers(coarse: npt.NDArray[np.generic], fine: npt.NDArray[np.generic]) -> Int64s:
    """A number for each different pair."""
    outer = np.unique(coarse, return_inverse=True)[1].reshape(-1).astype(np.int64)
    values, inner = np.unique(fine, return_inverse=True)
    numbers: Int64s = outer * (len(values) + 1) + inner.reshape(-1)
    return numbers


def _crossing_groups(start: Int64s, end: Int64s, group: Int64s) -> Int64s:
    """The groups in which two ranges overlap without one enclosing the other.

    Walk through all begins and ends of a group in time. Ranges nest exactly if each finds as many others open after its
    end as before its begin: the first-begun of the ranges that another one crosses does not. Ranges of no length cross
    nothing and are left out.
    """
    rows = np.flatnonzero(end > start)
    rows = rows[np.lexsort((-end[rows], start[rows], group[rows]))]
    count = len(rows)
    place = np.arange(count)
    # At one instant ends come before begins, inner ends before outer ones, outer begins before inner ones.
    is_begin = np.r_[np.zeros(count, np.int8), np.ones(count, np.int8)]
    order = np.lexsort((np.r_[-place, place], is_begin, np.r_[end[rows], start[rows]], np.r_[group[rows], group[rows]]))
    open_after = np.empty(2 * count, np.int64)
    open_after[order] = np.cumsum(2 * is_begin[order].astype(np.int64) - 1)
    crossing = open_after[:count] != open_after[count:] - 1
    return np.unique(group[rows[crossing]])
