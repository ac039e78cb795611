"""Columns that several tables of a Kineto trace need: 32-bit numbers, threads, words for names."""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl

from warplens.profile.schema import encode_names, name_categories
from warplens.profile.spelling import short_name
from warplens.profile.trace import TABLES

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
    """
    thread = pl.col("thread").fill_null(0)
    if rows.height and not rows.select(thread.is_between(-(2**31), 2**31 - 1).all()).item():
        handles = rows.select(thread.unique().sort()).to_series()
        rows = rows.with_columns(thread=thread.replace_strict(handles, pl.Series(short_numbers(handles.to_list()))))
    return rows.with_columns(
        pl.when(pl.col("process") >= 0).then("process").otherwise(host).pipe(int32).alias("process"),
        thread.cast(pl.Int32).alias("thread"),
    )


def short_numbers(handles: list[int]) -> list[int]:
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


_DIRECTIONS = {
    "htod": "host-to-device",
    "dtoh": "device-to-host",
    "htoa": "host-to-array",
    "atoh": "array-to-host",
    "atoa": "array-to-array",
    "atod": "array-to-device",
    "dtoa": "device-to-array",
    "dtod": "device-to-device",
    "htoh": "host-to-host",
    "ptop": "peer-to-peer",
}
_MEMORIES = {
    "pageable": "pageable",
    "pinned": "pinned",
    "device": "device",
    "array": "array",
    "managed": "managed",
    "device static": "device-static",
    "managed static": "managed-static",
}
_COPY = re.compile(
    r"(?i)\b(?P<direction>[hdap]to[hdap])\b(?:\s*\(\s*(?P<source>[\w ]+?)\s*->\s*(?P<destination>[\w ]+?)\s*\))?"
)
_MEMSET = re.compile(r"\(\s*([\w ]+?)\s*\)")
_WAITS = (
    ("stream wait", "stream-wait-event"),
    ("stream", "stream"),
    ("event", "event"),
    ("context", "context"),
    ("device", "context"),
)


def copy_words(name: str) -> tuple[str, str | None, str | None]:
    """Direction, source and destination memory of a copy named like `Memcpy HtoD (Pageable -> Device)`."""
    found = _COPY.search(name)
    if found is None:
        return "unknown", None, None
    source, destination = found["source"], found["destination"]
    return _DIRECTIONS.get(found["direction"].lower(), "unknown"), _memory(source), _memory(destination)


def memset_memory(name: str) -> str | None:
    """The kind of memory that is filled, of a name like `Memset (Device)`."""
    found = _MEMSET.search(name)
    return _memory(found.group(1)) if found else None


def _memory(text: str | None) -> str | None:
    return None if text is None else _MEMORIES.get(text.lower())


def wait_kind(name: str) -> str:
    """What a wait (`Stream Wait Event`, `Event Sync`, …) waits for, in the words of the schema."""
    lowered = name.lower()
    return next((kind for text, kind in _WAITS if text in lowered), "context")


_MOST_BLOCKS = 2**31 - 1


def kernels_of(events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The table of kernels, with the arguments of the events beside its columns."""
    kernels = _on_device(events).with_columns(named(events["name"]))
    kernels = _with_launch_configuration(kernels, calls)
    full_name = kernels["name"]
    return kernels.with_columns(mapped(full_name, short_name).alias("name"), full_name=full_name)


def copies_of(events: pl.DataFrame) -> pl.DataFrame:
    """The table of copies; what is copied from where to where stands in the event's name."""
    copies = _on_device(events)
    names = named(copies["name"])
    words = {text: copy_words(text) for text in name_categories(names)}
    return copies.with_columns(
        pl.col("bytes").fill_null(0),
        mapped(names, lambda text: words[text][0]).alias("direction"),
        mapped(names, lambda text: words[text][1]).alias("source_memory"),
        mapped(names, lambda text: words[text][2]).alias("destination_memory"),
    )


def memsets_of(events: pl.DataFrame) -> pl.DataFrame:
    """The table of memsets."""
    memsets = _on_device(events)
    return memsets.with_columns(pl.col("bytes").fill_null(0), mapped(memsets["name"], memset_memory).alias("memory"))


def waits_of(events: pl.DataFrame) -> pl.DataFrame:
    """The table of waits of the host or of a stream."""
    if not events.height:
        return TABLES["synchronizations"].empty()
    told = events["sync_kind"].cast(pl.String).fill_null(events["name"].cast(pl.String)).fill_null("")
    return events.with_columns(
        pl.col("issuer").pipe(int32).alias("process"),
        pl.when(pl.col("device") >= 0).then("device").pipe(int32).alias("device"),
        pl.when(pl.col("stream").is_between(0, 2**32 - 2)).then("stream").alias("stream"),
        mapped(encoded(told), wait_kind).alias("kind"),
    )


def _on_device(events: pl.DataFrame) -> pl.DataFrame:
    """Work with its GPU and stream; an event without the latter's argument has it as its thread."""
    return events.with_columns(
        pl.col("device").pipe(int32),
        pl.coalesce("stream", "thread", 0).pipe(int32).alias("stream"),
        pl.col("issuer").pipe(int32).alias("process"),
    )


def _with_launch_configuration(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels with grid, block and registers.

    Older ROCm writes grid and block on the launching call alone; a kernel takes them from there. Not where a call
    launched several kernels, those of a graph or of a library: it knows but one of them.
    """
    if kernels["grid"].null_count() and calls["grid"].null_count() < calls.height:
        told = calls.filter(pl.col("grid").is_not_null(), pl.col("correlation").is_not_null())
        told = told.select("correlation", "grid", "block", "shared_bytes").unique("correlation", keep="first")
        told = told.with_columns(pl.col("grid", "block").cast(pl.String))
        alone = kernels["correlation"].is_unique() & kernels["correlation"].is_not_null()
        found = kernels.select("correlation").join(told, on="correlation", how="left", maintain_order="left")
        own = kernels.select(pl.col("grid", "block").cast(pl.String), "shared_bytes")
        kernels = kernels.with_columns(
            encoded(own[name].zip_with(own[name].is_not_null() | ~alone, found[name])) for name in ("grid", "block")
        ).with_columns(own["shared_bytes"].zip_with(own["shared_bytes"].is_not_null() | ~alone, found["shared_bytes"]))
    sizes: list[pl.Series] = []
    for prefix in ("grid", "block"):
        texts = kernels[prefix]
        parsed = [_three(text) for text in name_categories(texts)]
        for place, axis in enumerate("xyz"):
            values = pl.Series([size[place] if size else None for size in parsed], dtype=pl.Int32)
            column = values.gather(texts.to_physical()) if parsed else _absent(kernels.height)
            sizes.append(column.alias(f"{prefix}_{axis}"))
    return kernels.with_columns(
        *sizes,
        registers_per_thread=pl.col("registers").pipe(int32),
        # Kineto adds static and dynamic shared memory up; how much of it was asked for at launch is not recorded.
        static_shared_bytes=pl.lit(None, pl.Int32),
        dynamic_shared_bytes=pl.lit(None, pl.Int32),
    )


def _absent(count: int) -> pl.Series:
    return pl.repeat(None, count, dtype=pl.Int32, eager=True)


def _three(text: str) -> tuple[int, int, int] | None:
    """The numbers of a text like `[32, 1, 1]`; None for anything else."""
    try:
        x, y, z = (int(part) for part in text.strip("[] ").split(","))
    except ValueError:
        return None
    return (x, y, z) if all(0 < value <= _MOST_BLOCKS for value in (x, y, z)) else None


_TEXTS = ("collective", "group", "group_ranks", "dtype")
_NUMBERS = ("group_size", "in_elements", "out_elements", "collective_sequence")

#: NCCL, and RCCL, whose kernels bear the same prefix.
_COMMUNICATION = "(?i)nccl|rccl"


def collectives_of(kernels: pl.DataFrame, operators: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The table of collectives: one row a kernel that is described, and one a described collective without kernel.

    Since PyTorch 2.3 the kernels describe themselves. Before, and still beside them, the operator that launched them
    does: the one whose external id they bear, else the one that their launch lies in. An operator that describes a
    kernel which describes itself gives no second row.
    """
    rows = kernels.select("correlation", "external_id", "process", *_TEXTS, *_NUMBERS, kernel=_row_number())
    described = rows.filter(pl.col("collective").is_not_null())
    tellers = operators.select(
        "start_ns", "end_ns", "thread", "external_id", *_TEXTS, *_NUMBERS, operator=_row_number()
    )
    tellers = tellers.filter(pl.col("collective").is_not_null())
    if tellers.height:
        is_communication = name_categories(kernels["full_name"]).str.contains(_COMMUNICATION)
        silent = rows.filter(
            pl.col("collective").is_null(), is_communication.gather(kernels["full_name"].to_physical())
        )
        launched = _launching(pl.concat([described, silent]), tellers, calls)
        told = launched.join(silent.select("kernel"), on="kernel", how="semi")
        elsewhere = launched.join(described.select("kernel"), on="kernel", how="semi")
        tellers = tellers.join(elsewhere, on="operator", how="anti", maintain_order="left")
        tellers = tellers.join(told, on="operator", how="left", maintain_order="left")
        described = pl.concat([_plain(described), _plain(tellers)])
    else:
        described = _plain(described)
    return described.select(
        "kernel",
        encoded(described["collective"]).alias("name"),
        encoded(described["group"]),
        encoded(described["group_ranks"]),
        pl.col("group_size").pipe(int32),
        "in_elements",
        "out_elements",
        encoded(described["dtype"]),
        sequence="collective_sequence",
    )


def _row_number() -> pl.Expr:
    return pl.int_range(pl.len(), dtype=pl.Int64)


def _plain(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select("kernel", pl.col(_TEXTS).cast(pl.String), *_NUMBERS)


def _launching(kernels: pl.DataFrame, tellers: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """`kernel` and `operator`: which of the operators launched each kernel, where that can be told."""
    ids = tellers.select("external_id", "operator").drop_nulls().unique("external_id", keep="first")
    by_id = kernels.join(ids, on="external_id").select("kernel", "operator")
    rest = kernels.join(by_id, on="kernel", how="anti").select("kernel", "correlation")
    launches = calls.select("correlation", "thread", at="start_ns").drop_nulls().unique("correlation", keep="first")
    rest = rest.join(launches, on="correlation").sort("at")
    begun = tellers.select("thread", "operator", "end_ns", at="start_ns").drop_nulls().sort("at")
    by_time = rest.join_asof(begun, on="at", by="thread", check_sortedness=False).filter(
        pl.col("at") <= pl.col("end_ns")
    )
    return pl.concat([by_id, by_time.select("kernel", "operator")])
