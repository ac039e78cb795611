"""Text in an nsys export: the numbered strings that tables refer to, and text that stands in the tables themselves.

Only strings that an event refers to are ever read. The rest of `StringIds` holds the process's environment, command
lines and paths, which must not reach anything that Warplens shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.schema import encode_names
from warplens.readers.sqlite_file import SqliteFile

__all__ = ["Strings", "decoded", "distinct_ids"]

Int64s = npt.NDArray[np.int64]

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
    found = [column.unique().drop_nulls().to_numpy() for column in columns]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


class Strings:
    """Those strings of `StringIds` that events refer to.

    Attributes:
        missing: ids for which the file has no string.
        unnamed: those of them that a name was asked for.
        replaced: how many of the texts, those of `decode_all` included, were not UTF-8.
    """

    def __init__(self, file: SqliteFile, ids: Int64s) -> None:
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
        """Dictionary-encoded names for a column of ids; null for null.

        Args:
            column: `Int64` ids, among those that this was made for.
            rewrite: regular expressions and what stands for a match of them, applied to each different text.
        """
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
