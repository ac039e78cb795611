"""A shareable copy of a trace of the PyTorch profiler.

The members around the events include the file's path, in some places user, host, job and cluster, log lines, and
additions of the program. The copy has only the members named here, and of each event only the members and arguments
named here. Names of processes and threads, of Python functions and of annotations are rewritten where they contain
folders or identifying texts. Numbers keep their digits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from warplens.errors import UnreadableInputError
from warplens.readers.kineto.document import Document, walk
from warplens.readers.kineto.json_text import AS_WRITTEN, is_shallow, lenient
from warplens.readers.kineto.scan import Piece, scan
from warplens.readers.kineto.values import Bytes, words_of
from warplens.readers.limits import NESTED_LEVELS
from warplens.readers.opening import Input
from warplens.readers.scrubbing import Removed, search_copy
from warplens.secrets import IDENTIFYING, REMOVED, Cleaner, Secrets, has_other_values, texts_in

#: Members around the events that are kept: versions, recording options, the clock's zero.
_HEADER = re.compile(
    r"schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds|baseTimeNanosecond"
    r"|record_shapes|with_(?:stack|flops|modules)|profile_memory"
    r"|(?:cuda_driver|cuda_runtime|cupti|hip_driver|hip_runtime|roctracer|rocprofiler(?:_sdk)?|cudnn|nccl|torch|pytorch|kineto)"
    r"_version"
)
#: Texts that are kept in objects of the header; all numbers are kept.
_INSIDE = {
    "deviceProperties": re.compile(r"name|gcnArchName"),
    "distributedInfo": re.compile(r"backend|pg_(?:name|desc)|backend_config|nccl_version"),
}
_MEMBERS = frozenset({"ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "s", "args"})
#: Events that name processes and threads, with the one argument each has.
_NAMING = {
    "process_name": "name",
    "thread_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}
_KEPT_NAMES = re.compile(
    r"python[\d.]*|pt_\w+|CPU|GPU \d+|Device \d+|stream -?\d+ *|(?:thread )?\d+|\[removed\]|"
    r"|thread \d+ \((?:python[\d.]*|pt_\w+)\)"
)
#: Arguments about the work of a GPU, an allocator or a collective. Metrics of CUPTI are named `unit__what.how`.
_ARGUMENTS = re.compile(
    r"Addr|Bytes|Collective name|Comms Id|Concrete Inputs|Device (?:Id|Type)|Ev Idx|[Ee]xternal [Ii]d|Fwd thread id"
    r"|Global rank (?:start|stride)|Group size|(?:In|Out) (?:msg nelems|split size)|Input [Dd]ims"
    r"|Input (?:Strides|type)|Op count|Process Group (?:Description|ID|Name|Ranks)"
    r"|Profiler Event Index|Python (?:id|module id|parent id)|Rank"
    r"|Record function id|Seq(?:uence number)?|Total (?:Allocated|Reserved)|Trace (?:iteration|name)|Call stack"
    r"|Module Hierarchy|Flops|flops|dtype|device|stream|context|correlation|cbid|cid|bytes|size|grid|block|queued|kind"
    r"|kernel|kernel_(?:backend|file|hash|kwargs|name)|num_(?:stages|warps)|registers per thread|shared memory"
    r"|(?:blocks|warps) per SM|est\. achieved occupancy %|memory bandwidth \(GB/s\)|graph (?:node )?id|finished"
    r"|cuda_sync_kind|wait_on_(?:stream|cuda_event_\w+)|priority|copy kind|src|dst|ptr|Is (?:Async|Point to Point)"
    r"|is_async|(?:Src|Dst) Rank|[a-z]\w*__[\w.]+"
)
#: Categories named after compiled functions, and after Python functions.
_FUNCTIONS = frozenset({"kernel", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver"})
_FUNCTION_ARGUMENTS = frozenset({"kernel", "kernel_name"})
_PYTHON = "python_function"
_PYTHON_ARGUMENTS = frozenset({"Call stack", "Module Hierarchy", "kernel_file"})

#: Identifying members of a cluster besides users and hosts. A plain word (`prod`) identifies nobody.
_JOB = re.compile(
    rb"JOB|CLUSTER|TASK|TEAM|PROJECT|TENANT|QUEUE|NODE|OWNER|EXPERIMENT|RUN|WORKSPACE|TRACE_?ID", re.IGNORECASE
)
_PLAIN_WORD = re.compile(rb"[A-Za-z]+")
_SHORTEST_JOB = 8

_FLUSH_BYTES = 2**20

_ADVICE = "Record it again, or let the profiler finish writing it"
_TRACE_ADVICE = "Give a trace of the PyTorch profiler"


def copy_kineto(file: Input, partial: Path) -> Removed:
    """Write a scrubbed copy of a trace to the empty file `partial`; of a cut trace, its complete events."""
    secrets = Secrets()
    document = each_event(file, lambda event: _search_event(secrets, event))
    _refuse_depth(file, document.header)
    for name, value in document.header.items():
        if not _HEADER.fullmatch(name):
            _search_member(secrets, name.encode(), value)
    copy = _Copy(secrets)
    with partial.open("wb") as target:
        copy.write(document.header, file, target)
    rewritten = copy.cleaner.results("python", "name", "argument", "event", *_INSIDE)
    what = "a value that stood around the events"
    search_copy(partial, secrets, file.known_as, rewritten, copy.cleaner.results(), what)
    words = ("members around the events", "members of events")
    return Removed.of(copy.cleaner, words, copy.left_members, copy.left_arguments, "python")


@dataclass
class _Values(Piece):
    """The events of a piece as JSON values, with numbers as written."""

    values: list[Any] = field(default_factory=list)
    odd: list[Any] = field(default_factory=list)


#: Members that the reader uses outside of arguments, and types that none of them can have.
_READ, _NO_MEMBER = ("name", "cat", "ph", "ts", "dur", "pid", "tid"), (dict, list, bool)


class _Events:
    """Passes on one event after the other.

    Attributes:
        odd: events that the reader reads one by one, and appends after all others: in a copy they are regular, and
            would change the order of rows if they kept their place.
    """

    def __init__(self, file: Input, take: Callable[[dict[str, Any]], None]) -> None:
        self._file, self._take = file, take
        self.odd: list[Any] = []

    def read(self, text: Bytes, begin: int, end: int) -> _Values:
        """The events that lie wholly in `text[begin:end]`."""
        scanned = scan(text, words_of(text), begin, end)
        piece = _Values(scanned, scanned.damaged)
        content = text.tobytes()
        for row, (start, last) in enumerate(zip(scanned.starts.tolist(), scanned.ends.tolist(), strict=True)):
            raw = content[start : last + 1]
            try:
                value = lenient(raw.decode("utf-8", "replace"), AS_WRITTEN)
                if isinstance(value, dict) and any(isinstance(value.get(name), _NO_MEMBER) for name in _READ):
                    found = "an event in it has a list, an object or a truth value where a name or a number belongs"
                    raise UnreadableInputError(self._file.known_as, found, _ADVICE)
                if raw.count(b"[") + raw.count(b"{") > NESTED_LEVELS:
                    _refuse_depth(self._file, value)
                (piece.odd if _is_odd(value, irregular=bool(scanned.irregular[row])) else piece.values).append(value)
            except ValueError:
                if not scanned.irregular[row]:  # the reader would use only parts of it
                    found = "part of it is not valid JSON, so its content is unknown"
                    raise UnreadableInputError(self._file.known_as, found, _ADVICE) from None
                piece.add_damage(row, raw)
        return piece

    def add(self, piece: _Values) -> None:
        """Passes on the result of `read`."""
        for value in piece.values:
            self._take(value)
        self.odd += piece.odd


def _refuse_depth(file: Input, value: Any) -> None:
    if not is_shallow(value):
        found = f"something in it is nested deeper than {NESTED_LEVELS} levels, as nothing is that a profiler writes"
        raise UnreadableInputError(file.known_as, found, _ADVICE)


def _is_odd(event: Any, *, irregular: bool) -> bool:
    """Whether the reader reads an event individually; see `events._Reading`."""
    phase = event.get("ph", "X") if isinstance(event, dict) else ""
    return irregular or not (isinstance(phase, str) and len(phase) == 1)


def each_event(file: Input, take: Callable[[dict[str, Any]], None]) -> Document:
    """Passes on the events of a trace one by one; returns the document around them.

    Numbers that Python would round are `orjson.Fragment`.
    """
    document, events = walk(file, lambda: _Events(file, take), in_parallel=False, decoder=AS_WRITTEN)
    for event in events.odd:
        take(event)
    if not document.is_trace:
        raise UnreadableInputError(file.known_as, "this JSON holds no trace events", _TRACE_ADVICE)
    return document


def _search_event(secrets: Secrets, event: dict[str, Any]) -> None:
    arguments = event.get("args")
    values = arguments.values() if isinstance(arguments, dict) else [arguments]
    for text in texts_in([event.get("name"), *values]):
        if "/" in text or "\\" in text:
            secrets.add_home_owners(_bytes(text))


def _search_member(secrets: Secrets, name: bytes, value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _search_member(secrets, _bytes(key), inner)
    elif isinstance(value, list):
        for inner in value:
            _search_member(secrets, name, inner)
    elif isinstance(value, str):
        text = _bytes(value)
        secrets.add_home_owners(text)
        of_job = _JOB.search(name) and len(text) >= _SHORTEST_JOB and not _PLAIN_WORD.fullmatch(text)
        if IDENTIFYING.search(name) or of_job:
            secrets.identify(text)
        else:
            secrets.add_other(text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


class _Copy:
    """The copy under construction.

    Attributes:
        secrets: identifying texts of the trace.
        cleaner: rewrites its texts.
        left_members: number of members around the events that were left out.
        left_arguments: number of members and arguments of events that were left out.
    """

    def __init__(self, secrets: Secrets) -> None:
        self.secrets, self.cleaner = secrets, Cleaner(secrets, ("name",))
        self.left_members: Counter[str] = Counter()
        self.left_arguments: Counter[str] = Counter()

    def write(self, header: Mapping[str, Any], source: Input, file: BinaryIO) -> None:
        """Write the trace, always as an object."""
        buffer = bytearray(b"{")
        for name, value in header.items():
            if _HEADER.fullmatch(name):
                member = self._member(name, value, _INSIDE.get(name))
                buffer += b"\n%b: %b," % (_dumped(name), _dumped(member))
            else:
                self.left_members["header"] += 1
        buffer += b'\n"traceEvents": ['
        separator = b"\n"

        def add(value: dict[str, Any]) -> None:
            nonlocal separator
            if (event := self._event(value)) is not None:
                buffer.extend(separator + _dumped(event))
                separator = b",\n"
            if len(buffer) > _FLUSH_BYTES:
                file.write(buffer)
                buffer.clear()

        each_event(source, add)
        file.write(buffer + b"\n]\n}\n")

    def _member(self, name: str, value: Any, allowed: re.Pattern[str] | None) -> Any:
        if isinstance(value, dict):
            members = {}
            for key, inner in value.items():
                if allowed is None or (isinstance(inner, str) and not allowed.fullmatch(key)) or not key.isidentifier():
                    self.left_arguments[name] += 1
                else:
                    members[key] = self._member(name, inner, allowed)
            return members
        if isinstance(value, list):
            return [self._member(name, inner, allowed) for inner in value]
        return self.cleaner.text(name, value) if isinstance(value, str) else value

    def _event(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The kept part of an event; None if nothing is kept."""
        category = event.get("cat")
        category = category.lower() if isinstance(category, str) else ""
        if event.get("ph") == "M":
            return self._naming(event)
        members: dict[str, Any] = {}
        for key, value in event.items():
            if key not in _MEMBERS:
                self.left_arguments["event"] += 1
            elif key == "args":
                members[key] = self._arguments(value)
            elif key == "name" and isinstance(value, str):
                members[key] = self._name(category, value)
            elif isinstance(value, str):
                text = self.cleaner.text("event", value)
                # Ids are read by their digits, and a mark would have other ones.
                members[key] = REMOVED.decode() if text != value and key in ("pid", "tid") else text
            elif not isinstance(value, (dict, list)):
                members[key] = value
        return members

    def _naming(self, event: dict[str, Any]) -> dict[str, Any] | None:
        name, values = event.get("name"), event.get("args")
        argument = _NAMING.get(name) if isinstance(name, str) else None
        if argument is None or not isinstance(values, dict):
            self.left_arguments["naming"] += 1
            return None
        value = values.get(argument)
        if isinstance(value, str) and not _KEPT_NAMES.fullmatch(value):
            self.left_arguments["naming"] += 1
            value = "[removed]"
        members: dict[str, Any] = {key: event[key] for key in ("name", "ph", "ts", "pid", "tid") if key in event}
        texts = {key: self.cleaner.text("event", inner) for key, inner in members.items() if isinstance(inner, str)}
        return {**members, **texts, "args": {argument: None if isinstance(value, (dict, list)) else value}}

    def _arguments(self, values: Any) -> Any:
        if not isinstance(values, dict):
            return {}
        arguments = {}
        for key, value in values.items():
            if not _ARGUMENTS.fullmatch(key):
                self.left_arguments["argument"] += 1
            elif isinstance(value, (str, list, dict)):
                arguments[key] = self._argument(key, value)
            else:
                arguments[key] = value
        return arguments

    def _argument(self, key: str, value: Any) -> Any:
        if isinstance(value, str):
            if key == "Concrete Inputs" and has_other_values(value):
                self.left_arguments["argument"] += 1
                return REMOVED.decode()
            if key in _PYTHON_ARGUMENTS:
                return self.cleaner.python("python", _bytes(value)).decode()
            if key in _FUNCTION_ARGUMENTS:
                return self.cleaner.function("function", _bytes(value)).decode()
            return self.cleaner.text("argument", value)
        if isinstance(value, list):
            return [self._argument(key, inner) for inner in value]
        if isinstance(value, dict):  # no argument that is read is an object, whose keys could be anything
            self.left_arguments["argument"] += 1
            return None
        return value

    def _name(self, category: str, name: str) -> str:
        if category in _FUNCTIONS:
            return self.cleaner.function("function", _bytes(name)).decode()
        if category == _PYTHON:
            return self.cleaner.python("python", _bytes(name)).decode()
        return self.cleaner.text("name", name)


def _dumped(value: Mapping[str, Any] | Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # unpaired surrogates are not valid text
        return orjson.dumps(_valid(value))


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return _bytes(value).decode()
    if isinstance(value, dict):
        return {_valid(key): _valid(inner) for key, inner in value.items()}
    return [_valid(inner) for inner in value] if isinstance(value, list) else value
