"""Every finding has the documented form: ids, severities, evidence with units, remedies with how-to, a refutation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import warplens.diagnosis
from tests.diagnosis import programs
from tests.diagnosis.programs import record, verdict
from tests.diagnosis.test_verdicts import HEALTHY, PLANTED
from warplens.diagnosis import EVIDENCE_UNITS, FINDING_IDS, SEVERITIES, Diagnosis
from warplens.diagnosis.findings import CONFIDENCES
from warplens.diagnosis.kernelclaims import CAUSES
from warplens.report.diagnosis.data import diagnosis_data
from warplens.report.jsonout import dumps

ALL = (*PLANTED.values(), *HEALTHY)


@pytest.fixture(scope="module")
def diagnoses() -> list[Diagnosis]:
    return [verdict(program) for program in ALL]


def test_ids_severities_and_confidences_are_those_of_the_vocabulary(diagnoses: list[Diagnosis]) -> None:
    for found in diagnoses:
        assert found.verdict in FINDING_IDS
        assert found.findings[0].id == found.verdict
        ids = [finding.id for finding in found.findings]
        assert len(ids) == len(set(ids))
        for finding in found.findings:
            assert finding.id in FINDING_IDS
            assert finding.severity in SEVERITIES
            assert finding.confidence in CONFIDENCES
            assert finding.gain_ceiling is None or finding.gain_ceiling >= 1


def test_every_number_of_the_evidence_says_its_unit(diagnoses: list[Diagnosis]) -> None:
    for finding in (finding for found in diagnoses for finding in found.findings):
        assert finding.evidence
        for name, value in finding.evidence.items():
            assert isinstance(value, (int, float)), (finding.id, name)
            assert any(unit in name for unit in EVIDENCE_UNITS), (finding.id, name)
            if name.endswith("_share"):
                assert 0 <= value <= 1.000001, (finding.id, name, value)


def test_every_finding_says_what_to_do_how_and_what_would_refute_it(diagnoses: list[Diagnosis]) -> None:
    for finding in (finding for found in diagnoses for finding in found.findings):
        assert finding.refute
        assert finding.remedies
        for remedy in finding.remedies:
            assert remedy.action
            assert remedy.how
            assert remedy.expected


def test_findings_stand_worst_first_behind_the_verdict(diagnoses: list[Diagnosis]) -> None:
    for found in diagnoses:
        severities = [SEVERITIES.index(finding.severity) for finding in found.findings[1:]]
        assert severities == sorted(severities)


def test_the_json_holds_the_documented_keys_and_only_plain_values() -> None:
    data = json.loads(dumps(diagnosis_data(verdict(programs.unfused_optimizer))))
    assert set(data) == {"verdict", "headline", "findings", "per_phase", "predictions", "coverage"}
    for finding in data["findings"]:
        assert list(finding) == [
            "id", "title", "severity", "confidence", "gain_ceiling", "evidence", "where", "remedies", "refute",
        ]  # fmt: skip
        assert all(isinstance(place, str) for place in finding["where"])
        assert all(list(remedy) == ["action", "how", "expected"] for remedy in finding["remedies"])
    assert [part["phase"] for part in data["per_phase"]] == ["forward", "backward", "optimizer"]


def test_each_phase_has_a_verdict_of_its_own() -> None:
    found = verdict(programs.unfused_optimizer)
    by_phase = {part.phase: part.verdict for part in found.per_phase}
    assert by_phase["optimizer"] == "unfused-optimizer"
    assert by_phase["backward"] in ("saturated", "tensor-compute")
    assert sum(part.share for part in found.per_phase) <= 1


def test_claims_cover_the_vocabulary() -> None:
    assert set(CAUSES) == set(FINDING_IDS)


def test_ranges_name_the_place_of_a_cause() -> None:
    def step(machine: programs.Machine) -> None:
        with machine.range("attention"):
            machine.launch(2 * programs.US, times=100)
        with machine.range("mlp"):
            machine.launch(2 * programs.US, times=20)
        machine.wait()

    assert verdict(step).findings[0].where[:2] == ("attention", "mlp")


def test_the_same_trace_gives_the_same_diagnosis_twice() -> None:
    profile = record(programs.item_per_layer)
    first, second = (dumps(diagnosis_data(programs.judged(profile))) for _ in range(2))
    assert first == second


def test_every_finding_and_every_number_of_evidence_is_explained(diagnoses: list[Diagnosis]) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "findings.md"
    text = page.read_text("utf-8")
    assert re.findall(r"^\| `([\w-]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE) == [*FINDING_IDS]
    named = {name for found in diagnoses for finding in found.findings for name in finding.evidence}
    rules = Path(warplens.diagnosis.__file__).parent
    for source in [*rules.glob("rules/*.py"), rules / "faultrule.py"]:
        endings = "|".join(EVIDENCE_UNITS)
        named |= set(re.findall(rf'"(\w+(?:{endings}))": ', source.read_text("utf-8")))
    assert named <= set(re.findall(r"`(\w+)`", text))
