"""What other tools say of the same captures: `nsys analyze` of NVIDIA, and nsys-ai.

    python -m benchmarks.diagnosis.peers --nsys NSYS --nsys-ai NSYS_AI     # writes results/diagnosis_peers.json

Neither names one verdict in our words, so theirs are read generously:

* `nsys analyze` (all its CUDA rules, its own limits, every row): a rule that gives rows claims its cause, with the
  summed duration of its rows; the first claim is the one with the most time. `gpu_gaps` and `gpu_time_util` say that
  the GPU was idle and not why: "idle", which comes after any claim that names a cause.
* nsys-ai (`diagnose`, and its skill `root_cause_matcher`; no language model, which would see the same findings):
  findings in its own order, those of severity critical before those of severity warning; what is only information is no
  claim. `CAUSES` says which of its words mean which of our causes. One that points at a kernel, an idle GPU or a slow
  iteration without a cause is "idle" or "hotspot", after any claim that names a cause.

Where a tool claims nothing, it says that nothing is wrong, which is right for a busy GPU.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.suite import HELD_OUT, cases

__all__ = ["FAILED", "RESULTS", "UNNAMED", "claims_of_nsys", "claims_of_nsys_ai"]

RESULTS = Path(__file__).resolve().parents[1] / "results" / "diagnosis_peers.json"

#: Claims that name no cause.
UNNAMED = ("idle", "hotspot", "other")
#: In place of a claim: the tool could not read the capture.
FAILED = "error"

_RULES = {
    "cuda_api_sync": "host-sync",
    "cuda_memcpy_async": "blocking-copy",
    "cuda_memcpy_sync": "blocking-copy",
    "cuda_memset_sync": "host-sync",
    "gpu_gaps": "idle",
    "gpu_time_util": "idle",
}

#: Pattern in nsys-ai's labels → our cause; the first match counts.
CAUSES = (
    (re.compile(r"sync blocks|synchronization|synchronous memset", re.IGNORECASE), "host-sync"),
    (re.compile(r"H2D|memcpy|pageable|transfer", re.IGNORECASE), "blocking-copy"),
    (re.compile(r"small kernel|launch overhead", re.IGNORECASE), "launch-overhead"),
    (re.compile(r"alloc|garbage|\bGC\b", re.IGNORECASE), "allocator-churn"),
    (re.compile(r"TC eligible|tensor core", re.IGNORECASE), "precision"),
    (re.compile(r"NCCL|communicat", re.IGNORECASE), "exposed-communication"),
    (re.compile(r"overhead contaminated|overhead is elevated|insufficient", re.IGNORECASE), "incomplete-profile"),
    (re.compile(r"idle|bubble|cpu-bound|stall", re.IGNORECASE), "idle"),
    (re.compile(r"hotspot|top kernel|top-3|variab", re.IGNORECASE), "hotspot"),
)
_PATIENCE_S = 300


def claims_of_nsys(rows: dict[str, list[float]]) -> list[str]:
    """Causes claimed by the rules of `nsys analyze`, the costliest named one first, from the durations (ns) of rows."""
    costs: dict[str, float] = {}
    for rule, durations in rows.items():
        if durations:
            costs[_RULES[rule]] = costs.get(_RULES[rule], 0.0) + sum(durations)
    return sorted(costs, key=lambda cause: (cause in UNNAMED, -costs[cause]))


def claims_of_nsys_ai(findings: list[dict[str, str]]) -> list[str]:
    """Causes claimed by the findings of nsys-ai, the most severe named one first."""
    if any(finding["severity"] == FAILED for finding in findings):
        return [FAILED]
    order = {"critical": 0, "warning": 1}
    wanted = sorted((f for f in findings if f["severity"] in order), key=lambda f: order[f["severity"]])
    claims = [next((cause for words, cause in CAUSES if words.search(f["label"])), "other") for f in wanted]
    return list(dict.fromkeys(sorted(claims, key=lambda cause: cause in UNNAMED)))


def ask_nsys(nsys: str, export: Path) -> dict[str, list[float]]:
    """Durations in the rows of each rule."""
    durations: dict[str, list[float]] = {}
    for rule in _RULES:
        process = subprocess.run(
            [nsys, "analyze", "--rule", f"{rule}:rows=-1", "--format", "csv", "--output", "-", str(export)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
        table = [line for line in process.stdout.splitlines() if "," in line and not line.startswith("Processing")]
        rows = list(csv.DictReader(io.StringIO("\n".join(table))))
        durations[rule] = [float(row["Duration (ns)"]) for row in rows if row.get("Duration (ns)")]
    return durations


def ask_nsys_ai(nsys_ai: str, export: Path) -> list[dict[str, str]]:
    """Severity and label of each finding of `diagnose`, then of the skill for anti-patterns."""
    findings: list[dict[str, str]] = []
    session = str(export.parent / "session")
    for command in (
        ["diagnose", str(export), "--session", session],
        ["skill", "run", "root_cause_matcher", str(export)],
    ):
        for _ in range(3):  # concurrent runs sometimes prevent each other from writing
            process = subprocess.run(
                [nsys_ai, *command, "--format", "json"],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE_S,
                cwd=export.parent,
                env={**os.environ, "HOME": str(export.parent), "TMPDIR": str(export.parent)},
            )
            if not process.returncode:
                break
        if process.returncode:
            return [{"severity": "error", "label": process.stderr.strip().splitlines()[-1].partition(".")[0]}]
        begin = min((at for at in (process.stdout.find("{"), process.stdout.find("[")) if at >= 0), default=0)
        answer = json.loads(process.stdout[begin:])
        rows: list[dict[str, Any]] = answer["findings"] if isinstance(answer, dict) else answer
        findings += [
            {"severity": row["severity"], "label": row.get("label") or row.get("pattern") or ""} for row in rows
        ]
    return findings


def _ask(path: Path, nsys: str, nsys_ai: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / path.name.removesuffix(".xz")
        export.write_bytes(lzma.decompress(path.read_bytes()))
        return {"nsys": ask_nsys(nsys, export), "nsys-ai": ask_nsys_ai(nsys_ai, export)}


def main() -> None:
    """Runs both tools on every case and stores their answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nsys", default="nsys")
    parser.add_argument("--nsys-ai", default="nsys-ai")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="ask about these again; keep the other answers")
    options = parser.parse_args()
    version = subprocess.run([options.nsys, "--version"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"\d+(?:\.\d+){2}", version)
    paths = {case.name: path for case in (*cases(), *cases(HELD_OUT)) if (path := case.path("nsys")) is not None}
    known: dict[str, Any] = {}
    if options.only:
        known = json.loads(RESULTS.read_text(encoding="utf-8"))["answers"]
        paths = {name: path for name, path in paths.items() if name in options.only}
    with ThreadPoolExecutor(4) as pool:  # nsys-ai mostly waits
        answers = list(pool.map(lambda path: _ask(path, options.nsys, options.nsys_ai), paths.values()))
    result = {
        "nsys": number.group() if number else "unknown",
        "answers": {**known, **dict(zip(paths, answers, strict=True))},
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{len(answers)} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
