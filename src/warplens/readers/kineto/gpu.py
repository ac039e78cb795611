"""Tables of GPU work, and columns that several tables of a Kineto trace need: 32-bit numbers, threads, names."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import polars as pl

from warplens.profile.schema import encode_names, name_categories
from warplens.profile.spelling import short_name
from warplens.profile.trace import TABLES

#: "none" as CUPTI writes it, and as a signed number.
_NONE, _NO_ID = 0xFFFFFFFF, -1


def int32(column: pl.Expr) -> pl.Expr:
    """The number as a signed 32-bit integer, without what lies above its low 32 bits."""
    low = column & _NONE
    return pl.when(low >= 2**31).then(low - 2**32).otherwise(low).cast(pl.Int32)


def mapped(names: pl.Series, word: Callable[[str], str | None]) -> pl.Series:
    """A dictionary-encoded column with each distinct text replaced by `word`; null where `word` returns None."""
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
    """The concatenation of dictionary-encoded columns."""
    texts = [text for part in parts for text in name_categories(part)]
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + name_categories(part).len())
    codes = [part.to_physical().cast(pl.UInt32) + offset for part, offset in zip(parts, offsets, strict=False)]
    return encode_names(pl.concat(codes), texts)


def with_threads(rows: pl.DataFrame, host: int) -> pl.DataFrame:
    """Rows with `process` and `thread` as in the schema.

    Overhead has −1 as process, which is the program's own.
    """
    return rows.with_columns(
        pl.when(pl.col("process") >= 0).then("process").otherwise(host).pipe(int32).alias("process"),
        pl.col("thread").fill_null(0).cast(pl.Int32),
    )


def shorten(frames: dict[str, pl.DataFrame], column: str) -> None:
    """Give the ids of 64 bits in a column distinct numbers of 32 bits, the same in all frames; frames are replaced."""
    short = pl.col(column).is_between(-(2**31), 2**31 - 1)
    wide = [name for name, frame in frames.items() if not frame.select(short.all()).item()]
    if not wide:
        return
    ids = pl.concat([frame[column] for frame in frames.values()]).drop_nulls().unique().sort()
    numbers = pl.Series(_short_numbers([_NO_ID if number == _NONE else number for number in ids]), dtype=pl.Int64)
    for name in wide:
        frames[name] = frames[name].with_columns(pl.col(column).replace(ids, numbers))


def _short_numbers(handles: list[int]) -> list[int]:
    """A distinct number for each handle: itself if it has 31 bits, else its low bits or the next free number."""
    used = {handle for handle in handles if -(2**31) <= handle < 2**31}
    numbers = []
    for handle in handles:
        number = handle
        if not -(2**31) <= handle < 2**31:
            number = handle % 2**31
            while number in used:
                number = (number + 1) % 2**31
            used.add(number)
        numbers.append(number)
    return numbers


#: Sides of a copy by their letter in its name; a peer copies only to a peer.
_SIDES = {"h": "host", "d": "device", "a": "array"}
_DIRECTIONS = {"ptop": "peer-to-peer"} | {
    f"{source}to{target}": f"{_SIDES[source]}-to-{_SIDES[target]}" for source, target in product(_SIDES, repeat=2)
}
_MEMORIES = {"pageable", "pinned", "device", "array", "managed", "device-static", "managed-static"}
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
    match = _COPY.search(name)
    if match is None:
        return "unknown", None, None
    source, destination = match["source"], match["destination"]
    return _DIRECTIONS.get(match["direction"].lower(), "unknown"), _memory(source), _memory(destination)


def memset_memory(name: str) -> str | None:
    """The kind of memory filled, from a name like `Memset (Device)`."""
    match = _MEMSET.search(name)
    return _memory(match.group(1)) if match else None


def _memory(text: str | None) -> str | None:
    memory = (text or "").lower().replace(" ", "-")
    return memory if memory in _MEMORIES else None


def wait_kind(name: str) -> str:
    """The object of a wait (`Stream Wait Event`, `Event Sync`, …), in the words of the schema."""
    lowered = name.lower()
    return next((kind for text, kind in _WAITS if text in lowered), "context")


_MAX_BLOCKS = 2**31 - 1


def kernels_of(events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The table of kernels, with the events' arguments as further columns."""
    kernels = _on_device(events).with_columns(named(events["name"]))
    kernels = _with_launch_configuration(kernels, calls)
    full_name = kernels["name"]
    return kernels.with_columns(mapped(full_name, short_name).alias("name"), full_name=full_name)


def copies_of(events: pl.DataFrame) -> pl.DataFrame:
    """The table of copies; direction and memories are in the event's name."""
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
    kinds = events["sync_kind"].cast(pl.String).fill_null(events["name"].cast(pl.String)).fill_null("")
    return events.with_columns(
        pl.col("issuer").pipe(int32).alias("process"),
        pl.when(pl.col("device") >= 0).then("device").pipe(int32).alias("device"),
        pl.when(pl.col("stream") >= 0).then("stream").alias("stream"),
        mapped(encoded(kinds), wait_kind).alias("kind"),
    )


def _on_device(events: pl.DataFrame) -> pl.DataFrame:
    """Work with its GPU, stream and process."""
    return events.with_columns(
        pl.col("device", "stream").cast(pl.Int32),
        pl.col("issuer").pipe(int32).alias("process"),
    )


def _with_launch_configuration(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels with grid, block and registers.

    Older ROCm writes grid and block on the launching call alone; the kernel takes them from there. Not if a call
    launched several kernels (of a graph or a library): then the call describes only one of them.
    """
    if kernels["grid"].null_count() and calls["grid"].null_count() < calls.height:
        configured = calls.filter(pl.col("grid").is_not_null(), pl.col("correlation").is_not_null())
        configured = configured.select("correlation", pl.col("grid", "block").cast(pl.String))
        configured = configured.unique("correlation", keep="first")
        is_single = kernels["correlation"].is_unique() & kernels["correlation"].is_not_null()
        of_call = kernels.select("correlation").join(configured, on="correlation", how="left", maintain_order="left")
        of_kernel = kernels.select(pl.col("grid", "block").cast(pl.String))
        kernels = kernels.with_columns(
            encoded(of_kernel[name].zip_with(of_kernel[name].is_not_null() | ~is_single, of_call[name]))
            for name in ("grid", "block")
        )
    sizes: list[pl.Series] = []
    for prefix in ("grid", "block"):
        texts = kernels[prefix]
        parsed = [_three_sizes(text) for text in name_categories(texts)]
        for place, axis in enumerate("xyz"):
            values = pl.Series([size[place] if size else None for size in parsed], dtype=pl.Int32)
            null_sizes = pl.repeat(None, kernels.height, dtype=pl.Int32, eager=True)
            column = values.gather(texts.to_physical()) if parsed else null_sizes
            sizes.append(column.alias(f"{prefix}_{axis}"))
    return kernels.with_columns(
        *sizes,
        registers_per_thread=pl.col("registers").pipe(int32),
        # Kineto adds up static and dynamic shared memory ("shared memory"); their parts are not recorded.
        static_shared_bytes=pl.lit(None, pl.Int32),
        dynamic_shared_bytes=pl.lit(None, pl.Int32),
    )


def _three_sizes(text: str) -> tuple[int, int, int] | None:
    """The numbers of a text like `[32, 1, 1]`; None for anything else."""
    try:
        x, y, z = (int(part) for part in text.strip("[] ").split(","))
    except ValueError:
        return None
    return (x, y, z) if all(0 < value <= _MAX_BLOCKS for value in (x, y, z)) else None


_TEXTS = ("collective", "group", "group_ranks", "dtype")
_NUMBERS = ("group_size", "in_elements", "out_elements", "collective_sequence")

#: NCCL, and RCCL, whose kernels have the same prefix.
_COMMUNICATION = "(?i)nccl|rccl"


def collectives_of(kernels: pl.DataFrame, operators: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The table of collectives: one row per described kernel, and one per described collective without kernel.

    Since PyTorch 2.3 kernels describe themselves. Before, and still in addition, the launching operator does: the one
    with the kernel's external id, else the one around its launch. An operator that describes a kernel with its own
    description gives no second row.
    """
    rows = kernels.select("correlation", "external_id", "process", *_TEXTS, *_NUMBERS, kernel=_row_number())
    described = rows.filter(pl.col("collective").is_not_null())
    describing = operators.select(
        "start_ns", "end_ns", "thread", "external_id", *_TEXTS, *_NUMBERS, operator=_row_number()
    )
    describing = describing.filter(pl.col("collective").is_not_null())
    if describing.height:
        is_communication = name_categories(kernels["full_name"]).str.contains(_COMMUNICATION)
        undescribed = rows.filter(
            pl.col("collective").is_null(), is_communication.gather(kernels["full_name"].to_physical())
        )
        launched = _launching(pl.concat([described, undescribed]), describing, calls)
        matched = launched.join(undescribed.select("kernel"), on="kernel", how="semi")
        self_described = launched.join(described.select("kernel"), on="kernel", how="semi")
        describing = describing.join(self_described, on="operator", how="anti", maintain_order="left")
        describing = describing.join(matched, on="operator", how="left", maintain_order="left")
        described = pl.concat([_plain(described), _plain(describing)])
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


def _launching(kernels: pl.DataFrame, describing: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """`kernel` and `operator`: the operator that launched each kernel, where it can be determined."""
    ids = describing.select("external_id", "operator").drop_nulls().unique("external_id", keep="first")
    by_id = kernels.join(ids, on="external_id").select("kernel", "operator")
    unmatched = kernels.join(by_id, on="kernel", how="anti").select("kernel", "correlation")
    launches = calls.select("correlation", "thread", at="start_ns").drop_nulls().unique("correlation", keep="first")
    unmatched = unmatched.join(launches, on="correlation").sort("at")
    starts = describing.select("thread", "operator", "end_ns", at="start_ns").drop_nulls().sort("at")
    by_time = unmatched.join_asof(starts, on="at", by="thread", check_sortedness=False).filter(
        pl.col("at") <= pl.col("end_ns")
    )
    return pl.concat([by_id, by_time.select("kernel", "operator")])
