"""Chrome traces for tests: events by hand, and JSON text in any layout that is valid."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER = {"schemaVersion": 1}


@dataclass(frozen=True)
class Raw:
    """A value as text, for numbers that no Python number holds exactly."""

    text: str


def written(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    """The trace with these events, as a file."""
    path.write_text(json.dumps({**HEADER, **header, "traceEvents": events}), "utf-8")
    return path


def event(
    category: str, name: str, start: float, length: float, *, process: int = 100, thread: int = 101, **args: Any
) -> dict[str, Any]:
    """One event with a begin and a length in microseconds; `args` are those of the event."""
    place = {"pid": process, "tid": thread}
    return {"ph": "X", "cat": category, "name": name, **place, "ts": start, "dur": length, "args": args}


def kernel(start: float, length: float, correlation: int | None = None, **more: Any) -> dict[str, Any]:
    """A kernel on stream 7 of GPU 0; `more` are arguments of the event."""
    args = {"device": 0, "stream": 7, "grid": [2, 3, 4], "block": [32, 2, 1], "registers per thread": 40}
    args |= {"correlation": correlation} if correlation is not None else {}
    return event("kernel", "void ns::gemm<float, 4>(float*)", start, length, process=0, thread=7, **{**args, **more})


def launch(start: float, length: float, correlation: int, process: int = 100, thread: int = 101) -> dict[str, Any]:
    """A call of `cudaLaunchKernel`."""
    place = {"process": process, "thread": thread}
    return event("cuda_runtime", "cudaLaunchKernel", start, length, **place, correlation=correlation, cbid=211)


def operator(name: str, start: float, length: float, thread: int = 101, **args: Any) -> dict[str, Any]:
    """An operator of process 100."""
    return event("cpu_op", name, start, length, thread=thread, **args)


def annotation(name: str, start: float, length: float) -> dict[str, Any]:
    """What `record_function` gives."""
    return event("user_annotation", name, start, length)


def arrow(phase: str, number: int, start: float, thread: int = 101) -> dict[str, Any]:
    """One end of an arrow from a forward to a backward operator."""
    name = "fwdbwd"
    return {"ph": phase, "id": number, "pid": 100, "tid": thread, "ts": start, "cat": name, "name": name, "bp": "e"}


def laid_out(value: Any, choice: random.Random) -> str:
    """JSON text of a value with white space, order of keys and escapes as they fall."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        items = list(value.items())
        choice.shuffle(items)
        members = [
            f"{_literal(key, choice)}{_space(choice)}:{_space(choice)}{laid_out(of, choice)}" for key, of in items
        ]
        return _bracketed("{", members, "}", choice)
    if isinstance(value, list):
        return _bracketed("[", [laid_out(item, choice) for item in value], "]", choice)
    if isinstance(value, str):
        return _literal(value, choice)
    return json.dumps(value)


def _bracketed(opening: str, parts: list[str], closing: str, choice: random.Random) -> str:
    return opening + ",".join(_space(choice) + part + _space(choice) for part in parts) + _space(choice) + closing


def _space(choice: random.Random) -> str:
    return choice.choice(("", "", "", " ", " ", "\n", "\n    ", "\t", "\r\n  "))


def _literal(text: str, choice: random.Random) -> str:
    literal = json.dumps(text, ensure_ascii=choice.random() < 0.5)
    if choice.random() < 0.05 and text.isascii() and text.isalnum() and text != "traceEvents":
        at = choice.randrange(len(text))
        literal = f'"{text[:at]}\\u{ord(text[at]):04x}{text[at + 1 :]}"'
    return literal
