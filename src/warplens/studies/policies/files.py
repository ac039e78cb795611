"""Policy files: JSON, `warplens.policy/1` (docs/reference/policy.md), without third-party packages.

A policy decides what a program runs, so files are validated strictly: all keys must be present and no others, and the
values must be consistent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from warplens._version import __version__
from warplens.errors import UnreadableInputError
from warplens.studies.policies.choosing import MOST_AXES, RULES, Axis, GridPoint, Place, Policy, Side, Value, is_number
from warplens.studies.policies.regret import Curve, Curves, Regret
from warplens.writing import write_whole

POLICY_SCHEMA_NAME: Final = "warplens.policy/1"

_ADVICE: Final = "Give a file that `warplens policy fit … --output FILE` wrote"

#: A point takes some hundred bytes, and a sweep has some hundred points. (Not among the limits of the readers, whose
#: packages a program with a policy need not have.)
_MOST_BYTES: Final = 16 * 2**20
#: Larger than any time (31 years) and any setting; products of such numbers stay finite.
_LARGEST: Final = 1e18
#: More points than any sweep has; fits a 64-bit integer.
_MOST_POINTS: Final = 10**9
_REGRETS: Final = ("measured", "held-out", "edge")
#: Fields of a curve.
_TIMES: Final = ("host_ns", "fixed_ns", "work_ns")


class _WrongError(ValueError):
    """A defect of a document, with its location."""


def write_policy(policy: Policy, path: Path | str) -> None:
    """Write a policy, replacing an existing file atomically."""
    write_whole(Path(path), json.dumps(document_of(policy), ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def document_of(policy: Policy) -> dict[str, Any]:
    """The JSON object of a policy file."""
    names, axes = [side.name for side in policy.sides], [axis.name for axis in policy.axes]

    def placed(at: Place | None) -> dict[str, Value] | None:
        return dict(zip(axes, at, strict=True)) if at is not None else None

    return {
        "schema": POLICY_SCHEMA_NAME,
        "version": __version__,
        "source": policy.source,
        "workload": policy.workload,
        "environment": dict(policy.environment),
        "shared": dict(policy.shared),
        "sides": [asdict(side) for side in policy.sides],
        "axes": [{"name": axis.name, "values": list(axis.values)} for axis in policy.axes],
        "margin": policy.margin,
        "fallback": names[policy.fallback],
        "rule": policy.rule,
        "model": _model_document(policy) if policy.curves is not None else None,
        "points": [
            {
                "at": placed(point.at),
                "times_ns": dict(zip(names, point.times_ns, strict=True)),
                "run": names[point.side],
                "decided": point.decided,
            }
            for point in policy.points
        ],
        "regret": {kind: {**asdict(regret), "where": placed(regret.where)} for kind, regret in policy.regret.items()},
    }


def _model_document(policy: Policy) -> dict[str, Any]:
    curves = policy.curves
    assert curves is not None
    numeric = [axis.name for axis in policy.axes if axis.numeric]
    words = [axis.name for axis in policy.axes if not axis.numeric]
    return {
        "exponents": {
            side.name: dict(zip(numeric, exponents, strict=True))
            for side, exponents in zip(policy.sides, curves.exponents, strict=True)
        },
        "curves": [
            {
                "side": policy.sides[curve.side].name,
                "words": dict(zip(words, curve.words, strict=True)),
                **{name: getattr(curve, name) for name in _TIMES},
            }
            for curve in curves.curves
        ],
    }


def read_policy(path: Path | str) -> Policy:
    """The policy in a file.

    Raises:
        UnreadableInputError: the file is missing, damaged, or not a policy of a supported version.
    """
    source = Path(path)
    if source.exists() and not (source.is_file() or source.is_dir()):
        raise UnreadableInputError(source, "this is not a regular file", _ADVICE)
    try:
        with source.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UnreadableInputError(source, f"it has more than {_MOST_BYTES:,} bytes, as no policy has", _ADVICE)
        text = content.decode("utf-8")
    except OSError as error:
        raise UnreadableInputError(source, f"it cannot be read ({error.strerror})", _ADVICE) from None
    except UnicodeDecodeError:
        raise UnreadableInputError(source, "it is not text", _ADVICE) from None
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        problem = f"it is not valid JSON ({str(error) or 'nested too deep'})"
        raise UnreadableInputError(source, problem, _ADVICE) from None
    return policy_of(document, source)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("an object names a key twice")
    return unique


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


def policy_of(document: Any, source: Path | str) -> Policy:
    """The policy in a parsed document.

    Raises:
        UnreadableInputError: see `read_policy`.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != POLICY_SCHEMA_NAME:
        named = isinstance(schema, str) and len(schema) < 80
        problem = f"its schema is {schema!r}" if named else "it does not say that it holds a policy"
        raise UnreadableInputError(Path(source), f"{problem}, and {POLICY_SCHEMA_NAME} is read here", _ADVICE)
    try:
        return _policy(_At(document))
    except _WrongError as error:
        raise UnreadableInputError(Path(source), str(error), _ADVICE) from None


@dataclass(frozen=True)
class _At:
    """A value of a document with its path; the methods validate the value's type and raise `_WrongError`."""

    value: Any
    where: str = ""

    def demand(self, holds: bool, problem: str) -> None:
        if not holds:
            raise _WrongError(f"{self.where or 'the policy'} {problem}")

    def inside(self, name: str) -> _At:
        return _At(self.value[name], f"{self.where}.{name}" if self.where else name)

    def mapping(self) -> dict[str, _At]:
        """The values of an object, by key."""
        self.demand(isinstance(self.value, dict), "must be an object")
        return {name: self.inside(name) for name in self.value}

    def fields(self, *names: str) -> list[_At]:
        """The values of an object that must have exactly these keys, in the order of the names."""
        values = self.mapping()
        if missing := [name for name in names if name not in values]:
            self.demand(False, f"lacks {missing[0]}")
        if strange := [name for name in values if name not in names]:
            self.demand(False, f"has a key {strange[0][:40]!r}, which the schema does not know")
        return [values[name] for name in names]

    def entries(self) -> list[_At]:
        self.demand(isinstance(self.value, list), "must be a list")
        return [_At(value, f"{self.where}[{number}]") for number, value in enumerate(self.value)]

    def text(self) -> str:
        self.demand(isinstance(self.value, str), "must be a text")
        return str(self.value)

    def number(self, most: float = _LARGEST, positive: bool = False) -> float:
        value = self.value
        fits = is_number(value) and 0 <= value <= most and math.isfinite(value) and not (positive and value <= 0)
        self.demand(fits, f"must be a number {'above' if positive else 'from'} 0, at most {most:g}")
        return float(value)

    def setting(self) -> Value:
        if is_number(self.value):
            _At(abs(self.value), self.where).number()
        else:
            self.demand(self.value is None or isinstance(self.value, str | bool), "must hold numbers or words")
        value: Value = self.value
        return value

    def settings(self) -> dict[str, Value]:
        return {name: item.setting() for name, item in self.mapping().items()}

    def side(self, names: Sequence[str]) -> int:
        self.demand(isinstance(self.value, str) and self.value in names, "must name a side")
        return names.index(self.value)

    def place(self, axes: Sequence[Axis]) -> Place:
        coordinates = self.fields(*(axis.name for axis in axes))
        for coordinate, axis in zip(coordinates, axes, strict=True):
            known = any(coordinate.value == value and type(coordinate.value) is type(value) for value in axis.values)
            coordinate.demand(known, "is not a value of that axis")
        return tuple(coordinate.value for coordinate in coordinates)


def _policy(document: _At) -> Policy:
    """The policy in this document; refuses a document whose parts do not fit together."""
    (_, version, source, workload, facts, shared, sides_at, axes_at, margin, fallback, rule, model, points_at,
     regret_at) = document.fields(
        "schema", "version", "source", "workload", "environment", "shared", "sides", "axes", "margin", "fallback",
        "rule", "model", "points", "regret",
    )  # fmt: skip
    version.text()
    sides = []
    for entry in sides_at.entries():
        name, settings = entry.fields("name", "settings")
        sides.append(Side(name.text(), settings.settings()))
    names = [side.name for side in sides]
    sides_at.demand(len(sides) >= 2 and len(set(names)) == len(names), "must be two or more, with different names")
    axes = [_axis(entry) for entry in axes_at.entries()]
    axes_at.demand(
        0 < len({axis.name for axis in axes}) == len(axes) <= MOST_AXES, f"must be different, one to {MOST_AXES}"
    )
    points = [_point(entry, axes, names) for entry in points_at.entries()]
    points_at.demand(0 < len({point.at for point in points}) == len(points), "must be one or more, each once")
    rule.demand(rule.value in RULES, f"must be one of {', '.join(RULES)}")
    model.demand((rule.value == "host-or-work") == (model.value is not None), "belongs to the rule host-or-work")
    return Policy(
        source=source.text(),
        workload=workload.text(),
        shared=shared.settings(),
        sides=tuple(sides),
        axes=tuple(axes),
        points=tuple(points),
        rule=rule.value,
        curves=_curves(model, axes, names) if model.value is not None else None,
        margin=margin.number(most=1.0),
        fallback=fallback.side(names),
        regret=dict(zip(_REGRETS, (_regret(entry, axes) for entry in regret_at.fields(*_REGRETS)), strict=True)),
        environment={name: fact.text() for name, fact in facts.mapping().items()},
    )


def _axis(entry: _At) -> Axis:
    name, values_at = entry.fields("name", "values")
    values = [_At(value.value, values_at.where).setting() for value in values_at.entries()]
    axis = Axis(name.text(), tuple(values))
    rising = all(one < other for one, other in pairwise(values)) if axis.numeric else True  # type: ignore[operator]
    unique = len({(type(value), value) for value in values}) == len(values)
    values_at.demand(bool(values) and rising and unique, "must be one or more, each once, numbers rising")
    return axis


def _point(entry: _At, axes: Sequence[Axis], names: Sequence[str]) -> GridPoint:
    at, times_at, run, decided = entry.fields("at", "times_ns", "run", "decided")
    times = tuple(None if time.value is None else time.number(positive=True) for time in times_at.fields(*names))
    side = run.side(names)
    run.demand(times[side] is not None, "was not measured there")
    decided.demand(decided.value is None or isinstance(decided.value, bool), "must be true, false or null")
    return GridPoint(at.place(axes), times, side, decided.value)


def _curves(model: _At, axes: Sequence[Axis], names: Sequence[str]) -> Curves:
    exponents_at, curves_at = model.fields("exponents", "curves")
    varying, wordy = [axis for axis in axes if axis.numeric], [axis for axis in axes if not axis.numeric]
    exponents = [
        tuple(exponent.number(most=10.0) for exponent in of_side.fields(*(axis.name for axis in varying)))
        for of_side in exponents_at.fields(*names)
    ]
    units = tuple(float(axis.values[0]) for axis in varying)  # type: ignore[arg-type]
    model.demand(bool(units) and min(units) > 0, "needs axes of numbers above zero")
    curves = []
    for entry in curves_at.entries():
        side, words, *times_at = entry.fields("side", "words", *_TIMES)
        times = [time.number() for time in times_at]
        entry.demand(max(times) > 0, "takes no time")
        curves.append(Curve(words.place(wordy), side.side(names), *times))
    return Curves(tuple(axis.numeric for axis in axes), units, tuple(exponents), tuple(curves))


def _regret(entry: _At, axes: Sequence[Axis]) -> Regret:
    cells, worst, mean, where, not_run = entry.fields("cells", "worst", "mean", "where", "not_run")
    for count in (cells, not_run):
        count.demand(type(count.value) is int and 0 <= count.value < _MOST_POINTS, "must be a number of points")
    shares = [None if share.value is None else share.number() for share in (worst, mean)]
    place = None if where.value is None else where.place(axes)
    return Regret(cells.value, shares[0], shares[1], place, not_run.value)
