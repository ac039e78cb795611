"""Makes the suite of pairs that the repository holds from what `pairs.drive` left: scrubbed, compressed, with an index.

    python captures/pairs/pack.py FOLDER --half development      # FOLDER: records, manifest, archives or profiles

A part of a half may be recorded anew: entries of other programs stay.

Each profile is scrubbed (`warplens scrub`, which leaves out what tells of people and machines) into `data/pairs/HALF`,
or `data/several`;
traces of torch.profiler lose the arrows and arguments that no analysis reads; what is still larger than most files here
loses some of its steps. `data/pairs/INDEX.json` says of each program what was recorded and measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAIRS = ROOT / "data" / "pairs"
#: Programs with several habits are a suite of their own.
SEVERAL = ROOT / "data" / "several"
#: A trace larger than this loses steps.
MOST_BYTES = 430_000
#: A habit that costs less than this is stored, and not to be scored.
LEAST_RATIO = 1.15
UNREAD_CATEGORIES = {"ac2g", "gpu_user_annotation"}
UNREAD_ARGUMENTS = {
    *("Ev Idx", "Record function id", "cbid", "queued", "est. achieved occupancy %", "blocks per SM", "warps per SM"),
    *("memory bandwidth (GB/s)", "Python module id"),
}
NSYS, TORCH = ".sqlite.xz", ".pt.trace.json.xz"
Event = dict[str, Any]


def scrubbed(profile: Path, target: Path) -> None:
    """A copy without what tells of people and machines."""
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "warplens", "scrub", "-q", str(profile), str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{profile.name}: {done.stderr[-400:]}")


def packed(profile: Path, folder: Path, steps: int, most_bytes: int = MOST_BYTES) -> tuple[str, int]:
    """The packed copy of one profile: its name and how many steps are left in it."""
    if profile.name.endswith(NSYS):
        with tempfile.TemporaryDirectory() as work:
            clean = Path(work) / profile.name.removesuffix(".xz")
            scrubbed(profile, clean)
            content = densest(clean)
            if len(content) > most_bytes and steps > 1:
                shortened(clean, 1)
                content, steps = densest(clean), 1
        (folder / profile.name).write_bytes(content)
        return profile.name, steps
    name = profile.name
    with tempfile.TemporaryDirectory() as work:
        clean = Path(work) / profile.name.removesuffix(".xz")
        scrubbed(profile, clean)
        trace = json.loads(clean.read_bytes())
    trace["traceEvents"] = lean(trace["traceEvents"])
    content, kept = smallest(trace, steps, most_bytes)
    (folder / name).write_bytes(content)
    return name, kept


def densest(path: Path) -> bytes:
    """The file, compressed."""
    return lzma.compress(path.read_bytes(), check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME)


def shortened(capture: Path, steps: int) -> None:
    """Leaves the first steps of an nsys export: what the host did until they ended, and what it launched."""
    with sqlite3.connect(capture) as base:
        tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        ends = base.execute("SELECT end FROM NVTX_EVENTS WHERE text = 'step' ORDER BY start").fetchall()
        end = ends[:steps][-1][0]
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"):
            base.execute(f"DELETE FROM {table} WHERE start > ?", (end,))
        launched = "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        for kind in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "CUDA_EVENT"):
            if f"CUPTI_ACTIVITY_KIND_{kind}" in tables:
                base.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{kind} WHERE correlationId NOT IN ({launched})")
    with contextlib.closing(sqlite3.connect(capture)) as base:
        base.execute("VACUUM")


def smallest(trace: dict[str, Any], steps: int, most_bytes: int) -> tuple[bytes, int]:
    """The trace with as many steps as there is room for, compressed, and how many these are."""
    events = trace["traceEvents"]
    content = written(trace)
    marks = sorted((e for e in events if is_step(e)), key=lambda e: float(e["ts"]))
    for count in range(len(marks) - 1, 0, -1):
        if len(content) <= most_bytes:
            break
        content = written({**trace, "traceEvents": within(events, marks[:count])})
        steps = count
    if len(content) > 2 * most_bytes and marks:
        left = [e for e in within(events, marks[:1]) if e.get("cat") != "python_function"]
        content, steps = written({**trace, "traceEvents": left}), 1
    return content, steps


def written(trace: dict[str, Any]) -> bytes:
    """The trace as compressed text, one event a line."""
    events = trace["traceEvents"]
    header = {key: value for key, value in trace.items() if key != "traceEvents"}
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    text = json.dumps(header, separators=(",", ":"))[:-1] + ',"traceEvents":[\n' + lines + "\n]}\n"
    return lzma.compress(text.encode(), check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME)


def is_step(event: Event) -> bool:
    """Whether the event is the range of a step, on the host."""
    name = str(event.get("name", ""))
    return event.get("cat") == "user_annotation" and (name == "step" or name.startswith("ProfilerStep#"))


def lean(events: list[Event]) -> list[Event]:
    """The events without what no analysis reads."""
    kept = [event for event in events if event.get("cat") not in UNREAD_CATEGORIES]
    for event in kept:
        if "args" in event:
            event["args"] = {key: value for key, value in event["args"].items() if key not in UNREAD_ARGUMENTS}
    return kept


def within(events: list[Event], marks: list[Event]) -> list[Event]:
    """What the host did during these steps, what surrounds them, and what they launched."""
    begin = float(marks[0]["ts"])
    end = float(marks[-1]["ts"]) + float(marks[-1]["dur"])
    kept: list[Event] = []
    on_gpu: list[Event] = []
    launched = set()
    for event in events:
        arguments = event.get("args", {})
        if "correlation" in arguments and "stream" in arguments:
            on_gpu.append(event)
            continue
        time = float(event.get("ts", begin))
        is_around = time < begin and time + float(event.get("dur", 0)) > end and event.get("cat") == "python_function"
        if event["ph"] == "M" or begin <= time <= end or is_around:
            kept.append(event)
            launched.add(arguments.get("correlation"))
    return kept + [event for event in on_gpu if event["args"]["correlation"] in launched]


def interval(samples: list[float]) -> list[float]:
    """Median, and the interval that holds the median of all such samples with 95 %, by the ranks of these."""
    ordered = sorted(samples)
    count = len(ordered)
    rank, chance, outside = 0, 0.5**count, 0.5**count
    while rank + 1 < count // 2 and 2 * (outside + chance * (count - rank) / (rank + 1)) <= 0.05:
        chance *= (count - rank) / (rank + 1)
        outside += chance
        rank += 1
    return [round(value, 4) for value in (statistics.median(ordered), ordered[rank], ordered[-1 - rank])]


def ratio(before: list[float], after: list[float], work: float = 1.0) -> list[float]:
    """How many times as fast the same work is done, with its interval; `work` is that of a step afterwards."""
    return interval([one / other * work for one, other in zip(before, after, strict=True)])


def timings(timing: dict[str, Any], work: dict[str, int] | None) -> dict[str, list[float]]:
    """Time per step of each variant, and how many times as fast the same work is done afterwards, with intervals."""
    samples = timing["samples_ms"]
    found = {f"{variant}_ms": interval(values) for variant, values in samples.items()}
    if "after" in samples:
        work = work or {"before": 1, "after": 1}
        found["ratio"] = ratio(samples["before"], samples["after"], work["after"] / work["before"])
    return found


def add_repeats(records: Path) -> None:
    """Puts timings that were made again, with nothing else on the machine, beside the first ones."""
    stored = PAIRS / "INDEX.json"
    index = json.loads(stored.read_text(encoding="utf-8"))
    entries = {item["name"]: item for item in index["pairs"]}
    for line in records.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["how"] == "unprofiled":
            item = entries[record["name"]]
            item["again"] = timings(record, item.get("work"))
    stored.write_text(shown(index), encoding="utf-8")


def entry(program: dict[str, Any], records: list[dict[str, Any]], files: dict[str, Any]) -> dict[str, Any]:
    """What the index says of one program."""
    found = [record for record in records if record["name"] == program["name"] and "error" not in record]
    timing = next((record for record in found if record["how"] == "unprofiled"), None)
    told: dict[str, Any] = {
        key: program[key] for key in ("name", "half", "family", "habit", "change", "what", "library")
    }
    told["healthy"] = not (program["habit"] or program["fixes"])
    for key in ("accept", "work"):
        if program[key]:
            told[key] = program[key]
    told |= {key: program[key] for key in ("ranges", "profiler_steps", "with_stack", "inference", "compiles")}
    if timing is not None:
        told |= timings(timing, program["work"])
        if program["fixes"]:
            before = timing["samples_ms"]["before"]
            told["fixes"] = {
                fix: {"change": change, "ratio": ratio(before, timing["samples_ms"][fix])}
                for fix, change in program["fixes"].items()
            }
        if "ratio" in told:
            told["scored"] = told["ratio"][0] >= LEAST_RATIO
        told["samples_ms"] = timing["samples_ms"]
        told["steps_a_sample"] = timing["steps_a_block"]
        told["peak_memory_bytes"] = timing["peak_memory_bytes"]
    profiled = {}
    for record in found:
        if record["how"] == "nsys":
            profiled[f"nsys_{record['variant']}"] = round(record["nsys_ms"], 3)
        elif record["how"] == "time" and not (program["ranges"] and program["profiler_steps"]):
            profiled["torch_before"] = round(record["torch_ms"], 3)
    told["profiled_ms"] = profiled
    told["files"] = files
    return told


def main() -> None:
    """Packs what was recorded of a half, and replaces the entries of these programs in the index."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", help="where the programs belong")
    parser.add_argument("--most-bytes", type=int, default=MOST_BYTES, help="a larger trace loses steps")
    parser.add_argument("--index-only", action="store_true", help="profiles are packed already")
    parser.add_argument("--again", action="store_true", help="the folder holds timings of programs that are packed")
    options = parser.parse_args()
    if options.again:
        add_repeats(options.folder / "records.jsonl")
        return
    if options.half is None:
        parser.error("say where the programs belong (--half)")
    for archive in options.folder.glob("*.tar"):
        with tarfile.open(archive) as tar:
            tar.extractall(options.folder, filter="data")
    manifest = json.loads((options.folder / "manifest.json").read_bytes())
    records = [json.loads(line) for line in (options.folder / "records.jsonl").read_text().splitlines()]
    suite = SEVERAL if options.half == "several" else PAIRS
    target, stored_index = suite if suite == SEVERAL else suite / options.half, suite / "INDEX.json"
    target.mkdir(parents=True, exist_ok=True)
    programs = {program["name"]: program for program in manifest["programs"] if program["half"] == options.half}
    files: dict[str, dict[str, Any]] = {name: {} for name in programs}

    def pack(profile: Path) -> None:
        name, _, rest = profile.name.partition("__")
        variant = rest.partition(".")[0]
        is_nsys = profile.name.endswith(NSYS)
        steps = programs[name]["steps"][0 if is_nsys else 1]
        packed_name, kept = packed(profile, target, steps, options.most_bytes)
        files[name][f"{'nsys' if is_nsys else 'torch'}_{variant}"] = {
            "path": str((target / packed_name).relative_to(suite)),
            "steps": kept,
        }
        print(f"{(target / packed_name).stat().st_size:9,}  {packed_name}  {kept} steps", flush=True)

    if options.index_only:
        stored = json.loads(stored_index.read_bytes())["pairs"]
        files |= {item["name"]: item["files"] for item in stored if item["name"] in files}
    profiles = [p for p in sorted(options.folder.iterdir()) if p.name.endswith((NSYS, TORCH))]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(pack, [p for p in profiles if not options.index_only and p.name.partition("__")[0] in programs]))
    index = (
        json.loads(stored_index.read_bytes()) if stored_index.exists() else {"schema": "warplens.pairs/1", "pairs": []}
    )
    index["recorded"] = {**index.get("recorded", {}), options.half: manifest["tools"]}
    timed = {record["name"] for record in records if record["how"] == "unprofiled"}
    told = [
        entry(program, records, dict(sorted(files[name].items())))
        for name, program in programs.items()
        if files[name] and name in timed
    ]
    index["pairs"] = merged(index["pairs"], told)
    stored_index.write_text(shown(index), encoding="utf-8")


def merged(stored: list[dict[str, Any]], told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries with these in place of those of the same name; what was not recorded anew stays as it is."""
    fresh = {item["name"]: item for item in told}
    known = {item["name"] for item in stored}
    said = ("remedy", "times", "named", "together", "together_before_ms")  # which are written by hand
    return [
        {**fresh[item["name"]], **{key: item[key] for key in said if key in item}} if item["name"] in fresh else item
        for item in stored
    ] + [item for item in told if item["name"] not in known]


def shown(index: dict[str, Any]) -> str:
    """The index as text: an entry's short values a line each."""
    head = {key: value for key, value in index.items() if key != "pairs"}
    blocks = []
    for item in index["pairs"]:
        lines = [f"   {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in item.items()]
        blocks.append("  {\n" + ",\n".join(lines) + "\n  }")
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "pairs": [\n' + ",\n".join(blocks) + "\n ]\n}\n"
    json.loads(text)
    return text


if __name__ == "__main__":
    main()
