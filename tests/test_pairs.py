"""The suite of pairs: its index holds what is in the folder, and packing a part of a half keeps the rest."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.pairs import FOLDER, HALVES, SOURCES, pairs

from warplens.diagnosis.rules import RULES

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.skipif(not pairs(), reason="the pairs (data/pairs) are not here")


def test_the_index_names_every_profile_of_its_half_and_no_other() -> None:
    named = [FOLDER / file["path"] for pair in pairs() for file in pair.entry["files"].values()]
    stored = [path for half in HALVES for path in (FOLDER / half).iterdir()]
    assert sorted(named) == sorted(stored)
    assert all(path.parent.name == pair.half for pair in pairs() for path in [pair.path("nsys")] if path)


def test_every_program_has_both_profiles_and_a_habit_that_is_a_finding() -> None:
    known = {rule.id for rule in RULES}
    names = [pair.name for pair in pairs()]
    assert len(names) == len(set(names))
    assert {pair.half for pair in pairs()} == set(HALVES)
    for pair in pairs():
        assert all(pair.path(source) is not None for source in SOURCES), pair.name
        assert set(pair.accepted) <= known, pair.name
        assert (pair.ratio is None) == pair.is_healthy, pair.name


def _pack() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pack", FOLDER.parents[1] / "captures" / "pairs" / "pack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_packing_a_part_of_a_half_keeps_the_other_programs() -> None:
    stored: list[dict[str, Any]] = [{"name": name, "half": "third", "ratio": 1} for name in "abc"]
    found = _pack().merged(stored, [{"name": "b", "half": "third", "ratio": 2}, {"name": "d", "half": "third"}])
    assert [(entry["name"], entry.get("ratio")) for entry in found] == [("a", 1), ("b", 2), ("c", 1), ("d", None)]
