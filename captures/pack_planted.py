"""Makes the planted-cause suite that the package ships from what `capture_planted.sh` left: scrubbed and compressed.

    python captures/pack_planted.py OUT [--ddp OUT] [--leave-out NAME …]

Each profile of OUT (in its archives, or unpacked beside them) is scrubbed (`warplens.scrub`, which leaves out what
identifies people and machines) and compressed with xz into `data/planted`; traces of torch.profiler lose
the arrows and arguments that no analysis reads, a fifth of their size. `INDEX.json` there says of each case what is
planted, which verdict is right in which format, how long its steps take with and without the remedy, and whether the
planted cause dominates, judged by these times alone. With `--ddp`, the profiles of `capture_ddp.sh` are added, of the
traces three of their five steps. A profile that cannot be scrubbed is named and not shipped.

The cases that were written after the rules of the diagnosis (`planted/heldout.py`) go elsewhere, out of the package:

    python captures/pack_planted.py OUT --into benchmarks/diagnosis/held_out
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import tarfile
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from warplens.analysis.intervals import Intervals, total, union
from warplens.errors import WarplensError
from warplens.readers import read
from warplens.readers.kineto.scrub import each_event
from warplens.readers.opening import Input
from warplens.scrub import scrub

SHIPPED = Path(__file__).resolve().parents[1] / "data" / "planted"
SOURCES = {".sqlite.xz": "nsys", ".json.xz": "torch"}
#: What the index says of a case; the rest of the manifest is how it was recorded.
DESCRIBED = (
    *("name", "healthy", "second", "remedies", "ranges", "steps", "recorded_warmup", "sync_each_step", "training"),
    *("environment", "graph_trace", "planted", "why"),
)
#: Both runs of two GPUs that have a cause are shipped in both formats; the others can be recorded.
DDP_RUNS = ("straggler-gpu", "exposed")
#: Of the five steps of a rank's trace those that are shipped, counted from 0: neither the first nor the last.
DDP_STEPS = (1, 3)

#: Events and arguments that no analysis reads: they repeat what others say, or can be computed.
UNREAD_CATEGORIES = {"ac2g", "gpu_user_annotation"}
UNREAD_ARGUMENTS = {
    *("Ev Idx", "Record function id", "cbid", "queued", "est. achieved occupancy %", "blocks per SM", "warps per SM"),
    "memory bandwidth (GB/s)",
}

#: Remedies that change how much a step does: how many times the work of the baseline.
WORK = {("four_blocks", "larger-batch"): 32}
#: A planted cause is worth naming if its remedy makes a step a tenth faster (a share of 0.09). It dominates if it saves
#: more than is idle afterwards: less would be the second-largest cause at best.
WORTH = 0.09

#: A healthy program whose steps take this much longer under the profiler is not healthy in that profile: the profiler
#: (or what ran beside it) made its host slower than its GPU.
DISTURBED = 1.2

#: Text compresses a few per cent better without regard to the places of words of four bytes.
TEXT_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0, "lc": 4, "lp": 0}]
BINARY_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


def pack(profile: Path, target: Path, steps: tuple[int, int] | None = None) -> int:
    """Writes the scrubbed, compressed copy of one profile, in the format of the target's suffix; returns its size."""
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / target.name.removesuffix(".xz")
        scrub(profile, clean)
        is_text = clean.suffix == ".json"
        content = lean(clean, steps) if is_text else clean.read_bytes()
    filters = TEXT_FILTERS if is_text else BINARY_FILTERS
    target.write_bytes(lzma.compress(content, check=lzma.CHECK_CRC32, filters=filters))
    return target.stat().st_size


def lean(trace: Path, steps: tuple[int, int] | None) -> bytes:
    """The trace without events that no analysis reads, and with `steps` only with the launches of these steps."""
    recorded: list[dict[str, Any]] = []
    header = each_event(Input(trace, trace), recorded.append).header
    events = [event for event in recorded if event.get("cat") not in UNREAD_CATEGORIES]
    for event in events:
        if "args" in event:
            event["args"] = {key: kept for key, kept in event["args"].items() if key not in UNREAD_ARGUMENTS}
    if steps is not None:
        events = within(events, *steps)
    lines = b",\n".join(map(orjson.dumps, events))
    return orjson.dumps(header)[:-1] + b',"traceEvents":[\n' + lines + b"\n]}\n"


def within(events: list[dict[str, Any]], first: int, last: int) -> list[dict[str, Any]]:
    """The host's events during these steps, and the work that they launched."""

    def time(event: dict[str, Any], member: str = "ts") -> float:
        return float(orjson.dumps(event[member]))

    marks = sorted((e for e in events if e.get("name", "").startswith("ProfilerStep#")), key=time)
    begin, end = time(marks[first]), time(marks[last]) + time(marks[last], "dur")
    kept: list[dict[str, Any]] = []
    launched = set()
    on_gpu = []
    for event in events:
        if "correlation" in event.get("args", {}) and "stream" in event["args"]:
            on_gpu.append(event)
        elif event["ph"] == "M" or begin <= time(event) <= end:
            kept.append(event)
            launched.add(event.get("args", {}).get("correlation"))
    return kept + [event for event in on_gpu if event["args"]["correlation"] in launched]


def source_of(name: str) -> str:
    """The profiler that wrote a file of that name; empty if it is not a profile."""
    return next((source for ending, source in SOURCES.items() if name.endswith(ending)), "")


def profiles_of(out: Path, folder: Path) -> dict[str, Path]:
    """The profiles of `out` by name; its archives are unpacked into `folder`, and files beside them take precedence."""
    for archive in sorted(out.glob("*.tar")):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    found = {path.name: path for path in [*folder.iterdir(), *out.iterdir()] if source_of(path.name)}
    return dict(sorted(found.items()))


def packed(jobs: list[tuple[Path, Path, tuple[int, int] | None]]) -> list[str]:
    """Packs profiles, several at a time; the names of those that succeeded."""
    done = []
    with ProcessPoolExecutor(2) as pool:
        sizes = [pool.submit(pack, *job) for job in jobs]
        for (profile, target, _), size in zip(jobs, sizes, strict=True):
            error = size.exception()
            if isinstance(error, WarplensError):
                print(f"  not shipped: {profile.name}: {error}", flush=True)
                continue
            print(f"{size.result():9,}  {target.name}", flush=True)
            done.append(target.name)
    return done


def gpu_busy_ns(case: dict[str, Any], files: dict[str, str], folder: Path) -> int | None:
    """GPU-busy time per step of the baseline, from its profile."""
    name = files.get("nsys") or files.get("torch")
    if name is None:
        return None
    trace = read(folder / name)
    frames = [trace.kernels, trace.copies, trace.memsets, trace.graph_launches]
    starts, ends = (np.concatenate([frame[column].to_numpy() for frame in frames]) for column in ("start_ns", "end_ns"))
    return total(union(Intervals(starts, ends))) // (case["steps"] + case["recorded_warmup"])


def judged(case: dict[str, Any], timings: dict[str, Any], busy_ns: int | None) -> dict[str, Any]:
    """Savings of the remedies in a step, measured without a profiler, and whether the planted cause dominates."""
    wall = {
        variant: measured["unprofiled"]["wall_mean_ns"] / WORK.get((case["name"], variant), 1)
        for variant, measured in timings.items()
        if "wall_mean_ns" in measured.get("unprofiled", {})
    }
    if case["healthy"]:
        profiled = {source: timings["baseline"][source]["wall_mean_ns"] for source in case["sources"]}
        factors = {source: round(step / wall["baseline"], 3) for source, step in profiled.items()}
        return {
            "profiled_factor": factors,
            "healthy_in": [source for source, factor in factors.items() if factor < DISTURBED],
        }
    if "baseline" not in wall or not case["remedies"]:
        return {}
    gains = {variant: 1 - wall[variant] / wall["baseline"] for variant in case["remedies"] if variant in wall}
    single = {variant: gain for variant, gain in gains.items() if variant != "neither"}
    best = max(single, key=lambda variant: single[variant])
    verdict: dict[str, Any] = {"gain_share": {variant: round(gain, 4) for variant, gain in gains.items()}}
    if busy_ns is not None:
        verdict["gpu_busy_ns"] = busy_ns
    saved, rest = wall["baseline"] - wall[best], max(0, wall[best] - (busy_ns or wall[best]))
    verdict["dominates"] = single[best] >= WORTH and (saved >= rest or case["second"] != "")
    if not verdict["dominates"]:
        verdict["why_not"] = (
            "the remedy makes a step less than a tenth faster"
            if single[best] < WORTH
            else f"more is idle after the remedy ({rest / 1e6:.1f} ms a step) than it saves ({saved / 1e6:.1f} ms)"
        )
    return verdict


def case_entry(case: dict[str, Any], files: set[str], timings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The index entry of one case."""
    entry = {key: case[key] for key in DESCRIBED if case[key] not in ("", [], {})}
    verdicts = [case["expected"], *case["accept"]] if case["expected"] else []
    entry["verdict"] = dict.fromkeys(case["sources"], verdicts)
    variants = {}
    for variant in ("baseline", *case["remedies"]):
        measured = timings.get(variant, {})
        names = {source: f"{case['name']}__{variant}{ending}" for ending, source in SOURCES.items()}
        variants[variant] = {
            "files": {source: name for source, name in names.items() if name in files},
            "unprofiled_ns": {
                key: measured["unprofiled"][key]
                for key in ("steps", "median_ns", "q1_ns", "q3_ns", "wall_mean_ns")
                if "wall_mean_ns" in measured.get("unprofiled", {})
            },
            "profiled_mean_ns": {
                source: measured[source]["wall_mean_ns"]
                for source in ("nsys", "torch")
                if "wall_mean_ns" in measured.get(source, {})
            },
        }
    entry["measured"] = judged(case, timings, gpu_busy_ns(case, variants["baseline"]["files"], folder))
    entry["variants"] = variants
    return entry


def ddp_entries(records: list[dict[str, Any]], files: set[str]) -> list[dict[str, Any]]:
    """The runs on two GPUs: files and figures of each rank."""
    return [
        {
            "name": f"ddp_{run}",
            "verdict": {
                # One file holds both ranks; a file of one rank cannot tell who is late.
                "nsys": [*(["straggler"] if "straggler" in run else []), "exposed-communication"],
                "torch": ["exposed-communication"],
            },
            "files": {
                "nsys": f"ddp_{run}.sqlite.xz" if f"ddp_{run}.sqlite.xz" in files else None,
                "torch": sorted(name for name in files if name.startswith(f"ddp_{run}_rank")),
            },
            "torch_steps": list(range(DDP_STEPS[0], DDP_STEPS[1] + 1)),
            "ranks": sorted(
                (
                    {key: value for key, value in record.items() if key != "run"}
                    for record in records
                    if record["run"] == run
                ),
                key=lambda record: record["rank"],
            ),
        }
        for run in DDP_RUNS
    ]


def main() -> None:
    """Packs everything, writes the index, prints the sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder that capture_planted.sh wrote")
    parser.add_argument("--ddp", type=Path, help="folder that capture_ddp.sh wrote")
    parser.add_argument(
        "--leave-out", nargs="+", default=[], metavar="NAME", help="profiles (CASE__VARIANT) not to ship"
    )
    parser.add_argument("--only", nargs="+", metavar="CASE", help="pack these cases anew and keep the other profiles")
    parser.add_argument("--index-only", action="store_true", help="write the index for the profiles that are there")
    parser.add_argument("--into", type=Path, default=SHIPPED, metavar="FOLDER", help="default: the package's data")
    options = parser.parse_args()
    into: Path = options.into
    into.mkdir(parents=True, exist_ok=True)
    manifest = json.loads((options.out / "manifest.json").read_text(encoding="utf-8"))
    timings = json.loads((options.out / "planted_timings.json").read_text(encoding="utf-8"))["cases"]
    records: list[dict[str, Any]] = []
    if options.ddp:
        lines = (options.ddp / "ddp_records.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
    if not options.index_only:
        for old in into.glob("*.xz"):
            if not options.only or old.name.partition("__")[0] in options.only:
                old.unlink()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as ddp_folder:
            found = profiles_of(options.out, Path(folder))
            left_out = {name for name in found if name.partition(".")[0] in options.leave_out}
            jobs = [(path, into / name, None) for name, path in found.items() if name not in left_out]
            jobs = [job for job in jobs if not options.only or job[1].name.partition("__")[0] in options.only]
            if options.ddp and not options.only:
                wanted = [f"ddp_{run}.sqlite.xz" for run in DDP_RUNS]
                wanted += [f"{run}_rank{rank}.json.xz" for run, rank in itertools.product(DDP_RUNS, range(2))]
                found = profiles_of(options.ddp, Path(ddp_folder))
                jobs += [
                    (found[name], into / f"ddp_{name.removeprefix('ddp_')}", DDP_STEPS if "_rank" in name else None)
                    for name in wanted
                    if name in found
                ]
            packed(jobs)
    files = {path.name for path in into.glob("*.xz")}
    index = {
        "made_by": "captures/capture_planted.sh, capture_ddp.sh and pack_planted.py of the source repository",
        "tools": manifest["tools"],
        "units": "nanoseconds; unprofiled_ns: a step without a profiler, by CUDA events",
        "verdict": "per format, the findings that name the cause, the planted one first; none where none is asked for",
        "measured": "gain_share: how much shorter a remedy makes a step (of the same work), without a profiler; "
        "dominates: whether the planted cause is the largest by these times; "
        "profiled_factor: how much longer a healthy program's "
        "step takes under the profiler; healthy_in: the profiles in which it is healthy, too",
        "cases": [
            case_entry(case, files, timings[case["name"]], into)
            for case in manifest["cases"]
            if case["name"] in timings  # where only some cases were run, there are figures of these
        ],
        "ddp": ddp_entries(records, files) if options.ddp else [],
    }
    (into / "INDEX.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    sizes = sum(path.stat().st_size for path in into.iterdir())
    print(f"{sizes:9,}  together")


if __name__ == "__main__":
    main()
