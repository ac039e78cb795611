"""`warplens numerics`: how far the tensors of two implementations are apart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from warplens.analysis.numerics import NUMERICS, ULP_CLASSES, numeric_differences
from warplens.cli.answer import Answer, Part, emit, limited, most_rows
from warplens.cli.edge import GATE_FAILED, note
from warplens.cli.options import Format, FormatOption, LimitOption, argument, option
from warplens.report.document import Table, pick
from warplens.workloads.tensors import read_tensors


def numerics(
    a: Annotated[Path, argument("A", "Tensors that one implementation computed: .npy, .npz, .pt, .safetensors.")],
    b: Annotated[Path, argument("B", "The same of the other.")],
    exact: Annotated[
        Path | None,
        option(
            "FILE",
            "The same tensors in float64: both sides are compared with it, too, which shows which one is closer.",
        ),
    ] = None,
    fail_on: Annotated[
        float | None,
        option(
            "RATIO",
            "Exit with 1 if ‖a − b‖ / ‖b‖ of any tensor is greater, or if only one of the two is not finite.",
            min=0,
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """Differences between the tensors of two implementations: absolute, relative, in ULPs.

    Tensors are paired by name. Elements that are not finite are counted and left out of the differences.
    """
    one, other = read_tensors(a), read_tensors(b)
    frames = [numeric_differences(one, other, f"{a.name} to {b.name}")]
    if exact is not None:
        truth = read_tensors(exact)
        frames += [numeric_differences(tensors, truth, f"{path.name} to {exact.name}")
                   for path, tensors in ((a, one), (b, other))]  # fmt: skip
    rows = pl.concat(frames)
    facts = [f"differences in float64; ULPs of the coarser format; {rows.height} comparisons"]
    if missing := sorted(set(one) ^ set(other)):
        facts.append(f"only in one of the files, and left out: {', '.join(missing[:5])}" + ("…" * (len(missing) > 5)))
    errors = pick(NUMERICS, "pair", "tensor", "shape", "ulp_format", "not_finite", "not_finite_other",
                  "identical_share", "max_abs", "mean_abs", "relative", "max_relative")  # fmt: skip
    ulps = pick(NUMERICS, "pair", "tensor", "ulp_median", "ulp_max", *(f"ulp_{least}" for least in ULP_CLASSES))
    tables = (
        Table("numerics", "Differences of each tensor", errors, rows),
        Table("ulps", "Elements by their difference in units of the last place", ulps, rows),
    )
    part = Part(head=facts, tables=limited(tables, most_rows(form, limit)))
    emit(Answer("numerics", [a.name, b.name], [part], rows, lambda: {"rows": rows}), form)
    if fail_on is not None:
        beyond = frames[0].filter((pl.col("relative") > fail_on) | (pl.col("not_finite") != pl.col("not_finite_other")))
        if beyond.height:
            note(f"beyond the limit of {fail_on:g}: {', '.join(beyond['tensor'].head(3))}")
            raise typer.Exit(GATE_FAILED)
