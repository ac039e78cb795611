"""The commands, as `warplens --help` lists them. Kept apart from their modules, so that the list costs no imports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final


@dataclass(frozen=True)
class Command:
    """One command of the program."""

    name: str  #: what the user types; also the name of the function that carries it out
    #: the module of `warplens.cli.commands` that has the function; or, of a command that prints a table, the topic
    #: (`questions.gpu`) in `warplens.report` where its question stands
    module: str
    section: str  #: heading that it stands under in the list
    summary: str  #: what it does; the first line of the function's docstring says the same
    parts: tuple[str, ...] = ()  #: names of its subcommands; the function of `run` of `sweep` is called `sweep_run`

    def subcommands(self) -> dict[str, Callable[..., Any]]:
        """The functions of its subcommands by name."""
        module = import_module(f"warplens.cli.commands.{self.module}")
        return {part: getattr(module, f"{self.name}_{part}".replace("-", "_")) for part in self.parts}

    def function(self) -> Callable[..., Any]:
        """The function that carries the command out. This imports its module, and none of other commands."""
        if self.module.startswith("questions."):
            from warplens.cli.commands.tables import command_of

            return command_of(getattr(import_module(f"warplens.report.{self.module}"), self.name))
        function: Callable[..., Any] = getattr(import_module(f"warplens.cli.commands.{self.module}"), self.name)
        return function


_REPORT: Final = "Reports"
_TABLE: Final = "One table of one profile"
_COUNTERS: Final = "Hardware counters"
_RANKS: Final = "Many ranks of one run"
_MEASURE: Final = "Measurements on this machine"
_HANDED_ON: Final = "Other programs"
_SHARE: Final = "Before you share a profile"

COMMANDS: Final = {
    command.name: command
    for command in (
        Command("answer", "door", _REPORT, "The answer in a few lines; `warplens PATH…` does the same."),
        Command("demo", "report", _REPORT, "Report on the profiles that come with Warplens; no GPU needed."),
        Command("report", "report", _REPORT, "Report on your profiles: where the GPU time went, and why."),
        Command(
            "diagnose",
            "diagnose",
            _REPORT,
            "What limits the program, what to do about it, and how to verify the change.",
        ),
        Command(
            "compare",
            "compare",
            _REPORT,
            "Why a variant is slower or faster than its baseline, and how certain that is.",
        ),
        Command("budget", "questions.time", _TABLE, "Where the time went, in parts that add up to it exactly."),
        Command(
            "headroom",
            "diagnose",
            _TABLE,
            "From the measured step time down to this GPU's limit, in parts that add up exactly.",
        ),
        Command("steps", "questions.time", _TABLE, "Steps of the workload: wall, busy and idle time of each."),
        Command("phases", "questions.time", _TABLE, "GPU time of forward, backward and optimizer."),
        Command("kernels", "questions.gpu", _TABLE, "GPU kernels: launches, duration, share of the kernel time."),
        Command(
            "ranges",
            "questions.gpu",
            _TABLE,
            "Annotated ranges (NVTX, record_function): GPU time of the work launched inside.",
        ),
        Command(
            "operators",
            "questions.host",
            _TABLE,
            "PyTorch operators and modules: host time, GPU time, backward pass.",
        ),
        Command(
            "launches", "questions.host", _TABLE, "Kernel launches: time in the API call, in the queue, and on the GPU."
        ),
        Command(
            "flops",
            "questions.host",
            _TABLE,
            "FLOPs and bytes of operators (modelled) against their measured time.",
        ),
        Command("memory", "questions.gpu", _TABLE, "Memory over time, its peak, and what was allocated at the peak."),
        Command("copies", "questions.gpu", _TABLE, "Memory copies and fills: time, size and bandwidth."),
        Command("api", "questions.host", _TABLE, "CUDA API calls on the host: calls, duration."),
        Command(
            "code", "questions.host", _TABLE, "Where in the program waits, copies, allocations and launches come from."
        ),
        Command("counters", "counters", _COUNTERS, "What limits each kernel, and why: from Nsight Compute counters."),
        Command("roofline", "counters", _COUNTERS, "Roofline: how far each kernel is from the peaks of its GPU."),
        Command("ranks", "handing", _RANKS, "Ranks of a distributed run: overlap, collectives, stragglers, waits."),
        Command(
            "bench",
            "bench",
            _MEASURE,
            "Measure reference workloads: a language model, token reduction, attention.",
            ("lm", "token-reduction", "attention", "show"),
        ),
        Command(
            "sweep",
            "sweep",
            _MEASURE,
            "Measure a baseline and a variant over a grid, or report on such a sweep.",
            ("run", "report"),
        ),
        Command(
            "study",
            "study",
            _MEASURE,
            "Run a whole study of token reduction, the language model or attention, and report on it.",
        ),
        Command(
            "numerics",
            "bench",
            _MEASURE,
            "Differences between the tensors of two implementations: absolute, relative, in ULPs.",
        ),
        Command("policy", "study", _MEASURE, "Fit, show and check policies: which variant to run for which shape."),
        Command(
            "collect",
            "collect",
            _MEASURE,
            "Run a program under nsys, ncu or PyTorch's profiler, with the right options.",
        ),
        Command("doctor", "collect", _MEASURE, "What this machine can record, and how to fix what it cannot."),
        Command("export", "handing", _HANDED_ON, "Export a profile to other programs: Perfetto, Parquet, CSV."),
        Command("scrub", "handing", _SHARE, "Copy a profile without anything that identifies people or machines."),
        Command("cache", "handing", _SHARE, "Show or clear the cache of converted Nsight Systems reports."),
    )
}
