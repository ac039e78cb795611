"""The break-even model of a sweep, in words, as a section and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Paragraph, Section, Table
from warplens.studies.sweeps.breakeven import PARAMETERS, THRESHOLDS, group_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.studies.sweeps.breakeven import BreakEven
    from warplens.studies.sweeps.numbers import SweepNumbers


#: What sizes are counted in → what size × items is called.
_TOTALS: Final = {"tokens": "tokens × batch", "flops": "FLOPs of a step", "items": "items"}

_FORMS: Final = {
    "hard": "time = max(host, GPU)",
    "soft": "time = (hostᵖ + GPUᵖ)^(1/p): host and GPU overlap in part",
}


def breakeven_lines(numbers: SweepNumbers) -> Iterator[str]:
    """What the model says, a line each; or why there is none."""
    model = numbers.breakeven
    if model is None:
        yield f"no model: {numbers.no_breakeven}"
        return
    yield (
        f"{_FORMS[model.form.maximum]}; of values that it was not fitted to, it misses the time by "
        f"{fmt.share(model.median_error)} (median) and {fmt.share(model.worst_error)} (worst), the ratio of the sides "
        f"by {fmt.share(model.ratio_error)} (median)"
    )
    if not model.usable:
        yield f"its thresholds are not to be used: {model.reason}"
        return
    yield from _thresholds(model)
    yield from model.doubts


def _thresholds(model: BreakEven) -> Iterator[str]:
    """For each kind of execution, the totals from which the variant pays, over all measured sizes and batches."""
    total = _TOTALS[model.size_unit]
    found = model.thresholds
    columns = group_columns(model.groups)
    parts = found.partition_by(columns, as_dict=True, maintain_order=True) if columns else {(): found}
    for group, rows in parts.items():
        where = ", ".join(f"{name} {value}" for name, value in zip(model.groups, group, strict=True))
        head = f"{where}: " if where else ""
        crossing = rows.filter((pl.col("answer") == "crosses") & pl.col("total").is_not_null())
        answers = set(rows["answer"].to_list())
        if crossing.height:
            low, high = _rounded(crossing["total"].min()), _rounded(crossing["total"].max())
            span = low if low == high else f"{low} to {high}"
            inside = crossing.filter(~pl.col("extrapolated")).height
            tail = (
                "" if inside == crossing.height else f"; {crossing.height - inside} of {crossing.height} extrapolated"
            )
            yield f"{head}the variant pays from {span} {total} on, by the size or number of items held{tail} (modelled)"
        elif answers == {"always"}:
            yield f"{head}the variant always pays in the range that was measured (modelled)"
        elif answers == {"never"}:
            yield f"{head}the variant pays nowhere in the range that was looked at (modelled)"


def _rounded(value: Any) -> str:
    """Three digits: intervals are wider than that."""
    return fmt.count(float(f"{float(value):.3g}")) if float(value) < 1e6 else fmt.number(float(value))


def breakeven_section(numbers: SweepNumbers) -> Section:
    """The model, its error, and from which size on it says that the variant pays."""
    lines = tuple(Paragraph(f"{fmt.capitalised(line)}.") for line in breakeven_lines(numbers))
    model = numbers.breakeven
    if model is None:
        return Section("breakeven", "Break-even model", lines)
    tables = (_threshold_table(model), _parameter_table(model)) if model.usable else (_parameter_table(model),)
    return Section("breakeven", "Break-even model", (*lines, *tables))


def _threshold_table(model: BreakEven) -> Table:
    rows = model.thresholds.with_columns(pl.col("along", "answer").cast(pl.String))
    groups = (
        Column(column, title=name.replace("_", " ").capitalize())
        for column, name in zip(group_columns(model.groups), model.groups, strict=True)
    )
    columns = THRESHOLDS.only(
        *groups, "along", THRESHOLDS.column("size").but(title=f"Size in {model.size_unit}"), "items answer",
        THRESHOLDS.column("total").but(title=_TOTALS[model.size_unit]), "total_low total_high extrapolated",
    ).columns  # fmt: skip
    return Table("thresholds", "From where on the variant pays, modelled", columns, rows, limit=30)


def _parameter_table(model: BreakEven) -> Table:
    rows = model.parameters.with_columns(pl.col("of").cast(pl.String))
    columns = PARAMETERS.only("name of value low high unit identified").columns
    return Table("parameters", "The model's parameters", columns, rows, limit=30)


def breakeven_data(numbers: SweepNumbers) -> dict[str, Any] | None:
    """The model without what only a program could use; None where there is none."""
    model = numbers.breakeven
    if model is None:
        return None
    return {
        "maximum": model.form.maximum,
        "size_unit": model.size_unit,
        "groups": list(model.groups),
        "median_error": model.median_error,
        "worst_error": model.worst_error,
        "ratio_error": model.ratio_error,
        "usable": model.usable,
        "reason": model.reason,
        "level": model.level,
        "doubts": list(model.doubts),
        "missing": list(model.missing),
        "parameters": model.parameters,
        "forms": model.forms,
        "thresholds": model.thresholds,
    }
