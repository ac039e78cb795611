"""`warplens headroom`: from the measured step down to what the machine needs, in parts that add up exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warplens.analysis.headroom import headrooms
from warplens.analysis.timeline import Timeline
from warplens.cli.answer import Answer, Part, emit, head, limited, most_rows, note_lines, select
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption
from warplens.readers import read, read_counters
from warplens.report.headroom import device_data, facts, groups_table, headroom_rows, parts_table
from warplens.report.jsonout import window_data

WithOption = Annotated[
    Path | None,
    typer.Option(
        "--with",
        metavar="TRACE",
        show_default=False,
        help="A PyTorch trace of the same program with shapes, from which the FLOPs and bytes of equal kernels "
        "are known.",
    ),
]
CountersOption = Annotated[
    Path | None,
    typer.Option(
        "--counters",
        metavar="REPORT",
        show_default=False,
        help="An Nsight Compute report on the same program; its measurements replace models.",
    ),
]


def headroom(
    path: ProfileArgument,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    with_trace: WithOption = None,
    counters: CountersOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """From the measured step time down to this GPU's limit, in parts that add up exactly.

    The steps down: no idle time, every kernel at its practical roof, no avoidable work, the precision that the hardware
    is built for. Roofs and avoidable work are modelled; idle time is measured.
    """
    selection = select(path, window, range_name, launch_configuration=True)
    program = None if with_trace is None else Timeline(read(with_trace, launch_configuration=True))
    counted = None if counters is None else read_counters(counters)
    found = headrooms(selection.timeline, selection.window, program=program, counters=counted)
    most = most_rows(form, limit)
    rows = headroom_rows(found) if most is None else headroom_rows(found).head(most)
    part = Part(
        head=[*head(selection), *(sentence for one in found for sentence in facts(one))],
        notes=note_lines(selection.notes),
        tables=limited((table for one in found for table in (parts_table(one), groups_table(one))), most),
    )
    data = {
        "window": window_data(selection.window),
        "devices": [device_data(one) for one in found],
        "rows": rows,
    }
    emit(Answer("headroom", selection.source, [part], rows, lambda: data, selection.notes), form)
