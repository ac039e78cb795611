"""Runs the whole suite: timings, profiles by nsys and by torch.profiler; leaves a few archives.

    NSYS=nsys python -m planted.drive OUT [--only CASE-OR-MODULE …] [--stages timings nsys torch]

In OUT afterwards: `planted_timings.json` (its `fields` says what is in it), `manifest.json` (tools, cases,
what failed and the end of its log), and the profiles, each compressed with xz, in
`nsys_0.tar` … (SQLite exports) and `torch_0.tar` … (Chrome traces). Profiles are called `CASE__VARIANT`.

Only one program at a time has the GPU. While it runs, others already load their libraries, and nsys writes the reports
of those that are done. Needs nothing but Python's standard library, apart from what the programs need.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).resolve().parents[1]
#: No archive is larger, so that each can be sent anywhere.
ARCHIVE_BYTES = 15_000_000
#: A run that takes longer is given up.
PATIENCE_S = 90
#: With this code a process ends whose CUDA is broken, after it noted which run broke it.
BROKEN_CUDA = 3
STAGES = ["timings", "nsys", "torch"]
NSYS = os.environ.get("NSYS", "nsys")
FIELDS = {
    "tools": "versions and the GPU",
    "cases.*.*": "a case, and a variant of it: baseline, or one named after the remedy that is applied",
    "unprofiled": "without a profiler: number of steps; median, quartiles, least and most of the time from a step's "
    "begin to the next one's, by CUDA events on the GPU's clock; wall_mean_ns by the host's clock over all steps, last "
    "wait included",
    "nsys, torch": "the same steps while profiled, by the host's clock: steps_ns one by one (where the program "
    "does not wait for the GPU in each step only their sum says something), wall_mean_ns as above",
}


class Suite:
    """Where things go, and until when."""

    def __init__(self, out: Path, work: Path, workers: int, budget_s: float) -> None:
        self.out, self.work, self.workers = out, work, workers
        self.deadline = time.monotonic() + budget_s
        self.begin = time.monotonic()
        self.records = work / "records.jsonl"
        self.failures: list[dict[str, str]] = []
        self.stages: dict[str, float] = {}
        found = self.python("list").stdout
        described = json.loads(found[found.index('{"cases"') :])
        self.cases: dict[str, dict[str, Any]] = {case["name"]: case for case in described["cases"]}
        self.tools: dict[str, str] = described["tools"]

    def python(self, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """One process of `planted.run`; what it says about its progress is passed on."""
        return subprocess.run(
            [sys.executable, "-m", "planted.run", *arguments],
            cwd=CAPTURES,
            env=self.environment(environment or {}),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=max(10, self.remaining_s()) if hasattr(self, "deadline") else None,
        )

    @staticmethod
    def environment(more: dict[str, str]) -> dict[str, str]:
        """This process's environment and more."""
        return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **more}

    def remaining_s(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    def say(self, text: str) -> None:
        """Progress, with the seconds since the begin."""
        print(f"[{time.monotonic() - self.begin:6.1f} s] {text}", file=sys.stderr, flush=True)

    def done(self, how: str) -> set[str]:
        """The runs that have a record, good or bad."""
        return {f"{r['case']}@{r['variant']}" for r in self.read_records() if r["how"] == how}

    def read_records(self) -> list[dict[str, Any]]:
        """All records so far."""
        if not self.records.exists():
            return []
        return [json.loads(line) for line in self.records.read_text(encoding="utf-8").splitlines()]

    def in_one_process(self, how: str, runs: list[str], environment: dict[str, str], *more: str) -> None:
        """Runs them one after the other; where one kills the process, the others go on in a new one."""
        kind = "unprofiled" if how == "time" else how
        while runs and self.remaining_s() > 15:
            try:
                process = self.python(
                    how, "--records", str(self.records), *more, "--runs", *runs, environment=environment
                )
            except subprocess.TimeoutExpired:
                runs = [name for name in runs if name not in self.done(kind)]
                break
            left = [name for name in runs if name not in self.done(kind)]
            if process.returncode != BROKEN_CUDA and left:  # the first of them ended the process
                self.failed(kind, left[0], f"the process ended with {process.returncode}")
                left = left[1:]
            runs = left
        for name in runs:
            self.failed(kind, name, "out of time")

    def failed(self, how: str, name: str, why: str) -> None:
        """Notes a run that has no result."""
        self.failures.append({"how": how, "run": name, "why": why})
        self.say(f"{how} {name}: failed: {why}")

    def timings(self, cases: list[dict[str, Any]]) -> None:
        """Every variant without a profiler, nothing beside it on the machine."""
        cases = [case for case in cases if not case["own_process"]]
        baselines = [(case, f"{case['name']}@baseline") for case in cases]
        ordinary = []
        for case, name in baselines:
            ordinary += [] if case["environment"] else [name]
            ordinary += [f"{case['name']}@{remedy}" for remedy in case["remedies"]]
        self.in_one_process("time", ordinary, {})
        for case, name in baselines:
            if case["environment"]:
                self.in_one_process("time", [name], case["environment"])

    def torch(self, cases: list[dict[str, Any]]) -> None:
        """Profiles by torch.profiler."""
        folder = self.work / "torch"
        folder.mkdir(exist_ok=True)
        cases = [case for case in cases if "torch" in case["sources"]]
        together = [c for c in cases if not c["environment"] and not c["own_process"]]
        runs = [f"{case['name']}@{variant}" for case in together for variant in case["captured"]]
        self.in_one_process("torch", runs, {}, "--out", str(folder))
        for case in cases:
            if case not in together:
                self.in_one_process("torch", [f"{case['name']}@baseline"], case["environment"], "--out", str(folder))
        self.archive("torch", sorted(folder.glob("*.json")))

    def nsys(self, cases: list[dict[str, Any]]) -> None:
        """Profiles by nsys, a process each; exports afterwards, since they would disturb the profiles."""
        folder = self.work / "nsys"
        folder.mkdir(exist_ok=True)
        runs = [(case, variant) for case in cases if "nsys" in case["sources"] for variant in case["captured"]]
        with ThreadPoolExecutor(self.workers) as pool:
            reports = list(pool.map(lambda run: self._nsys(folder, *run), runs))
        self.say(f"{sum(report is not None for report in reports)} of {len(runs)} reports by nsys; exporting")
        with ThreadPoolExecutor(max(self.workers, 8)) as pool:
            exports = list(pool.map(self._export, [report for report in reports if report is not None]))
        self.archive("nsys", [export for export in exports if export is not None])

    def _nsys(self, folder: Path, case: dict[str, Any], variant: str) -> Path | None:
        name, target = f"{case['name']}@{variant}", folder / f"{case['name']}__{variant}"
        environment = case["environment"] if variant == "baseline" else {}
        # Not "stop" at cudaProfilerStop: nsys would then note that events might be missing.
        command = [
            *(NSYS, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true"),
            *(
                "--capture-range=cudaProfilerApi",
                "--capture-range-end=none",
                f"--cuda-graph-trace={case['graph_trace']}",
            ),
            *(f"--output={target}", sys.executable, "-m", "planted.run", "nsys", "--records", str(self.records)),
            *("--lock", str(self.work / "lock"), "--runs", name),
        ]
        if self.remaining_s() < 20:
            self.failed("nsys", name, "out of time")
            return None
        error = self._call(command, target.with_suffix(".log"), self.environment(environment))
        report = target.with_suffix(".nsys-rep")
        if report.exists():
            return report
        self.failed("nsys", name, error or "no report")
        return None

    def _export(self, report: Path) -> Path | None:
        target = report.with_suffix(".sqlite")
        command = [NSYS, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report)]
        error = self._call(command, report.with_suffix(".export.log"), None)
        if target.exists():
            return target
        self.failed("export", report.stem, error or "no export")
        return None

    @staticmethod
    def _call(command: list[str], log: Path, environment: dict[str, str] | None) -> str:
        """Runs a command, its output to a log; the log's end where it failed, else nothing."""
        with log.open("w") as output:
            try:
                process = subprocess.run(
                    command,
                    cwd=CAPTURES,
                    env=environment,
                    stdout=output,
                    stderr=output,
                    check=False,
                    timeout=PATIENCE_S,
                )
                code: object = process.returncode
            except subprocess.TimeoutExpired:
                code = f"no end after {PATIENCE_S} s"
        if code == 0:
            return ""
        return f"{code}: …{log.read_text(encoding='utf-8', errors='replace')[-1500:]}"

    def archive(self, kind: str, files: list[Path]) -> None:
        """Compresses the files and puts them into as few archives as the largest size allows."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            packed = list(pool.map(compressed, files))
        bundles: list[list[Path]] = [[]]
        room = ARCHIVE_BYTES
        for path in packed:
            length = path.stat().st_size + 1024
            if length > room and bundles[-1]:
                bundles.append([])
                room = ARCHIVE_BYTES
            bundles[-1].append(path)
            room -= length
        for index, bundle in enumerate(bundles):
            with tarfile.open(self.out / f"{kind}_{index}.tar", "w") as archive:
                for path in bundle:
                    archive.add(path, path.name)
        total = sum(path.stat().st_size for path in packed)
        self.say(f"{kind}: {len(packed)} files, {total / 1e6:.1f} MB compressed, in {len(bundles)} archives")

    def write(self) -> None:
        """The timings and the manifest as they are now."""
        cases: dict[str, dict[str, Any]] = {}
        failures = list(self.failures)
        for record in self.read_records():
            if "error" in record:
                run = f"{record['case']}@{record['variant']}"
                failures.append({"how": record["how"], "run": run, "why": record["error"]})
            case, variant, how = record.pop("case"), record.pop("variant"), record.pop("how")
            cases.setdefault(case, {}).setdefault(variant, {})[how] = record
        timings = {"unit": "ns", "fields": FIELDS, "tools": self.tools, "cases": cases}
        (self.out / "planted_timings.json").write_text(json.dumps(timings, indent=1) + "\n", encoding="utf-8")
        manifest = {
            "tools": self.tools,
            "stages_s": self.stages,
            "cases": list(self.cases.values()),
            "failures": failures,
        }
        (self.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def compressed(path: Path) -> Path:
    """The file beside it with .xz."""
    target = path.with_name(f"{path.name}.xz")
    target.write_bytes(lzma.compress(path.read_bytes(), preset=6))
    return target


def version(command: str) -> str:
    """What the tool says about itself, in one line; empty where it cannot be run."""
    try:
        process = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return ""
    return " ".join(process.stdout.split())


def main() -> None:
    """Runs the stages in order; each leaves its results before the next begins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--only", nargs="+", help="names of cases or of modules that have them (default: all)")
    parser.add_argument("--workers", type=int, default=4, help="programs that are under way at a time; one has the GPU")
    parser.add_argument("--budget-s", type=float, default=540, help="seconds after which nothing new is begun")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        suite = Suite(options.out.resolve(), Path(work), options.workers, options.budget_s)
        suite.tools["nsys"] = version(NSYS)
        suite.tools["driver"] = version("nvidia-smi").partition("DRIVER version")[2].strip(" :").partition(" ")[0]
        cases = list(suite.cases.values())
        if options.only is not None:
            cases = [case for case in cases if {case["name"], case["group"]} & set(options.only)]
        suite.say(f"{len(cases)} cases; {suite.tools}")
        for stage in options.stages:
            begin = time.monotonic()
            try:
                getattr(suite, stage)(cases)
            except Exception as error:  # the other stages are worth having
                suite.failed(stage, "all", repr(error))
            suite.stages[stage] = time.monotonic() - begin
            suite.write()
            suite.say(f"{stage} took {suite.stages[stage]:.1f} s")


if __name__ == "__main__":
    main()
