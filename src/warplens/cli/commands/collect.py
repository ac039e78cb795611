"""`warplens collect` and `doctor`: run a program under a profiler, and check what this machine can record."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import typer

from warplens.cli.answer import checked_folder, print_json, print_lines
from warplens.cli.options import argument, flag, option
from warplens.cli.process import GATE_FAILED, answering, complain, note, one_line, progress
from warplens.collect.commands import (
    ADDITIONS,
    PRESETS,
    TARGETS,
    Capture,
    Recording,
    export_command,
    kernel_pattern,
    parse_capture,
    record_command,
)
from warplens.collect.compute import (
    LIGHT,
    TARGETED,
    Cost,
    Profiling,
    Selection,
    cost,
    profile_command,
    select_from_trace,
    select_kernels,
)
from warplens.collect.doctor import examine_machine, missing
from warplens.collect.machine import System, Tool, dotted, missing_libraries, needed_tool
from warplens.collect.recording import COLLECTING, IMPORTER_FIX, add_run, run_command
from warplens.errors import UsageError
from warplens.report.text import span


class CollectionFailedError(Exception):
    """A tool failed; the message is for the user, after the tool's own output."""


@dataclass(frozen=True)
class Stage:
    """One command of a collection, and the file that it writes."""

    tool: str  #: nsys, ncu or torch
    version: str  #: of the tool; empty if it is the program's own
    command: Sequence[str]  #: words of the command line
    leaves: Path  #: the file that it must write
    runs_program: bool = True  #: whether it starts the user's program, with `COLLECTING` in its environment

    @property
    def shown(self) -> str:
        """The command as typed in a shell, with the variable that tells the program which tool records it."""
        return (f"{COLLECTING}={self.tool} " if self.runs_program else "") + shlex.join(self.command)


def _collect(stages: Sequence[Stage], folder: Path, *, force: bool) -> list[Path]:
    """Run commands one after the other, and return the files that they wrote.

    Files of a failed run are kept and listed in the manifest of the folder, too.
    """
    for stage in stages:
        if stage.leaves.exists() and not force:
            raise UsageError(f"{stage.leaves.name}: is there already; use another --name, or --force to replace it")
    folder.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        stage.leaves.unlink(missing_ok=True)
    code, failure = 0, None
    for stage in stages:
        note(f"running {stage.tool}: {stage.shown}")
        variables = {COLLECTING: stage.tool} if stage.runs_program else {}
        outcome = run_command(stage.command, variables, lambda line: note(f"  {line}"))
        code = code or outcome.code
        if not stage.leaves.exists() or outcome.code:
            failure = _failure(stage, outcome.code, outcome.tail, outcome.failure)
        if not stage.leaves.exists():
            break
    files = [stage.leaves for stage in stages if stage.leaves.exists()]
    if files:
        commands = [stage.command for stage in stages]
        add_run(folder, tool=stages[0].tool, version=stages[0].version, commands=commands, files=files, exit_code=code)
    if failure and files:
        failure += f" (kept in {folder.name}: {', '.join(file.name for file in files)})"
    if failure:
        raise CollectionFailedError(failure)
    return files


def _failure(stage: Stage, code: int, tail: Sequence[str], reason: str | None) -> str:
    if stage.tool == "nsys" and (lacking := missing_libraries(Tool("nsys", stage.command[0], ()), machine())):
        reason = f"its importer lacks {', '.join(lacking)}: {IMPORTER_FIX}"
    summary = (
        f"{stage.tool} or the program that it ran ended with code {code}" if code else f"{stage.tool} left no file"
    )
    if reason:
        return f"{summary}: {reason}"
    if not code and stage.runs_program:
        summary += ": a program that ends through os._exit, or is killed, may leave none; let it end by itself"
    last_lines = " | ".join(one_line(line) for line in tail[-3:])
    return f"{summary}. Its last lines: {last_lines}" if last_lines else summary


def _cost_line(phase: str, cost: Cost) -> str:
    """The estimated cost of a phase in one line."""
    if cost.passes is None or cost.least_s is None or cost.most_s is None:
        return f"{phase}: about {cost.passes_each} passes for each launch, of as many as there are"
    time = f"{span(cost.least_s)} to {span(cost.most_s)}"
    return (
        f"{phase}: {cost.launches} launches × about {cost.passes_each} passes = {cost.passes} passes, roughly {time}"
        " beside the program's own time"
    )


#: The machine on which tools are searched; tests replace it by recorded machines.
machine: Callable[[], System] = System

#: Launches of a light pass without another limit: some minutes.
_MOST_LAUNCHES = 1000

#: Launches with kernels or counters chosen by the user, without a trace: no more passes than in a light pass.
_MOST_CHOSEN = 50


#: Which phases of ncu to run.
Phase: TypeAlias = Literal["both", "light", "targeted"]


def collect(
    ctx: typer.Context,
    profiler: Annotated[Literal["nsys", "ncu", "torch"], argument("nsys|ncu|torch", "The profiler to use.")],
    program: Annotated[list[str], argument("-- CMD…", "The program and its arguments.")],
    output: Annotated[
        Path, option("DIR", "Folder for the profiles and manifest.json.", "--output", "-o", show_default=True)
    ] = Path("collected"),
    name: Annotated[str | None, option("NAME", "Name of the files; by default the program's name.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Print the commands without running them.")] = False,
    report: Annotated[bool, flag("--report", "Also write the report, to DIR/report.")] = False,
    force: Annotated[bool, flag("--force", "Replace files of the same name.")] = False,
    tool: Annotated[str | None, option("PROGRAM", "The nsys or ncu to use; found automatically by default.")] = None,
    capture: Annotated[
        str,
        option(
            "all|cuda-profiler|nvtx:NAME",
            "nsys, ncu: the part to record: all; between cudaProfilerStart and -Stop; inside ranges of a name.",
            show_default=True,
        ),
    ] = "all",
    graphs: Annotated[
        Literal["node", "graph"],
        typer.Option(help="nsys: trace CUDA graphs kernel by kernel (node), or as a whole, which costs less."),
    ] = "node",
    memory: Annotated[bool, flag("--memory", "nsys, torch: also record allocations; slower.")] = False,
    also: Annotated[
        str | None, option("WORD,…", f"nsys: record more, which takes longer: {', '.join(ADDITIONS)}.")
    ] = None,
    phase: Annotated[
        Phase,
        typer.Option(
            help="ncu: a light pass over every launch, then a detailed one over the kernels that "
            "matter; or one of the two."
        ),
    ] = "both",
    trace: Annotated[
        Path | None, option("FILE", "ncu: a trace of the same program, which shows what is worth profiling.")
    ] = None,
    launches: Annotated[
        int | None,
        option(
            "N",
            f"ncu: launches of the light pass, 0 for all; else one step of the trace, or {_MOST_LAUNCHES}.",
            min=0,
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        option("NAME", f"ncu: counters of one kind: {', '.join(PRESETS)}. May be repeated; one run each."),
    ] = None,
    set_name: Annotated[
        str | None, option("NAME", "ncu: a set of sections, such as basic, detailed, full, roofline.", "--set")
    ] = None,
    section: Annotated[list[str] | None, option("NAME", "ncu: one section. May be repeated.")] = None,
    metrics: Annotated[list[str] | None, option("NAME,…", "ncu: single metrics. May be repeated.")] = None,
    kernel: Annotated[
        list[str] | None,
        option("REGEX", "ncu: only kernels whose name matches this, whatever their share. May be repeated."),
    ] = None,
    target: Annotated[list[str] | None, option("WORD,…", f"ncu: only kernels of a kind: {', '.join(TARGETS)}.")] = None,
    replay: Annotated[
        Literal["kernel", "application"],
        typer.Option(help="ncu: repeat each kernel, or run the program once for each pass, which saves memory."),
    ] = "kernel",
    clocks: Annotated[
        Literal["none", "base"],
        typer.Option(help="ncu: leave the clocks as in real runs (none), or lock them for comparable runs (base)."),
    ] = "none",
    steps: Annotated[
        str | None,
        option(
            "WAIT,WARMUP,ACTIVE",
            "torch: wait, warm up and record so many steps, such as 2,1,3; the program calls warplens.step() "
            "after each. By default everything is recorded.",
        ),
    ] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes/--no-shapes", help="torch: record the shapes of operators' inputs.")
    ] = True,
    stacks: Annotated[bool, flag("--stacks", "torch: record Python stacks; slower.")] = False,
    modules: Annotated[bool, flag("--modules", "torch: record the modules of scripted models.")] = False,
) -> None:
    """Run a program under nsys, ncu or PyTorch's profiler, with the right options.

    Finds the tool, uses the options of its version, exports what was recorded, and says what to run next. Output of the
    program goes to standard error.
    """
    stem = name or _stem(program)
    if Path(stem).name != stem or stem.startswith("-"):
        raise UsageError(f"--name takes a file's name without folders, not {stem!r}")
    checked_folder(output)
    base = output / stem
    foreign = [
        f"{name} ({', '.join(_PROFILERS_OF[name])})"
        for name in _given(ctx)
        if profiler not in _PROFILERS_OF.get(name, (profiler,))
    ]
    if foreign:
        raise UsageError(f"not for collect {profiler}: {', '.join(foreign)}")
    run: _Run = _print if dry_run else partial(_collect, folder=output, force=force)
    try:
        if profiler == "nsys":
            recording = Recording(parse_capture(capture), graphs, memory, force, tuple(_words(also)))
            files = run(_nsys(recording, tool, base, program))
        elif profiler == "torch":
            options = {"memory": memory, "shapes": shapes, "stacks": stacks, "modules": modules}
            files = run([_torch(program, base, steps, options)])
        else:
            profiling = Profiling(replay_mode=replay, clock_control=clocks, force=force)
            ncu = _Ncu(needed_tool("ncu", machine(), tool), profiling, parse_capture(capture), base, program, run)
            pattern = kernel_pattern(_words(*target or ()), kernel or ())
            runs = _chosen_counters(profiling, preset or (), set_name, section or (), _words(*metrics or ()))
            if runs or pattern:
                files = ncu.run_chosen(runs, pattern, trace, launches)
            else:
                files = ncu.run_phases(phase, trace, launches, dry_run=dry_run)
    except CollectionFailedError as failure:
        complain(failure)
        raise typer.Exit(GATE_FAILED) from None
    if dry_run:
        return
    print_lines(files)
    # Of a recording and its export, the export is read, since it needs no nsys.
    profiles = [path for path in files if path.suffix != ".nsys-rep"]
    if report:
        from warplens.cli.commands.report import report as write_report

        write_report(profiles, output=output / "report")
    else:
        note(f"next: {shlex.join(['warplens', 'report', *map(str, profiles), '-o', str(output / 'report')])}")


#: Options that do not apply to all profilers, with those to which they apply.
_PROFILERS_OF: Final = {
    **dict.fromkeys(("--tool", "--capture"), ("nsys", "ncu")),
    "--memory": ("nsys", "torch"),
    **dict.fromkeys(("--graphs", "--also"), ("nsys",)),
    **dict.fromkeys(("--phase", "--trace", "--launches", "--kernel", "--target", "--replay", "--clocks"), ("ncu",)),
    **dict.fromkeys(("--preset", "--set", "--section", "--metrics"), ("ncu",)),
    **dict.fromkeys(("--steps", "--no-shapes", "--stacks", "--modules"), ("torch",)),
}


def _given(ctx: typer.Context) -> Iterator[str]:
    """The options of the command line, each by its last name."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name) if param.name is not None else None
        if source is not None and source.name == "COMMANDLINE":
            yield [*param.opts, *param.secondary_opts][-1]


def _words(*lists: str | None) -> list[str]:
    """The words of comma-separated lists."""
    return [word.strip() for words in lists if words for word in words.split(",") if word.strip()]


def _chosen_counters(
    profiling: Profiling, presets: Sequence[str], set_name: str | None, sections: Sequence[str], metrics: Sequence[str]
) -> dict[str, Profiling]:
    """The counters chosen by the user for each run, by name of the run; empty if there are none."""
    if unknown := [name for name in presets if name not in PRESETS]:
        raise UsageError(f"--preset takes {', '.join(PRESETS)}, not {unknown[0]!r}")
    runs = {
        name: replace(
            profiling,
            sections=PRESETS[name].sections,
            metrics=PRESETS[name].metrics,
            cache_control=PRESETS[name].cache_control,
            passes=PRESETS[name].passes,
        )
        for name in presets
    }
    if set_name or sections or metrics:
        runs["chosen"] = replace(profiling, sections=tuple(sections), metrics=tuple(metrics), set_name=set_name)
    return runs


def _stem(program: Sequence[str]) -> str:
    """The default name of the files: that of the script, the module or the program."""
    for word, following in zip(program, [*program[1:], ""], strict=True):
        if word == "-m" and following:
            return following
        if word.endswith(".py"):
            return Path(word).stem
    return Path(program[0]).stem or "program"


def _nsys(recording: Recording, tool: str | None, base: Path, program: Sequence[str]) -> list[Stage]:
    nsys = needed_tool("nsys", machine(), tool)
    version = dotted(nsys.version)
    note(f"using {nsys.title}")
    report = str(base)
    return [
        Stage("nsys", version, record_command(nsys, recording, report, program), base.parent / f"{base.name}.nsys-rep"),
        Stage(
            "nsys",
            version,
            export_command(nsys, report, force=recording.force),
            base.parent / f"{base.name}.sqlite",
            runs_program=False,
        ),
    ]


def _torch(program: Sequence[str], base: Path, steps: str | None, options: dict[str, bool]) -> Stage:
    from warplens.collect.commands import Schedule, torch_version, wrapped_command

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
    words = wrapped_command(program, str(trace), schedule, **options)
    return Stage("torch", torch_version(machine(), program), words, trace)


def _print(stages: Sequence[Stage]) -> list[Path]:
    """Print commands instead of running them."""
    with answering() as stdout:
        stdout.write("".join(f"{stage.shown}\n" for stage in stages))
    return []


#: Runs or prints commands, and returns the files that they wrote.
_Run: TypeAlias = Callable[[Sequence[Stage]], list[Path]]


class _Ncu:
    """The phases of Nsight Compute; the kernels of a phase are selected from a trace or from the phase before."""

    def __init__(
        self, tool: Tool, profiling: Profiling, capture: Capture, base: Path, program: Sequence[str], run: _Run
    ) -> None:
        self.tool = tool
        self.profiling = profiling
        self.capture = capture
        self.base = base
        self.program = program
        self.run = run
        note(f"using {tool.title}")

    def run_phases(self, phase: Phase, trace: Path | None, launches: int | None, *, dry_run: bool) -> list[Path]:
        """Run the requested phases, and return the files that they wrote."""
        if phase == "targeted" and trace is None:
            raise UsageError("--phase targeted needs --trace, to know the kernels that matter")
        light, targeted = Selection(launches=_MOST_LAUNCHES if launches is None else launches or None), None
        if trace is not None:
            light, targeted = _from_trace(trace)
            light = _limited(light, launches)
        files: list[Path] = []
        if phase != "targeted":
            files += self.run([self._stage("light", light)])
        if phase == "light":
            return files
        if targeted is None:
            if dry_run:
                note("targeted: its kernels are chosen from the light report, once that is there")
                return files
            targeted = _from_light(files[0])
        return files + self.run([self._stage("targeted", targeted)])

    def run_chosen(
        self, runs: dict[str, Profiling], pattern: str | None, trace: Path | None, launches: int | None
    ) -> list[Path]:
        """Profile the chosen kernels with the chosen counters, and return the files, one per run."""
        selection = Selection(launches=_MOST_CHOSEN, pattern=pattern)
        if trace is not None:
            _, selection = _from_trace(trace, pattern)
        selection = _limited(selection, launches)
        runs = runs or {"targeted": replace(self.profiling, sections=TARGETED)}
        stages = [self._stage(name, selection, profiling) for name, profiling in runs.items()]
        return [path for stage in stages for path in self.run([stage])]

    def _stage(self, phase: str, selection: Selection, profiling: Profiling | None = None) -> Stage:
        if profiling is None:
            profiling = replace(self.profiling, sections=LIGHT if phase == "light" else TARGETED)
        if selection.names:
            share = f" ({selection.share:.0%} of the kernel time)" if selection.share is not None else ""
            note(f"{phase}: {', '.join(selection.names)}{share}")
        note(_cost_line(phase, cost(profiling, selection)))
        report = self.base.parent / f"{self.base.name}_{phase}"
        words = profile_command(self.tool, profiling, selection, self.capture, str(report), self.program)
        leaves = report.parent / f"{report.name}.ncu-rep"
        return Stage("ncu", dotted(self.tool.version), words, leaves)


def _from_trace(trace: Path, *pattern: str | None) -> tuple[Selection, Selection]:
    """The selections for a light and a targeted pass, from a trace."""
    from warplens import Timeline, read

    with progress(f"reading {trace.name}"):
        timeline = Timeline(read(trace))
        return select_from_trace(timeline, timeline.window("steady"), *pattern)


def _limited(selection: Selection, launches: int | None) -> Selection:
    """The selection with the given number of launches, 0 for all; unchanged if it is None."""
    return selection if launches is None else replace(selection, launches=launches or None, busy_ns=None)


def _from_light(report: Path) -> Selection:
    """The kernels with the most time in a light report."""
    import polars as pl

    from warplens import read_counters
    from warplens.analysis.counters.groups import counters_summary

    summary = counters_summary(read_counters(report), by="launch")
    summary = summary.filter((pl.col("kind") == "kernel") & (pl.col("total_ns") > 0))
    if summary.is_empty():
        raise CollectionFailedError(f"{report.name}: no kernel was profiled with success")
    return select_kernels(summary["name"].cast(pl.String).to_list(), summary["total_ns"].cast(pl.Int64).to_list())


def doctor(
    form: Annotated[
        Literal["table", "json"], typer.Option("--format", "-f", help="For people (table), or for programs (json).")
    ] = "table",
    require: Annotated[
        str | None,
        option("WHAT[,WHAT]", "Exit with 1 unless these work here: gpu, torch, nsys, ncu."),
    ] = None,
    python: Annotated[
        str | None, option("PROGRAM", "The Python of your programs; by default the first on the search path.")
    ] = None,
) -> None:
    """What this machine can record, and how to fix what it cannot.

    Looks at the driver and its GPUs, the CUDA toolkit, PyTorch, nsys and ncu, the permission to read counters, WSL2,
    containers, MIG, memory, other programs on the GPUs, and disk space. It changes nothing.
    """
    with progress("looking at this machine"):
        diagnosis = examine_machine(machine(), python=python)
    lacking = missing(diagnosis, require) if require is not None else []
    if form == "json":
        from warplens.report.jsonout import envelope

        checks = list(diagnosis.checks)
        print_json(envelope("doctor", None, {"checks": checks, "can": diagnosis.can, "works": diagnosis.works}))
    else:
        name_width = max(len(check.name) for check in diagnosis.checks)
        status_width = max(len(check.status) for check in diagnosis.checks)
        lines = []
        for check in diagnosis.checks:
            lines.append(f"{check.status:<{status_width}}  {check.name:<{name_width}}  {one_line(check.found)}")
            if check.fix:
                lines.append(f"{'':{status_width + name_width + 4}}→ {one_line(check.fix)}")
        with answering() as stdout:
            stdout.write("\n".join(lines) + f"\n\n{one_line(diagnosis.works)}.\n")
    if lacking:
        complain(f"required, but not possible here: {', '.join(lacking)}")
        raise typer.Exit(GATE_FAILED)
