"""Kernels, copies, memsets and waits of a Kineto trace."""

from __future__ import annotations

import polars as pl

from warplens.profile.schema import TABLES, name_categories
from warplens.readers.kineto_names import copy_words, memset_memory, short_kernel_name, wait_kind
from warplens.readers.kineto_rows import encoded, int32, mapped, named

__all__ = ["copies_of", "kernels_of", "memsets_of", "waits_of"]

_MOST_BLOCKS = 2**31 - 1


def kernels_of(events: pl.DataFrame, calls: pl.DataFrame, host: int) -> pl.DataFrame:
    """The table of kernels, with the arguments of the events beside its columns.

    Args:
        events: kernels as recorded.
        calls: API calls as recorded.
        host: the process of the program.
    """
    kernels = _on_device(events, calls, host).with_columns(named(events["name"]))
    kernels = _with_launch_configuration(kernels, calls)
    full_name = kernels["name"]
    return kernels.with_columns(mapped(full_name, short_kernel_name).alias("name"), full_name=full_name)


def copies_of(events: pl.DataFrame, calls: pl.DataFrame, host: int) -> pl.DataFrame:
    """The table of copies; what is copied from where to where stands in the event's name."""
    copies = _on_device(events, calls, host)
    names = named(copies["name"])
    words = {text: copy_words(text) for text in name_categories(names)}
    return copies.with_columns(
        pl.col("bytes").fill_null(0),
        mapped(names, lambda text: words[text][0]).alias("direction"),
        mapped(names, lambda text: words[text][1]).alias("source_memory"),
        mapped(names, lambda text: words[text][2]).alias("destination_memory"),
    )


def memsets_of(events: pl.DataFrame, calls: pl.DataFrame, host: int) -> pl.DataFrame:
    """The table of memsets."""
    memsets = _on_device(events, calls, host)
    return memsets.with_columns(pl.col("bytes").fill_null(0), mapped(memsets["name"], memset_memory).alias("memory"))


def waits_of(events: pl.DataFrame, calls: pl.DataFrame, host: int) -> pl.DataFrame:
    """The table of waits of the host or of a stream."""
    if not events.height:
        return TABLES["synchronizations"].empty()
    told = events["sync_kind"].cast(pl.String).fill_null(events["name"].cast(pl.String)).fill_null("")
    return events.with_columns(
        _issuing_process(events, calls, host),
        pl.when(pl.col("device") >= 0).then("device").pipe(int32).alias("device"),
        pl.when(pl.col("stream").is_between(0, 2**32 - 2)).then("stream").alias("stream"),
        mapped(encoded(told), wait_kind).alias("kind"),
    )


def _on_device(events: pl.DataFrame, calls: pl.DataFrame, host: int) -> pl.DataFrame:
    """Work with its GPU and stream; an event without these arguments has them as its process and thread."""
    return events.with_columns(
        pl.coalesce("device", "process", 0).pipe(int32).alias("device"),
        pl.coalesce("stream", "thread", 0).pipe(int32).alias("stream"),
        _issuing_process(events, calls, host),
    )


def _issuing_process(work: pl.DataFrame, calls: pl.DataFrame, host: int) -> pl.Series:
    """The process that issued each piece of work: its own event names the GPU where others name a process."""
    if not work.height or calls["process"].drop_nulls().n_unique() <= 1:
        return pl.repeat(host, work.height, dtype=pl.Int32, eager=True).alias("process")
    issuers = calls.select("correlation", issuer="process").drop_nulls().unique("correlation", keep="first")
    joined = work.select("correlation").join(issuers, on="correlation", how="left", maintain_order="left")
    return joined.select(pl.col("issuer").fill_null(host).pipe(int32).alias("process")).to_series()


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
