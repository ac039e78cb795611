"""What is mutated: small files of every kind that Warplens reads, and the command lines that read them."""

from __future__ import annotations

import json
import lzma
import shlex
import tempfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random

from tests import shipped
from tests.cli.small_export import write_export
from tests.cli.torch_trace import write_trace

CORPUS = Path(__file__).parent / "corpus"
INPUTS = Path(__file__).parents[1] / "golden" / "inputs"

_SWEEP = "sweep run --axis n=1,2 --baseline 'true {{n}}' --variant 'true {{n}}' --repeats 1 -o {name}.json --quiet"

_TABLES = (
    *("kernels --by category", "kernels --window all", "ranges --by tree", "ranges --operators", "operators"),
    *("operators --by module", "launches --by api,thread", "steps", "phases --by step", "flops", "memory --by event"),
    *("copies", "api --by kind", "code", "budget", "headroom"),
)
#: Command lines by what a file holds; `read` is none, but what most commands begin with, at a tenth of their time.
#: `{path}` is the mutated file, `{seed}` the whole one it was made from.
_TRACE = (
    *("read {path}",) * 100,
    *(f"{command} {{path}} -f {form}" for command in _TABLES for form in ("json", "csv", "table")),
    *("kernels {path} -f json",) * 10,
    *("diagnose {path} -f json",) * 8,
    *("diagnose {path}", "answer {path}", "diagnose {path} -f md", "kernels {path} --range step -f json") * 2,
    *("report {path} -f json",) * 4,
    *("report {path} -o {out} -f html", "export {path} --to csv -o {out}", "export {path} --to parquet -o {out}"),
    *("export {path} --to perfetto -o {out}", "compare {seed} {path} -f json", "compare {path} {seed}") * 2,
    *("scrub {path} {out}.copy",) * 8,
    "ranges {path} --by tree -f md",
)
_COUNTERS = (
    *("read {path}",) * 15,
    *("counters {path} -f json",) * 4,
    *("counters {path} --by launch -f csv", "counters {path}", "roofline {path} -f json", "roofline {path}") * 2,
    *("report {path} -f json", "compare {seed} {path} -f json", "export {path} --to csv -o {out}"),
    *("scrub {path} {out}.copy",) * 3,
)
_MEASURED = (
    *("read {path}",) * 9,
    *("bench show {path} -f json", "sweep report {path} -f json") * 3,
    *("bench show {path}", "sweep report {path}", "sweep report {path} -f csv", "compare {seed} {path} -f json"),
    *("policy fit {path} --baseline method=none,attention=explicit --variant method=topk -f json",) * 2,
    *("scrub {path} {out}.copy",) * 2,
)


@dataclass(frozen=True)
class Seed:
    """A file to mutate: its name, how it is mutated (a key of `mutators.MUTATORS`), and who reads it."""

    name: str
    kind: str
    content: bytes
    commands: tuple[str, ...]

    @property
    def format(self) -> str:
        """What is counted together: a kind of file, or of document."""
        return {"policy": "policy", "text": "ncu-csv"}.get(self.name, self.kind)


@cache
def seeds() -> tuple[Seed, ...]:
    """All seeds, in a fixed order."""
    from tests.readers.nsys_reports import small_report
    from tests.readers.test_ncu_fuzz import whole_report
    from tests.test_scrub_counters import COLUMNS, LAUNCH, STATE

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export = write_export(folder / "export.sqlite").read_bytes()
        extra = write_export(folder / "extra.sqlite", "ncclDevKernel_AllReduce_Sum_f32_RING_LL").read_bytes()
        trace = write_trace(folder / "trace.json").read_bytes()
        ledger = _ledger(folder)
    counters = [f'"ID","Process ID","Process Name","{STATE}","Kernel Name",{COLUMNS}', _UNITS]
    counters += [f'"{n}","4711","python","","gemm{n}(float *)",{LAUNCH},"{n}2","32"' for n in range(4)]
    timings = shipped.files("captures", "lm_timings.csv")[0].read_bytes()
    policy = shipped.files("policies", "token_reduction.json")[0].read_bytes()
    check = ("policy show {path} -f json", "policy show {path}", "policy check {path} {measured} -f json")
    return (
        Seed("export", "sqlite", export, _TRACE),
        Seed("extra", "sqlite", extra, _TRACE),
        Seed("plain", "sqlite", lzma.decompress((INPUTS / "plain.sqlite.xz").read_bytes()), _TRACE),
        Seed("trace", "trace", trace, _TRACE),
        Seed("links", "trace", json.dumps(_linked(json.loads(trace))).encode(), _TRACE),
        Seed("report", "nsys-rep", small_report(), _TRACE),
        Seed("counters", "ncu-rep", bytes(whole_report().content), _COUNTERS),
        Seed("text", "csv", "\n".join(counters).encode(), _COUNTERS),
        Seed("timings", "csv", timings, (_GRID, "scrub {path} {out}.copy")),
        Seed("published", "csv", (INPUTS / "published.csv").read_bytes(), ("sweep report {path} -f json",)),
        Seed("measured", "document", _measured("token_reduction.json.xz", 10), _MEASURED),
        Seed("grid", "document", _measured("lm_grid.json.xz", 6), _MEASURED),
        Seed("policy", "document", policy, check),
        Seed("ledger", "ledger", ledger, (f"{_SWEEP} --dry-run", f"{_SWEEP} --dry-run --retry")),
    )


def by_name(name: str) -> Seed:
    """The seed of this name."""
    return next(seed for seed in seeds() if seed.name == name)


def one_of(fitting: tuple[Seed, ...], random: Random) -> Seed:
    """A seed, every format as likely as every other, however many seeds it has."""
    chosen = random.choice(sorted({seed.format for seed in fitting}))
    return random.choice([seed for seed in fitting if seed.format == chosen])


_GRID = (
    "report {export} {extra} -o {out} -f json --timings {path} --batch 4 --cell export=small,128,train "
    "--cell extra=small,256,train"
)
_UNITS = '"","","","","","","","","","","","us","register/thread"'


def _linked(trace: dict) -> dict:
    """The trace with arrows between forward and backward, memory events and a kernel's launch configuration."""
    for place, event in enumerate(list(trace["traceEvents"])):
        if event["cat"] == "kernel":
            event["args"] |= {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "External id": place}
        if event["cat"] == "cpu_op":
            at = {"pid": event["pid"], "tid": event["tid"], "ts": event["ts"]}
            phase = "f" if "Backward" in event["name"] else "s"
            trace["traceEvents"] += [
                {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": place // 6, **at},
                {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", **at,
                 "args": {"Total Allocated": 512 * place, "Bytes": 512, "Addr": place, "Device Type": 1, "Device Id": 0,
                          "Total Reserved": 2**21}},
            ]  # fmt: skip
    gpu = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0}
    gpu |= {"numSms": 132, "maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "warpSize": 32}
    return trace | {"deviceProperties": [gpu], "distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"}}


def _measured(name: str, cells: int) -> bytes:
    document = json.loads(lzma.decompress(shipped.files("measurements", name)[0].read_bytes()))
    document["measurements"] = document["measurements"][:cells]
    for one in document["measurements"]:
        for key, value in one.items():
            if isinstance(value, list):
                one[key] = value[:6]
    return json.dumps(document).encode()


def _ledger(folder: Path) -> bytes:
    from warplens.cli.main import app

    with suppress(SystemExit), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        app(shlex.split(_SWEEP.format(name=folder / "ledger")))
    return (folder / "ledger.ledger.jsonl").read_bytes()
