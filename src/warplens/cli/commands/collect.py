"""`warplens collect`: a program under a profiler."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warplens.cli.collecting import CollectionFailedError, Stage, collect_stages, cost_line, shown
from warplens.cli.edge import GATE_FAILED, answering
from warplens.cli.messages import complain, note, one_line, progress
from warplens.collect.nsys import Recording, export_command, parse_capture, record_command
from warplens.collect.system import System, ThisMachine
from warplens.collect.tools import needed_tool
from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.collect.ncu import Profiling, Selection
    from warplens.collect.nsys import Capture
    from warplens.collect.tools import Tool

__all__ = ["collect"]

#: What tools are looked for on; tests put recorded machines here.
machine: Callable[[], System] = ThisMachine

_FOLDER = Path("collected")

#: Launches of a light pass where nothing else limits it: some minutes.
_MOST_LAUNCHES = 1000


class Profiler(str, Enum):
    """What to record with."""

    NSYS = "nsys"
    NCU = "ncu"
    TORCH = "torch"


class Phase(str, Enum):
    """Which phases of ncu to run."""

    BOTH = "both"
    LIGHT = "light"
    TARGETED = "targeted"


class Graphs(str, Enum):
    """How CUDA graphs are recorded."""

    NODE = "node"
    GRAPH = "graph"


class Replay(str, Enum):
    """How ncu repeats kernels."""

    KERNEL = "kernel"
    APPLICATION = "application"


class Clocks(str, Enum):
    """What ncu does to the clocks."""

    NONE = "none"
    BASE = "base"


def collect(
    profiler: Annotated[
        Profiler, typer.Argument(metavar="nsys|ncu|torch", show_default=False, help="What to record with.")
    ],
    program: Annotated[
        list[str], typer.Argument(metavar="-- CMD…", show_default=False, help="The program and its arguments.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder for profiles and their manifest.json.")
    ] = _FOLDER,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", show_default=False, help="Of the files; else that of the program."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands; run nothing.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write the report at once, to DIR/report.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files of the same name.")] = False,
    tool: Annotated[
        str | None,
        typer.Option(metavar="PROGRAM", show_default=False, help="The nsys or ncu to use; else it is looked for."),
    ] = None,
    capture: Annotated[
        str,
        typer.Option(
            metavar="all|cuda-profiler|nvtx:NAME",
            help="nsys, ncu: the part to record: all; between cudaProfilerStart and -Stop; inside ranges of a name.",
        ),
    ] = "all",
    graphs: Annotated[
        Graphs, typer.Option(help="nsys: CUDA graphs kernel by kernel (node), or as a whole, which disturbs less.")
    ] = Graphs.NODE,
    memory: Annotated[bool, typer.Option("--memory", help="nsys, torch: record allocations, too; slower.")] = False,
    phase: Annotated[
        Phase, typer.Option(help="ncu: little on every launch, then much on the kernels that matter; or one of them.")
    ] = Phase.BOTH,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="ncu: a trace of the same program, which tells what is worth profiling.",
        ),
    ] = None,
    launches: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            show_default=False,
            help=f"ncu: launches of the light pass, 0 for all; else one step of the trace, or {_MOST_LAUNCHES}.",
        ),
    ] = None,
    replay: Annotated[
        Replay, typer.Option(help="ncu: repeat each kernel, or run the program once for each pass, which saves memory.")
    ] = Replay.KERNEL,
    clocks: Annotated[
        Clocks,
        typer.Option(help="ncu: leave the clocks as in real runs (none), or lock them for comparable runs (base)."),
    ] = Clocks.NONE,
    steps: Annotated[
        str | None,
        typer.Option(
            metavar="WAIT,WARMUP,ACTIVE",
            show_default=False,
            help="torch: record steps, such as 2,1,3; the program calls warplens.step() after each. Else all of it.",
        ),
    ] = None,
) -> None:
    """Run a program under nsys, ncu or PyTorch's profiler, with the right options.

    Finds the tool where it hides, uses the options that its version has, exports what was recorded, and says how to go
    on. Output of the program goes to standard error.
    """
    stem = name or _stem(program)
    if Path(stem).name != stem or stem.startswith("-"):
        raise UsageError(f"--name takes a file's name without folders, not {stem!r}")
    base = output / stem
    try:
        if profiler is Profiler.NSYS:
            recording = Recording(parse_capture(capture), graphs.value, memory, force)
            files = _run(_nsys(recording, tool, base, program), output, dry_run=dry_run, force=force)
        elif profiler is Profiler.TORCH:
            files = _run([_torch(program, base, steps, memory=memory)], output, dry_run=dry_run, force=force)
        else:
            from warplens.collect.ncu import Profiling  # noqa: PLC0415  the others do without frames

            asked = _Ncu(
                needed_tool("ncu", machine(), tool),
                Profiling(replay_mode=replay.value, clock_control=clocks.value, force=force),
                parse_capture(capture),
                base,
                program,
            )
            files = asked.run(phase, trace, launches, dry_run=dry_run, force=force)
    except CollectionFailedError as failure:
        complain(failure)
        raise typer.Exit(GATE_FAILED) from None
    if dry_run:
        return
    _conclude(files, output, report=report)


def _stem(program: Sequence[str]) -> str:
    """A name for the files: that of the script, of the module, or of the program."""
    for word, following in zip(program, [*program[1:], ""], strict=True):
        if word == "-m" and following:
            return following
        if word.endswith(".py"):
            return Path(word).stem
    return Path(program[0]).stem or "program"


def _nsys(recording: Recording, tool: str | None, base: Path, program: Sequence[str]) -> list[Stage]:
    found = needed_tool("nsys", machine(), tool)
    version = ".".join(map(str, found.version))
    note(f"using {found.title}")
    report = str(base)
    return [
        Stage(
            "nsys", version, record_command(found, recording, report, program), base.parent / f"{base.name}.nsys-rep"
        ),
        Stage(
            "nsys",
            version,
            export_command(found, report, force=recording.force),
            base.parent / f"{base.name}.sqlite",
            runs_program=False,
        ),
    ]


def _torch(program: Sequence[str], base: Path, steps: str | None, *, memory: bool) -> Stage:
    from warplens.collect.torch_profiler import Schedule, torch_version, wrapped_command  # noqa: PLC0415  only here

    schedule = None
    if steps is not None:
        try:
            wait, warmup, active = map(int, steps.split(","))
        except ValueError:
            raise UsageError(f"--steps takes three numbers, such as 2,1,3, not {steps!r}") from None
        if min(wait, warmup) < 0 or active < 1:
            raise UsageError("--steps: at least one step must be recorded, and none can be negative")
        schedule = Schedule(wait, warmup, active)
    trace = base.parent / f"{base.name}.pt.trace.json"
    words = wrapped_command(program, str(trace), schedule, memory=memory)
    return Stage("torch", torch_version(machine(), program), words, trace)


def _run(stages: Sequence[Stage], folder: Path, *, dry_run: bool, force: bool) -> list[Path]:
    if dry_run:
        with answering() as stdout:
            stdout.write("".join(f"{shown(stage)}\n" for stage in stages))
        return []
    return collect_stages(stages, folder, force=force)


class _Ncu:
    """The phases of Nsight Compute: what each profiles may come from a trace, or from the phase before."""

    def __init__(self, tool: Tool, profiling: Profiling, capture: Capture, base: Path, program: Sequence[str]) -> None:
        self.tool, self.profiling, self.capture, self.base, self.program = tool, profiling, capture, base, program
        note(f"using {tool.title}")

    def run(self, phase: Phase, trace: Path | None, launches: int | None, *, dry_run: bool, force: bool) -> list[Path]:
        """Run the phases that were asked for; the files that they left."""
        if phase is Phase.TARGETED and trace is None:
            raise UsageError("--phase targeted needs --trace, to know the kernels that matter")
        light, targeted = self._selections(trace, launches)
        files: list[Path] = []
        if phase is not Phase.TARGETED:
            files += _run([self._stage("light", light)], self.base.parent, dry_run=dry_run, force=force)
        if phase is Phase.LIGHT:
            return files
        if targeted is None:
            if dry_run:
                note("targeted: its kernels are chosen from the light report, once that is there")
                return files
            targeted = _from_light(files[0])
        return files + _run([self._stage("targeted", targeted)], self.base.parent, dry_run=dry_run, force=force)

    def _selections(self, trace: Path | None, launches: int | None) -> tuple[Selection, Selection | None]:
        from dataclasses import replace  # noqa: PLC0415

        from warplens.collect.ncu import Selection, select_from_trace  # noqa: PLC0415

        if trace is None:
            return Selection(launches=_MOST_LAUNCHES if launches is None else launches or None), None
        from warplens import Timeline, read  # noqa: PLC0415

        with progress(f"reading {trace.name}"):
            timeline = Timeline(read(trace))
            light, targeted = select_from_trace(timeline, timeline.window("steady"))
        if launches is not None:
            light = replace(light, launches=launches or None, busy_ns=None)
        return light, targeted

    def _stage(self, phase: str, selection: Selection) -> Stage:
        from dataclasses import replace  # noqa: PLC0415

        from warplens.collect.ncu import LIGHT, TARGETED, cost, profile_command  # noqa: PLC0415

        profiling = replace(self.profiling, sections=LIGHT if phase == "light" else TARGETED)
        if selection.names:
            share = f" ({selection.share:.0%} of the kernel time)" if selection.share is not None else ""
            note(f"{phase}: {', '.join(selection.names)}{share}")
        note(cost_line(phase, cost(profiling, selection)))
        report = self.base.parent / f"{self.base.name}_{phase}"
        words = profile_command(self.tool, profiling, selection, self.capture, str(report), self.program)
        leaves = report.parent / f"{report.name}.ncu-rep"
        return Stage("ncu", ".".join(map(str, self.tool.version)), words, leaves)


def _from_light(report: Path) -> Selection:
    """The kernels that matter, by the times of a light report."""
    import polars as pl  # noqa: PLC0415

    from warplens import read_counters  # noqa: PLC0415
    from warplens.analysis.counters.summary import counters_summary  # noqa: PLC0415
    from warplens.collect.ncu import select_kernels  # noqa: PLC0415

    summary = counters_summary(read_counters(report), by="launch")
    summary = summary.filter((pl.col("kind") == "kernel") & (pl.col("total_ns") > 0))
    if summary.is_empty():
        raise CollectionFailedError(f"{report.name}: no kernel was profiled with success")
    return select_kernels(summary["name"].cast(pl.String).to_list(), summary["total_ns"].cast(pl.Int64).to_list())


def _conclude(files: Sequence[Path], folder: Path, *, report: bool) -> None:
    with answering() as stdout:
        stdout.write("".join(f"{one_line(path)}\n" for path in files))
    # Of a recording and its export, the export is what is read everywhere.
    wanted = [path for path in files if path.suffix != ".nsys-rep"]
    if report:
        from warplens.cli.commands.report import report as write_report  # noqa: PLC0415

        write_report(wanted, output=folder / "report")
        return
    import shlex  # noqa: PLC0415

    note(f"next: {shlex.join(['warplens', 'report', *map(str, wanted), '-o', str(folder / 'report')])}")
