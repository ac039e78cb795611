"""Every finding has the documented form: ids, severities, evidence with units, remedies with how-to, a refutation."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import astuple, replace
from itertools import chain
from pathlib import Path

import pytest
from docs.generate_findings import PAGE, page

from docs import generate_findings
from tests.diagnosis import programs
from tests.diagnosis.programs import record, verdict
from tests.diagnosis.test_verdicts import HEALTHY, PLANTED
from warplens.diagnosis import DEFAULTS, EVIDENCE_UNITS, FINDING_IDS, RULES, SEVERITIES, Diagnosis, Rule, rules
from warplens.diagnosis import verdict as verdict_module
from warplens.diagnosis.findings import CONFIDENCES, USUAL, Variant
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.communication import UnbucketedCommunication
from warplens.diagnosis.thresholds import REASONS
from warplens.report.document import Document, SectionOf
from warplens.report.jsonout import dumps
from warplens.report.markdown import render_markdown
from warplens.report.verdict import diagnosis_data, finding_blocks, finding_data, findings_frame

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
            assert finding.gain_ceiling == finding.bound
            if finding.expected is not None:
                assert finding.expected_interval is not None
                low, high = finding.expected_interval
                assert 1 <= low <= finding.expected <= high <= (finding.bound or high)


def test_a_warning_is_worth_what_the_legend_says_and_findings_stand_by_their_gain(diagnoses: list[Diagnosis]) -> None:
    for found in diagnoses:
        for finding in found.findings:
            if finding.severity == "critical":
                assert finding.gain >= DEFAULTS.critical_ceiling
            if finding.severity == "warning":
                assert finding.gain >= DEFAULTS.warning_ceiling


def test_no_prediction_exceeds_the_bound_of_the_finding_whose_remedy_it_is(diagnoses: list[Diagnosis]) -> None:
    remedies = {
        "cuda-graph": "launch-overhead",
        "no-synchronization": "host-sync",
        "async-copies": "blocking-copy",
        "cached-allocation": "allocator-churn",
        "no-host-stall": "host-stall",
    }
    for found in diagnoses:
        for prediction in found.predictions:
            finding = found.finding(remedies.get(prediction.change, ""))
            if finding is not None and finding.bound is not None:
                assert prediction.speedup <= finding.bound


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


def test_each_remedy_tells_its_own_gain_and_none_more_than_the_bound(diagnoses: list[Diagnosis]) -> None:
    for finding in (finding for found in diagnoses for finding in found.findings):
        gains = [remedy.gain for remedy in finding.remedies if remedy.gain is not None]
        if finding.expected is None:
            assert not gains, finding.id
            continue
        assert gains, finding.id
        assert gains[0] == finding.expected, "the first that is told is what the finding expects"
        assert gains[1:] == sorted(gains[1:], reverse=True), finding.id
        for remedy in finding.remedies:
            if remedy.gain is not None and remedy.gain_interval is not None:
                low, high = remedy.gain_interval
                assert low <= remedy.gain <= high, (finding.id, remedy.action)
                assert finding.bound is None or high <= finding.bound, (finding.id, remedy.action)


def test_a_batch_brings_more_the_larger_it_is_and_never_more_than_its_size(diagnoses: list[Diagnosis]) -> None:
    remedies = (remedy for found in diagnoses for finding in found.findings for remedy in finding.remedies)
    told = [remedy.gain_by_batch for remedy in remedies if remedy.gain_by_batch is not None]
    assert told
    for gains in told:
        assert list(gains.values()) == sorted(gains.values())
        assert all(gain <= 1.01 * count for count, gain in gains.items())


def test_findings_stand_worst_first_behind_the_verdict(diagnoses: list[Diagnosis]) -> None:
    for found in diagnoses:
        severities = [SEVERITIES.index(finding.severity) for finding in found.findings[1:]]
        assert severities == sorted(severities)


def test_the_json_holds_the_documented_keys_and_only_plain_values() -> None:
    data = json.loads(dumps(diagnosis_data(verdict(programs.unfused_optimizer))))
    assert set(data) == {
        "verdict", "verdict_known", "headline", "headline_share", "findings", "per_phase", "predictions", "coverage",
        "what_if", "without_profiler",
    }  # fmt: skip
    for finding in data["findings"]:
        assert list(finding) == [
            "id", "title", "severity", "confidence", "expected", "expected_interval", "bound", "gain_ceiling",
            "evidence", "where", "remedies", "refute", "places", "shares_with",
        ]  # fmt: skip
        assert all(isinstance(place, str) for place in finding["where"])
        assert all(
            list(remedy) == ["action", "how", "expected", "gain", "gain_interval", "gain_by_batch"]
            for remedy in finding["remedies"]
        )
    assert [part["phase"] for part in data["per_phase"]] == ["forward", "backward", "optimizer"]


def test_each_phase_has_a_verdict_of_its_own() -> None:
    found = verdict(programs.unfused_optimizer)
    by_phase = {part.phase: part.verdict for part in found.per_phase}
    assert by_phase["optimizer"] == "unfused-optimizer"
    assert by_phase["backward"] in ("below-roof", "tensor-compute")
    assert sum(part.share for part in found.per_phase) <= 1


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


def test_the_page_of_findings_is_what_the_rules_say() -> None:
    text = PAGE.read_text("utf-8")
    assert page(text) == text
    assert [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")][: len(RULES)] == [*FINDING_IDS]


def test_every_number_of_evidence_is_explained_by_its_rule(diagnoses: list[Diagnosis]) -> None:
    for finding in (finding for found in diagnoses for finding in found.findings):
        assert set(finding.evidence) <= {*rule(finding.id).evidence}, finding.id


@pytest.mark.parametrize("declared", RULES, ids=lambda each: each.id)
def test_a_rule_has_all_parts(declared: Rule) -> None:
    for part in ("id", "question", "limiter", "cause", "raised_when", "claimed", "refutation"):
        assert getattr(declared, part), part
    assert declared.question.endswith("?")
    assert bool(declared.headline) != declared.describes
    assert declared.evidence
    assert all(meaning and any(unit in name for unit in EVIDENCE_UNITS) for name, meaning in declared.evidence.items())
    assert set(declared.thresholds) <= set(REASONS)
    assert all(limit.why and "TODO" not in limit.why for limit in declared.limits().values())


@pytest.mark.parametrize("declared", RULES, ids=lambda each: each.id)
def test_no_variant_repeats_a_text_of_its_rule(declared: Rule) -> None:
    members = [member for _, member in inspect.getmembers(declared)]
    groups = (member.values() for member in members if isinstance(member, Mapping))
    for variant in (each for each in (*members, *chain(*groups)) if isinstance(each, Variant)):
        assert not {*filter(None, astuple(variant)[:3])} & {declared.title, declared.headline, declared.refutation}


def test_findings_have_the_texts_of_their_variants_which_no_output_names(diagnoses: list[Diagnosis]) -> None:
    findings = [finding for found in diagnoses for finding in found.findings]
    assert any(finding.variant != USUAL for finding in findings)
    for finding in findings:
        assert finding.refute == (finding.variant.refutation or rule(finding.id).refutation)
        assert "variant" not in finding_data(finding)


def test_a_variant_is_recognised_where_its_title_has_numbers() -> None:
    declared = UnbucketedCommunication()
    title = declared.handled.title.format(share="40.0 %", count=300)
    finding = declared.found(title, "info", "low", (None, None, None), {}, (), (), declared.handled)
    assert finding.title == title
    assert declared.makes_launches(finding)
    assert not declared.headline_of(finding)
    assert replace(finding, variant=USUAL) == finding


RECIPE = '''
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.rule import GPU_BUSY_SHARE, Limit, Rule


class LongKernels(Rule):
    """Kernels that take long."""

    id = "long-kernels"
    question = "Do kernels take long?"
    limiter = "kernels that take long"
    cause = "kernels of more than a tenth of a millisecond"
    raised_when = "there is one"
    headline = "Long kernels limit this: {share} of the time goes to them"
    title = "Kernels take long"
    evidence = {**GPU_BUSY_SHARE, "long_kernels_count": "kernels that take long"}
    refutation = "Make them shorter."
    longest_ns = Limit(100_000, "Tests launch shorter ones.")
    precedence = "certain"

    def claim(self, facts):
        return ((facts.work["end_ns"] - facts.work["start_ns"]) > self.longest_ns).to_numpy().astype(float)

    def find(self, facts, claims):
        return self.raised(
            facts,
            claims.busy_ns(self.id),
            confidence="high",
            evidence={"gpu_busy_share": facts.busy_share, "long_kernels_count": facts.work.height},
            where=(),
            remedies=(Remedy("Wait less", "sleep(0)", "nothing"),),
        )
'''


def test_a_rule_in_one_new_file_shows_up_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours.py").write_text(RECIPE, "utf-8")
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    declared = rules._declared()
    for module in (rules, verdict_module, generate_findings):
        monkeypatch.setattr(module, "RULES", declared)
    found = verdict(lambda machine: machine.launch(300 * programs.US, "cunn_SoftMaxForward", times=6))
    assert found.verdict == "long-kernels"
    assert found.headline.startswith("Long kernels limit this: ")
    assert '"long-kernels"' in dumps(diagnosis_data(found)).decode()
    assert findings_frame(found)["id"][0] == "long-kernels"
    text = render_markdown(Document("test", "", (SectionOf("findings", "Findings", finding_blocks).of(found),)))
    assert "Kernels take long" in text
    assert "Make them shorter." in text
    documented = page(PAGE.read_text("utf-8"))
    assert "| `long-kernels` | Do kernels take long? | Make them shorter. |" in documented
    assert "| `longest_ns` | 1e+05 | `long-kernels` | Tests launch shorter ones. |" in documented


def test_two_rules_with_one_id_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "second.py").write_text(RECIPE.replace('"long-kernels"', '"saturated"'), "utf-8")
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    with pytest.raises(ValueError, match="id saturated"):
        rules._declared()
