"""The commands, as listed by `warplens --help`. Separate from their modules, so that the list needs no imports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final


@dataclass(frozen=True)
class Command:
    """One command of the program."""

    name: str  #: name of the command and of its function
    #: the module of `warplens.cli.commands` with the function; for a command that prints a table, the module of its
    #: question in `warplens.report` (`questions.gpu`)
    module: str
    section: str  #: its heading in the list
    summary: str  #: equal to the first line of the function's docstring
    parts: tuple[str, ...] = ()  #: names of its subcommands; the function of `sweep run` is `sweep_run`

    def subcommands(self) -> dict[str, Callable[..., Any]]:
        """The functions of its subcommands, by name."""
        module = import_module(f"warplens.cli.commands.{self.module}")
        return {part: getattr(module, f"{self.name}_{part}".replace("-", "_")) for part in self.parts}

    def function(self) -> Callable[..., Any]:
        """The function of the command; imports its module only."""
        if self.module.startswith("questions."):
            from warplens.cli.commands.tables import command_of

            return command_of(getattr(import_module(f"warplens.report.{self.module}"), self.name))
        function: Callable[..., Any] = getattr(import_module(f"warplens.cli.commands.{self.module}"), self.name)
        return function


#: Module and summary of each command, by heading and name.
_LISTED: Final = {
    "Reports": {
        "answer": ("answer", "The answer in a few lines; `warplens PATH…` does the same."),
        "demo": ("report", "Report on the profiles that come with Warplens; no GPU needed."),
        "report": ("report", "Report on your profiles: where the GPU time went, and why."),
        "diagnose": ("diagnose", "What limits the program, what to do about it, and how to verify the change."),
        "compare": ("compare", "Why a variant is slower or faster than its baseline, and how certain that is."),
    },
    "One table of one profile": {
        "budget": ("questions.time", "Where the time went, in parts that add up to it exactly."),
        "headroom": ("tables", "From the measured step time down to this GPU's limit, in parts that add up exactly."),
        "steps": ("questions.time", "Steps of the workload: wall, busy and idle time of each."),
        "phases": ("questions.time", "GPU time of forward, backward and optimizer."),
        "kernels": ("questions.gpu", "GPU kernels: launches, duration, share of the kernel time."),
        "ranges": ("questions.gpu", "Annotated ranges (NVTX, record_function): GPU time of the work launched inside."),
        "operators": ("questions.operators", "PyTorch operators and modules: host time, GPU time, backward pass."),
        "launches": ("questions.host", "Kernel launches: time in the API call, in the queue, and on the GPU."),
        "flops": ("questions.operators", "FLOPs and bytes of operators (modelled) against their measured time."),
        "memory": ("questions.memory", "Memory over time, its peak, and what was allocated at the peak."),
        "copies": ("questions.gpu", "Memory copies and fills: time, size and bandwidth."),
        "api": ("questions.host", "CUDA API calls on the host: calls, duration."),
        "code": ("questions.host", "Where in the program waits, copies, allocations and launches come from."),
    },
    "Hardware counters": {
        "counters": ("counters", "What limits each kernel, and why: from Nsight Compute counters."),
        "roofline": ("counters", "Roofline: how far each kernel is from the peaks of its GPU."),
    },
    "Many ranks of one run": {
        "ranks": ("ranks", "Ranks of a distributed run: overlap, collectives, stragglers, waits."),
    },
    "Measurements on this machine": {
        "bench": ("bench", "Measure reference workloads: a language model, token reduction, attention."),
        "sweep": ("sweep", "Measure a baseline and a variant over a grid, or report on such a sweep."),
        "study": ("study", "Run a whole study of token reduction, the language model or attention, and report on it."),
        "numerics": ("bench", "Differences between the tensors of two implementations: absolute, relative, in ULPs."),
        "policy": ("study", "Fit, show and check policies: which variant to run for which shape."),
        "collect": ("collect", "Run a program under nsys, ncu or PyTorch's profiler, with the right options."),
        "doctor": ("collect", "What this machine can record, and how to fix what it cannot."),
    },
    "Other programs": {
        "export": ("files", "Export a profile to other programs: Perfetto, Parquet, CSV."),
    },
    "Before you share a profile": {
        "scrub": ("files", "Copy a profile without anything that identifies people or machines."),
        "cache": ("files", "Show or clear the cache of converted Nsight Systems reports."),
    },
}

_PARTS: Final = {"bench": ("lm", "token-reduction", "attention", "show"), "sweep": ("run", "report")}

COMMANDS: Final = {
    name: Command(name, module, section, summary, _PARTS.get(name, ()))
    for section, commands in _LISTED.items()
    for name, (module, summary) in commands.items()
}
