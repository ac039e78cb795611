"""A copy of a PyTorch profiler's trace that can be shared.

Around the events stand the file's path, in some places user, host, job and cluster, log lines, and whatever the program
added. The copy has the members named here and no others; of each event it has the members and arguments named here.
Names of processes and threads, of Python functions and of annotations are rewritten where they carry folders or what
was found to identify. Numbers are written with the digits that they had.
"""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from warplens.errors import UnreadableInputError
from warplens.scrub.jsonstream import EVENTS, members_of
from warplens.scrub.outcome import Removed, left
from warplens.scrub.texts import Cleaner
from warplens.scrub_secrets import ADDRESSES, FORBIDDEN, IDENTIFYING, Secrets

__all__ = ["copy_kineto"]

#: What comes along of what stands around the events: versions, what was recorded, the clock's zero.
_HEADER = re.compile(
    r"schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds|baseTimeNanosecond"
    r"|record_shapes|with_(?:stack|flops|modules)|profile_memory"
    r"|(?:cuda_driver|cuda_runtime|cupti|hip_driver|hip_runtime|roctracer|rocprofiler(?:_sdk)?|cudnn|nccl|torch|pytorch|kineto)"
    r"_version"
)
#: In the objects in it, the texts that come along; numbers all do.
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
#: Arguments that say how a GPU, an allocator or a collective worked. Metrics of CUPTI are named `unit__what.how`.
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
#: Categories whose names are those of compiled functions, and of Python's.
_FUNCTIONS = frozenset({"kernel", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "driver"})
_FUNCTION_ARGUMENTS = frozenset({"kernel", "kernel_name"})
_PYTHON = "python_function"
_PYTHON_ARGUMENTS = frozenset({"Call stack", "Module Hierarchy", "kernel_file"})

#: Of a cluster's own members, what identifies beside users and hosts. A plain word (`prod`) identifies nobody.
_JOB = re.compile(
    rb"JOB|CLUSTER|TASK|TEAM|PROJECT|TENANT|QUEUE|NODE|OWNER|EXPERIMENT|RUN|WORKSPACE|TRACE_?ID", re.IGNORECASE
)
_PLAIN_WORD = re.compile(rb"[A-Za-z]+")
_SHORTEST_JOB = 8

#: Shorter than this, a value is found by chance in a large file.
_SHORTEST_RAW = 6
_FLUSH_BYTES = 2**20

_ADVICE = "Give a trace of the PyTorch profiler"


def copy_kineto(source: Path, known_as: Path, partial: Path) -> Removed:
    """Fills the empty file `partial` with a copy of a Chrome trace without what identifies.

    Args:
        source: the trace on the disk, not compressed.
        known_as: the file that the user named.
        partial: the copy.

    Raises:
        UnreadableInputError: the source is damaged or no Chrome trace.
        ScrubError: something identifying was left.
    """
    copy = _Copy(_secrets_of(source, known_as))
    with partial.open("wb") as file:
        copy.write(source, known_as, file)
    _verify(partial, copy, known_as)
    return Removed(
        dict(copy.left_members),
        dict(copy.left_arguments),
        copy.cleaner.rewritten(),
        len(copy.secrets.all),
        ("members around the events", "members of events"),
    )


def _secrets_of(source: Path, known_as: Path) -> Secrets:
    """What a trace says about people and machines: around the events, in its paths, and in names of processes."""
    secrets = Secrets()
    for name, value in members_of(source, known_as):
        if name != EVENTS:
            if not _HEADER.fullmatch(name):
                _search_member(secrets, name.encode(), value)
            continue
        if not isinstance(value, dict):
            raise UnreadableInputError(known_as, "one of its events is no object", _ADVICE)
        for text in (value.get("name"), *_texts_in(value.get("args"))):
            if isinstance(text, str) and ("/" in text or "\\" in text):
                secrets.add_home_owners(_bytes(text))
    return secrets


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
        elif text:
            secrets.others.add(text)


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts_in(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _texts_in(inner)]
    return []


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


class _Copy:
    """The copy under construction.

    Attributes:
        secrets: what the trace says about people and machines.
        cleaner: rewrites its texts.
        left_members: members around the events that were left out, with the number of values in each.
        left_arguments: members and arguments of events that were left out, with their number.
    """

    def __init__(self, secrets: Secrets) -> None:
        self.secrets, self.cleaner = secrets, Cleaner(secrets)
        self.left_members: Counter[str] = Counter()
        self.left_arguments: Counter[str] = Counter()

    def write(self, source: Path, known_as: Path, file: BinaryIO) -> None:
        """Writes the trace: an object, whichever the original was."""
        buffer = bytearray(b"{")
        first, state = True, ""
        for name, value in members_of(source, known_as):
            if name == EVENTS:
                event = self._event(value)
                if state != EVENTS:
                    buffer += b"" if first else b","
                    buffer += b'\n"traceEvents": ['
                    state, first, separator = EVENTS, False, b"\n"
                if event is not None:
                    buffer += separator + _dumped(event)
                    separator = b",\n"
            elif not _HEADER.fullmatch(name):
                self.left_members["header"] += 1
            else:
                buffer += b"\n]" if state == EVENTS else b""
                buffer += b"" if first else b","
                buffer += b"\n%b: %b" % (_dumped(name), _dumped(self._member(name, value, _INSIDE.get(name))))
                state, first = "", False
            if len(buffer) > _FLUSH_BYTES:
                file.write(buffer)
                buffer.clear()
        buffer += b"\n]\n}\n" if state == EVENTS else b"\n}\n"
        file.write(buffer)

    def _member(self, name: str, value: Any, allowed: re.Pattern[str] | None) -> Any:
        if isinstance(value, dict):
            kept = {}
            for key, inner in value.items():
                if allowed is None or (isinstance(inner, str) and not allowed.fullmatch(key)) or not key.isidentifier():
                    self.left_arguments[name] += 1
                else:
                    kept[key] = self._member(name, inner, allowed)
            return kept
        if isinstance(value, list):
            return [self._member(name, inner, allowed) for inner in value]
        return self._text(name, value) if isinstance(value, str) else value

    def _event(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """What comes along of an event; None where nothing does."""
        category = event.get("cat")
        category = category.lower() if isinstance(category, str) else ""
        if event.get("ph") == "M":
            return self._naming(event)
        kept: dict[str, Any] = {}
        for key, value in event.items():
            if key not in _MEMBERS:
                self.left_arguments["event"] += 1
            elif key == "args":
                kept[key] = self._arguments(value)
            elif key == "name" and isinstance(value, str):
                kept[key] = self._name(category, value)
            elif isinstance(value, str):
                kept[key] = self._text("event", value)
            elif not isinstance(value, (dict, list)):
                kept[key] = value
        return kept

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
        kept: dict[str, Any] = {key: event[key] for key in ("name", "ph", "ts", "pid", "tid") if key in event}
        kept = {key: self._text("event", inner) if isinstance(inner, str) else inner for key, inner in kept.items()}
        return {**kept, "args": {argument: None if isinstance(value, (dict, list)) else value}}

    def _arguments(self, values: Any) -> Any:
        if not isinstance(values, dict):
            return {}
        kept = {}
        for key, value in values.items():
            if not _ARGUMENTS.fullmatch(key):
                self.left_arguments["argument"] += 1
            elif isinstance(value, (str, list, dict)):
                kept[key] = self._argument(key, value)
            else:
                kept[key] = value
        return kept

    def _argument(self, key: str, value: Any) -> Any:
        if isinstance(value, str):
            if key in _PYTHON_ARGUMENTS:
                return self.cleaner.python("python", _bytes(value)).decode()
            if key in _FUNCTION_ARGUMENTS:
                return self.cleaner.function("function", _bytes(value)).decode()
            return self._text("argument", value)
        if isinstance(value, list):
            return [self._argument(key, inner) for inner in value]
        if isinstance(value, dict):  # no argument that is read holds an object, whose keys might say anything
            self.left_arguments["argument"] += 1
            return None
        return value

    def _name(self, category: str, name: str) -> str:
        if category in _FUNCTIONS:
            return self.cleaner.function("function", _bytes(name)).decode()
        if category == _PYTHON:
            return self.cleaner.python("python", _bytes(name)).decode()
        return self._text("name", name)

    def _text(self, place: str, text: str) -> str:
        return self.cleaner.written(place, _bytes(text)).decode()


def _dumped(value: Mapping[str, Any] | Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # halves of surrogate pairs, which are no text
        return orjson.dumps(_valid(value))


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return _bytes(value).decode()
    if isinstance(value, dict):
        return {_valid(key): _valid(inner) for key, inner in value.items()}
    return [_valid(inner) for inner in value] if isinstance(value, list) else value


def _verify(path: Path, copy: _Copy, source: Path) -> None:
    """Searches the finished copy: its texts for what was to be rewritten in them, its raw bytes for everything.

    A word that also stands in a text that came along, as a part of the name of an operator, say, is there by chance.
    """
    secrets, texts = copy.secrets, b"\0".join(copy.cleaner.results())
    rewritten = b"\0".join(copy.cleaner.results("python", "name", "argument", "event", *_INSIDE))
    if (secrets.pattern and secrets.pattern.search(rewritten)) or ADDRESSES.search(rewritten):
        raise left(source, "a name, an address or an identifying value")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        if FORBIDDEN.search(raw):
            raise left(source, "the path of a home folder")
        for value in secrets.all:
            if len(value) >= _SHORTEST_RAW and value not in texts and raw.find(value) >= 0:
                raise left(source, "a value that stood around the events")
