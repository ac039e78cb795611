"""Kernel keys: when two launches, in files of different tools, are launches of the same kernel."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from warplens.analysis.kernel_names import split_name

__all__ = ["KEY", "SIZES", "with_keys"]

_NAMES: Final = ("name", "full_name")
_SIZE_NAMES: Final = ("grid", "block")

#: Grid and block as texts.
SIZES: Final = tuple(
    pl.concat_str([pl.col(f"{what}_{axis}") for axis in "xyz"], separator=",").alias(what) for what in _SIZE_NAMES
)

#: What a launch is: `kernel` is the function with its template arguments, spelled the same for all tools.
KEY: Final = ("kernel", *_SIZE_NAMES)

#: What only some exports print: the type of a literal (`(int)4`, `(unsigned long)2`, `2ul`), and namespaces, of which
#: CSV exports leave out those that are common.
_OPTIONAL = re.compile(
    r"\((?:un)?(?:signed )?(?:int|long|long long|short|char|bool)\)(?=-?\w)|(?<=\d)[uUlL]+\b|\b(?:\w+::)+"
)


#: Literals that are words in some exports and numbers in others.
_SPELLED_AS: Final = {"false": "0", "true": "1"}
_WORDS = re.compile(r"\b(?:false|true)\b")


def with_keys(one: pl.DataFrame, other: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both with `kernel`, `grid` and `block`, and `code`: the same number in both for the same three.

    A kernel is the same where function and template arguments are; where one of the two knows short names alone, where
    those are.

    Args:
        one, other: launches, with `name`, `full_name`, and the sizes of grid and block.
    """
    frames = [frame.with_columns(pl.col(_NAMES).cast(pl.String)) for frame in (one, other)]
    vague = pl.concat(frame.filter(pl.col("name") == pl.col("full_name"))["name"] for frame in frames).unique()
    spelled = [
        frame.with_columns(
            *SIZES,
            kernel=pl.when(pl.col("name").is_in(vague.to_list())).then("name").otherwise(_spelled(frame["full_name"])),
        )
        for frame in frames
    ]
    codes = pl.concat(frame.select(KEY) for frame in spelled).unique(maintain_order=True).with_row_index("code")
    joined = (
        frame.join(codes, on=KEY, how="left", nulls_equal=True, maintain_order="left").with_columns(
            pl.col("code").cast(pl.Int64)
        )
        for frame in spelled
    )
    first, second = joined
    return first, second


def _spelled(full_names: pl.Series) -> pl.Series:
    """The function with its template arguments, without what tools write in different ways."""
    distinct = full_names.unique().to_list()
    return full_names.replace_strict(distinct, [_one_spelling(name) for name in distinct], return_dtype=pl.String)


def _one_spelling(full_name: str) -> str:
    parts = split_name(full_name)
    plain = _OPTIONAL.sub("", f"{parts.function}<{parts.template}>").replace(" ", "")
    return _WORDS.sub(lambda word: _SPELLED_AS[word.group()], plain)
