"""Runs all programs of a half: timings, traces of torch.profiler, captures of nsys; leaves a few archives.

    NSYS=nsys python -m pairs.drive OUT [--half development] [--how try time nsys] [--only NAME …]

In OUT afterwards: `records.jsonl` (a line a run, failed ones with their error), `manifest.json` (tools, programs), and
the profiles, compressed with xz, in `pairs_0.tar` … . Only one program at a time has the GPU. While it runs, others
already load their libraries and make their models, and nsys writes the reports of those that are done.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import signal
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
ARCHIVE_BYTES = 15_500_000
#: Seconds after which a run is given up.
PATIENCE_S = 180
NSYS = os.environ.get("NSYS", "nsys")


class Driver:
    """Where things go, and until when."""

    def __init__(self, out: Path, work: Path, budget_s: float) -> None:
        self.out, self.work = out, work
        self.begin = time.monotonic()
        self.deadline = self.begin + budget_s
        self.records, self.lock = out / "records.jsonl", work / "lock"
        self.exporters = ThreadPoolExecutor(3)
        self.exports: list[Any] = []

    def say(self, text: str) -> None:
        """Progress, with the seconds since the begin."""
        print(f"[{time.monotonic() - self.begin:6.1f} s] {text}", file=sys.stderr, flush=True)

    def call(self, command: list[str], log: Path) -> str:
        """Runs a command in a session of its own; why it failed, or nothing."""
        patience = min(PATIENCE_S, self.deadline - time.monotonic())
        if patience < 15:
            return "out of time"
        environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "4",
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", "/tmp/pairs_inductor"),
        }
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=CAPTURES, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code: object = process.wait(patience)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = f"no end after {patience:.0f} s"
        return "" if code == 0 else f"{code}: …{log.read_text(encoding='utf-8', errors='replace')[-600:]}"

    def run(self, task: tuple[str, dict[str, Any], str]) -> None:
        """One run of one program; a profile goes to the exporters."""
        how, program, variant = task
        name = program["name"]
        stem = f"{name}__{variant}"
        command = [sys.executable, "-m", "pairs.run", how, f"{program['module']}.{name}"]
        command += ["--records", str(self.records), "--lock", str(self.lock), "--out", str(self.work)]
        if how == "nsys":
            # Not "stop" at cudaProfilerStop: nsys would then note that events might be missing.
            command = [
                *(NSYS, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true"),
                *("--capture-range=cudaProfilerApi", "--capture-range-end=none", "--cuda-graph-trace=node"),
                *(f"--output={self.work / stem}", *command, "--variant", variant),
            ]
        begin = time.monotonic()
        error = self.call(command, self.work / f"{stem}.{how}.log")
        if error:
            with self.records.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, "how": how, "variant": variant, "error": error[-700:]}) + "\n")
        self.say(f"{how:4} {stem}: {time.monotonic() - begin:.1f} s {error[-300:]}")
        if how == "nsys" and (self.work / f"{stem}.nsys-rep").exists():
            self.exports.append(self.exporters.submit(self.export, self.work / f"{stem}.nsys-rep"))
        trace = self.work / f"{stem}.pt.trace.json"
        if how == "time" and trace.exists():
            self.exports.append(self.exporters.submit(compressed, trace))

    def export(self, report: Path) -> Path | None:
        """The SQLite export of a report, compressed."""
        target = report.with_suffix(".sqlite")
        command = [NSYS, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report)]
        error = self.call(command, report.with_suffix(".export.log"))
        if not target.exists():
            self.say(f"export {report.stem}: {error[-300:]}")
            return None
        return compressed(target)

    def archive(self) -> None:
        """Puts what there is into as few archives as the largest size allows."""
        packed = [path for path in (job.result() for job in self.exports if not job.cancelled()) if path is not None]
        bundles: list[list[Path]] = [[]]
        room = ARCHIVE_BYTES
        for path in sorted(packed, key=lambda path: path.stat().st_size, reverse=True):
            length = path.stat().st_size + 1024
            if length > room and bundles[-1]:
                bundles.append([])
                room = ARCHIVE_BYTES
            bundles[-1].append(path)
            room -= length
        for index, bundle in enumerate(bundles):
            with tarfile.open(self.out / f"pairs_{index}.tar", "w") as tar:
                for path in bundle:
                    tar.add(path, path.name)
        total = sum(path.stat().st_size for path in packed)
        self.say(f"{len(packed)} profiles, {total / 1e6:.1f} MB compressed, in {len(bundles)} archives")


def compressed(path: Path) -> Path:
    """The file beside it with .xz."""
    target = path.with_name(f"{path.name}.xz")
    target.write_bytes(lzma.compress(path.read_bytes(), preset=4))
    path.unlink()
    return target


def tools() -> dict[str, str]:
    """Versions of everything, and the GPU."""
    names = "torch torchvision transformers timm lightning accelerate sentence-transformers torch-geometric triton"
    code = (
        "import json, platform, importlib.metadata as m, torch\n"
        f"names = {names!r}.split()\n"
        "found = {n: m.version(n) for n in names if any(m.distributions(name=n))}\n"
        "found |= {'cuda': torch.version.cuda or '', 'python': platform.python_version()}\n"
        "found |= {'gpu': torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'}\n"
        "print(json.dumps(found))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    versions: dict[str, str] = json.loads(found.stdout or "{}")
    for name, command in {
        "nsys": [NSYS, "--version"],
        "driver": ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
    }.items():
        try:
            said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
        versions[name] = " ".join(said.split())
    return versions


def main() -> None:
    """Tries all, or times and records all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", nargs="+", default=["development"])
    parser.add_argument("--how", nargs="+", choices=["try", "time", "nsys"], default=["time", "nsys"])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--programs", type=Path, help="what `pairs.run list` printed, to save the time")
    parser.add_argument("--workers", type=int, default=5, help="programs that are under way; one has the GPU")
    parser.add_argument("--budget-s", type=float, default=500, help="seconds after which nothing new is begun")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.programs:
        listed = options.programs.read_text(encoding="utf-8")
    else:
        command = [sys.executable, "-m", "pairs.run", "list"]
        listed = subprocess.run(command, cwd=CAPTURES, capture_output=True, text=True, check=True).stdout
    programs = json.loads(listed[listed.index("[\n") :])
    programs = [p for p in programs if p["half"] in options.half and (not options.only or p["name"] in options.only)]
    tasks = []
    for program in programs:
        if "try" in options.how:
            tasks.append(("try", program, "before"))
        if "time" in options.how:
            tasks.append(("time", program, "before"))
        if "nsys" in options.how:
            tasks.append(("nsys", program, "before"))
    if "nsys" in options.how:
        tasks += [("nsys", program, "after") for program in programs if program["also_after"]]
    with tempfile.TemporaryDirectory() as work:
        driver = Driver(options.out.resolve(), Path(work), options.budget_s)
        driver.say(f"{len(programs)} programs, {len(tasks)} runs")
        with ThreadPoolExecutor(options.workers) as pool:
            versions = driver.exporters.submit(tools)
            list(pool.map(driver.run, tasks))
        manifest = {"tools": versions.result(), "programs": programs}
        (options.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        driver.deadline += 60
        driver.archive()


if __name__ == "__main__":
    main()
