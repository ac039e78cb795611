"""How hypothesis runs, unless a test says why it needs more or less; shipped files are read once, by one process.

`make test` draws a few examples of each property, `make test-all` many (`--hypothesis-profile=many`). None has a
deadline, as machines may be slow, and in CI the examples are the same every time.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from filecmp import cmp
from functools import cache, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from hypothesis import HealthCheck, settings

from tests.shipped import FOLDERS, OTHERS

# A test that takes a folder writes the same file anew in every example, and structured data takes its time.
_ANYWHERE = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": bool(os.environ.get("CI"))}
settings.register_profile("few", max_examples=10, **_ANYWHERE)
settings.register_profile("many", max_examples=150, **_ANYWHERE)
settings.load_profile("few")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases of `slow_cases.json`; a case that its test no longer has is an error, where all are collected.

    Without the files of others their cases are not there.
    """
    slow = json.loads((Path(__file__).parent / "slow_cases.json").read_text("utf-8"))
    met: dict[str, set[str]] = {}
    for item in items:
        name, _, case = item.nodeid.partition("[")
        met.setdefault(name, set()).add(case.removesuffix("]"))
        if case.removesuffix("]") in slow.get(name, ()):
            item.add_marker(pytest.mark.slow)
    gone = [f"{name}[{case}]" for name, cases in met.items() for case in set(slow.get(name, ())) - cases]
    if gone and OTHERS.is_dir() and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"tests/slow_cases.json names cases that are no more: {', '.join(sorted(gone))}")


#: Profiles in memory at a time, with what was found out of them; the largest takes some 30 MB.
_KEPT = 24

#: Machines that are lent for their GPU may have PyTorch and nothing to read profiles with: `make test-gpu` runs there.
_READS = find_spec("polars") is not None


class _Kept:
    """What reading a file gave, and what its timelines found out: of the files that were asked for last."""

    def __init__(self) -> None:
        self.contents: OrderedDict[tuple[Path, str, str], Any] = OrderedDict()
        self.found_out: dict[int, dict[Any, Any]] = {}  # by the identity of a content: attributes of timelines, answers

    def of(self, key: tuple[Path, str, str], read_anew: Callable[[], Any]) -> Any:
        if key not in self.contents:
            self.contents[key] = read_anew()
            if len(self.contents) > _KEPT:
                self.found_out.pop(id(self.contents.popitem(last=False)[1]), None)
        self.contents.move_to_end(key)
        return self.contents[key]

    def out_of(self, content: object, own: dict[Any, Any]) -> dict[Any, Any]:
        """What is found out of a content that is kept, the first time what is given; of others that alone."""
        kept = any(content is one for one in self.contents.values())
        return self.found_out.setdefault(id(content), own) if kept else own


@dataclass(frozen=True)
class _Once:
    """In place of a reader: what reading this file gave is kept."""

    read_anew: Callable[[Any], Any]
    original: Path
    name: str
    kept: _Kept

    def read(self, _: object, asked: object) -> Any:
        return self.kept.of((self.original, self.name, repr(asked)), lambda: self.read_anew(asked))


def _once(question: Callable[..., Any]) -> Callable[..., Any]:
    """What the function answers to equal arguments, found once; arguments are told apart by their bytes."""
    answers: dict[bytes, Any] = {}

    @wraps(question)
    def asked(*given: Any, **named: Any) -> Any:
        key = pickle.dumps((given, named))
        if key not in answers:
            answers[key] = question(*given, **named)
        return answers[key]

    return asked


@cache
def _by_name() -> dict[str, Path]:
    return {path.name: path for folder in FOLDERS for path in folder.rglob("*") if path.is_file()}


def _original(path: Path) -> Path | None:
    """The file of this repository or of others that this is, links followed, or a copy of; None where it is neither."""
    real = path.resolve()
    if any(folder in real.parents for folder in (*FOLDERS, OTHERS.resolve())):
        return real
    same = _by_name().get(path.name)
    return same if same and path.is_file() and cmp(path, same, shallow=False) else None


@pytest.fixture(scope="session", autouse=True)
def _one_process():
    """Starting interpreters takes longer than reading a few small files; what needs several processes asks for them."""
    with pytest.MonkeyPatch.context() as patch:
        if _READS:
            patch.setattr("warplens.ranks.default_workers", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def _charts_are_drawn_once():
    """A picture follows from its specification alone, and takes half a second."""
    if not find_spec("vl_convert"):
        yield
        return
    import vl_convert

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "vegalite_to_svg", _once(vl_convert.vegalite_to_svg))
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_are_put_together_once():
    """What typer makes of the program's commands follows from them alone, and takes longer than many of them."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("typer"):
            import typer.testing

            patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _shipped_files_are_read_once():
    """Files of this repository do not change while tests run, nor do frames, nor what follows from them.

    A third of the time was reading the same files anew, and finding out the same of them.
    """
    if not _READS:
        yield
        return
    from warplens import readers
    from warplens.analysis.timeline import Timeline

    kinds = (readers._TRACES, readers._COUNTERS)
    opened, made = type(readers._TRACES).opened, Timeline.__init__
    kept = _Kept()

    @contextmanager
    def of_either(self: Any, path: Path, progress: Any) -> Iterator[Any]:
        original = _original(path) if self in kinds else None
        if original is None:
            with opened(self, path, progress) as found:
                yield found
            return

        def read_anew(asked: Any) -> Any:
            with opened(self, path, progress) as (reader, file):
                return reader.read(file, asked)

        yield _Once(read_anew, original, path.name, kept), None

    @wraps(made)
    def sharing(self: Any, trace: Any) -> None:
        made(self, trace)
        self.__dict__ = kept.out_of(trace, self.__dict__)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(readers._TRACES), "opened", of_either)
        patch.setattr(Timeline, "__init__", sharing)
        yield kept


@pytest.fixture(scope="session", autouse=True)
def _answers_about_shipped_files_are_found_once(_shipped_files_are_read_once):
    """In the package alone: tests of these functions themselves ask them anew."""
    kept = _shipped_files_are_read_once
    if not _READS:
        yield
        return
    from warplens.analysis.counters.bounds import kernel_facts
    from warplens.analysis.counters.groups import group_launches
    from warplens.analysis.counters.speedoflight import throughput_breakdown
    from warplens.diagnosis.thresholds import DEFAULTS
    from warplens.diagnosis.verdict import diagnose
    from warplens.studies.sweeps.numbers import examine_sweep

    @wraps(diagnose)
    def diagnosed(timeline: Any, window: Any, counters: Any = None, *, thresholds: Any = DEFAULTS, **known: Any) -> Any:
        key = (diagnose, window, counters, thresholds)
        answers = kept.out_of(timeline.trace, {"answers": {}})["answers"]
        if key not in answers:
            answers[key] = diagnose(timeline, window, counters, thresholds=thresholds, **known)
        return answers[key]

    def once(question: Callable[..., Any]) -> Callable[..., Any]:
        answers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # counters do not change, whatever they are

        @wraps(question)
        def asked(counters: Any, *given: Any) -> Any:
            known = answers.setdefault(counters, {})
            if given not in known:
                known[given] = question(counters, *given)
            return known[given]

        return asked

    of_counters = (group_launches, kernel_facts, throughput_breakdown)
    shared = (diagnosed, _once(examine_sweep), *map(once, of_counters))
    with pytest.MonkeyPatch.context() as patch:
        for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "warplens"]:
            for function in shared:
                if getattr(module, function.__name__, None) is function.__wrapped__:
                    patch.setattr(module, function.__name__, function)
        yield
