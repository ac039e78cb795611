"""One case: a mutated file, one command line over it, run in this process, and what is wrong with how it ended."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import astuple, dataclass, replace
from importlib import import_module
from pathlib import Path
from random import Random

from tests.fuzz.mutators import mutated
from tests.fuzz.seeds import Seed, seeds
from warplens.analysis.timeline import Timeline
from warplens.cli import process
from warplens.profile import Trace
from warplens.readers import EVERYTHING
from warplens.readers.opening import ReadOptions

#: Processor time after which a case counts as a hang: the files are of some kilobytes.
CPU_SECONDS = 10.0
#: Memory that a case may add at its peak.
MEMORY_BYTES = 2**30
#: All that a process of a campaign may map: what is asked for without being touched counts as well.
ADDRESS_BYTES = 8 * 2**30
#: An error is one line of a screen or two.
LONGEST_ERROR = 600
#: What the output of one case may hold: the files have some dozens of rows.
LONGEST_OUTPUT = 64 * 2**20

#: Where cases of a tier other than that of commands are made and judged: modules that need this one.
_TIERS = {
    "reader": ("tests.fuzz.reading", "read_ended"),
    "parser": ("tests.fuzz.parsing", "parse_ended"),
    "rows": ("tests.fuzz.rows", "rows_ended"),
}

#: How the temporary folders of a campaign begin, so that it removes its own and no other's.
OWN = f"fuzz-{os.environ.get('FUZZ_RUN') or os.getpid()}-"

_ALLOWED_CODES = (0, 1, 2)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class TooLongError(BaseException):
    """The case took more processor time than it may. No `Exception`: nothing may take it for an error of a file."""


@dataclass(frozen=True)
class Case:
    """A case by its numbers alone: the same always gives the same file and the same command line.

    Its tier is that of the `command`s, that of the `reader`s alone (`tests.fuzz.reading`), that of the `parser`s
    (`tests.fuzz.parsing`), or that of the `rows` of databases (`tests.fuzz.rows`).
    """

    campaign: int
    number: int
    tier: str = "command"

    def made(self) -> tuple[Seed, bytes, str]:
        """The seed, the mutated file, the command line."""
        random = Random(f"{self.campaign}:{self.number}")
        if self.tier in _TIERS:
            return import_module(_TIERS[self.tier][0]).made(random)
        seed = random.choice(seeds())
        return seed, mutated(seed.kind, seed.content, random), random.choice(seed.commands)


@dataclass(frozen=True)
class Ended:
    """How a case ended. `wrong` names the defect so that equal ones have equal names; empty where all is right."""

    code: int | None
    wrong: str = ""
    detail: str = ""
    format: str = ""


def judged(case: Case) -> Ended:
    """Runs a case and says what is wrong with it."""
    seed, content, how = case.made()
    run = getattr(import_module(_TIERS[case.tier][0]), _TIERS[case.tier][1]) if case.tier in _TIERS else ended
    return replace(run(seed, content, how), format=seed.format)


def placed(seed: Seed, content: bytes, path: Path) -> Path:
    """The file, or the folder of files, in its place."""
    if seed.kind == "folder":
        shutil.rmtree(path, ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(path)
    else:
        path.write_bytes(content)
    return path


def ended(seed: Seed, content: bytes, command: str) -> Ended:
    """Runs a command line over a file."""
    with tempfile.TemporaryDirectory(prefix=OWN) as name:
        folder = Path(name)
        given, scratch = folder / "in", folder / "tmp"
        given.mkdir()
        scratch.mkdir()
        path = given / ("case.ledger.jsonl" if seed.kind == "ledger" else "case")
        placed(seed, content, path)
        words = {"path": path, "out": folder / "out", "name": given / "case"}
        for other in seeds():
            if "{" + other.name + "}" in command:
                words[other.name] = placed(other, other.content, folder / other.name)
        if "{seed}" in command:
            words["seed"] = placed(seed, seed.content, folder / "seed")
        earlier, tempfile.tempdir = tempfile.tempdir, str(scratch)
        here = Path.cwd()
        os.chdir(folder)  # where a report is written that no folder is named for
        try:
            result = _run(shlex.split(command.format(**words)))
        finally:
            tempfile.tempdir = earlier
            os.chdir(here)
        if result.wrong:
            return result
        if left := sorted(scratch.iterdir()):
            return Ended(result.code, "left behind: a temporary file", str(left[0].name))
        whole = path.is_dir() or path.read_bytes() == content
        if seed.kind != "ledger" and (sorted(given.iterdir()) != [path] or not whole):
            return Ended(result.code, "touched: the folder of the input", command)
        partial = [one.name for one in folder.iterdir() if one.name.endswith(".partial")]
        return Ended(result.code, "left behind: a partial file", partial[0]) if partial else result


def _run(words: list[str]) -> Ended:
    from warplens.cli.main import app

    _seen.clear()
    process._verdict = _verdict

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace", newline="") for _ in range(2))
    code: int | None = None
    try:
        with watched() as grown, redirect_stdout(out), redirect_stderr(err):
            if words[0] == "read":
                sys.exit(process.guarded(lambda: _read(Path(words[1])), debug=False))
            app(words)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    except TooLongError as error:
        return Ended(None, f"too long: {words[0]} at {place_of(error)}", shlex.join(words))
    except BaseException as error:
        return Ended(None, f"escaped: {type(error).__name__} at {place_of(error)}", str(error)[:300])
    answer, complaint = (_content(stream) for stream in (out, err))
    if more := grown():
        return Ended(code, f"memory: {words[0]}", more)
    if wrong := _wrong(words, code, answer, complaint):
        return Ended(code, *wrong)
    return Ended(code)


def _read(path: Path) -> None:
    """Reads a file of any kind; of a trace also what all analyses ask of it."""
    with EVERYTHING.opened(path, None) as (reader, file):
        content = reader.read(file, ReadOptions())
    if isinstance(content, Trace):
        timeline = Timeline(content)
        timeline.work, timeline.steps  # noqa: B018


def _wrong(words: list[str], code: int | None, answer: str, complaint: str) -> tuple[str, str] | None:
    """What is wrong with what a run said, as the name of the defect and its detail."""
    said = [line for line in complaint.splitlines() if line.startswith("error: ")]
    last = said[-1] if said else ""
    if code not in _ALLOWED_CODES:
        kind = last.removeprefix("error: ").partition(":")[0]
        at = place_of(_seen[-1]) if _seen else "nowhere"
        return f"defect {code}: {kind[:60]} at {at}", last[:300]
    if "Please report this" in last:
        what = re.sub(r"^error: [^:]*: ", "", last)[:90]
        return f"scrub refuses its own copy: {what}", last
    if code == 2 and len(said) != 1 and words[0] != "ranks":
        return f"no one line: {words[0]}", complaint[-300:]
    if len(last) > LONGEST_ERROR:
        return f"long error: {words[0]}", last[:300]
    if CONTROL.search(complaint.replace("\t", " ")):
        return f"control character on standard error: {words[0]}", repr(complaint[:300])
    if CONTROL.search(answer.replace("\r", "")):
        return f"control character in the answer: {words[0]} {words[-2]}", repr(CONTROL.search(answer))
    if len(answer) > LONGEST_OUTPUT:
        return f"long answer: {words[0]}", f"{len(answer):,} characters"
    if code in (0, 1) and "-f" in words and words[words.index("-f") + 1] == "json" and "-o" not in words:
        try:
            json.loads(answer, parse_constant=_no_json)
        except ValueError as error:
            return f"no JSON: {words[0]}", str(error)[:200]
    return None


#: The errors that the case at hand ended with, as the edge of the program got them.
_seen: list[BaseException] = []
_judge_error = process._verdict


def _verdict(error: BaseException) -> tuple[int, str]:
    _seen.append(error)
    return _judge_error(error)


def _no_json(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")


def _content(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode("utf-8", "replace")


@contextmanager
def watched() -> Iterator[Callable[[], str]]:
    """Ends what takes more processor time than a case may; gives how much memory it added, if more than it may."""

    def stop(*_: object) -> None:
        raise TooLongError

    def grown() -> str:
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        return f"{more / 2**20:.0f} MB more" if more > MEMORY_BYTES else ""

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield grown
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def place_of(error: BaseException) -> str:
    """The last function of the package that an error came through."""
    place, trace = "nowhere", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/warplens/" in name:
            place = f"{name.rpartition('/warplens/')[2]} {trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return place


def label(wrong: str) -> str:
    """A short name for files about a defect."""
    return hashlib.sha256(wrong.encode()).hexdigest()[:12]


def memory_folder() -> str | None:
    """A folder in memory where there is one; None stands for the temporary folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def remove_left(own: str = OWN) -> None:
    """Removes what the killed cases of this campaign left in the temporary folder and in memory."""
    for folder in filter(None, (tempfile.gettempdir(), memory_folder())):
        for path in Path(folder).glob(f"{own}*"):
            shutil.rmtree(path, ignore_errors=True)


def serve() -> None:
    """Judges the cases `start, start + step, …` below `last`, a line before and after each on standard output."""
    campaign, start, last, step, nice = map(int, sys.argv[1:6])
    tier = sys.argv[6]
    sink = os.fdopen(os.dup(1), "w", buffering=1)
    if hasattr(os, "nice"):
        os.nice(nice)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    for number in range(start, last, step):
        sink.write(f"begin {number}\n")
        result = judged(Case(campaign, number, tier))
        sink.write("end " + json.dumps([number, *astuple(result)]) + "\n")


if __name__ == "__main__":
    serve()
