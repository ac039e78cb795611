"""How hypothesis runs, unless a test says why it needs more or less; one process reads and analyses a file once.

`make test` draws a few examples of each property, `make test-all` many (`--hypothesis-profile=many`). None has a
deadline, as machines may be slow, and in CI the examples are the same every time.
"""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from filecmp import cmp
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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


#: Profiles in memory at a time; the largest takes some 30 MB.
_KEPT = 24

#: Machines that are lent for their GPU may have PyTorch and nothing to read profiles with: `make test-gpu` runs there.
_READS = find_spec("polars") is not None


@dataclass(frozen=True)
class _Once:
    """In place of a reader: what reading this file gave is kept."""

    anew: Callable[..., Any]
    original: Path
    name: str
    kept: OrderedDict[tuple[Path, str, str], Any]

    def read(self, _: object, asked: object) -> Any:
        key = (self.original, self.name, repr(asked))
        if key not in self.kept:
            self.kept[key] = self.anew("read", asked)
        self.kept.move_to_end(key)
        if len(self.kept) > _KEPT:
            self.kept.popitem(last=False)
        return self.kept[key]

    def events_in(self, _: object, memory: int) -> Any:
        return self.anew("events_in", memory)

    def slices(self, _: object) -> Any:
        return self.anew("slices")


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

    draw, drawn = vl_convert.vegalite_to_svg, dict[str, str]()

    def svg(spec: Any, **asked: Any) -> str:
        key = json.dumps([spec, asked])
        if key not in drawn:
            drawn[key] = draw(spec, **asked)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "vegalite_to_svg", svg)
        yield


@pytest.fixture(scope="session", autouse=True)
def _models_are_fitted_once():
    """The fit of a break-even model follows from its numbers alone; a sweep is read, and fitted, by many tests."""
    if not _READS:
        yield
        return
    from warplens.studies.sweeps import breakeven_fit

    fit, fits = breakeven_fit.best_fit, dict[tuple[Any, ...], Any]()

    def best_fit(model: Any, gpu: Any, host: Any, times: Any, seed: int, known: Any = None) -> Any:
        arrays = (gpu, host, times, known)
        numbers = [None if array is None else (array.shape, array.tobytes()) for array in arrays]
        key = (model.form, len(model.terms), seed, *numbers)
        if key not in fits:
            fits[key] = fit(model, gpu, host, times, seed, known)
        return fits[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(breakeven_fit, "best_fit", best_fit)
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_are_put_together_once():
    """What typer makes of the program's commands follows from them alone, and takes longer than many of them."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("typer"):
            import typer.testing

            patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield


#: Functions whose results follow from their arguments, and are kept as long as the first of them.
_KEPT_RESULTS = (
    "warplens.analysis.headroom.budget.headrooms",
    "warplens.analysis.prediction.predictions",
    "warplens.analysis.quality.quality_notes",
    "warplens.analysis.timebudget.time_budgets",
    "warplens.diagnosis.verdict.diagnose",
    "warplens.report.html.render_html",
    "warplens.report.overview.document.overview_document",
    "warplens.report.overview.numbers.examine",
)

#: What a test replaces just now: what is computed meanwhile is neither kept nor taken from what was.
_replaced: list[object] = []


@pytest.fixture
def monkeypatch(monkeypatch):
    """As pytest has it; what was computed with other parts of the package does not answer a test that replaces some."""
    replace, before = monkeypatch.setattr, len(_replaced)

    def replacing(*given: Any, **named: Any) -> None:
        _replaced.append(given)
        replace(*given, **named)

    monkeypatch.setattr = replacing
    yield monkeypatch
    del _replaced[before:]


def _told_apart(argument: Any) -> Any:
    """Equal for arguments that are the same; functions only compute what would be computed anyway."""
    if isinstance(argument, (list, tuple)):
        return tuple(map(_told_apart, argument))
    try:
        hash(argument)
    except TypeError:
        return id(argument)
    return None if callable(argument) else argument


def _keeping(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def kept(first: Any, *given: Any, **named: Any) -> Any:
        if _replaced:
            return function(first, *given, **named)
        results = vars(first).setdefault("_results", {})
        key = (function, _told_apart(given), *((name, _told_apart(value)) for name, value in sorted(named.items())))
        if key not in results:
            results[key] = (function(first, *given, **named), given, named)
        return results[key][0]

    return kept


@pytest.fixture(scope="session", autouse=True)
def _profiles_are_analysed_once():
    """Answers, documents and pages follow from the profile, which does not change, and make up most of many tests."""
    if not _READS:
        yield
        return
    from warplens.analysis.timeline import Timeline

    with pytest.MonkeyPatch.context() as patch:
        for path in _KEPT_RESULTS:
            home, _, name = path.rpartition(".")
            original = getattr(import_module(home), name)
            kept = _keeping(original)
            for module in [each for each in sys.modules if each.startswith(("warplens", "tests"))]:
                if vars(sys.modules[module]).get(name) is original:
                    patch.setattr(sys.modules[module], name, kept)
        start = Timeline.__init__

        @wraps(start)
        def one(of: type[Timeline], trace: Any = None) -> Timeline:
            known = getattr(trace, "_timeline", None)
            return object.__new__(of) if known is None or _replaced or type(known) is not of else known

        @wraps(start)
        def begin(self: Timeline, trace: Any) -> None:
            if "trace" not in vars(self):
                start(self, trace)
                if not _replaced:
                    vars(trace)["_timeline"] = self

        patch.setattr(Timeline, "__new__", one, raising=False)
        patch.setattr(Timeline, "__init__", begin)
        yield


@pytest.fixture(scope="session", autouse=True)
def _shipped_files_are_read_once():
    """Files of this repository do not change while tests run, nor do frames."""
    if not _READS:
        yield
        return
    from warplens import readers

    kinds = (readers._TRACES, readers._COUNTERS)
    opened = type(readers._TRACES).opened
    kept: OrderedDict[tuple[Path, str, str], Any] = OrderedDict()

    @contextmanager
    def of_either(self: Any, path: Path, progress: Any) -> Iterator[Any]:
        original = _original(path) if self in kinds else None
        if original is None:
            with opened(self, path, progress) as found:
                yield found
            return

        def anew(question: str, *asked: Any) -> Any:
            with opened(self, path, progress) as (reader, file):
                return getattr(reader, question)(file, *asked)

        yield _Once(anew, original, path.name, kept), None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(readers._TRACES), "opened", of_either)
        yield
