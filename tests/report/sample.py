"""A document with every kind of block and chart, and with names that try to become markup."""

from __future__ import annotations

import numpy as np
import polars as pl

from warplens.profile import Note, NoteLevel
from warplens.profile.columns import KERNEL_NAME, column
from warplens.profile.schema import Column
from warplens.report.charts import bars, base, overtime, plane
from warplens.report.document import (
    Document,
    Figure,
    KeyFigure,
    KeyFigures,
    Notes,
    Paragraph,
    Section,
    Table,
)

#: A kernel or range may have any name; this one must never become an element.
HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_FULL = f"void {HOSTILE}</script><script>alert(2)</script><!-- (int) | `x` ${{alert(3)}}"


def kernel_table(limit: int | None = 15) -> Table:
    """Forty kernels, the second of them hostile."""
    total = [10**7 // (place + 1) for place in range(40)]
    rows = pl.DataFrame(
        {
            "name": ["gemm", HOSTILE, *(f"kernel_{place:02}" for place in range(2, 40))],
            "full_name": [
                "gemm",
                HOSTILE_FULL,
                *(f"void ns::kernel_{place:02}<float>(T1 *)" for place in range(2, 40)),
            ],
            "total_ns": total,
            "share": [time / sum(total) for time in total],
            "calls": [3 * place + 1 for place in range(40)],
            "stdev_ns": [None, *(float(place) for place in range(39))],
        }
    )
    columns = (
        KERNEL_NAME.but(help="the function that ran"),
        Column("total_ns", pl.Int64, "summed duration"),
        Column("share", pl.Float64),
        Column("calls", pl.Int64),
        Column("stdev_ns", pl.Float64, title="Std dev"),
    )
    return Table("kernel-table", "Kernels by GPU time", columns, rows, limit=limit)


def range_tree() -> Table:
    """Two steps with forward and backward, layers inside; the second step is hostile."""
    rows: list[tuple[str, int, int]] = []
    for step in ("step", HOSTILE):
        rows.append((step, 0, 10_000_000))
        for phase, time in (("forward", 3_000_000), ("backward", 6_000_000)):
            rows.append((phase, 1, time))
            rows.extend((f"layer {layer}", 2, time // 10 + layer) for layer in range(5))
    frame = pl.DataFrame(rows, schema=["name", "depth", "gpu_ns"], orient="row")
    columns = (Column("name", title="Range", kind="name"), column("gpu_ns"))
    return Table("range-table", "Ranges", columns, frame, limit=8, depth="depth")


def budget_parts() -> pl.DataFrame:
    """A budget of nine parts over 72.02 ms."""
    rows = [
        ("GEMM", "busy", 30_120_000, "gemm"),
        ("elementwise", "busy", 12_000_000, "elementwise"),
        ("reduction", "busy", 4_000_000, "reduction"),
        ("copies", "busy", 900_000, "transfer"),
        ("communication", "busy", 1_500_000, "communication"),
        ("waiting for a launch", "idle", 16_000_000, "idle-1"),
        ("synchronization", "idle", 5_200_000, "idle-3"),
        ("host busy outside of CUDA", "idle", 2_000_000, "idle-2"),
        ("unknown", "idle", 300_000, "idle-6"),
    ]
    frame = pl.DataFrame(rows, schema=["part", "family", "duration_ns", "fill"], orient="row")
    return frame.with_columns((pl.col("duration_ns") / pl.col("duration_ns").sum()).alias("share"))


def all_charts() -> dict[str, base.Chart]:
    """Every chart once, by the name of its function without `_chart`; hostile names in those that show names."""
    random = np.random.default_rng(1)
    ranked = kernel_table().rows.head(5).select("name", "full_name", "share", value="total_ns", fill=pl.lit("gemm"))
    wall = random.normal(65e6, 3e6, 24).astype(np.int64)
    steps = pl.DataFrame({"index": range(1, 25), "wall_ns": wall, "busy_ns": wall * 7 // 10}).with_columns(
        (pl.col("index") > 4).alias("in_window")
    )
    delays = pl.concat(
        [
            plane.log_bins(random.lognormal(8, 0.6, 2000), "API call"),
            plane.log_bins(random.lognormal(10, 1.2, 2000), HOSTILE, floor_ns=100),
        ]
    )
    starts = np.cumsum(random.integers(10_000, 60_000, 500))
    ends = starts + random.integers(1_000, 10_000, 500)
    span = (0, int(ends[-1]))
    lanes = [overtime.busy_bins(starts, ends, span, lane, bins=200) for lane in ("GPU 0", HOSTILE)]
    size = (10 ** random.uniform(0, 9, 60)).astype(np.int64)
    copies = pl.DataFrame(
        {
            "direction": ["host-to-device", "device-to-host"] * 30,
            "bytes": size,
            "start_ns": 0,
            "end_ns": 1200 + size // 25,
        }
    )
    memory = pl.DataFrame(
        {
            "memory": ["device"] * 50,
            "time_ns": range(0, 50_000_000, 1_000_000),
            "level_bytes": range(0, 5 * 10**9, 10**8),
        }
    )
    return {
        "budget": bars.budget_chart(budget_parts()),
        "ranked": bars.ranked_chart(ranked),
        "steps": overtime.steps_chart(overtime.merged_steps(steps)),
        "histogram": plane.histogram_chart(delays, "duration"),
        "timeline": overtime.timeline_chart(pl.concat(lanes), [0, span[1] // 2]),
        "bandwidth": plane.bandwidth_chart(plane.bandwidth_cells(copies)),
        "memory": overtime.memory_chart(overtime.thinned_levels(memory)),
        "roofline": plane.roofline_chart(*roofline_points()),
        "waterfall": bars.waterfall_chart(("baseline step", 4_167_000), waterfall_parts(), (HOSTILE, 4_540_000)),
        "speedup": bars.speedup_chart(cells(), "batch"),
        "regime": bars.regime_chart(cells(), "batch"),
        "stacked": bars.stacked_chart(
            [(rank, [("compute", 6, "6 ms"), (HOSTILE, 3, "3 ms")]) for rank in ("rank 0", HOSTILE)],
            {"compute": "gemm", HOSTILE: "communication"},
            10,
        ),
        "curve": plane.curve_chart(curve(), x_title="batch", y_title="rate", kind="flops", laws=curve()),
    }


def cells(rows: int = 2, columns: int = 3) -> pl.DataFrame:
    """Rows × columns cells, the last without a figure."""
    count = rows * columns
    return pl.DataFrame(
        {
            "row": [HOSTILE if place == 0 else f"size {place}" for place in range(rows) for _ in range(columns)],
            "column": [str(2**place) for _ in range(rows) for place in range(columns)],
            "speedup": [0.5 + place / 2 for place in range(count - 1)] + [None],
            "verdict": ["slower", "undecided", *["faster"] * (count - 3), None],
            "detail": [f"detail {place}" for place in range(count)],
            "baseline": ["launch-bound"] * (count - 1) + [None],
            "variant": ["gpu-bound"] * (count - 1) + ["unknown"],
            "baseline_detail": ["host"] * count,
            "variant_detail": [None] * count,
        }
    )


def curve() -> pl.DataFrame:
    """The rates of two series at five sizes."""
    sizes = [2**exponent for exponent in range(5)]
    series = [(name, size, size * rate) for name, rate in (("dense", 3e12), (HOSTILE, 5e12)) for size in sizes]
    return pl.DataFrame(series, schema=["series", "x", "y"], orient="row")


def waterfall_parts() -> pl.DataFrame:
    """What a step with less work in more launches gains and loses; they sum to 373 µs."""
    return pl.DataFrame(
        {
            "name": ["GPU work: GEMM", HOSTILE, "idle: waiting for a launch", "2 smaller parts"],
            "delta": [-90_000.0, 20_000.0, 443_000.0, 0.0],
            "detail": ["438 µs → 348 µs", HOSTILE_FULL, None, None],
        }
    )


def roofline_points() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Kernels under two roofs of arithmetic and three of memory, far from them, at them, and beyond the edge."""
    random = np.random.default_rng(2)
    intensity = np.r_[10 ** random.uniform(-1, 3, 37), 1e7, 1e-3, 12.0]
    peaks = {"dram": 4.8e12, "l2": 1.0e13, "l1": 3.3e13}
    points = pl.DataFrame(
        {
            "number": range(1, 41),
            "full_name": [HOSTILE_FULL, *(f"void kernel_{number}(float*)" for number in range(39))],
            "grid": "132,1,1",
            "block": "256,1,1",
            "total_ns": [None, *(float(40 - number) * 1e5 for number in range(39))],
            "flops_per_s": np.minimum(6.7e13, intensity * 4.8e12) * 0.9,
            "roof": "dram",
            "roof_share": 0.9,
            "bound": "memory",
            **{f"{level}_intensity": intensity * factor for level, factor in (("dram", 1.0), ("l2", 0.5), ("l1", 0.2))},
            **{f"{level}_share": 0.9 for level in peaks},
        }
    )
    roofs = pl.DataFrame(
        {
            "roof": ["compute", "compute", *peaks],
            "precision": ["tensor", "fp32", None, None, None],
            "format": ["bf16", None, None, None, None],
            "sparse": [False, None, None, None, None],
            "peak": [8.6e14, 6.7e13, *peaks.values()],
        }
    )
    return points, roofs


def document() -> Document:
    """Everything that a renderer must be able to render."""
    notes = Notes(
        (
            Note("lost", NoteLevel.BLOCKING, f"Kernels are missing: {HOSTILE}.", "Record again with `nsys` 2025.3."),
            Note("autograd", NoteLevel.WARNING, "Backward kernels carry no range.", None),
            Note("warm-up", NoteLevel.INFO, "Two warm-up steps are left out."),
        )
    )
    figures = KeyFigures(
        (
            KeyFigure("Step time", 65_200_000, "duration_ns", "median of 20 steps"),
            KeyFigure("GPU busy", 0.674, "share", "of the window"),
            KeyFigure("Peak memory", None, "bytes", "not recorded in this profile"),
        )
    )
    drawn = tuple(
        Figure(f"{name}-chart", f"The {name} chart", chart, f"The {name} chart in words")
        for name, chart in all_charts().items()
    )
    return Document(
        title=f"train {HOSTILE}.sqlite",
        lead=f"The GPU is busy for 67.4 % of each step. {HOSTILE} dominates.",
        sections=(
            Section("quality", "Cautions", (notes,)),
            Section("key", "Key figures", (figures, Paragraph("How it was got.", quiet=True))),
            Section("charts", "Charts", drawn),
            Section("kernels", "Kernels", (Paragraph(f"Top: {HOSTILE}."), kernel_table())),
            Section("ranges", HOSTILE, (), (Section("tree", "Tree", (range_tree(),)),)),
            Section("nothing", "Copies", (Paragraph("Not recorded in this profile."),)),
        ),
        meta=(("GPU", "NVIDIA H200"), ("Range", HOSTILE)),
    )
