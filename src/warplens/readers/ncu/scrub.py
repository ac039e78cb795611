"""A copy of an Nsight Compute report that can be shared.

A report holds the program's environment, folder, arguments and command line, both systems' names and addresses, host
and name of the process, and of each kernel its machine code and, where asked for, its source files. The copy is the
same container with the messages and fields named here; what is not named does not come along. Metrics are taken over
byte for byte; rules and NVTX ranges with their texts rewritten where these carry folders or what identifies.

Field numbers are those of the message descriptions that NVIDIA ships with Nsight Compute (`extras/FileFormat`).
"""

from __future__ import annotations

import csv
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from warplens.errors import UnreadableInputError
from warplens.readers.ncu.container import MAGIC, RESULT_COUNTS, Block, Container, content_of
from warplens.readers.ncu.csv_text import HEADER, HEADER_START, LONGEST_FIELD, encoding_of
from warplens.readers.scrubbing import Removed, search_copy
from warplens.secrets import Cleaner, Secrets
from warplens.wire import BYTES, Data, Message, WireError, fields_of, scalar, varint
from warplens.wire import message as bytes_field

#: Fields of a block's header.
_SOURCES, _DETAILS, _STRINGS, _PAYLOAD, _PROCESS = 1, 3, 4, 5, 6

#: What becomes of a field: taken over, a text that is rewritten, or a message with fields of its own. Others are left
#: out.
_Plan = Mapping[int, "str | _Plan"]
_KEEP, _TEXT = "keep", "text"


def _all(*numbers: int) -> dict[int, str | _Plan]:
    return dict.fromkeys(numbers, _KEEP)


_SYSTEM: Final[_Plan] = _all(4, 6)  # architecture, platform
#: Of the settings not the filter, which names kernels, nor the list of metrics.
_SETTINGS: Final[_Plan] = _all(1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13)
_DETAILS_PLAN: Final[_Plan] = {**_all(1, 2, 6, 8), 4: _SYSTEM, 10: _SETTINGS}
_PROCESS_PLAN: Final[_Plan] = _all(1)

_RANGE_ATTRIBUTES: Final[_Plan] = {**_all(1, 2, 3), 4: _all(1, 2, 3, 4, 5, 6, 7), 5: {2: _TEXT, **_all(1, 3)}}
_NVTX: Final[_Plan] = {
    1: {2: _TEXT, 1: _KEEP, 3: {1: _KEEP, 2: _TEXT}},
    2: {1: _KEEP, 2: {1: _KEEP, 3: {1: _TEXT, 2: _RANGE_ATTRIBUTES, 3: _KEEP}}},
    3: {1: _KEEP, 3: {**_all(1, 4, 5), 2: _TEXT, 3: _RANGE_ATTRIBUTES}},
    4: _KEEP,
}
_RULE: Final[_Plan] = {
    **_all(1, 2, 4),
    3: {1: {1: {1: _TEXT, **_all(2, 3, 4)}, **_all(2, 3, 4, 5, 6, 7, 8, 9, 10, 11)}},
    5: {**_all(1, 2, 3, 5), 4: _TEXT},
}
#: Of a kernel's source only which one it was, and for which architecture.
_SOURCE: Final[_Plan] = _all(1, 5, 6, 7)
_RESULT_PLANS: Final[Mapping[str, _Plan]] = {
    "kernel": {
        **_all(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 16, 17, 20, 22, 23, 24, 25, 29, 30),
        15: _SOURCE,
        19: _RULE,
        21: _NVTX,
    },
    "range": {**_all(1, 2, 4, 5, 6, 7, 9, 11, 12, 15, 16), 10: _NVTX},
    "cmdlist": {**_all(1, 2, 4, 5, 6, 7, 9, 11, 12, 13, 17, 18, 19, 20), 10: _NVTX, 21: _RULE},
    "graph": {**_all(1, 2, 4, 5, 6, 7, 9, 11, 12, 13, 17, 18), 10: _NVTX},
}

#: Options of ncu's command line that give numbers meaning, with the values that they can have.
_OPTIONS = re.compile(
    r"(?:^|\s)--(?:clock-control[=\s]\s*(?:base|boost|none|reset)|cache-control[=\s]\s*(?:all|none)"
    r"|replay-mode[=\s]\s*(?:kernel|application|range|app-range))\b(?!-)"
)
_COMMAND_LINE = 11

#: Fields of a system, and of the program.
_COMPUTER, _ADDRESSES, _ENVIRONMENT = 5, 7, 4

_ADVICE = "Copy or download the report again, or record it again"


def copy_ncu_rep(source: Path, known_as: Path, partial: Path) -> Removed:
    """Fills the empty file `partial` with a copy of an Nsight Compute report without what identifies."""
    with content_of(source, known_as) as data:
        secrets = _secrets_of(data, known_as)
        copy = _Copy(data, known_as, Cleaner(secrets))
        with partial.open("wb") as file:
            for piece in copy.pieces():
                file.write(piece)
    texts = copy.cleaner.results()
    search_copy(partial, secrets, known_as, texts, texts, "a value of the environment or the command line")
    return Removed.of(copy.cleaner, ("messages", "fields of others"), copy.left_messages, copy.left_fields)


def _blocks(data: Data, known_as: Path) -> Iterator[Block]:
    container = Container(data, known_as)
    for block in container.blocks():
        if block.unknown_bytes:
            raise UnreadableInputError(
                known_as, f"the block at byte {block.start} holds messages of an unknown kind", _ADVICE
            )
        yield block
    if container.stopped_at is not None:
        raise UnreadableInputError(known_as, f"the report is not whole ({container.reason})", _ADVICE)


def _secrets_of(data: Data, known_as: Path) -> Secrets:
    """What the session's details and processes say about people and machines."""
    secrets = Secrets()
    try:
        for block in _blocks(data, known_as):
            if details := block.header.message(_DETAILS):
                _search_details(secrets, details)
            if process := block.header.message(_PROCESS):
                secrets.identify((process.text(2) or "").encode())
                _search_path(secrets, process.text(3) or "")
    except WireError as error:
        raise UnreadableInputError(known_as, f"the report is damaged: {error}", _ADVICE) from None
    return secrets


def _search_details(secrets: Secrets, details: Message) -> None:
    for number in (3, 4):
        if system := details.message(number):
            secrets.identify((system.text(_COMPUTER) or "").encode())
            for address in system.messages(_ADDRESSES):
                secrets.identify((address.text(1) or "").encode())
    if program := details.message(9):
        for number in (1, 2, 3):
            _search_path(secrets, program.text(number) or "")
        for variable in re.split(r"[\n;\0]", program.text(_ENVIRONMENT) or ""):
            secrets.add_home_owners(variable.encode())
            if "=" in variable:
                secrets.add_variable(variable.encode())
    _search_path(secrets, details.text(_COMMAND_LINE) or "")


def _search_path(secrets: Secrets, text: str) -> None:
    secrets.add_home_owners(text.encode())
    if "/" in text or "\\" in text:
        secrets.others.add(text.encode())


class _Copy:
    """The copy under construction.

    Attributes:
        cleaner: rewrites texts.
        left_messages: sources and machine code that were left out.
        left_fields: fields of the messages that came along that were left out.
    """

    def __init__(self, data: Data, known_as: Path, cleaner: Cleaner) -> None:
        self._data, self._known_as, self.cleaner = data, known_as, cleaner
        self.left_messages: Counter[str] = Counter()
        self.left_fields: Counter[str] = Counter()

    def pieces(self) -> Iterator[bytes]:
        """The copy, part after part."""
        (length,) = struct.unpack_from("<I", self._data, len(MAGIC))
        yield bytes(self._data[: len(MAGIC) + 4 + length])
        try:
            for block in _blocks(self._data, self._known_as):
                results = [
                    _framed(
                        self._message(self._data[result.start : result.end], _RESULT_PLANS[result.kind], result.kind)
                    )
                    for result in block.results
                ]
                start: int = block.start
                (length,) = struct.unpack_from("<I", self._data, start)
                header = self._header(self._data[start + 4 : start + 4 + length], sum(map(len, results)))
                yield _framed(header)
                yield from results
        except (WireError, IndexError) as error:
            raise UnreadableInputError(self._known_as, f"the report is damaged: {error}", _ADVICE) from None

    def _header(self, header: bytes, following: int) -> bytes:
        """A block header that announces no sources, and so many bytes of results."""
        kept = []
        for number, wire, value, whole in fields_of(header):
            if number == _DETAILS and wire == BYTES:
                kept.append(bytes_field(number, self._details(value)))
            elif number == _PROCESS and wire == BYTES:
                kept.append(bytes_field(number, self._message(value, _PROCESS_PLAN, "process")))
            elif number == _PAYLOAD:
                kept.append(scalar(_PAYLOAD, following))
            elif number == _SOURCES:
                self.left_messages["sources"] += varint(value, 0)[0] if value else 0
            elif number == _STRINGS or number in RESULT_COUNTS.values():
                kept.append(whole)
            else:
                self.left_fields["header"] += 1
        return b"".join(kept)

    def _details(self, content: bytes) -> bytes:
        details = self._message(content, _DETAILS_PLAN, "session", passed={_COMMAND_LINE})
        command = Message(content, 0, len(content)).text(_COMMAND_LINE)
        if command is None:
            return details
        options = "".join(found.group() for found in _OPTIONS.finditer(command))
        return details + bytes_field(_COMMAND_LINE, f"ncu{options}".encode())

    def _message(
        self, content: bytes, plan: _Plan, place: str, passed: set[int] | frozenset[int] = frozenset()
    ) -> bytes:
        kept = []
        for number, wire, value, whole in fields_of(content):
            what = plan.get(number)
            if what == _KEEP:
                kept.append(whole)
            elif what is not None and wire == BYTES:
                clean = (
                    self.cleaner.written(place, value) if isinstance(what, str) else self._message(value, what, place)
                )
                kept.append(bytes_field(number, clean))
            elif number not in passed:
                self.left_fields[place] += 1
        return b"".join(kept)


def _framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


# --- A copy of an Nsight Compute CSV export that can be shared --------------------------------------------------------
# Beside the table such a file holds names of programs and hosts, and where it was written by a live run the program's
# own output and lines of ncu with paths and command lines. The copy has the table and, of ncu's lines, warnings and
# errors without what they quote.

#: Columns that are emptied.
_EMPTIED = ("Process Name", "Host Name")
_FUNCTION = "Kernel Name"

#: ncu's own lines that say something about the numbers.
_OWN_LINE = re.compile(r"\s*==(ERROR|WARNING)== ?(.*)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\([^()]*[/\\][^()]*\)")

_NUMBER = re.compile(r"[-+(]?[\d.,]*\d\)?%?(?:e[-+]?\d+)?|", re.IGNORECASE)


def copy_ncu_csv(source: Path, known_as: Path, partial: Path) -> Removed:
    """Fills the empty file `partial` with a copy of a CSV export of Nsight Compute without what identifies."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    secrets = Secrets()
    left_columns, left_lines = Counter[str](), Counter[str]()
    try:
        for names, cells, _ in _rows(source):
            _search_row(secrets, names or (), cells)
        cleaner = Cleaner(secrets)
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            for names, cells, line in _rows(source):
                if names is not None:
                    told = [*names, *[""] * len(cells)]
                    left_columns.update(
                        name for name, cell in zip(told, cells, strict=False) if name in _EMPTIED and cell
                    )
                    writer.writerow([_cell(cleaner, name, cell) for name, cell in zip(told, cells, strict=False)])
                elif own := _OWN_LINE.match(line):
                    text = _written(cleaner, "line", _QUOTED.sub("''", own[2]))
                    file.write(f"=={own[1]}== {text}\n")
                else:
                    left_lines["line"] += bool(line.strip())
    except (csv.Error, OSError, UnicodeError) as error:
        found = f"the table cannot be read ({type(error).__name__})"
        raise UnreadableInputError(known_as, found, "Export it again from the .ncu-rep file") from None
    rewritten, texts = cleaner.results("line", "cell"), cleaner.results()
    search_copy(partial, secrets, known_as, rewritten, texts, "the name of a program or a host")
    return Removed.of(cleaner, ("cells of columns", "other lines"), +left_columns, +left_lines)


def _rows(source: Path) -> Iterator[tuple[list[str] | None, list[str], str]]:
    """Every row: the names of its columns (none of a header; None outside of the table), its cells, and its text."""
    with source.open("rb") as file:
        encoding = encoding_of(file.read(4))
    header: list[str] = []
    with source.open(encoding=encoding, errors="replace", newline="") as text:
        for line in text:
            if (found := HEADER.match(line)) is not None:
                break
            yield None, [line.rstrip("\r\n")], line.rstrip("\r\n")
        else:
            return
        plain = (each.replace("\0", "") for each in chain([line], text))
        for row in csv.reader(plain, delimiter=found[1]):
            units = len(row) > len(HEADER_START) and not any(row[:3])
            if tuple(row[:2]) == HEADER_START:
                header = [name.strip() for name in row]
                yield [], row, ""
            elif header and row and (row[0].isdigit() or units):
                yield header, row, ""
            else:
                yield None, row, found[1].join(row)


def _search_row(secrets: Secrets, names: Sequence[str], cells: Sequence[str]) -> None:
    """Looks for what identifies: names of hosts, owners of home folders."""
    for name, value in zip(names, cells, strict=False):
        if name in _EMPTIED and value:
            secrets.identify(value.encode()) if name == "Host Name" else secrets.others.add(value.encode())
    for cell in cells:
        if "/" in cell or "\\" in cell:
            secrets.add_home_owners(cell.encode("utf-8", "replace"))


def _cell(cleaner: Cleaner, name: str, cell: str) -> str:
    """What comes along of a cell of the column with this name."""
    if name in _EMPTIED:
        return ""
    if _NUMBER.fullmatch(cell):
        return cell
    if name == _FUNCTION:
        return cleaner.function("function", cell.encode("utf-8", "replace")).decode()
    return _written(cleaner, "cell", cell)


def _written(cleaner: Cleaner, place: str, text: str) -> str:
    return cleaner.written(place, text.encode("utf-8", "replace")).decode()
