"""The document on hardware counters: what stands in it, in every form, and in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import warplens
from tests.analysis.counters.builders import counters, launch
from tests.report.conftest import Visit
from tests.shipped import of_others
from warplens.analysis.counters.comparison import compare_counters
from warplens.analysis.timeline import Timeline
from warplens.profile.counters import RULES, KernelCounters
from warplens.readers import read, read_counters
from warplens.report.counters.beside import comparison_data, comparison_tables, joined_blocks
from warplens.report.counters.document import (
    counters_answer,
    counters_document,
    counters_json,
    counters_lead,
    write_counters,
)
from warplens.report.counters.numbers import (
    CounterNumbers,
    counters_table,
    evidence_text,
    examine_counters,
    join_counters,
    remedy_for,
)
from warplens.report.document import Document, Figure, Paragraph, Section, Table
from warplens.report.html import render_html
from warplens.report.markdown import render_markdown

DATA = Path(warplens.__file__).parent / "data"
PLANTED = DATA / "counters" / "planted_h200.ncu-rep.xz"
MODES = Path(__file__).resolve().parents[1] / "readers" / "data" / "counter_modes"
TRACE = DATA / "captures" / "deit224_bs1_topk0.1.sqlite.xz"

HOSTILE = "<img src=x onerror=alert(1)>|`$(x)`\x1b[31m"


@cache
def planted() -> CounterNumbers:
    return examine_counters(read_counters(PLANTED))


@cache
def document(numbers: CounterNumbers) -> Document:
    return counters_document([numbers])


def section(numbers: CounterNumbers, id_: str) -> Section:
    return next(part for part in document(numbers).sections if part.id == id_)


def table(numbers: CounterNumbers, id_: str) -> pl.DataFrame:
    return next(part for part in document(numbers).tables() if part.id == id_).rows


def words(part: Section) -> str:
    return " ".join(block.text for block in part.all_blocks() if isinstance(block, Paragraph))


def test_ranges_are_not_called_kernels():
    lead = counters_lead(examine_counters(read_counters(MODES / "nvtx_ranges.ncu-rep.xz")))

    assert lead.startswith("1 result of kernels, ranges or graphs took 2.47 ms: 100.0 % bound by compute.")


def test_a_launch_of_which_one_section_was_collected_did_not_fail():
    path = of_others("ncu/rtx5090_deepseek_ocr_kernel_0001/ncu.section_Occupancy.csv")
    lead = counters_lead(examine_counters(read_counters(path)))
    assert lead == "1 launch of 1 kernel, none of which has a duration: it was not collected."


@pytest.mark.parametrize(
    ("name", "number", "said"),
    [
        ("grid_blocks", 1.0, "1 block"),
        ("grid_blocks", 1728.0, "1,728 blocks"),
        ("waves", 0.000473, "<0.1 % of a wave"),
        ("waves", 0.818, "81.8 % of a wave"),
        ("waves", 1.0, "1 wave"),
        ("waves", 1.09, "1.09 waves"),
        ("divergent_branches", 1.0, "1 divergent branch"),
        ("of_another_version", 2.5, "of_another_version 2.50"),
    ],
)
def test_evidence_is_counted_in_words(name, number, said):
    assert evidence_text([{"name": name, "value": number}]) == said


def test_kernels_of_one_name_are_distinguished_by_their_grid():
    same = examine_counters(counters(launch("a", grid=8), launch("b", grid=8)))
    several = examine_counters(counters(launch("a", grid=8), launch("a", grid=16)))

    assert "grid" not in [column.name for column in counters_table(same.summary).columns]
    shown = counters_table(several.summary)
    assert shown.columns[1].name == "grid"
    assert sorted(shown.rows["grid"]) == ["16,1,1", "8,1,1"]
    assert "grid" in table(several, "bounds-table").columns


def test_the_checklist_begins_with_what_to_mend():
    found = table(planted(), "checklist-table")["found"].to_list()
    assert found[0] == "to mend"
    assert found == sorted(found, key=["to mend", "in order", "cannot tell", "not applicable"].index)


def test_faults_are_listed_with_their_share_of_the_total_and_a_remedy():
    faults = table(planted(), "faults-table")

    assert faults["name"].to_list()[0] == "tiny_grid"
    assert faults["total_gain_share"].is_sorted(descending=True)
    total = planted().summary["total_ns"].sum()
    assert faults["total_gain_share"].to_list() == pytest.approx(
        (faults["gain_share"] * faults["total_ns"] / total).to_list()
    )
    assert "Pad or swizzle" in faults.filter(fault="bank conflicts")["remedy"][0]


def test_the_roofline_is_drawn_with_its_roofs_and_their_source():
    part = section(planted(), "roofline-section")

    (figure,) = (block for block in part.all_blocks() if isinstance(block, Figure))
    assert "tiny_grid at 0.2 % of its DRAM roof" in figure.alt
    assert "tensor cores, BF16 863 TFLOP/s" in words(part)
    assert "metrics of the report: peak rate per cycle × clock" in words(part)
    assert "3 of 9 kernels did no arithmetic" in words(part)


def test_launch_configurations_with_a_problem_stand_first():
    rows = table(planted(), "launch-table")

    assert rows.select("name", "problem").row(0) == ("tiny_grid", "4 blocks for 132 multiprocessors")
    assert rows["problem"].null_count() > 0


def test_clusters_have_columns_only_where_there_are_some():
    clusters = examine_counters(read_counters(MODES / "clusters.ncu-rep.xz"))
    plain = examine_counters(read_counters(MODES / "nvtx.ncu-rep.xz"))

    def titles(numbers: CounterNumbers) -> list[str]:
        occupancy = next(part for part in document(numbers).tables() if part.id == "occupancy-table")
        return [column.title for column in occupancy.columns]

    assert "in clusters" in titles(clusters)
    assert "in clusters" not in titles(plain)
    assert "clusters of 8 leave multiprocessors partly empty" in table(clusters, "launch-table")["problem"][0]


def test_missing_metrics_are_named_with_the_sections_to_collect():
    numbers = examine_counters(counters(launch("a")))

    for part in ("speed-of-light", "stalls", "memory", "roofline-section"):
        assert "--section" in words(section(numbers, part))
    assert "--section SpeedOfLight" in words(section(numbers, "next-run"))


def test_a_report_without_a_launch_still_gives_a_document():
    numbers = examine_counters(counters())

    assert counters_document([numbers]).lead == "The report holds no profiled kernel."
    assert "# hand.ncu-rep" in render_markdown(counters_document([numbers]))
    json.loads(counters_json([numbers]))


SMALL = (
    "This kernel grid is too small to fill the available resources on this device, resulting in only 0.7 full waves "
    "across all SMs. Look at Launch Statistics for more details."
)


@pytest.mark.parametrize(("message", "bound"), [(SMALL, "small"), ("Something else.", "unknown")])
def test_without_launch_statistics_the_tools_own_rule_tells_a_grid_that_is_too_small(message, bound):
    report = counters(launch(registers=None, sms=None, sm=9.0, memory=20.0))
    rule = {
        "launch": [0],
        "rule": ["SOLBottleneck"],
        "name": ["Bottleneck"],
        "kind": ["optimization"],
        "message": [message],
    }
    rules = pl.DataFrame(rule | dict.fromkeys(RULES.names), RULES.schema).with_columns(
        **{name: pl.Series(values) for name, values in rule.items()}
    )
    numbers = examine_counters(replace(report, rules=rules))

    row = numbers.summary.row(0, named=True)
    assert (row["bound"], row["waves"]) == (bound, None)
    if bound == "small":
        assert "Nsight Compute's own rule says" in row["reason"]
        assert "0.70 waves" in row["reason"]
        assert numbers.faults["gain_share"].to_list() == [pytest.approx((1 - 0.65) * 0.8)]  # of 0.65 to 0.75 waves


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (
            "void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_64x64_nn_align1>(T1::Params)",
            "Align the operands",
        ),
        ("nvjet_sm90_hsh_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "The code is a library's: sizes"),
        ("void at::native::softmax_warp_forward<c10::Half, c10::Half, float, 10, 0, 0>(T1 *)", "contiguous operands"),
        ("my_kernel(float *)", "Let neighbouring threads"),
    ],
)
def test_a_remedy_for_a_librarys_kernel_is_one_that_its_users_can_carry_out(kernel, says):
    assert says in remedy_for("uncoalesced", kernel)


def test_a_kernels_name_keeps_its_spelling_at_the_begin_of_a_sentence():
    answer = counters_answer(examine_counters(counters(launch("kernelA", grid=4, sm=0.5, memory=0.3))))

    assert answer.brings.startswith("In kernelA: 4 blocks")


@pytest.mark.parametrize(
    ("sm", "registers", "says"),
    [
        ((62.0, 78.0), 168, ", at 62.0 % to 78.0 % of its peak; occupancy is 12.5 %, limited by registers."),
        ((62.0, 62.0), 32, ", at 62.0 % of its peak."),
        ((95.0, 95.0), 168, ", at 95.0 % of its peak."),
    ],
)
def test_kernels_that_are_bound_but_not_near_the_peak_say_so_with_their_occupancy(sm, registers, says):
    """Of 65,536 registers, one block of 256 threads takes 43,008 if each has 168: 8 warps of 64."""
    launches = (launch(f"product_{share}", sm=share, memory=20.0, registers=registers) for share in sm)
    answer = counters_answer(examine_counters(counters(*launches)))
    assert answer.verdict == f"All of the profiled time is bound by compute{says}"


def test_what_changed_comes_by_size_and_what_did_not_change_is_left_out():
    hits, reads = "lts__t_sector_hit_rate.pct", "dram__bytes_read.sum"
    before, after = (
        counters(
            launch("same", ns=same_ns, sm=70.0, **{reads: same_ns, hits: 90.0}),
            launch("new", ns=new_ns, sm=70.0, **{hits: new_hits}),
            launch(only, grid=4, sm=0.5, memory=0.3),
        )
        for only, same_ns, new_ns, new_hits in (("a", 2000.0, 1000.0, 80.0), ("b", 2001.0, 500.0, 60.0))
    )
    comparison = compare_counters(before, after)
    tables = {table.id: table for table in comparison_tables(comparison, 0)}

    assert tables["metric-changes"].rows.select("kernel", "metric", "change").rows() == [("new", hits, "−20.0 pp")]
    assert set(tables["unpaired"].rows["bound"]) == {"too small for the GPU"}
    answer = comparison_data(comparison)["answer"]
    assert answer.startswith("A launch of each takes 2.50 µs, 3.00 µs before (ratio 0.83); the largest change is new")


def test_several_reports_are_compared_with_the_first():
    before, after = (examine_counters(counters(launch(ns=ns, sm=sm))) for ns, sm in ((200.0, 70.0), (100.0, 80.0)))

    comparison = counters_document([before, after])

    assert comparison.sections[0].id == "comparison"
    assert [part.id for part in comparison.sections[1:]] == ["p1", "p2"]
    assert "ratio 0.50" in comparison.lead
    ids = [block.id for block in (*comparison.tables(), *comparison.figures())]
    assert len(ids) == len(set(ids))


def hostile() -> KernelCounters:
    report = counters(launch(HOSTILE, sm=70.0, memory=20.0))
    return replace(report, capture=replace(report.capture, source=f"{HOSTILE}.ncu-rep"))


def test_hostile_names_are_text():
    shown = document(examine_counters(hostile()))

    page, text = render_html(shown), render_markdown(shown)
    assert "<img src=x" not in page
    assert "<img src=x" not in text
    assert "\x1b" not in page + text


@cache
def timeline() -> Timeline:
    return Timeline(read(TRACE))


def test_the_report_on_a_trace_ranks_its_kernels_by_what_they_could_save():
    numbers = read_counters(MODES / "full.ncu-rep.xz")
    shape = timeline().trace.kernels.select(
        "name", "full_name", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
    )
    first = shape.row(0, named=True)
    names = {name: pl.Series(name, [first[name]], dtype=pl.Enum([first[name]])) for name in ("name", "full_name")}
    sizes = {name: pl.lit(first[name], dtype=pl.Int32) for name in first if name not in names}
    same = replace(numbers, launches=numbers.launches.with_columns(**names, **sizes))

    joined = join_counters(same, timeline(), timeline().window("all"))
    part = Section("counters", "Hardware counters", tuple(joined_blocks([joined])))

    assert joined.matches
    assert words(part).startswith("full.ncu-rep.xz: 1 of 1 profiled launches occur in the window")
    (ranking,) = (block for block in part.all_blocks() if isinstance(block, Table) and block.id == "counters-1")
    row = ranking.rows.row(0, named=True)
    assert row["gain_share"] == pytest.approx(row["share"] * (1 - row["throughput_share"]))
    assert row["verdict"].startswith("memory (DRAM)")


def test_counters_of_another_program_match_nothing_and_say_so():
    joined = join_counters(read_counters(PLANTED), timeline(), timeline().window())

    assert not joined.matches
    numbers = examine_counters(read_counters(PLANTED), [joined])
    assert "0 of 9 profiled launches occur" in words(section(numbers, "coverage-section"))
    assert "How much of the program" in " ".join(note.text for note in numbers.semantics)


@pytest.mark.browser
def test_the_page_is_drawn_without_a_request(browser, tmp_path):
    path = write_counters([planted()], tmp_path, ["html"])[0]
    visit = Visit(browser, path, "roofline", viewport={"width": 390, "height": 844})
    drawing = visit.page.locator("[data-chart=roofline] svg")
    assert drawing.count() == 1
    assert "multiply_add" in drawing.text_content()
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
    assert visit.trouble == []
