"""Programs with several habits (`data/several`): what is named, in which order, and what remedies bring together."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.several import FOLDER, Result, programs, result

from warplens.answers import diagnose
from warplens.diagnosis.findings import Finding
from warplens.diagnosis.rules import RULES
from warplens.diagnosis.rules.gradients import _untaken

pytestmark = pytest.mark.skipif(not programs(), reason="the programs with several habits (data/several) are not here")


def _judged(name: str, source: str) -> Result:
    entry = next(each for each in programs() if each["name"] == name)
    return result((entry, source, FOLDER / entry["files"][f"{source}_before"]["path"]))


def _finding(name: str, source: str, id_: str) -> Finding:
    entry = next(each for each in programs() if each["name"] == name)
    found = diagnose(str(FOLDER / entry["files"][f"{source}_before"]["path"])).diagnosis.finding(id_)
    assert found is not None
    return found


def test_the_index_names_every_profile_and_findings_for_every_fix() -> None:
    named = {file["path"] for entry in programs() for file in entry["files"].values()}
    assert named == {path.name for path in FOLDER.iterdir()} - {"INDEX.json", "README.md"}
    known = {rule.id for rule in RULES}
    for entry in programs():
        assert entry["fixes"].keys() == entry["named"].keys()
        assert {id_ for ids, _ in entry["named"].values() for id_ in ids} <= known


@pytest.mark.parametrize("source", ["nsys", "torch"])
def test_groups_of_fixes_bring_what_is_predicted(source: str) -> None:
    """Timed on the GPU with two and three of the fixes; the GPU sets the pace, so that another machine is as fast."""
    groups = {group.name: group for group in _judged("contract_llama_tuning", source).groups}
    assert len(groups) == 4
    for group in groups.values():
        assert group.expected == pytest.approx(group.measured[0], rel=0.02), group.name
        assert group.interval[0] <= group.measured[0] <= group.interval[1]
    assert groups["vocabulary+checkpointing+fused"].expected > groups["vocabulary+checkpointing"].expected


@pytest.mark.parametrize("source", ["nsys", "torch"])
def test_a_graph_does_not_bring_back_pauses_that_another_remedy_removes(source: str) -> None:
    """Images made on the host, and launches one by one: both together bring far more than each (8.3 times, timed)."""
    judged = _judged("doorbell_vit", source)
    both = next(group for group in judged.groups if group.name == "resize+graph")
    alone = [fix.expected or 1.0 for fix in judged.fixes if fix.name in ("resize", "graph")]
    assert both.expected > 2 * max(alone)


def test_gradients_of_frozen_weights_in_fp32_are_told_beside_the_format_that_slows_them_down() -> None:
    """Adapters alone are trained, of 24 and 8 small matrices; freezing the rest was timed at 1.38 times."""
    precision, unused = (_finding("support_lora_tuning", "torch", id_) for id_ in ("precision", "unused-gradients"))
    assert (precision.shares_with, unused.shares_with) == ("", "precision")
    assert unused.expected == pytest.approx(1.38, rel=0.1)
    assert precision.expected is not None
    assert precision.expected > 3


def test_sizes_of_gradients_that_an_optimizer_takes_add_up_to_its_blocks() -> None:
    numbers = np.array([100, 5_000_000, 100, 5_000_000, 80_000], dtype=np.int64)
    blocks = -(-numbers // 65_536)
    assert blocks.tolist() == [1, 77, 1, 77, 2]
    # The large ones exceed five blocks; without one of the other sizes, five cannot be reached: no sum fits.
    assert _untaken(numbers, blocks, 5).tolist() == pytest.approx([1 - 5 / 158] * 5)
    assert _untaken(numbers, blocks, 4).tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]
    either = _untaken(numbers, blocks, 2)  # the two small ones, or the one of two blocks
    assert either[[1, 3]].tolist() == [1.0, 1.0]
    assert either[[0, 2, 4]].tolist() == pytest.approx([1 - 2 / 158] * 3)


def test_an_optimizer_is_seen_although_most_of_its_weights_are_equal_experts() -> None:
    """384 of its 440 weights have one size. One call for all of them was timed at 1.16 times."""
    found = _finding("news_expert_training", "nsys", "unfused-optimizer")
    assert 3000 <= found.evidence["launches_per_step"] <= 3200  # seven kernels for each of 440 weights
    lists = next(remedy for remedy in found.remedies if remedy.action.startswith("Update all tensors"))
    assert lists.gain == pytest.approx(1.16, rel=0.1)
