"""`warplens bench` and `numerics`: measure reference workloads on this machine, and compare tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
import typer

from warplens.analysis.numerics import NUMERICS, ULP_CLASSES, beyond_limit, numeric_differences
from warplens.cli.answer import Answer, Part, checked_file, checked_folder, emit, limited, most_rows
from warplens.cli.options import (
    Format,
    FormatOption,
    LimitOption,
    argument,
    flag,
    given_share,
    option,
    share_option,
    with_parameters,
)
from warplens.cli.process import GATE_FAILED, note, progress
from warplens.errors import UsageError
from warplens.profile.measurements import Measurements
from warplens.readers.measurements import measurements_of
from warplens.readers.published import read_sweep
from warplens.report.document import Document, Table, pick
from warplens.report.jsonout import envelope, named
from warplens.report.measured import doubts_of, measured_document, measured_facts, measured_table
from warplens.report.text import plural
from warplens.studies.runner.engine import command_line
from warplens.workloads.registry import Plan, Ranges, document, torch_or_advice, write_measurements
from warplens.workloads.registry import workload as workload_named
from warplens.workloads.settings import METHODS, setting_value
from warplens.workloads.tensors import read_tensors

_SECOND_NS: Final = 10**9

#: Default repetitions of a cell in each of its turns.
REPETITIONS_PER_TURN: Final = 4

#: Warm-up time before the first measured step if no number of repetitions is given: see `Plan.warmup_ns`.
_WARMUP_NS: Final = 100_000_000


def axes_of(workload: str, options: Mapping[str, str | None]) -> dict[str, list[Any]]:
    """The values of each setting, parsed from the texts of options; settings not given are left out.

    Raises:
        UsageError: a value is invalid or repeated.
    """
    axes: dict[str, list[Any]] = {}
    for setting in fields(workload_named(workload).cell):
        name, text = setting.name, options.get(setting.name)
        if text is None:
            continue
        option_name = f"--{name.replace('_', '-')}"
        values = [setting_value(option_name, word.strip(), setting.default) for word in text.split(",")]
        if len(set(values)) < len(values):
            raise UsageError(f"{option_name} names something twice: {text}")
        axes[name] = values
    return axes


def _range_names(texts: Sequence[str]) -> dict[str, str]:
    """Replacements of range names, from texts `RANGE=NAME`."""
    names = {}
    for text in texts:
        range_, equals, name = text.partition("=")
        if not (range_ and equals and name):
            raise UsageError(f"--range-name takes WHAT=NAME, such as softmax=my_softmax, not {text!r}")
        names[range_] = name
    return names


def _plan(
    warmup: int, repetitions: int | None, precision: float, seconds: float, flush_l2: bool, rounds: int | None
) -> Plan:
    """The plan of these options; with `rounds`, the repetitions are those of a turn."""
    if rounds is not None and flush_l2:
        raise UsageError(
            "--flush-l2 and --rounds exclude one another: between turns other cells fill the caches anyway"
        )
    if rounds is not None:
        repetitions = repetitions or REPETITIONS_PER_TURN
    if repetitions is not None:
        return Plan(
            warmup_steps=warmup, warmup_ns=0, least=repetitions, most=repetitions, fewest=repetitions, precision=0,
            flush_l2=flush_l2,
        )  # fmt: skip
    return Plan(
        warmup_steps=warmup, warmup_ns=_WARMUP_NS, precision=precision, most_ns=round(seconds * _SECOND_NS),
        flush_l2=flush_l2,
    )  # fmt: skip


def _measured(
    workload: str,
    axes: Mapping[str, Sequence[Any]],
    plan: Plan,
    device: str | None,
    ranges: Ranges,
    rounds: int | None,
    command: str,
    output: Path | None,
) -> dict[str, Any]:
    """Measure every cell, and return the content of the measurements file (`output`, None for none).

    The file is rewritten after each cell, so that an interruption loses at most one. Cells measured in turns
    (`rounds`) all finish at the end, and the file is written then.
    """
    with progress("preparing") as tell:
        from warplens.workloads.cells import cell_grid, default_device, environment, run_cells, run_cells_in_turns

        cells, impossible = cell_grid(workload_named(workload).cell, axes)
        torch_device = device or default_device()
        torch_or_advice()
        facts = cache(environment)

        def written(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
            content = document(workload, plan, facts(torch_device), [*records, *impossible], command)
            if output is not None:
                write_measurements(output, content)
            return content

        if rounds is not None:
            tell(f"measuring {len(cells)} cells in turns")
            in_turns = run_cells_in_turns(workload, cells, rounds=rounds, plan=plan, device=torch_device, ranges=ranges)
            return written(in_turns)
        content: dict[str, Any] = {}
        records: list[dict[str, Any]] = []
        tell(f"measuring cell 1 of {len(cells)}")
        for record in run_cells(workload, cells, plan=plan, device=torch_device, ranges=ranges):
            records.append(record)
            content = written(records)
            tell(f"measuring cell {min(len(records) + 1, len(cells))} of {len(cells)}")
        return content


#: The settings of each workload that are options, with metavar and help.
_SETTINGS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "lm": {
        "size": ("NAME,…", "tiny, small, medium, large, xl, 2.7B, xl-2026, 10B."),
        "context": ("N,…", "Tokens of a sequence."),
        "batch": ("N,…", "Sequences per step."),
        "mode": ("WORD,…", "forward, forward-backward, train."),
        "precision": ("WORD,…", "fp32, tf32, bf16 (autocast)."),
        "execution": ("WORD,…", "eager, compile (torch.compile), graph."),
        "optimizer": ("WORD,…", "train: reference (as defined), torch, torch-fused."),
    },
    "token-reduction": {
        "model": ("NAME,…", "deit-b16, tiny."),
        "input_size": ("N,…", "Pixels of an image's side."),
        "batch": ("N,…", "Images per step."),
        "method": ("WORD,…", f"{', '.join(METHODS)}."),
        "keep": ("SHARE,…", "Share of the tokens that each location keeps."),
        "locations": ("BLOCK+BLOCK,…", "Blocks (from 0) that reduce: 3+6+9."),
        "schedule": ("SHARE+SHARE,…", "A share for each location: 0.7+0.5+0.3."),
        "precision": ("WORD,…", "fp32, tf32, bf16 (autocast), fp16 and bf16-weights (whole model)."),
        "execution": ("WORD,…", "eager, compile (torch.compile), graph."),
        "attention": ("WORD,…", "explicit, fused."),
    },
    "attention": {
        "kernel": ("NAME,…", "naive, tiled, flash, sdpa-flash, sdpa-efficient, sdpa-cudnn, sdpa-math."),
        "seq_len": ("N,…", "Tokens of a sequence."),
        "head_dim": ("N,…", "Width of a head."),
        "batch": ("N,…", "Sequences per step."),
        "heads": ("N,…", "Heads."),
        "dtype": ("WORD,…", "float16, bfloat16, float32."),
        "causal": ("yes,no", "With the causal mask?"),
        "mode": ("WORD,…", "forward, backward, both."),
    },
}

_ReportOption = Annotated[Path | None, option("DIR", "Folder for bench.html and bench.md.")]


def bench() -> None:
    """Measure reference workloads: a language model, token reduction, attention."""


def bench_show(
    file: Annotated[
        Path, argument("FILE", "Measurements, as the other commands write them, or a table of results in CSV or JSON.")
    ],
    report: _ReportOption = None,
    form: FormatOption = "table",
) -> None:
    """Show a file of measurements. Measures nothing and needs no PyTorch."""
    if report is not None:
        checked_folder(report)
    _tell(read_sweep(file), report, form)


def _measure(
    workload: str,
    settings: Mapping[str, str | None],
    warmup: Annotated[int, option("N", "At least this many warm-up steps.", min=0, show_default=True)] = 5,
    repetitions: Annotated[
        int | None, option("N", "Exactly this many steps, instead of as many as the precision needs.", min=1)
    ] = None,
    rounds: Annotated[
        int | None,
        option(
            "N",
            f"Measure the cells in this many turns of {REPETITIONS_PER_TURN} steps each, in order to compare them.",
            min=1,
        ),
    ] = None,
    interval: Annotated[str, share_option("Stop when half the 95 % interval is this share of the median.")] = "2%",
    seconds: Annotated[float, option("S", "Time limit for the steps of one cell.", min=0, show_default=True)] = 20.0,
    flush_l2: Annotated[bool, flag("--flush-l2", "Overwrite the GPU's L2 cache before each step.")] = False,
    device: Annotated[str | None, option("NAME", "As PyTorch names it; the GPU if there is one.")] = None,
    ranges: Annotated[bool, flag("--ranges", "Annotate for a profiler; see the docs.")] = False,
    range_name: Annotated[
        list[str] | None,
        option("WHAT=NAME", "Another name for a range (softmax=my_softmax). May be repeated; implies --ranges."),
    ] = None,
    output: Annotated[Path | None, option("FILE", "Measurements file to write (JSON).", "--output", "-o")] = None,
    report: _ReportOption = None,
    form: FormatOption = "table",
) -> None:
    """Measures the cells of a workload, writes them to a file if asked to, and shows them."""
    if output is not None:
        checked_file(output)
    if report is not None:
        checked_folder(report)
    names = _range_names(range_name or [])
    precision = given_share(interval)
    until = rounds is None and repetitions is None
    command = command_line(
        "warplens", "bench", workload, **settings, warmup=warmup, rounds=rounds, repetitions=repetitions,
        interval=f"{precision:g}" if until else None, seconds=f"{seconds:g}" if until else None, flush_l2=flush_l2,
    )  # fmt: skip
    axes = axes_of(workload, settings)
    plan = _plan(warmup, repetitions, precision, seconds, flush_l2, rounds)
    content = _measured(workload, axes, plan, device, Ranges(ranges or bool(names), names), rounds, command, output)
    if output is not None:
        note(f"{output}: {len(content['measurements'])} cells")
    _tell(measurements_of(content, output or Path("measurements")), report, form)


def _check(
    settings: Mapping[str, str | None], device: str | None, output: Path | None, report: Path | None, form: Format
) -> None:
    """Compare the kernels with float64; print a table and, with `report`, write a document with a chart."""
    from warplens.report.measured import errors_document, errors_tables
    from warplens.workloads.cells import cell_grid, default_device, environment

    path, folder = None if output is None else checked_file(output), None if report is None else checked_folder(report)
    cells, _ = cell_grid(workload_named("attention").cell, axes_of("attention", settings))
    torch_or_advice()
    from warplens.workloads.tensors import attention_errors

    torch_device = device or default_device()
    with progress(f"comparing {len(cells)} cells with float64"):
        rows = attention_errors(cells, torch_device)
    data = {"environment": environment(torch_device), "rows": rows}
    part = Part(head=["differences from float64, on the first and the last head; nothing is timed"],
                tables=errors_tables(rows))  # fmt: skip
    answer = Answer("attention-errors", "attention", [part], rows, lambda: data)
    emit(answer, form)
    if path is not None:
        path.write_bytes(envelope("attention-errors", "attention", data))
        note(path)
    if folder is not None:
        _write(errors_document(rows), folder, "errors")
    if rows.filter(~pl.col("near_enough")).height:
        raise typer.Exit(GATE_FAILED)


def _command(workload: str) -> Callable[..., None]:
    """The command of a workload: its settings as options, then the options of `_measure`."""
    settings = _SETTINGS[workload]

    def command(**options: Any) -> None:
        values = {name: options.pop(name) for name in settings}
        if options.pop("check", False):
            _check(values, **{name: options[name] for name in ("device", "output", "report", "form")})
        else:
            _measure(workload, values, **options)

    parameters: dict[str, tuple[Any, Any]] = {
        name: (Annotated[str | None, option(*metavar_and_help)], None) for name, metavar_and_help in settings.items()
    }
    if workload == "attention":
        meaning = "Hold what each kernel computes against float64, and time nothing; exit 1 if one is too far."
        parameters["check"] = (Annotated[bool, flag("--check", meaning)], False)
    shared = list(inspect.signature(_measure, eval_str=True).parameters.values())[2:]
    with_parameters(command, parameters | {given.name: (given.annotation, given.default) for given in shared})
    command.__doc__ = f"""{workload_named(workload).summary}

    Several values of an option, joined by commas, make a grid. A cell that runs out of memory is recorded as such, and
    the others continue. Needs PyTorch.
    """
    return command


bench_lm, bench_token_reduction, bench_attention = map(_command, _SETTINGS)


def _tell(measurements: Measurements, report: Path | None, form: Format) -> None:
    emit(_answer(measurements), form)
    if report is not None:
        _write(measured_document(measurements), report, "bench")


def _write(document: Document, folder: Path, name: str) -> None:
    from warplens.report.write import write_document

    with progress("drawing"):
        written = write_document(document, folder, name=name)
    for path in written:
        note(path)


def _answer(measurements: Measurements) -> Answer:
    doubts = doubts_of(measurements)
    part = Part(
        head=measured_facts(measurements),
        notes=[f"caution: {doubt}" for doubt in doubts],
        tables=[measured_table(measurements)],
    )
    data = named(measurements, "workload command environment plan settings phases details")
    data["rows"] = measurements.cells
    rows = measurements.cells.with_columns(pl.col("doubts").list.join("; "))
    return Answer("bench", measurements.source, [part], rows, lambda: data, doubts)


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
            "Exit with 1 if ‖a − b‖ / ‖b‖ of any tensor is greater, if NaN or infinities are not the same in both, or"
            " if a tensor cannot be compared.",
            min=0,
        ),
    ] = None,
    form: FormatOption = "table",
    limit: LimitOption = None,
) -> None:
    """Differences between the tensors of two implementations: absolute, relative, in ULPs.

    Tensors are paired by name. Elements that are not finite are counted and left out of the differences.
    """
    (tensors_a, others_a), (tensors_b, others_b) = read_tensors(a), read_tensors(b)
    frames = [numeric_differences(tensors_a, tensors_b, f"{a.name} to {b.name}")]
    if exact is not None:
        exact_tensors, _ = read_tensors(exact)
        frames += [numeric_differences(tensors, exact_tensors, f"{path.name} to {exact.name}")
                   for path, tensors in ((a, tensors_a), (b, tensors_b))]  # fmt: skip
    rows = pl.concat(frames)
    compared = plural(rows.height, "comparison")
    facts = [f"differences in float64; ULPs of the coarser format; {compared}"]
    other_types = {*others_a, *others_b}
    not_compared = {
        "only in one of the files": sorted((set(tensors_a) ^ set(tensors_b)) - other_types),
        "no real numbers": sorted(other_types),
    }
    facts += [f"{reason}, and left out: {_listed(names)}" for reason, names in not_compared.items() if names]
    errors = pick(NUMERICS, "pair tensor shape ulp_format not_finite not_finite_other not_finite_unlike"
                            " identical_share max_abs mean_abs relative max_relative")  # fmt: skip
    ulps = pick(NUMERICS, "pair", "tensor", "ulp_median", "ulp_max", *(f"ulp_{least}" for least in ULP_CLASSES))
    tables = (
        Table("numerics", "Differences of each tensor", errors, rows),
        Table("ulps", "Elements by their difference in units of the last place", ulps, rows),
    )
    part = Part(head=facts, tables=limited(tables, most_rows(form, limit)))
    emit(Answer("numerics", [a.name, b.name], [part], rows, lambda: {"rows": rows}), form)
    if fail_on is not None:
        failed = {**beyond_limit(frames[0], fail_on), **not_compared}
        for reason, names in failed.items():
            if names:
                note(f"{reason}: {_listed(names)}")
        if any(failed.values()):
            raise typer.Exit(GATE_FAILED)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + ("…" * (len(names) > 5))
