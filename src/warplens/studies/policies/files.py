"""Policy files: JSON, `warplens.policy/1` (docs/reference/policy.md). Read and written without a package.

A policy decides what a program runs, so a file is believed only as a whole: every key must be there and no other, and
what it says must fit together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from warplens._version import __version__
from warplens.errors import UnreadableInputError
from warplens.studies.policies.choosing import RULES, Axis, GridPoint, Place, Policy, Side, Value, is_number
from warplens.studies.policies.regret import Curve, Curves, Regret
from warplens.writing import write_whole

POLICY_SCHEMA_NAME: Final = "warplens.policy/1"

_ADVICE: Final = "Give a file that `warplens policy fit … --output FILE` wrote"

#: A point takes some hundred bytes, and a sweep has some hundred points. The bound does not stand with those of the
#: readers, which need packages that a program that asks a policy need not have.
_MOST_BYTES: Final = 16 * 2**20
#: A place between points has two to the power of this many points around.
_MOST_AXES: Final = 8
#: No time (31 years) and no setting is larger; products of such numbers stay finite.
_LARGEST: Final = 1e18
#: More points than any sweep; a 64-bit integer holds it.
_MOST_POINTS: Final = 10**9
_REGRETS: Final = ("measured", "held-out", "edge")
#: Of a curve.
_TIMES: Final = ("host_ns", "fixed_ns", "work_ns")


class _WrongError(ValueError):
    """What is wrong with a document, and where in it."""


def write_policy(policy: Policy, path: Path | str) -> None:
    """Write a policy; a file that is there is replaced in one go."""
    write_whole(Path(path), json.dumps(document_of(policy), ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def document_of(policy: Policy) -> dict[str, Any]:
    """A policy as the JSON object that stands in its file."""
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
        "regret": {kind: {**asdict(found), "where": placed(found.where)} for kind, found in policy.regret.items()},
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
        UnreadableInputError: the file is missing or damaged, or is no policy of a version known here.
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
        raise UnreadableInputError(
            source, f"it is not valid JSON ({str(error) or 'nested too deep'})", _ADVICE
        ) from None
    return policy_of(document, source)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


def policy_of(document: Any, source: Path | str) -> Policy:
    """The policy in a document that was parsed already.

    Raises:
        UnreadableInputError: see `read_policy`.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != POLICY_SCHEMA_NAME:
        known = isinstance(schema, str) and len(schema) < 80
        found = f"its schema is {schema!r}" if known else "it does not say that it holds a policy"
        raise UnreadableInputError(Path(source), f"{found}, and {POLICY_SCHEMA_NAME} is read here", _ADVICE)
    try:
        return _policy(document)
    except _WrongError as error:
        raise UnreadableInputError(Path(source), str(error), _ADVICE) from None


_KEYS: Final = (
    "schema", "version", "source", "workload", "environment", "shared", "sides", "axes", "margin", "fallback", "rule",
    "model", "points", "regret",
)  # fmt: skip


def _policy(document: Any) -> Policy:
    _keys(document, _KEYS, "the policy")
    for name in ("version", "source", "workload"):
        _text(document[name], name)
    environment = {name: _text(fact, f"environment.{name}") for name, fact in _dict(document, "environment").items()}
    sides = [_side(entry, number) for number, entry in enumerate(_list(document, "sides"))]
    names = [side.name for side in sides]
    _demand(len(sides) >= 2 and len(set(names)) == len(names), "sides", "must be two or more, with different names")
    axes = [_axis(entry, number) for number, entry in enumerate(_list(document, "axes"))]
    _demand(0 < len({axis.name for axis in axes}) == len(axes) <= _MOST_AXES, "axes", "must be different, at most 8")
    points = [_point(entry, f"points[{number}]", axes, names) for number, entry in enumerate(_list(document, "points"))]
    _demand(0 < len({point.at for point in points}) == len(points), "points", "must be one or more, each once")
    rule = document["rule"]
    _demand(rule in RULES, "rule", f"must be one of {', '.join(RULES)}")
    _demand((rule == "host-or-work") == (document["model"] is not None), "model", "belongs to the rule host-or-work")
    regret = document["regret"]
    _keys(regret, _REGRETS, "regret")
    return Policy(
        source=document["source"],
        workload=document["workload"],
        shared=_settings(document["shared"], "shared"),
        sides=tuple(sides),
        axes=tuple(axes),
        points=tuple(points),
        rule=rule,
        curves=_curves(document["model"], axes, names) if document["model"] is not None else None,
        margin=_number(document["margin"], "margin", most=1.0),
        fallback=_of(document["fallback"], names, "fallback"),
        regret={kind: _regret(regret[kind], f"regret.{kind}", axes) for kind in _REGRETS},
        environment=environment,
    )


def _side(entry: Any, number: int) -> Side:
    where = f"sides[{number}]"
    _keys(entry, ("name", "settings"), where)
    return Side(_text(entry["name"], f"{where}.name"), _settings(entry["settings"], f"{where}.settings"))


def _axis(entry: Any, number: int) -> Axis:
    where = f"axes[{number}]"
    _keys(entry, ("name", "values"), where)
    values = _list(entry, "values")
    for value in values:
        _value(value, f"{where}.values")
    axis = Axis(_text(entry["name"], f"{where}.name"), tuple(values))
    rising = all(one < other for one, other in pairwise(values)) if axis.numeric else True
    words = len({(type(value), value) for value in values}) == len(values)
    _demand(bool(values) and rising and words, f"{where}.values", "must be one or more, each once, numbers rising")
    return axis


def _point(entry: Any, where: str, axes: Sequence[Axis], names: Sequence[str]) -> GridPoint:
    _keys(entry, ("at", "times_ns", "run", "decided"), where)
    _keys(entry["times_ns"], names, f"{where}.times_ns")
    times = tuple(
        None if (time := entry["times_ns"][name]) is None else _number(time, f"{where}.times_ns", positive=True)
        for name in names
    )
    side = _of(entry["run"], names, f"{where}.run")
    _demand(times[side] is not None, f"{where}.run", "was not measured there")
    _demand(
        entry["decided"] is None or isinstance(entry["decided"], bool),
        f"{where}.decided",
        "must be true, false or null",
    )
    return GridPoint(_place(entry["at"], f"{where}.at", axes), times, side, entry["decided"])


def _place(entry: Any, where: str, axes: Sequence[Axis]) -> Place:
    _keys(entry, [axis.name for axis in axes], where)
    for axis in axes:
        known = any(entry[axis.name] == value and type(entry[axis.name]) is type(value) for value in axis.values)
        _demand(known, f"{where}.{axis.name}", "is not a value of that axis")
    return tuple(entry[axis.name] for axis in axes)


def _curves(entry: Any, axes: Sequence[Axis], names: Sequence[str]) -> Curves:
    _keys(entry, ("exponents", "curves"), "model")
    _keys(entry["exponents"], names, "model.exponents")
    varying, wordy = [axis for axis in axes if axis.numeric], [axis for axis in axes if not axis.numeric]
    exponents = []
    for name in names:
        _keys(entry["exponents"][name], [axis.name for axis in varying], f"model.exponents.{name}")
        found = entry["exponents"][name]
        exponents.append(tuple(_number(found[axis.name], "model.exponents", most=10.0) for axis in varying))
    units = tuple(float(axis.values[0]) for axis in varying)  # type: ignore[arg-type]
    _demand(bool(units) and min(units) > 0, "model", "needs axes of numbers above zero")
    curves = []
    for number, one in enumerate(_list(entry, "curves")):
        where = f"model.curves[{number}]"
        _keys(one, ("side", "words", *_TIMES), where)
        words = _place(one["words"], f"{where}.words", wordy)
        host, fixed, work = (_number(one[name], f"{where}.{name}") for name in _TIMES)
        _demand(max(host, fixed, work) > 0, where, "takes no time")
        curves.append(Curve(words, _of(one["side"], names, f"{where}.side"), host, fixed, work))
    return Curves(tuple(axis.numeric for axis in axes), units, tuple(exponents), tuple(curves))


def _regret(entry: Any, where: str, axes: Sequence[Axis]) -> Regret:
    _keys(entry, ("cells", "worst", "mean", "where", "not_run"), where)
    for name in ("cells", "not_run"):
        _demand(
            type(entry[name]) is int and 0 <= entry[name] < _MOST_POINTS,
            f"{where}.{name}",
            "must be a number of points",
        )
    shares = [None if entry[name] is None else _number(entry[name], f"{where}.{name}") for name in ("worst", "mean")]
    place = None if entry["where"] is None else _place(entry["where"], f"{where}.where", axes)
    return Regret(entry["cells"], shares[0], shares[1], place, entry["not_run"])


def _demand(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise _WrongError(f"{where} {what}")


def _keys(entry: Any, names: Sequence[str], where: str) -> None:
    _demand(isinstance(entry, dict), where, "must be an object")
    if missing := [name for name in names if name not in entry]:
        raise _WrongError(f"{where} lacks {missing[0]}")
    if strange := [name for name in entry if name not in names]:
        raise _WrongError(f"{where} has a key {strange[0][:40]!r}, which the schema does not know")


def _dict(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = document[name]
    _demand(isinstance(found, dict), name, "must be an object")
    return dict(found)


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    found = document[name]
    _demand(isinstance(found, list), name, "must be a list")
    return list(found)


def _text(value: Any, where: str) -> str:
    _demand(isinstance(value, str), where, "must be a text")
    return str(value)


def _value(value: Any, where: str) -> None:
    if is_number(value):
        _number(abs(value), where)
    else:
        _demand(value is None or isinstance(value, str | bool), where, "must hold numbers or words")


def _settings(entry: Any, where: str) -> dict[str, Value]:
    _demand(isinstance(entry, dict), where, "must be an object")
    for name, value in entry.items():
        _value(value, f"{where}.{name}")
    return dict(entry)


def _number(value: Any, where: str, most: float = _LARGEST, positive: bool = False) -> float:
    fits = is_number(value) and 0 <= value <= most and math.isfinite(value) and not (positive and value <= 0)
    _demand(fits, where, f"must be a number {'above' if positive else 'from'} 0, at most {most:g}")
    return float(value)


def _of(value: Any, names: Sequence[str], where: str) -> int:
    _demand(isinstance(value, str) and value in names, where, "must name a side")
    return names.index(value)
