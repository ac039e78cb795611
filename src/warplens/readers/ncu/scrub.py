"""A shareable copy of an Nsight Compute report.

A report holds the program's environment, folder, arguments and command line, names and addresses of both systems, host
and name of the process, and of each kernel its machine code and, where requested, its source files. The copy is the
same container with only the messages and fields named here. Metrics are copied byte for byte; rules and NVTX ranges
with their texts rewritten where these contain folders or identifying texts.

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
from warplens.readers.ncu.container import COPY_AGAIN, FIELDS, MAGIC, Block, Container, content_of
from warplens.readers.ncu.csv_text import HEADER, HEADER_START, is_units, text_of
from warplens.readers.opening import Input
from warplens.readers.scrubbing import Removed, search_copy
from warplens.secrets import Cleaner, Secrets
from warplens.wire import BYTES, Data, Message, WireError, fields_of, scalar, varint
from warplens.wire import message as bytes_field

#: Fields of a block's header.
_SOURCES = 1
_DETAILS = 3
_STRINGS = 4
_PAYLOAD = 5
_PROCESS = 6
_RESULT_COUNTS = frozenset(fields.count for fields in FIELDS.values())

#: The treatment of a field: kept, rewritten as text, or a message with its own plan. Others are left out.
_Plan = Mapping[int, "str | _Plan"]
_KEEP, _TEXT = "keep", "text"


def _all(*numbers: int) -> dict[int, str | _Plan]:
    return dict.fromkeys(numbers, _KEEP)


_SYSTEM: Final[_Plan] = _all(4, 6)  # architecture, platform
#: Settings without the filter, which names kernels, and without the list of metrics.
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
#: Of a kernel's source only its identity and architecture.
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

#: Options of ncu's command line that affect the meaning of numbers, with their possible values.
_OPTIONS = re.compile(
    r"(?:^|\s)--(?:clock-control[=\s]\s*(?:base|boost|none|reset)|cache-control[=\s]\s*(?:all|none)"
    r"|replay-mode[=\s]\s*(?:kernel|application|range|app-range))\b(?!-)"
)
_COMMAND_LINE = 11

#: Fields of a system, and of the program.
_COMPUTER, _ADDRESSES, _ENVIRONMENT = 5, 7, 4


def copy_ncu_rep(source: Input, partial: Path) -> Removed:
    """Fill the empty file `partial` with a copy of an Nsight Compute report without identifying texts."""
    with content_of(source.path, source.known_as) as data:
        secrets = _secrets_of(data, source.known_as)
        copy = _Copy(data, source.known_as, Cleaner(secrets, tuple(_RESULT_PLANS)))
        with partial.open("wb") as file:
            for piece in copy.pieces():
                file.write(piece)
    texts = copy.cleaner.results()
    search_copy(partial, secrets, source.known_as, texts, texts, "a value of the environment or the command line")
    return Removed.of(copy.cleaner, ("messages", "fields of others"), copy.left_messages, copy.left_fields)


def _blocks(data: Data, known_as: Path) -> Iterator[Block]:
    container = Container(data, known_as)
    for block in container.blocks():
        if block.unknown_bytes:
            raise UnreadableInputError(
                known_as, f"the block at byte {block.start} holds messages of an unknown kind", COPY_AGAIN
            )
        yield block
    if container.stopped_at is not None:
        raise UnreadableInputError(known_as, f"the report is not whole ({container.reason})", COPY_AGAIN)


def _secrets_of(data: Data, known_as: Path) -> Secrets:
    """Identifying texts in the session's details and processes."""
    secrets = Secrets()
    try:
        for block in _blocks(data, known_as):
            if details := block.header.message(_DETAILS):
                _search_details(secrets, details)
            if process := block.header.message(_PROCESS):
                secrets.identify((process.text(2) or "").encode())
                _search_path(secrets, process.text(3) or "")
    except WireError as error:
        raise UnreadableInputError(known_as, f"the report is damaged: {error}", COPY_AGAIN) from None
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
        secrets.add_other(text.encode())


class _Copy:
    """The copy under construction.

    Attributes:
        cleaner: rewrites texts.
        left_messages: number of sources and machine codes that were left out.
        left_fields: number of fields left out of kept messages.
    """

    def __init__(self, data: Data, known_as: Path, cleaner: Cleaner) -> None:
        self._data, self._known_as, self.cleaner = data, known_as, cleaner
        self.left_messages: Counter[str] = Counter()
        self.left_fields: Counter[str] = Counter()

    def pieces(self) -> Iterator[bytes]:
        """The copy, part by part."""
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
            raise UnreadableInputError(self._known_as, f"the report is damaged: {error}", COPY_AGAIN) from None

    def _header(self, header: bytes, following: int) -> bytes:
        """A block header that announces no sources, and this many bytes of results."""
        fields = []
        for number, wire, value, encoded in fields_of(header):
            if number == _DETAILS and wire == BYTES:
                fields.append(bytes_field(number, self._details(value)))
            elif number == _PROCESS and wire == BYTES:
                fields.append(bytes_field(number, self._message(value, _PROCESS_PLAN, "process")))
            elif number == _PAYLOAD:
                fields.append(scalar(_PAYLOAD, following))
            elif number == _SOURCES:
                self.left_messages["sources"] += varint(value, 0)[0] if value else 0
            elif number == _STRINGS or number in _RESULT_COUNTS:
                fields.append(encoded)
            else:
                self.left_fields["header"] += 1
        return b"".join(fields)

    def _details(self, content: bytes) -> bytes:
        details = self._message(content, _DETAILS_PLAN, "session", ignored={_COMMAND_LINE})
        command = Message(content, 0, len(content)).text(_COMMAND_LINE)
        if command is None:
            return details
        options = "".join(found.group() for found in _OPTIONS.finditer(command))
        return details + bytes_field(_COMMAND_LINE, f"ncu{options}".encode())

    def _message(
        self, content: bytes, plan: _Plan, place: str, ignored: set[int] | frozenset[int] = frozenset()
    ) -> bytes:
        fields = []
        for number, wire, value, encoded in fields_of(content):
            treatment = plan.get(number)
            if treatment == _KEEP:
                fields.append(encoded)
            elif treatment is not None and wire == BYTES:
                clean = (
                    self.cleaner.written(place, value)
                    if isinstance(treatment, str)
                    else self._message(value, treatment, place)
                )
                fields.append(bytes_field(number, clean))
            elif number not in ignored:
                self.left_fields[place] += 1
        return b"".join(fields)


def _framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


# --- A shareable copy of an Nsight Compute CSV export -----------------------------------------------------------------
#
# Beside the table such a file holds names of programs and hosts, and if it was written by a live run the program's own
# output and lines of ncu with paths and command lines. The copy has the table and, of ncu's lines, warnings and errors
# without their quotations.

#: Columns that are emptied.
_EMPTIED = ("Process Name", "Host Name")
_FUNCTION = "Kernel Name"

#: ncu's own lines that affect the numbers.
_OWN_LINE = re.compile(r"\s*==(ERROR|WARNING)== ?(.*)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\([^()]*[/\\][^()]*\)")

_NUMBER = re.compile(r"[-+(]?[\d.,]*\d\)?%?(?:e[-+]?\d+)?|", re.IGNORECASE)


def copy_ncu_csv(source: Input, partial: Path) -> Removed:
    """Fill the empty file `partial` with a copy of a CSV export of Nsight Compute without identifying texts."""
    secrets = Secrets()
    left_columns, left_lines = Counter[str](), Counter[str]()
    try:
        for names, cells, _ in _rows(source.path):
            _search_row(secrets, names or (), cells)
        cleaner = Cleaner(secrets, ("line", "cell"))
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            for names, cells, line in _rows(source.path):
                if names is not None:
                    columns = [*names, *[""] * len(cells)]
                    left_columns.update(
                        name for name, cell in zip(columns, cells, strict=False) if name in _EMPTIED and cell
                    )
                    writer.writerow([_cell(cleaner, name, cell) for name, cell in zip(columns, cells, strict=False)])
                elif own_line := _OWN_LINE.match(line):
                    text = cleaner.text("line", _QUOTED.sub("''", own_line[2]))
                    file.write(f"=={own_line[1]}== {text}\n")
                else:
                    left_lines["line"] += bool(line.strip())
    except (csv.Error, OSError, UnicodeError) as error:
        found = f"the table cannot be read ({type(error).__name__})"
        raise UnreadableInputError(source.known_as, found, "Export it again from the .ncu-rep file") from None
    rewritten, texts = cleaner.results("line", "cell"), cleaner.results()
    search_copy(partial, secrets, source.known_as, rewritten, texts, "the name of a program or a host")
    return Removed.of(cleaner, ("cells of columns", "other lines"), +left_columns, +left_lines)


def _rows(source: Path) -> Iterator[tuple[list[str] | None, list[str], str]]:
    """Every row: the names of its columns (empty for a header; None outside of the table), its cells, and its text."""
    header: list[str] = []
    with text_of(source) as text:
        for line in text:
            if (header_match := HEADER.match(line)) is not None:
                break
            yield None, [line.rstrip("\r\n")], line.rstrip("\r\n")
        else:
            return
        plain = (line_text.replace("\0", "") for line_text in chain([line], text))
        for row in csv.reader(plain, delimiter=header_match[1]):
            if tuple(row[:2]) == HEADER_START:
                header = [name.strip() for name in row]
                yield [], row, ""
            elif header and row and (row[0].isdigit() or is_units(row)):
                yield header, row, ""
            else:
                yield None, row, header_match[1].join(row)


def _search_row(secrets: Secrets, names: Sequence[str], cells: Sequence[str]) -> None:
    """Collect identifying texts: names of hosts, owners of home folders."""
    for name, value in zip(names, cells, strict=False):
        if name in _EMPTIED and value:
            secrets.identify(value.encode()) if name == "Host Name" else secrets.add_other(value.encode())
    for cell in cells:
        if "/" in cell or "\\" in cell:
            secrets.add_home_owners(cell.encode("utf-8", "replace"))


def _cell(cleaner: Cleaner, name: str, cell: str) -> str:
    """The kept content of a cell of the column with this name."""
    if name in _EMPTIED:
        return ""
    if _NUMBER.fullmatch(cell):
        return cell
    if name == _FUNCTION:
        return cleaner.function("function", cell.encode("utf-8", "replace")).decode()
    return cleaner.text("cell", cell)
