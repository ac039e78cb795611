"""One case of the parsers alone: what stands in front of Polars and takes the bytes apart, a thousand cases a second.

The chain of blocks and messages of a report, the walk over the events of a trace, the records of a table of text, the
schema and the pages of a database, policies, and the patterns that look for names in texts. Each may refuse the file in
one line and raise nothing else; where Python's own `json` reads a trace, the number of its events is the same.
"""

from __future__ import annotations

import json
import re
import zlib
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz.mutators import mutated
from tests.fuzz.reading import bounded, place
from tests.fuzz.seeds import Seed, one_of, seeds
from warplens.profile.spelling import short_name
from warplens.readers import measurements
from warplens.readers.kineto import json_text
from warplens.readers.kineto.document import walk
from warplens.readers.kineto.scan import Piece, scan
from warplens.readers.kineto.values import words_of
from warplens.readers.measurements import read_measurements
from warplens.readers.ncu.container import Container, launch_of, rules_of
from warplens.readers.ncu.csv_text import Table, looks_like_ncu_csv
from warplens.readers.nsys.report import Facts
from warplens.readers.nsys.report_container import opened
from warplens.readers.nsys.report_wire import Bytes, runs
from warplens.readers.nsys.tables import SOURCES
from warplens.readers.nsys.texts import range_kinds
from warplens.readers.opening import UNPACKERS, Input, compression_of, content_head, head_of, kind_of, unpacked
from warplens.readers.published import read_published
from warplens.readers.sqlite import SqliteFile, looks_like_nsys
from warplens.readers.timings import read_timings
from warplens.secrets import Cleaner, Secrets, has_other_values, without_values
from warplens.studies.policies.files import read_policy
from warplens.studies.runner.engine import Ledger
from warplens.wire import Message, WireError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.fuzz.judge import Ended

#: Field 1 as a number: how every event of a report begins.
_FIRST = 8
#: Strings and events of a piece that are read one by one.
_MOST = 20


def made(random: Random) -> tuple[Seed, bytes, str]:
    """A seed and what became of it."""
    seed = one_of(parsed(), random)
    return seed, mutated(seed.kind, seed.content, random), "damaged"


def parse_ended(seed: Seed, content: bytes, state: str) -> Ended:
    """Parses a file and says what is wrong with how that ended."""
    path = place() / "case"
    path.write_bytes(content)

    def parse() -> str:
        kind_of(path), content_head(path)
        if (packing := compression_of(head_of(path))) is not None:
            with unpacked(path, UNPACKERS[packing]) as plain:
                return _parser(seed)(plain) or ""
        return _parser(seed)(path) or ""

    return bounded(parse, "parse", seed)


def _database(path: Path) -> None:
    with SqliteFile(path) as file:
        if looks_like_nsys(file.tables):
            file.refuse_damage()
            range_kinds(file)
            for source in SOURCES:
                if source.table in file.tables:
                    for part in file.parts(source.table):
                        file.refuse_damage_in(source.table, part)


class _Events:
    """The events of a trace, counted, and those that are unusual read one by one."""

    def read(self, text: json_text.Any, begin: int, end: int) -> Piece:
        piece = Piece(scan(text, words_of(text), begin, end))
        scanned = piece.scanned
        for opening, closing in zip(scanned.opening[:_MOST].tolist(), scanned.closing[:_MOST].tolist(), strict=False):
            json_text.canonical(json_text.string(bytes(text[opening + 1 : closing])))
        for row in range(min(len(scanned.starts), _MOST)):
            event = scanned.event(text, row)
            try:
                json_text.lenient(event.decode("utf-8", "replace"))
            except ValueError:
                piece.add_damage(row, event)
        return piece

    def add(self, piece: Piece) -> None:
        """Nothing is kept of it."""


def _trace(path: Path) -> str | None:
    document, _ = walk(Input(path, path), _Events, in_parallel=False)
    with suppress(ValueError, RecursionError, UnicodeDecodeError):
        told = json.loads(path.read_bytes())
        if isinstance(told, dict) and document.is_trace and not _is_repeated(path):
            events = told.get("traceEvents")
            whole = isinstance(events, list) and all(isinstance(event, dict) for event in events)
            found = (document.events, document.damaged, document.cut_off_bytes)
            if whole and found != (len(events), 0, None):
                return "the walk over a trace finds other events than json"
    return None


def _is_repeated(path: Path) -> bool:
    """Whether the member with the events stands there twice, of which `json` takes the last one."""
    return len(re.findall(rb'"traceEvents"', path.read_bytes())) > 1


def _report(path: Path) -> None:
    with opened(path, path) as report:
        facts = Facts(report)
        try:
            for block, spans, _ in report.blocks():
                with report.understood():
                    for begin, end in spans:
                        runs(block if isinstance(block, Bytes) else Bytes(block), begin, end, _FIRST)
        finally:
            facts.close()


def _counters(path: Path) -> None:
    container = Container(path.read_bytes(), path)
    for block in container.blocks():
        for result in block.results:
            with suppress(WireError):
                message = Message(path.read_bytes(), result.start, result.end)
                launch_of(result.kind, message)
                list(rules_of(result.kind, message))


def _table(path: Path) -> None:
    looks_like_ncu_csv(path.read_bytes()[:4096])
    for _ in Table(path, path).records():
        pass


def _policy(path: Path) -> None:
    read_policy(path)


def _measurements(path: Path) -> None:
    """The checks in front of the tables; of every hundredth file the tables as well."""
    if zlib.crc32(path.read_bytes()) % 100 == 0:
        read_measurements(path)
    document = measurements._document(path, path)
    records = document.get("measurements") if isinstance(document, dict) else None
    for number, record in enumerate(records if isinstance(records, list) else ()):
        with suppress(KeyError, TypeError, AttributeError, ValueError, OverflowError):  # as the reader takes them
            measurements._check(path, number, record)


def _timings(path: Path) -> None:
    read_timings(path)


def _published(path: Path) -> None:
    read_published(path)


def _is_json(plan: object) -> bool:
    """Whether it holds no infinite numbers, as no plan of a run does."""
    with suppress(ValueError):
        return bool(json.dumps(plan, allow_nan=False))
    return False


def _ledger(path: Path) -> None:
    """Opens it as a run that goes on does: with the plan that stands in it, or with another."""
    plan: object = None
    with suppress(ValueError, RecursionError, UnicodeDecodeError, AttributeError):
        plan = json.loads(path.read_bytes().partition(b"\n")[0]).get("plan")
    with Ledger(path, plan if isinstance(plan, dict) and _is_json(plan) else {}):
        pass


def _names(path: Path) -> str | None:
    cleaner = Cleaner(_secrets())
    for line in set(path.read_bytes().split(b"\n")) - _whole_names():
        text = line.decode("utf-8", "replace")
        cleaner.function("f", line), cleaner.python("p", line), without_values(text), has_other_values(text)
        short_name(text), json_text.whole(text), json_text.number_in(text), json_text.canonical(text)
        if b"/home/ada/" in cleaner.written("w", line):
            return "a home folder was left in a text"
    return None


@cache
def _whole_names() -> frozenset[bytes]:
    """What was not changed would only be tried over and over."""
    return frozenset(_NAMES.split(b"\n"))


@cache
def _secrets() -> Secrets:
    secrets = Secrets()
    secrets.add_variable(b"API_TOKEN=hf_do-not-print-me")
    secrets.add_home_owners(b"/home/ada/run.py")
    return secrets


_PARSERS: dict[str, Callable[[Path], str | None]] = {
    "sqlite": _database,
    "trace": _trace,
    "nsys-rep": _report,
    "ncu-rep": _counters,
    "csv": _table,
    "document": _measurements,
    "ledger": _ledger,
    "names": _names,
    # Seeds that another parser reads than the others of their kind.
    "policy": _policy,
    "timings": _timings,
    "published": _published,
}


def _parser(seed: Seed) -> Callable[[Path], str | None]:
    return _PARSERS.get(seed.name) or _PARSERS[seed.kind]


_NAMES = b"""void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x5_tn_align8>(T1::Params)
ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
/home/ada/projects/model/train.py(17): forward; torch/nn/modules/linear.py(125): forward
step 3 of run on node17.cluster.example.org 10.0.0.17 ada@example.org
[[4, 8], [8, 8], []] {"a": [1, 2.5, null]} 123456789012345678901234567890"""


@cache
def parsed() -> tuple[Seed, ...]:
    fitting = [_short(seed) if seed.kind == "document" else seed for seed in seeds() if seed.kind in _PARSERS]
    return (*fitting, Seed("names", "names", _NAMES, ()))


def _short(seed: Seed) -> Seed:
    """With two measurements at most: each is checked like every other, and changing a long document takes long."""
    document = json.loads(seed.content)
    if "measurements" in document:
        document["measurements"] = document["measurements"][:2]
    return replace(seed, content=json.dumps(document).encode())
