"""Strings and enumerations of an nsys export, and the names and nesting of its NVTX ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.nesting import nest
from warplens.profile.schema import LONGEST_NAME, Int64s, encode_names
from warplens.readers.nsys.tables import Tables
from warplens.readers.sqlite import quoted

# --- Text in an nsys export -------------------------------------------------------------------------------------------
# Numbered strings that tables refer to, and text in the tables themselves. Only strings that an event refers to are
# read. The rest of `StringIds` holds the process's environment, command lines and paths, which must not reach any
# output.

#: Ids per `IN (…)` list; SQLite looks up each of them by the table's key.
_IDS_PER_QUERY = 5_000

#: Up to this id a lookup table (32 MB at most) replaces binary search, at a twentieth of its time.
_MAX_ID_IN_TABLE = 2**23


def decoded(raw: bytes) -> tuple[str, bool]:
    """The text of a string of an export, and whether bytes of it had to be replaced.

    Strings come from C programs: the text ends at the first NUL. Windows captures use the code page of their machine,
    which the file does not name; bytes that are not UTF-8 become �.
    """
    text = raw.split(b"\x00", 1)[0]
    try:
        return text.decode("utf-8"), False
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace"), True


def distinct_ids(columns: Iterable[pl.Series]) -> Int64s:
    """The distinct ids in these columns, ascending, without nulls."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *map(_distinct, columns)]))


def _distinct(column: pl.Series) -> Int64s:
    """The distinct ids of one column. A table of flags takes a tenth of the time of hashing the rows."""
    ids = column.drop_nulls().to_numpy()
    if not len(ids) or ids.min() < 0 or ids.max() > _MAX_ID_IN_TABLE:
        return column.unique().drop_nulls().sort().to_numpy()
    marks = np.zeros(int(ids.max()) + 1, dtype=np.bool_)
    marks[ids] = True
    return np.flatnonzero(marks)


class Strings:
    """The strings of `StringIds` that events refer to.

    Attributes:
        missing: ids for which the file has no string, or several that differ.
        unnamed: missing ids whose name was requested.
        replaced: number of texts that were not UTF-8, including those of `decode_all`.
    """

    def __init__(self, file: Tables, ids: Int64s) -> None:
        self._texts: dict[int, str] = {}
        self.replaced = 0
        ambiguous: set[int] = set()
        if "StringIds" in file.tables:
            for part in range(0, len(ids), _IDS_PER_QUERY):
                id_list = ",".join(map(str, ids[part : part + _IDS_PER_QUERY].tolist()))
                # One character more than names keep, so that longer ones are seen to be cut.
                text = f"CAST(substr(value, 1, {LONGEST_NAME + 1}) AS BLOB)"
                query = f"SELECT id, {text} FROM StringIds WHERE id IN ({id_list}) AND value IS NOT NULL"  # noqa: S608
                for identifier, raw in file.rows(query):
                    text, replaced = decoded(raw)
                    self.replaced += replaced
                    if self._texts.setdefault(identifier, text) != text:
                        ambiguous.add(identifier)
        self.missing = (frozenset(ids.tolist()) - self._texts.keys()) | ambiguous
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
    """The position of each id in the ascending array `used`, which contains it; null for null."""
    nulls = column.is_null() if column.null_count() else None
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
    return encoded if nulls is None else encoded.set(nulls, None)


def codes_of(file: Tables, enumeration: str, defaults: Mapping[int, str]) -> dict[int, str]:
    """Meanings of an enumeration's codes: from the export (`Host-to-Device` → `host-to-device`), else the defaults."""
    codes = dict(defaults)
    if {"id", "label"} <= set(file.tables.get(enumeration, ())):
        for code, label in file.rows(f"SELECT id, label FROM {quoted(enumeration)}"):  # noqa: S608
            if isinstance(code, int) and isinstance(label, bytes):
                codes[code] = label.decode("utf-8", "replace").strip().lower().replace(" ", "-")
    return codes


def encoded_codes(values: pl.Series, codes: Mapping[int, str]) -> pl.Series:
    """Dictionary-encoded meanings of a column of numbers; `unknown` for numbers without one."""
    used = values.drop_nulls().unique(maintain_order=True)
    texts = [codes.get(code, "unknown") for code in used.to_list()]
    places = values.replace_strict(used, pl.Series(range(used.len()), dtype=pl.UInt32), return_dtype=pl.UInt32)
    return encode_names(places, texts)


# --- NVTX ranges of an nsys export: their names, and which of them encloses which -------------------------------------
# Push-pop ranges of one NVTX domain nest on their thread by construction, but each domain has its own stack, and
# start-end ranges may end at any time. In practice ranges also nest across domains (a library's ranges lie inside the
# application's), which is the useful view. All ranges of a thread are therefore nested together if they nest at all. If
# some cross, the thread's start-end ranges are nested separately; if the others still cross, each domain of the thread
# is nested on its own. Other threads are not affected.

#: ENUM_NSYS_EVENT_TYPE: ranges of NVTX and of its text importer (NVTXT). Marks, names and domains are not ranges.
RANGE_KINDS = {59: "push-pop", 60: "start-end", 70: "push-pop", 71: "start-end"}
_RANGE_TYPE_NAME = re.compile(rb"Nvtxt?(?:(PushPop)|StartEnd)Range")


def range_kinds(file: Tables) -> Mapping[int, str]:
    """Kinds of ranges by event type: from the export's own table, else the numbers of all known versions."""
    kinds = {}
    if {"id", "name"} <= set(file.tables.get("ENUM_NSYS_EVENT_TYPE", ())):
        for code, name in file.rows("SELECT id, name FROM ENUM_NSYS_EVENT_TYPE"):
            found = _RANGE_TYPE_NAME.fullmatch(name) if isinstance(name, bytes) else None
            if found is not None and isinstance(code, int):
                kinds[code] = "push-pop" if found[1] else "start-end"
    return kinds or RANGE_KINDS


def ranges_of(loaded: pl.DataFrame, strings: Strings, kinds: Mapping[int, str], capture_end_ns: int) -> pl.DataFrame:
    """The trace's table of ranges; a range still open at the end of the capture ends there."""
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
    """The text of each range: its registered string if it has one, as in nsys's own reports, else its own text."""
    texts = strings.decode_all(loaded.get_column("text"))
    registered = loaded.get_column("registered")
    if registered.null_count() < registered.len():
        known = registered.set(registered.is_in(list(strings.missing)) & (texts != ""), None)
        texts = strings.encode(known).cast(pl.String).zip_with(known.is_not_null(), texts)
    return texts.cast(pl.Enum(texts.unique(maintain_order=True))).alias("name")


def with_nesting(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add `depth` and `parent`; the comment at the top of this part says which ranges are nested together."""
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    thread = _group_numbers(ranges["process"].to_numpy(), ranges["thread"].to_numpy())
    is_start_end = (ranges["kind"].cast(pl.String) == "start-end").to_numpy()
    domain = ranges["domain"].to_numpy()
    group = thread
    for separation in (is_start_end, domain):
        crossing = _crossing_groups(start, end, group) if len(np.unique(separation)) > 1 else np.empty(0, np.int64)
        if len(crossing):
            group = _group_numbers(group, np.where(np.isin(group, crossing), separation, 0))
    # Start-end ranges nested separately may still cross each other. They get their own call, so that the others keep
    # the fast method of `nest`.
    is_separate = is_start_end & (np.isin(group, np.unique(group[~is_start_end]), invert=True))
    depth = np.empty(len(start), np.int64)
    parent = np.full(len(start), -1, np.int64)
    for rows in (np.flatnonzero(~is_separate), np.flatnonzero(is_separate)):
        nesting = nest(start[rows], end[rows], group[rows])
        depth[rows] = nesting.depth
        parent[rows] = np.where(nesting.parent >= 0, rows[nesting.parent], -1) if len(rows) else -1
    return ranges.with_columns(
        pl.Series("depth", depth, dtype=pl.Int32), pl.Series("parent", parent).replace(-1, None).alias("parent")
    )


def _group_numbers(coarse: npt.NDArray[np.generic], fine: npt.NDArray[np.generic]) -> Int64s:
    """A number for each distinct pair."""
    outer = np.unique(coarse, return_inverse=True)[1].reshape(-1).astype(np.int64)
    values, inner = np.unique(fine, return_inverse=True)
    numbers: Int64s = outer * (len(values) + 1) + inner.reshape(-1)
    return numbers


def _crossing_groups(start: Int64s, end: Int64s, group: Int64s) -> Int64s:
    """The groups in which two ranges overlap without one enclosing the other.

    The method walks through all begins and ends of a group in time. Ranges nest exactly if each has as many others open
    after its end as before its begin; this fails for the first-begun of the ranges that another one crosses. Ranges of
    zero length cross nothing and are left out.
    """
    rows = np.flatnonzero(end > start)
    rows = rows[np.lexsort((-end[rows], start[rows], group[rows]))]
    count = len(rows)
    place = np.arange(count)
    # At one instant, ends precede begins, inner ends precede outer ones, and outer begins precede inner ones.
    is_begin = np.r_[np.zeros(count, np.int8), np.ones(count, np.int8)]
    order = np.lexsort((np.r_[-place, place], is_begin, np.r_[end[rows], start[rows]], np.r_[group[rows], group[rows]]))
    open_after = np.empty(2 * count, np.int64)
    open_after[order] = np.cumsum(2 * is_begin[order].astype(np.int64) - 1)
    crossing = open_after[:count] != open_after[count:] - 1
    return np.unique(group[rows[crossing]])
