"""Asks Holistic Trace Analysis (HTA) for its figures on a folder of Kineto traces, and writes them as small JSON files.

    python generate.py FOLDER OUTPUT        # in an environment that has HolisticTraceAnalysis installed

One file a trace: `<trace>.json`, with the figures of both ways in which HTA treats time (`rounded` to microseconds, its
default; `exact`, with HTA_DISABLE_NS_ROUNDING). Times are in microseconds, as HTA gives them; where HTA fails, its
error's type stands instead. The last step of the profiler is kept, which HTA leaves out by default: what is compared is
everything that was recorded. The files hold figures only: no names, no text of the traces.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: HTA's own example value for gaps that are only launch overhead, in nanoseconds by name, in microseconds by use.
CONSECUTIVE_KERNEL_DELAY = 30


def figures(path: Path) -> dict[str, Any]:
    """HTA's figures on one trace."""
    from hta.trace_analysis import TraceAnalysis

    try:
        analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir="", include_last_profiler_step=True)
    except Exception as error:  # whatever it is, it is HTA's answer
        return {"reading": type(error).__name__}
    return {
        "temporal": attempt(lambda: first(analysis.get_temporal_breakdown(visualize=False))),
        "kernel_types": attempt(lambda: kernel_types(analysis)),
        "overlap": attempt(lambda: first(analysis.get_comm_comp_overlap(visualize=False))["comp_comm_overlap_pctg"]),
        "idle": attempt(lambda: idle(analysis)),
        "launches": attempt(lambda: launches(analysis)),
    }


def attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return {"error": type(error).__name__}


def first(frame: Any) -> dict[str, float]:
    return {key: plain(value) for key, value in frame.iloc[0].items()}


def kernel_types(analysis: Any) -> dict[str, float]:
    types, _ = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
    return {row["kernel_type"]: plain(row["sum"]) for _, row in types.iterrows()}


def idle(analysis: Any) -> dict[str, dict[str, float]]:
    found, _ = analysis.get_idle_time_breakdown(
        ranks=[0], consecutive_kernel_delay=CONSECUTIVE_KERNEL_DELAY, visualize=False
    )
    answer: dict[str, dict[str, float]] = {}
    for _, row in found.iterrows():
        answer.setdefault(str(row["stream"]), {})[row["idle_category"]] = plain(row["idle_time"])
    return answer


def launches(analysis: Any) -> dict[str, float]:
    frame = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    return {
        "count": len(frame),
        "cpu_duration": plain(frame["cpu_duration"].sum()),
        "gpu_duration": plain(frame["gpu_duration"].sum()),
        "launch_delay": plain(frame["launch_delay"].sum()),
    }


def plain(value: Any) -> Any:
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and math.isnan(number) else number


def main() -> None:
    """Each trace in a fresh process: HTA reads its settings once."""
    if len(sys.argv) == 2:
        warnings.simplefilter("ignore")
        sys.stdout.write("\n" + json.dumps(figures(Path(sys.argv[1]))))
        return
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")]):
        told = {}
        for way, setting in (("rounded", "0"), ("exact", "1")):
            environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": setting, "HTA_PARSE_NS_RESOLUTION": "0"}
            run = subprocess.run(
                [sys.executable, __file__, str(path)], env=environment, capture_output=True, text=True, check=False
            )
            lines = run.stdout.strip().splitlines()
            told[way] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {"reading": "crashed"}
        name = path.name.removesuffix(".gz").removesuffix(".json")
        (output / f"{name}.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
