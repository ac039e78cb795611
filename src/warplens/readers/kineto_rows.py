"""Columns that several tables of a Kineto trace need: 32-bit numbers, threads, words for names."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from warplens.profile.schema import encode_names, name_categories

__all__ = ["encoded", "int32", "mapped", "named", "together", "with_threads"]

_LOW_32_BITS = 0xFFFFFFFF


def int32(column: pl.Expr) -> pl.Expr:
    """The number as 32-bit one: CUPTI writes "none" as 0xFFFFFFFF, which as a signed number is −1."""
    low = column & _LOW_32_BITS
    return pl.when(low >= 2**31).then(low - 2**32).otherwise(low).cast(pl.Int32)


def mapped(names: pl.Series, word: Callable[[str], str | None]) -> pl.Series:
    """A dictionary-encoded column with each different text replaced, once; null where the word is None."""
    words = [word(text) for text in name_categories(names)]
    if not words:
        return names
    distinct = {text: None for text in words if text is not None}
    texts = pl.Series(words, dtype=pl.Enum(list(distinct)))
    return texts.gather(names.to_physical()).alias(names.name)


def encoded(texts: pl.Series) -> pl.Series:
    """Texts, dictionary-encoded."""
    return texts.cast(pl.Enum(texts.drop_nulls().unique(maintain_order=True)))


def named(names: pl.Series) -> pl.Series:
    """A dictionary-encoded column in which events without a name have an empty one."""
    return encoded(names.cast(pl.String).fill_null("")) if names.null_count() else names


def together(parts: list[pl.Series]) -> pl.Series:
    """Dictionary-encoded columns one after the other, as one."""
    texts = [text for part in parts for text in name_categories(part)]
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + name_categories(part).len())
    codes = [part.to_physical().cast(pl.UInt32) + offset for part, offset in zip(parts, offsets, strict=False)]
    return encode_names(pl.concat(codes), texts)


def with_threads(rows: pl.DataFrame, host: int) -> pl.DataFrame:
    """Rows with `process` and `thread` as the schema has them.

    Overhead bears −1 as process; that is the program's own. Threads told by a 64-bit handle get a number of 32 bits.

    Args:
        rows: with the numbers that the events bear.
        host: the process of the program.
    """
    thread = pl.col("thread").fill_null(0)
    if rows.height and not rows.select(thread.is_between(-(2**31), 2**31 - 1).all()).item():
        handles = rows.select(thread.unique().sort()).to_series()
        rows = rows.with_columns(thread=thread.replace_strict(handles, pl.Series(_short(handles.to_list()))))
    return rows.with_columns(
        pl.when(pl.col("process") >= 0).then("process").otherwise(host).pipe(int32).alias("process"),
        thread.cast(pl.Int32).alias("thread"),
    )


def _short(handles: list[int]) -> list[int]:
    """For each handle a number that no other has: itself if it has 31 bits, else its low bits or the next free one."""
    taken = {handle for handle in handles if -(2**31) <= handle < 2**31}
    numbers = []
    for handle in handles:
        number = handle
        if not -(2**31) <= handle < 2**31:
            number = handle % 2**31
            while number in taken:
                number = (number + 1) % 2**31
            taken.add(number)
        numbers.append(number)
    return numbers
