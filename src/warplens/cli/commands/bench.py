"""`warplens bench`: the reference workloads, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warplens.cli.benching import REPETITIONS_PER_TURN, Asked, axes_of, command_line, make_plan, range_names
from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line, progress
from warplens.cli.options import Format, FormatOption
from warplens.cli.reporting import checked_folder
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.profile.measurements import Measurements

__all__ = ["bench"]

_WORKLOADS: Final = ("lm", "token-reduction", "attention", "show")


def _grid(*names: str, metavar: str, meaning: str) -> Any:
    return typer.Option(*names, metavar=metavar, show_default=False, help=meaning)


def bench(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="|".join(_WORKLOADS),
            show_default=False,
            help="What to measure; or show, for a file of measurements.",
        ),
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", show_default=False, help="show: the measurements file.")
    ] = None,
    batch: Annotated[str | None, _grid("--batch", metavar="N,…", meaning="Sequences or images in a step.")] = None,
    mode: Annotated[
        str | None,
        _grid(
            "--mode",
            metavar="WORD,…",
            meaning="lm: forward, forward-backward, train. attention: forward, backward, both.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        _grid(
            "--precision",
            metavar="WORD,…",
            meaning="lm: fp32, tf32, bf16 (autocast). token-reduction: also fp16 and bf16-weights (whole model).",
        ),
    ] = None,
    execution: Annotated[
        str | None,
        _grid("--execution", metavar="WORD,…", meaning="lm, token-reduction: eager, compile (torch.compile), graph."),
    ] = None,
    size: Annotated[
        str | None,
        _grid("--size", metavar="NAME,…", meaning="lm: tiny, small, medium, large, xl, 2.7B, xl-2026, 10B."),
    ] = None,
    context: Annotated[str | None, _grid("--context", metavar="N,…", meaning="lm: tokens of a sequence.")] = None,
    optimizer: Annotated[
        str | None,
        _grid("--optimizer", metavar="WORD,…", meaning="lm, train: reference (as defined), torch, torch-fused."),
    ] = None,
    model: Annotated[str | None, _grid("--model", metavar="NAME,…", meaning="token-reduction: deit-b16, tiny.")] = None,
    input_size: Annotated[
        str | None, _grid("--input-size", metavar="N,…", meaning="token-reduction: pixels of an image's side.")
    ] = None,
    method: Annotated[
        str | None,
        _grid(
            "--method",
            metavar="WORD,…",
            meaning="token-reduction: none, random, topk, topk-fused, evit, evit-fused, tome, dynamicvit, ats.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        _grid("--keep", metavar="SHARE,…", meaning="token-reduction: share of the tokens that each location keeps."),
    ] = None,
    locations: Annotated[
        str | None,
        _grid("--locations", metavar="BLOCK+BLOCK,…", meaning="token-reduction: blocks (from 0) that reduce: 3+6+9."),
    ] = None,
    schedule: Annotated[
        str | None,
        _grid(
            "--schedule", metavar="SHARE+SHARE,…", meaning="token-reduction: a share for each location: 0.7+0.5+0.3."
        ),
    ] = None,
    attention: Annotated[
        str | None, _grid("--attention", metavar="WORD,…", meaning="token-reduction: explicit, fused.")
    ] = None,
    kernel: Annotated[
        str | None,
        _grid(
            "--kernel",
            metavar="NAME,…",
            meaning="attention: naive, tiled, flash, sdpa-flash, sdpa-efficient, sdpa-cudnn, sdpa-math.",
        ),
    ] = None,
    seq_len: Annotated[
        str | None, _grid("--seq-len", metavar="N,…", meaning="attention: tokens of a sequence.")
    ] = None,
    head_dim: Annotated[str | None, _grid("--head-dim", metavar="N,…", meaning="attention: width of a head.")] = None,
    heads: Annotated[str | None, _grid("--heads", metavar="N,…", meaning="attention: heads.")] = None,
    dtype: Annotated[
        str | None, _grid("--dtype", metavar="WORD,…", meaning="attention: float16, bfloat16, float32.")
    ] = None,
    causal: Annotated[
        str | None, _grid("--causal", metavar="yes,no", meaning="attention: with the causal mask?")
    ] = None,
    warmup: Annotated[int, typer.Option(metavar="N", min=0, help="Steps before the first that counts, at least.")] = 5,
    repetitions: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, show_default=False, help="Exactly so many steps, rather than until the median is known."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default=False,
            help=f"Measure the cells in turns, so many, {REPETITIONS_PER_TURN} steps in each: for comparing them.",
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SHARE", min=0, help="Stop when half the 95 % interval is this share of the median."
        ),
    ] = 0.02,
    seconds: Annotated[float, typer.Option(metavar="S", min=0, help="Most time for the steps of one cell.")] = 20.0,
    flush_l2: Annotated[
        bool, typer.Option("--flush-l2", help="Overwrite the GPU's L2 cache before each step.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="As PyTorch names it; the GPU if there is one."),
    ] = None,
    ranges: Annotated[bool, typer.Option("--ranges", help="Annotate for a profiler; see the docs.")] = False,
    range_name: Annotated[
        list[str] | None,
        typer.Option(
            "--range-name",
            metavar="WHAT=NAME",
            show_default=False,
            help="Another name for a range (softmax=my_softmax). May be repeated; implies --ranges.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="Measurements file to write (JSON)."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="DIR", show_default=False, help="Folder for bench.html and bench.md."),
    ] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Measure reference workloads: a language model, token reduction, attention.

    Several values of an option, joined by commas, make a grid. A cell that runs out of memory is recorded as such, and
    the others follow. Needs PyTorch.
    """
    if workload not in _WORKLOADS:
        raise UsageError(f"{workload!r} is no workload; known are {', '.join(_WORKLOADS)}")
    given = {
        "batch": batch, "mode": mode, "precision": precision, "execution": execution, "size": size, "context": context,
        "optimizer": optimizer, "model": model, "input_size": input_size, "method": method, "keep": keep,
        "locations": locations, "schedule": schedule, "attention": attention, "kernel": kernel, "seq_len": seq_len,
        "head_dim": head_dim, "heads": heads, "dtype": dtype, "causal": causal,
    }  # fmt: skip
    _check_places(output, report)
    if workload == "show":
        measurements = _shown(file, given)
    else:
        if file is not None:
            raise UsageError(f"{workload} takes no file; to see one, use: warplens bench show {file.name}")
        names = range_names(range_name or [])
        asked = Asked(
            workload=workload,
            axes=axes_of(workload, given),
            plan=make_plan(warmup, repetitions, interval, seconds, flush_l2, rounds),
            device=device,
            ranges=ranges or bool(names),
            range_names=names,
            rounds=rounds,
            command=command_line(workload, given, warmup, repetitions, interval, seconds, flush_l2, rounds),
        )
        measurements = _measure(asked, output)
    _show(measurements, form)
    if report is not None:
        _write_report(measurements, report)


def _check_places(output: Path | None, report: Path | None) -> None:
    """Refuse a place that cannot be written to now, not after an hour of measuring."""
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise UsageError(f"{output.name}: the output must be a file in a folder that exists")
    if report is not None:
        checked_folder(report)


def _shown(file: Path | None, given: dict[str, str | None]) -> Measurements:
    from warplens.readers.measurements import read_measurements  # noqa: PLC0415  only here

    if file is None:
        raise UsageError("show needs a measurements file: warplens bench show FILE")
    if unwanted := [name for name, value in given.items() if value is not None]:
        raise UsageError(f"show measures nothing: leave --{unwanted[0].replace('_', '-')} out")
    return read_measurements(file)


def _measure(asked: Asked, output: Path | None) -> Measurements:
    from warplens.cli.benching import measure_all  # noqa: PLC0415
    from warplens.readers.measurements import measurements_of  # noqa: PLC0415

    with progress("preparing") as tell:
        document = measure_all(asked, output, tell)
    if output is not None:
        note(f"{one_line(output)}: {len(document['measurements'])} cells")
    return measurements_of(document, output or Path("measurements"))


def _show(measurements: Measurements, form: Format) -> None:
    from warplens.report.measured import doubts_of, measured_facts, measured_table  # noqa: PLC0415

    facts, doubts = measured_facts(measurements), doubts_of(measurements)
    if form is Format.JSON:
        from warplens.report.jsonout import envelope  # noqa: PLC0415  the other formats do without

        data = {
            "workload": measurements.workload,
            "command": measurements.command,
            "environment": measurements.environment,
            "plan": measurements.plan,
            "settings": measurements.settings,
            "phases": measurements.phases,
            "details": measurements.details,
            "rows": measurements.cells,
        }
        with answering() as stdout:
            stdout.flush()
            stdout.buffer.write(envelope("bench", measurements.source, data, doubts) + b"\n")
        return
    if form is Format.CSV:
        import polars as pl  # noqa: PLC0415

        for line in (*facts, *doubts):
            note(line)
        with answering() as stdout:
            stdout.write(measurements.cells.with_columns(pl.col("doubts").list.join("; ")).write_csv())
        return
    from warplens.report.terminal import print_table  # noqa: PLC0415

    with answering() as stdout:
        stdout.write("".join(f"{one_line(fact)}\n\n" if form is Format.MD else f"{one_line(fact)}\n" for fact in facts))
        stdout.write("\n" if form is Format.TABLE else "")
        stdout.flush()
        for line in doubts:
            note(f"caution: {line}")
        print_table(measured_table(measurements), "md" if form is Format.MD else "table", stdout)


def _write_report(measurements: Measurements, folder: Path) -> None:
    from warplens.report.measured import measured_document  # noqa: PLC0415
    from warplens.report.write import write_document  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    with progress("drawing"):
        written = write_document(measured_document(measurements), folder, name="bench")
    for path in written:
        note(one_line(path))
