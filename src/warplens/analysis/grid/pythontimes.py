"""What a program measured itself, beside what its profile shows."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from warplens.analysis.grid.gridcells import mode_of_text
from warplens.analysis.grid.lm_flops import canonical_model
from warplens.analysis.grid.passes import Spread

__all__ = ["PythonTime", "python_batch", "python_time"]


@dataclass(frozen=True)
class PythonTime:
    """A time by the program's own clock: single measurements, or the statistics that its file gives.

    Attributes:
        centre_ns: median of the measurements, or the median or mean that the file gives.
        statistic: `median` or `mean`: what `centre_ns` is.
        minimum_ns, maximum_ns: least and greatest; None where the file does not give them.
        deviation_ns: standard deviation; None where the file does not give it.
        count: number of measurements; None where the file does not say.
    """

    centre_ns: float
    statistic: str
    minimum_ns: float | None
    maximum_ns: float | None
    deviation_ns: float | None
    count: int | None


def python_time(
    timings: pl.DataFrame, model: str, context: int, mode: str, phase: str, batch: int | None = None
) -> PythonTime | None:
    """The program's own time of one phase in one cell; None where the file holds none.

    Args:
        timings: as `warplens.readers.timings.read_timings` gives it; rows without a mode fit every mode.
        model: canonical name.
        context: context length.
        mode: what one step does (`warplens.analysis.grid.gridcells.MODES`).
        phase: `forward`, `backward`, `optimizer` or `step`.
        batch: rows with another batch do not fit; None for any.
    """
    rows = _rows_of(timings, model, context, batch).filter(pl.col("phase") == phase)
    if not rows.height:
        return None
    modes = {text: text is None or mode_of_text(text) == mode for text in rows["mode"].unique().to_list()}
    rows = rows.filter(pl.Series([modes[text] for text in rows["mode"]]))
    samples = Spread.of(rows.filter(pl.col("statistic") == "sample")["time_ns"])
    if samples is not None:
        return PythonTime(samples.median, "median", samples.minimum, samples.maximum, None, samples.count)
    given = dict(rows.select(pl.col("statistic").cast(pl.String), pl.col("time_ns").cast(pl.Float64)).rows())
    centre = next((name for name in ("median", "mean") if name in given), None)
    if centre is None:
        return None
    counts = rows["samples"].drop_nulls().to_list()
    return PythonTime(
        given[centre],
        centre,
        given.get("minimum"),
        given.get("maximum"),
        given.get("deviation"),
        counts[0] if counts else None,
    )


def python_batch(timings: pl.DataFrame, model: str, context: int) -> int | None:
    """The batch size that the file states for a cell; None for none, or more than one."""
    batches = _rows_of(timings, model, context, None)["batch"].drop_nulls().unique().to_list()
    return int(batches[0]) if len(batches) == 1 else None


def _rows_of(timings: pl.DataFrame, model: str, context: int, batch: int | None) -> pl.DataFrame:
    written = [text for text in timings["model"].unique().to_list() if (canonical_model(text) or text) == model]
    fits = pl.col("model").is_in(written) & (pl.col("context") == context)
    if batch is not None:
        fits &= pl.col("batch").is_null() | (pl.col("batch") == batch)
    return timings.filter(fits)
