"""Labels of metrics, sections and rules on the details page of Nsight Compute, mapped to their names in reports.

Source: the section files that ship with Nsight Compute 2024.1 (`sections/*.section`: label and metric of each entry),
checked against the details and raw pages of reports of 2021 to 2025. A label whose metric differs between releases or
chips is left out ("SM Busy", "Issue Slots Busy", "L2 Compression Ratio", …): it keeps its own name after `label:`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.profile import Note, NoteLevel

#: Sections: displayed name → identifier in options and reports.
_SECTIONS = {
    "C2CLink": "C2CLink",
    "Compute Workload Analysis": "ComputeWorkloadAnalysis",
    "GPU Speed Of Light Hierarchical Roofline Chart (Double Precision)": "SpeedOfLight_HierarchicalDoubleRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Half Precision)": "SpeedOfLight_HierarchicalHalfRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Single Precision)": "SpeedOfLight_HierarchicalSingleRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Tensor Core)": "SpeedOfLight_HierarchicalTensorRooflineChart",
    "GPU Speed Of Light Roofline Chart": "SpeedOfLight_RooflineChart",
    "GPU Speed Of Light Throughput": "SpeedOfLight",
    "GPU and Memory Workload Distribution": "WorkloadDistribution",
    "Instruction Statistics": "InstructionStats",
    "Launch Statistics": "LaunchStats",
    "Memory Workload Analysis": "MemoryWorkloadAnalysis",
    "Memory Workload Analysis Chart": "MemoryWorkloadAnalysis_Chart",
    "Memory Workload Analysis Tables": "MemoryWorkloadAnalysis_Tables",
    "NUMA Affinity": "NumaAffinity",
    "NVLink": "Nvlink",
    "NVLink Tables": "Nvlink_Tables",
    "NVLink Topology": "Nvlink_Topology",
    "Occupancy": "Occupancy",
    "PM Sampling": "PmSampling",
    "PM Sampling: Warp States": "PmSampling_WarpStates",
    "Scheduler Statistics": "SchedulerStats",
    "Source Counters": "SourceCounters",
    "Warp State Statistics": "WarpStateStats",
}

#: Not a section: metrics requested individually, under their own names.
_NO_SECTION = "Command line profiler metrics"

_PEAK = "pct_of_peak_sustained"

_LABELS = {
    "ComputeWorkloadAnalysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
    },
    "InstructionStats": {
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
    "LaunchStats": {
        "# SMs": "launch__sm_count",
        "# TPCs": "launch__tpc_count",
        "Block Size": "launch__block_size",
        "Cluster Scheduling Policy": "launch__cluster_scheduling_policy",
        "Cluster Size": "launch__cluster_size",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Enabled TPC IDs": "launch__tpc_enabled",
        "Function Cache Configuration": "launch__func_cache_config",
        "Grid Size": "launch__grid_size",
        "Registers Per Thread": "launch__registers_per_thread",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Stack Size": "launch__stack_size",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Threads": "launch__thread_count",
        "Uses Green Context": "launch__uses_green_context",
        "Waves Per SM": "launch__waves_per_multiprocessor",
    },
    "MemoryWorkloadAnalysis": {
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "L2 Persisting Size": "launch__persisting_l2_cache_size",
        "Local Memory Spilling Request Overhead": "derived__local_spilling_requests_pct",
        "Local Memory Spilling Requests": "derived__local_spilling_requests",
        "Max Bandwidth": f"gpu__compute_memory_request_throughput.avg.{_PEAK}_elapsed",
        "Mem Busy": f"gpu__compute_memory_access_throughput.avg.{_PEAK}_elapsed",
        "Mem Pipes Busy": f"sm__memory_throughput.avg.{_PEAK}_elapsed",
        "Memory Throughput": "dram__bytes.sum.per_second",
    },
    "Occupancy": {
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Achieved Occupancy": f"sm__warps_active.avg.{_PEAK}_active",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Cluster Occupancy": "launch__occupancy_cluster_pct",
        "Max Active Clusters": "launch__cluster_max_active",
        "Max Cluster Size": "launch__cluster_max_potential_size",
        "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    },
    "SchedulerStats": {
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "GPU Maximum Warps Per Scheduler": "smsp__warps_active.avg.peak_sustained",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "No Eligible": f"smsp__issue_inst0.avg.{_PEAK}_active",
        "One or More Eligible": f"smsp__issue_active.avg.{_PEAK}_active",
        "Theoretical Warps Per Scheduler": "smsp__maximum_warps_avg_per_active_cycle",
    },
    "SourceCounters": {
        "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
        "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
        "Branch Instructions": "smsp__inst_executed_op_branch.sum",
        "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
    },
    "SpeedOfLight": {
        "Compute (SM) Throughput": f"sm__throughput.avg.{_PEAK}_elapsed",
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
        "DRAM Throughput": f"gpu__dram_throughput.avg.{_PEAK}_elapsed",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "L1/TEX Cache Throughput": f"l1tex__throughput.avg.{_PEAK}_active",
        "L2 Cache Throughput": f"lts__throughput.avg.{_PEAK}_elapsed",
        "Memory Throughput": f"gpu__compute_memory_throughput.avg.{_PEAK}_elapsed",
        "SM Active Cycles": "sm__cycles_active.avg",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    },
    "SpeedOfLight_RooflineChart": {
        "DRAM Bandwidth": "dram__bytes.sum.per_second",
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
        "Theoretical DRAM Bytes Accessible": "dram__bytes.sum.peak_sustained",
    },
    "WarpStateStats": {
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    },
    "WorkloadDistribution": {
        f"{statistic} {unit} {cycles} Cycles": f"{counter}__cycles_{cycles.lower()}.{ending}"
        for unit, counter in (("DRAM", "dram"), ("L1", "l1tex"), ("L2", "lts"), ("SM", "sm"), ("SMSP", "smsp"))
        for statistic, cycles, ending in (("Average", "Active", "avg"), ("Total", "Elapsed", "sum"))
    },
}

#: Rules whose names differ from their identifiers; the others are their identifiers split into words.
_RULES = {
    "CPIStall": "Warp Stall",
    "Compute": "Compute Bottleneck",
    "FPInstructions": "FP32/64 Instructions",
    "Memory": "Memory Bottleneck",
    "MemoryL2Compression": "Memory L2 Compression",
    "PCSamplingData": "PC sampling data",
    "PMSamplingData": "PM Sampling Data",
    "SOLBottleneck": "Bottleneck",
    "SOLFPRoofline": "Roofline Analysis",
    "UncoalescedGlobalAccess": "Uncoalesced Global Accesses",
    "UncoalescedSharedAccess": "Uncoalesced Shared Accesses",
}

#: The body of a section has the label of a chart or table. Of the charts, warp states and rooflines are mapped.
_STALL = re.compile(r"Stall ([A-Z]\w*(?: \w+)*)")
_SELECTED = "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio"
_OPERATION = re.compile(r"Predicated-On ([DF](?:ADD|MUL|FMA)) (Operations|Thread Instructions Executed) Per Cycle")
_PEAK_OPERATION = re.compile(r"Theoretical Predicated-On ([DF]FMA) (Operations|Thread Instructions Executed)")

#: A metric's own name, as `--print-metric-name name` prints it, or in brackets behind its label (`label-name`).
_OWN_NAME = re.compile(r"[\w:]+(?:__|\.)[\w.:]*\w")
_LABEL_AND_NAME = re.compile(r".* \(([\w:]+__[\w.:]+)\)")


def section_of(displayed: str) -> str | None:
    """The identifier of a section in options; unknown ones unchanged, None for no section."""
    return None if displayed == _NO_SECTION else _SECTIONS.get(displayed, displayed)


def rule_name(identifier: str) -> str:
    """The name of a rule; the CSV export only prints its identifier."""
    return _RULES.get(identifier) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", identifier)


def metric_of(section: str, chart: str, printed: str) -> str:
    """The name of the metric printed on the details page."""
    if labelled := _LABEL_AND_NAME.fullmatch(printed):
        return labelled[1]
    if _OWN_NAME.fullmatch(printed) or section == _NO_SECTION:
        return printed
    identifier = section_of(section) or ""
    metric = _roofline(chart, printed) if "Roofline" in identifier else None
    if metric is None and (not chart or "Roofline" in identifier):
        metric = _LABELS.get(identifier, {}).get(printed)
    if metric is None and chart and identifier == "WarpStateStats":
        metric = _warp_state(printed)
    return metric or "label:" + "/".join(part for part in (identifier, chart, printed) if part)


def _warp_state(label: str) -> str | None:
    if label == "Selected":
        return _SELECTED
    match = _STALL.fullmatch(label)
    if not match:
        return None
    state = match[1].lower().replace(" ", "_")
    return f"smsp__average_warps_issue_stalled_{state}_per_issue_active.ratio"


def _roofline(chart: str, label: str) -> str | None:
    """Metrics of a roofline chart: roofs use the peak rates of an SM, achieved values those of its schedulers."""
    if label == "SM Frequency" and chart:
        return f"{'smsp' if 'Achieved' in chart else 'sm'}__cycles_elapsed.avg.per_second"
    unit, operation, ending = "", None, ""
    if match := _PEAK_OPERATION.fullmatch(label):
        unit, operation, ending = "sm", match, ".sum.peak_sustained"
    elif match := _OPERATION.fullmatch(label):
        unit, operation, ending = "smsp", match, ".sum.per_cycle_elapsed"
    if operation is None:
        return None
    name = f"{unit}__sass_thread_inst_executed_op_{operation[1].lower()}_pred_on"
    return f"derived__{name}_x2" if operation[2] == "Operations" else name + ending


# --- Nsight Compute's own lines around its table, classified and never quoted -----------------------------------------
#
# The lines hold paths, command lines and names of processes. Only the class of the problem leaves this module, with
# advice.

_LINE = re.compile(r"\s*==(ERROR|WARNING|PROF|LOG)== ?(.*)", re.DOTALL)

#: The first characters of a message give its class; lists of metrics may follow.
_CLASSIFIED_CHARACTERS = 500

_AGAIN = "Run it again, or give the .ncu-rep file"


@dataclass(frozen=True)
class _Class:
    """A class of messages."""

    code: str  #: of its note
    pattern: str
    found: str
    remedy: str

    def includes(self, text: str) -> bool:
        """Whether a message belongs to it."""
        return re.search(self.pattern, text, re.IGNORECASE) is not None


#: Classes of errors, the more specific first: for several lines about one failure the first class is reported.
_ERRORS = (
    _Class(
        "no-counter-permission",
        r"ERR_NVGPUCTRPERM|permission to (access|profile)",
        "the user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)",
        "Run ncu as root, start the container with --cap-add=SYS_ADMIN, or have the machine's administrator set the "
        "NVIDIA driver option NVreg_RestrictProfilingToAdminUsers=0",
    ),
    _Class(
        "driver-resource",
        r"driver resource|DCGM|resource (was |is )?unavailable",
        "another tool was using the GPU's performance counters",
        "Pause it while profiling (DCGM: dcgmi profile --pause), or end other profilers",
    ),
    _Class(
        "no-such-section",
        r"did not match any (section|set|metric|rule)|list-(sections|sets|rules)",
        "an option named a section, set or rule that this ncu does not have",
        "List them with ncu --list-sections; a pattern needs the prefix regex:, as in --section 'regex:SpeedOfLight.*'",
    ),
    _Class(
        "no-such-metric",
        r"(failed to find|could not find|unable to find|invalid|unknown) metrics?\b|metrics? .*not (found|available)",
        "an option named a metric that this GPU does not have",
        "List them with ncu --query-metrics --query-metrics-mode suffix --metrics NAME",
    ),
    _Class(
        "bad-option",
        r"unrecogni[sz]ed option|option '.*' (is|cannot|requires)|the argument .* is invalid|ambiguous",
        "ncu did not accept its options",
        "Compare them with ncu --help",
    ),
    _Class(
        "unsupported-gpu",
        r"(device|gpu|profiling|driver).{0,40}not (supported|compatible)|unsupported (gpu|device)"
        r"|failed to load .*modules",
        "this ncu does not support the GPU or its driver",
        "Use the newest Nsight Compute",
    ),
    _Class(
        "lock-file",
        r"lock ?file|InterprocessLock",
        "ncu could not open the lock file that keeps two of it apart",
        "Remove the lock file of another user, or set TMPDIR to a folder of your own",
    ),
    _Class(
        "clock-control",
        r"lock .*clock",
        "ncu could not lock the GPU's clocks",
        "Add --clock-control none",
    ),
    _Class(
        "out-of-memory",
        r"out of memory|OutOfMemory",
        "memory ran out",
        "Profile fewer kernels, or use --replay-mode application",
    ),
    _Class(
        "no-such-program",
        r"(does not exist|no such file|not found|could not (be )?(found|launch)|failed to (launch|start))",
        "the program could not be started",
        "Check the command after ncu's options; a script needs its interpreter: ncu … python script.py",
    ),
    _Class("output-exists", r"already exists|force-overwrite", "the output file existed", "Add --force-overwrite"),
    _Class(
        "program-failed",
        r"returned an error code|application .*(crash|error|terminated)|LaunchFailed|launch failed|terminated before",
        "the profiled program failed",
        "Make it run without ncu first",
    ),
    _Class(
        "profiling-failed",
        r"failed to (profile|prepare)|unknown error on device|error was reported by the driver",
        "ncu failed to profile a kernel",
        "Use the newest Nsight Compute, and profile fewer metrics at once",
    ),
)

_NO_KERNELS = _Class(
    "no-launches",
    r"no kernels were profiled",
    "the run profiled no kernel",
    "Check the filters (-k, --launch-skip, --nvtx-include), and add --target-processes all where a child process "
    "launches the kernels",
)

_WARNINGS = (
    _NO_KERNELS,
    _Class(
        "unsupported-gpu",
        r"failed to detect compute capability|not (fully )?supported|outdated",
        "The ncu that wrote this did not know the GPU: values may be wrong, and units missing",
        "Export or record again with the newest Nsight Compute",
    ),
    _Class(
        "metrics-unavailable",
        r"unable to access the following|metrics? .*(not (available|found)|unavailable)",
        "Some metrics could not be collected on this GPU",
        "They are missing here; others of the same section may still answer",
    ),
    _Class(
        "clocks-not-locked",
        r"clock",
        "ncu could not lock the clocks, so that times and rates vary with the clock",
        "Compare cycles rather than times",
    ),
    _Class(
        "memory-saved",
        r"back(ing|ed) up device memory|replay might be slow",
        "Memory was saved and restored between passes, which slows the recording down, not the measured kernels",
        "--replay-mode application avoids it",
    ),
)


class Messages:
    """Collects ncu's own lines and derives notes or an error from them.

    Attributes:
        failed: whether there is an error among them.
    """

    def __init__(self) -> None:
        self._errors: Counter[_Class | None] = Counter()
        self._warnings: Counter[_Class | None] = Counter()
        self.seen = False

    @property
    def failed(self) -> bool:
        """Whether ncu reported an error."""
        return bool(self._errors)

    def take(self, line: str) -> bool:
        """Add a line if it is one of ncu's own; return whether it was."""
        parts = _LINE.match(line)
        if not parts:
            return False
        self.seen = True
        level, text = parts[1], parts[2][:_CLASSIFIED_CHARACTERS]
        if level == "ERROR":
            self._errors[_first(_ERRORS, text)] += 1
        elif level == "WARNING" or _NO_KERNELS.includes(text):
            self._warnings[_first(_WARNINGS, text)] += 1
        return True

    def error(self, known_as: Path) -> UnreadableInputError | None:
        """The error for a file with such lines and without a table; None if there are no such lines either."""
        if not self.seen:
            return None
        if self.failed:
            kind = self._first_error()
            reason = kind.found if kind else "for a reason that this version does not know"
            remedy = (
                kind.remedy if kind else "Read the ==ERROR== lines in the file, mend what they name and run it again"
            )
            joint = ": " if kind else " "
            return UnreadableInputError(known_as, f"a failed run of ncu{joint}{reason}; nothing was measured", remedy)
        if _NO_KERNELS in self._warnings:
            return UnreadableInputError(known_as, _NO_KERNELS.found, _NO_KERNELS.remedy)
        found = "it holds only messages of ncu (==PROF==), no table"
        return UnreadableInputError(known_as, found, _AGAIN)

    def notes(self) -> Iterator[Note]:
        """Notes for a file that also holds a table."""
        if self.failed:
            kind = self._first_error()
            reason = f": {kind.found}" if kind else ""
            text = f"ncu reported {sum(self._errors.values())} errors{reason}; launches may be missing."
            yield Note("run-failed", NoteLevel.WARNING, text, kind.remedy if kind else _AGAIN)
        for warning in _WARNINGS[1:]:
            if warning in self._warnings:
                level = NoteLevel.INFO if warning.code in ("clocks-not-locked", "memory-saved") else NoteLevel.WARNING
                yield Note(warning.code, level, f"{warning.found}.", warning.remedy)
        if unclassified := self._warnings[None]:
            yield Note(
                "ncu-warnings", NoteLevel.INFO, f"ncu printed {unclassified} warnings that this version does not know."
            )

    def _first_error(self) -> _Class | None:
        return next((kind for kind in _ERRORS if kind in self._errors), None)


def _first(classes: tuple[_Class, ...], text: str) -> _Class | None:
    return next((kind for kind in classes if kind.includes(text)), None)
