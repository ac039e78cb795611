"""Nothing that Warplens says of a profile contradicts anything else that it says; and the checker sees it if so."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.claims.checker import check, check_order
from tests.claims.pages import Page, compared, pages_of
from tests.claims.reading import Reading
from tests.claims.sentences import tokens
from tests.shipped import OTHERS
from tests.tiers import marks_of
from warplens.errors import MissingDataError, UnreadableInputError, UsageError

REPOSITORY = Path(__file__).parents[2]
_FOLDERS = ("src/warplens/data/captures", "data/captures", "data/planted", "data/pairs", "data/recordings",
            "data/nsys-rep", "benchmarks/diagnosis/held_out")  # fmt: skip
_PROFILES = (".sqlite.xz", ".json.xz", ".sqlite", ".json.gz")


def _profiles() -> Iterator[Path]:
    folders = [REPOSITORY / folder for folder in _FOLDERS] + [OTHERS / kind for kind in ("nsys", "pairs", "kineto")]
    for folder in folders:
        yield from (path for path in sorted(folder.rglob("*")) if path.name.endswith(_PROFILES))


#: One of each kind: training with phases, copies and waits, graphs, operators, allocations, precision, aborted, two
#: GPUs.
REPRESENTATIVE = frozenset(
    ("lm_small_ctx128_train.sqlite.xz", "copies_and_syncs.sqlite.xz", "deit224_bs1_graph_whole.sqlite.xz",
     "item_per_layer__baseline.json.xz", "no_caching_allocator__baseline.json.xz", "fp32_products__baseline.sqlite.xz",
     "aborted_step__baseline.json.xz", "ddp_exposed.sqlite.xz")
)  # fmt: skip
_SHIPPED = "src/warplens/data/captures"
#: Baseline, variant.
_COMPARED = (
    (f"{_SHIPPED}/deit224_bs1_baseline.sqlite.xz", f"{_SHIPPED}/deit224_bs1_topk0.1.sqlite.xz"),
    ("data/planted/item_per_layer__baseline.json.xz", "data/planted/item_per_layer__no-sync.json.xz"),
    ("data/captures/lm_small_ctx128_train.sqlite.xz", "data/captures/lm_small_ctx512_train.sqlite.xz"),
    ("data/planted/vit_bs1__baseline.sqlite.xz", "data/planted/vit_bs1__cuda-graph.sqlite.xz"),
    ("data/planted/tiny_elementwise__baseline.json.xz", "data/planted/tiny_elementwise__cuda-graph.json.xz"),
    ("data/planted/deep_mlp_bs1__baseline.sqlite.xz", "data/planted/deep_mlp_bs1__cuda-graph.sqlite.xz"),
    ("data/planted/fp32_products__baseline.sqlite.xz", "data/planted/fp32_products__tf32.sqlite.xz"),
    ("data/planted/pageable_input__baseline.sqlite.xz", "data/planted/pageable_input__pinned.sqlite.xz"),
    ("data/planted/sleeping_input__baseline.json.xz", "data/planted/sleeping_input__prefetch.json.xz"),
    (f"{_SHIPPED}/deit448_bs8_baseline.sqlite.xz", f"{_SHIPPED}/deit448_bs8_topk0.1.sqlite.xz"),
    (f"{_SHIPPED}/deit224_bs1_baseline.sqlite.xz", f"{_SHIPPED}/deit224_bs1_graph_whole.sqlite.xz"),
)
_QUICK_COMPARISONS = 3


def _parameters() -> Iterator[Any]:
    for path in _profiles():
        inside = REPOSITORY in path.parents
        marks = () if inside and path.name in REPRESENTATIVE else marks_of(path.name)
        yield pytest.param(path, id=f"{path.parent.name}/{path.name}", marks=marks)


@pytest.mark.parametrize("path", list(_parameters()))
def test_what_is_said_of_a_profile_does_not_contradict_itself(path):
    try:
        pages = pages_of(path)
    except (UnreadableInputError, MissingDataError, UsageError) as error:
        pytest.skip(str(error))
    reading = check(pages)
    assert reading.numbers > 0
    assert [str(each) for each in reading.contradictions] == []


@pytest.mark.slow
def test_the_page_says_what_the_json_says():
    reading = check(pages_of(REPOSITORY / "data/planted/item_per_layer__baseline.json.xz", html=True))
    assert [str(each) for each in reading.contradictions] == []


def _comparisons() -> Iterator[Any]:
    for place, (baseline, variant) in enumerate(_COMPARED):
        marks = () if place < _QUICK_COMPARISONS else (pytest.mark.slow,)
        yield pytest.param(REPOSITORY / baseline, REPOSITORY / variant, id=Path(variant).name, marks=marks)


@pytest.mark.parametrize(("baseline", "variant"), list(_comparisons()))
def test_what_is_said_of_two_profiles_does_not_contradict_itself(baseline, variant):
    reading = check([compared(baseline, variant)])
    assert reading.sentences > 20
    assert [str(each) for each in reading.contradictions] == []


@cache
def _pages() -> list[Page]:
    return pages_of(REPOSITORY / "data/planted/item_per_layer__baseline.json.xz")


#: The rule that has to see it, and what is made false: command, place in its JSON, and value.
FALSEHOODS = (
    ("nothing is expected beyond the bound", "diagnose", "findings.0.bound", 1.0),
    ("the interval holds what is expected", "diagnose", "findings.0.expected_interval", [1.0, 1.01]),
    ("the first remedy has the gain of its finding", "diagnose", "findings.0.remedies.0.gain", 1.01),
    ("the interval holds the gain of a remedy", "diagnose", "findings.0.remedies.0.gain_interval", [1.0, 1.01]),
    ("a gain beyond its share has a reason", "diagnose", "headline_share", 0.01),
    ("a gain below its share has a reason", "diagnose", "headline_share", 0.97),
    ("severity goes by the gain", "diagnose", "findings.0.severity", "critical"),
    ("nothing is critical without steps", "diagnose", "findings.0.severity", "critical"),
    ("the first finding is the verdict", "diagnose", "verdict", "saturated"),
    ("the headline has the first finding's number", "diagnose", "headline", "Waits limit this; about 9.99× as fast."),
    (
        "the headline has the gain of these remedies together",
        "diagnose",
        "headline",
        "Waits limit this. Without precision as well, it is about 9.99× as fast.",
    ),
    ("the headline has its own share", "diagnose", "headline_share", 0.5),
    ("idle is at most the idle time", "diagnose", "headline", "For 84.0 % of the time the GPU had no work."),
    ("nothing is wrong only if nothing is to be gained", "diagnose", "headline", "Nothing to fix."),
    ("no remedy promises more than the bound", "diagnose", "findings.0.remedies.0.expected", "about 45.00×"),
    ("no prediction beyond a bound", "diagnose", "predictions.1.speedup", 45.0),
    ("evidence names its unit", "diagnose", "findings.0.evidence.waits", 3),
    ("busy is busy", "diagnose", "findings.0.evidence.gpu_busy_share", 0.5),
    ("a share is the part over the whole", "diagnose", "findings.0.evidence.idle_share", 0.1),
    ("a cause has at most its time in the budget", "diagnose", "findings.0.evidence.idle_share", 0.27),
    ("the diagnosis rests on the budget", "diagnose", "coverage.busy_ns", 1),
    ("commands agree", "diagnose", "coverage.claimed_ns", 0),
    ("commands speak of one window", "headroom", "window.end_ns", 1),
    ("parts sum to the whole", "headroom", "rows.0.time_ns", 1),
    ("parts sum to the whole", "report", "strips.0.rows.0.share", 0.0),
    ("a moment lies within the window", "report", "timeline.moments.rows.0.end_ns", 10**15),
    ("a moment is of a finding", "report", "timeline.moments.rows.0.finding", "saturated"),
    ("links count from the first event", "report", "timeline.origin_ns", 1),
    ("each step down leaves less", "headroom", "devices.0.after.idle", 10**12),
    ("a model is not called measured", "headroom", "rows.6.how", "measured"),
    ("budget and headroom have the same idle time", "headroom", "rows.0.time_ns", 1),
    ("losses lead from measured to the limit", "headroom", "devices.0.groups.rows.0.limit_ns", 10**9),
    ("shares lie from 0 to 1", "report", "kernels.rows.0.share", 1.2),
    ("parts are at most their whole", "report", "kernels.rows.1.share", 0.9),
    ("busy and idle are the whole", "report", "steps.rows.0.idle_ns", 0),
    ("mean × calls is the total", "report", "kernels.rows.0.total_ns", 1),
    ("a part lies within its whole", "report", "operators.rows.0.gpu_self_ns", 10**12),
    ("least ≤ median, mean ≤ most", "report", "kernels.rows.0.max_ns", 1),
)


@pytest.mark.parametrize(("rule", "command", "place", "value"), FALSEHOODS, ids=[rule for rule, *_ in FALSEHOODS])
def test_a_falsehood_is_seen(rule, command, place, value):
    pages = copy.deepcopy(_pages())
    within: Any = next(page.data for page in pages if page.command == command)
    *path, last = (int(key) if key.isdigit() else key for key in place.split("."))
    for key in path:
        within = within[key]
    within[last] = value
    if rule == "nothing is critical without steps":
        pages[0].data["coverage"]["steps"] = 0
    assert rule in {each.rule for each in check(pages).contradictions}


@pytest.mark.parametrize(("first", "gain", "holds"),
    [("host-sync", 1.26, True), ("host-sync", 1.24, False), ("blocking-copy", 4.9, False)])  # fmt: skip
def test_what_makes_a_host_slow_may_stand_before_its_pace_from_a_quarter_of_it_on(first, gain, holds):
    findings = [
        {"id": id_, "severity": "warning", "bound": None, "expected": expected}
        for id_, expected in ((first, gain), ("launch-overhead", 5.0))
    ]
    reading = Reading()
    check_order(reading, findings)
    assert [each.rule for each in reading.contradictions] == ([] if holds else ["the verdict has the largest gain"])


@pytest.mark.parametrize("form", ["table", "md"])
def test_a_number_that_is_nowhere_in_the_json_is_seen(form):
    diagnosis, *rest = _pages()
    false = replace(diagnosis, texts={**diagnosis.texts, form: "The GPU waits for 12.3 % of it."})
    (found,) = check([false, *rest]).contradictions
    assert found.rule == "a number in words is one of the JSON"
    assert found.said == "12.3 %"


def test_a_share_above_all_of_it_is_seen():
    diagnosis, *rest = _pages()
    false = replace(diagnosis, texts={"table": "gpu busy 172.3 %"})
    assert "percentages are at most 100 %" in {each.rule for each in check([false, *rest]).contradictions}


def test_numbers_are_read_with_their_units_and_names_are_none():
    assert tokens("idle 5.31 ms, 22.0 %, 1.29×, 24.8 GB/s, −3.2 µs, 1,204 B") == [
        ("5.31", "ms"), ("22.0", "%"), ("1.29", "×"), ("24.8", "GB/s"), ("−3.2", "µs"), ("1,204", "B"),
    ]  # fmt: skip
    assert tokens("nvjet_sm90_hsh_192x192_64x4_1x2_h_bz, step 3 of 5, 2×66×1, v1.2.3 s") == []
