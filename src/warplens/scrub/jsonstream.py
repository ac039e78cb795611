"""A Chrome trace as a stream of its values: what stands around the events, and each event, without keeping them.

Numbers with a fraction, and whole ones beyond 64 bits, keep their digits: a time of 19 digits does not fit a double.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from warplens.errors import UnreadableInputError

__all__ = ["EVENTS", "members_of"]

#: The member that holds the events.
EVENTS = "traceEvents"

_CHUNK_BYTES = 2**22
#: What stands around the events, and one event, are not larger; a value without an end must not fill the memory.
_LARGEST_VALUE = 2**28

_SPACE = re.compile(r"[ \t\r\n]*")
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*(?P<end>"?)|[{}\[\]]', re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})|\\\\', re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:nan|inf|infinity)\b|,(?=\s*[\]}])', re.DOTALL | re.IGNORECASE)

_ADVICE = "Record it again, or let the profiler finish writing it"
_SAFE_DIGITS = 18


def _whole(digits: str) -> int | orjson.Fragment:
    return int(digits) if len(digits) <= _SAFE_DIGITS else orjson.Fragment(digits)


_DECODER = json.JSONDecoder(parse_float=orjson.Fragment, parse_int=_whole, parse_constant=lambda _: None, strict=False)


def members_of(path: Path, known_as: Path) -> Iterator[tuple[str, Any]]:
    """The members of the trace's object in the order of the file: name and value; of the events one after the other.

    A trace that is a bare list of events gives these alone. Numbers that Python would round are `orjson.Fragment`.

    Raises:
        UnreadableInputError: the file is no Chrome trace, is cut off, or holds what is no JSON.
    """
    with path.open("rb") as file:
        yield from _Stream(file, known_as).members()


class _Stream:
    def __init__(self, file: Any, known_as: Path) -> None:
        self._file, self._known_as = file, known_as
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._text, self._at, self._ended = "", 0, False

    def members(self) -> Iterator[tuple[str, Any]]:
        first = self._next()
        if first == "[":
            yield from self._events()
            return
        if first != "{":
            raise self._unreadable("this is no Chrome trace", "Give a trace of the PyTorch profiler")
        self._at += 1
        found = False
        while (sign := self._next()) != "}":
            if sign == ",":
                self._at += 1
                continue
            name = self._value()
            if not isinstance(name, str) or self._next() != ":":
                raise self._damaged()
            self._at += 1
            if name == EVENTS and self._next() == "[":
                found = True
                yield from self._events()
            else:
                yield name, self._value()
        if not found:
            raise self._unreadable("this JSON holds no trace events", "Give a trace of the PyTorch profiler")

    def _events(self) -> Iterator[tuple[str, Any]]:
        self._at += 1
        while (sign := self._next()) != "]":
            if sign == ",":
                self._at += 1
                continue
            yield EVENTS, self._value()
        self._at += 1

    def _next(self) -> str:
        """The next character that is no white space, which stays."""
        while True:
            if (space := _SPACE.match(self._text, self._at)) is not None:  # always: it matches nothing, too
                self._at = space.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise self._unreadable("the trace is cut off: its end is missing", _ADVICE)

    def _value(self) -> Any:
        self._next()
        while True:
            found = self._decoded()
            if found is None and len(self._text) - self._at > _LARGEST_VALUE:
                raise self._damaged()
            if found is not None and (found[1] < len(self._text) or self._ended):
                self._at = found[1]
                return found[0]
            if not self._more() and found is None:  # a number might have gone on
                raise self._damaged()

    def _decoded(self) -> tuple[Any, int] | None:
        """The value that begins here, and where it ends; None where that is not to be seen yet."""
        try:
            return _DECODER.raw_decode(self._text, self._at)
        except ValueError:
            end = self._end_of_value()
            return None if end is None else (self._repaired(self._text[self._at : end]), end)
        except RecursionError:
            raise self._unreadable("a value is nested too deeply to be a trace's", _ADVICE) from None

    def _end_of_value(self) -> int | None:
        """Where an object, a list or a string ends whose text is no JSON; None where that is not to be seen."""
        depth = 0
        for found in _STRUCTURE.finditer(self._text, self._at):
            if found["end"] == "":
                return None  # inside of a string
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found.group(), 0)
            if depth <= 0:
                return found.end() if depth == 0 else None
        return None

    def _repaired(self, text: str) -> Any:
        """A value in which backslashes of Windows paths, `nan` or a comma too many stand, as PyTorch has written."""
        text = _STRING.sub(lambda string: _BAD_ESCAPE.sub(lambda _: "\\\\", string[0]), text)
        text = _CONSTANT.sub(lambda found: found[0] if found[0][0] == '"' else "" if found[0] == "," else "null", text)
        try:
            return _DECODER.decode(text)
        except (ValueError, RecursionError):
            raise self._damaged() from None

    def _more(self) -> bool:
        """Reads on; what was passed is let go. False at the end of the file."""
        if self._ended:
            return False
        # A value that goes on and on is looked at again after twice as much, not after every piece.
        chunk = self._file.read(max(_CHUNK_BYTES, len(self._text) - self._at))
        self._ended = not chunk
        self._text = self._text[self._at :] + self._decode(chunk, final=self._ended)
        self._at = 0
        return True

    def _damaged(self) -> UnreadableInputError:
        return self._unreadable("a part of it is no JSON, so that nobody can say what it tells", _ADVICE)

    def _unreadable(self, found: str, advice: str) -> UnreadableInputError:
        return UnreadableInputError(self._known_as, found, advice)
