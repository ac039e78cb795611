"""The headroom: parts that sum to the measured step, levels that never rise, and limits that measured remedies keep.

Practical roofs: between the data sheet and what was measured, lower for small work, none for what is unknown.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tests.analysis.builders as b
import warplens
from tests.analysis.work.programs import launched, operator, program
from tests.shipped import OTHERS
from tests.tiers import marks_of, thinned
from warplens.analysis.categories import classify_names
from warplens.analysis.headroom import LOSSES, STEPS_DOWN, Headroom, headrooms, loss_column
from warplens.analysis.headroom.budget import NO_MODEL
from warplens.analysis.headroom.groups import words_of
from warplens.analysis.headroom.levels import _sides
from warplens.analysis.headroom.names import _name_facts
from warplens.analysis.headroom.shapes import misaligned
from warplens.analysis.quality import quality_notes
from warplens.analysis.roofs import SHORTEST_NS, STATED, Roofs, Task, roofs_of
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Step
from warplens.analysis.work.catalogue import count_work, operator_work
from warplens.diagnosis import diagnose
from warplens.profile import Device
from warplens.profile.peaks import Peaks
from warplens.readers import read, read_counters
from warplens.report.headroom import facts

DATA = Path(warplens.__file__).parent / "data"
PLANTED = Path(__file__).resolve().parents[2] / "data" / "planted"
SHIPPED = sorted([*(DATA / "captures").glob("*.xz"), *PLANTED.glob("*.xz")])
DEVELOPMENT = Path(__file__).resolve().parents[2] / "data" / "pairs"
INDEX = DEVELOPMENT / "INDEX.json"
ENTRIES: list[dict[str, Any]] = json.loads(INDEX.read_text("utf-8"))["pairs"] if INDEX.is_file() else []
FURTHER = sorted([*OTHERS.glob("nsys/*.sqlite"), *OTHERS.glob("kineto/*.gz"), *OTHERS.glob("pairs/*.sqlite")])


@cache
def timeline(path: Path) -> Timeline:
    return Timeline(read(path, launch_configuration=True))


def headroom(path: Path, *, program: Path | None = None) -> Headroom:
    """The headroom of the first GPU over the steady steps."""
    found = timeline(path)
    told = None if program is None else timeline(program)
    return headrooms(found, found.window(), program=told)[0]


def check(path: Path) -> None:
    trace = Timeline(read(path, launch_configuration=True))
    for spec in ("steady", "all"):
        for found in headrooms(trace, trace.window(spec)):
            assert int(found.parts["time_ns"].sum()) == found.duration_ns
            assert int(found.parts["step_ns"].sum()) == found.per_step(found.duration_ns)
            assert not (found.parts["time_ns"] < 0).any()
            left = [found.after(step) for step in ("measured", *STEPS_DOWN[:-1])]
            assert left == sorted(left, reverse=True)
            groups = found.groups
            assert int(groups["measured_ns"].sum()) == left[1]
            assert int(groups["roof_ns"].sum()) == left[2]
            assert int(groups["limit_ns"].sum()) == left[-1]
            losses = pl.sum_horizontal(map(loss_column, LOSSES))
            assert groups.filter(losses + pl.col("limit_ns") != pl.col("measured_ns")).is_empty()


@pytest.mark.parametrize("path", thinned([*SHIPPED, *FURTHER], quick=SHIPPED[::9]), ids=lambda path: path.name)
def test_parts_sum_to_the_measured_step(path):
    if path.name.startswith("not_a"):
        pytest.skip("no profile")
    check(path)


def planted(name: str) -> Headroom:
    return headroom(PLANTED / f"{name}__baseline.json.xz")


def part(found: Headroom, level: str, name: str) -> float:
    """Share of the measured time."""
    return float(found.parts.filter((pl.col("level") == level) & (pl.col("part") == name))["share"].sum())


def test_fp32_products_are_a_matter_of_precision():
    found = planted("fp32_products")
    assert part(found, "precision", "gemm") > 0.8
    assert found.to_roof_share < 0.1, "as fp32 products they are near their roof"


def test_written_out_norms_are_passes_that_fusion_makes_one():
    found = planted("written_out_norms")
    assert part(found, "avoidable", "fusion") > 0.5


def test_a_launch_bound_program_is_idle():
    found = planted("tiny_elementwise")
    assert found.after("idle") < 0.1 * found.duration_ns
    owners = found.parts.filter(pl.col("level") == "idle")["owners"].to_list()
    assert any(owners), "a pause belongs to what was issued late"


def test_a_loop_of_large_products_has_no_headroom():
    found = planted("healthy_gemm_loop")
    assert found.to_roof_share < 0.02
    assert found.mfu == pytest.approx(0.797, abs=0.01)


def test_utilisation_is_of_the_peak_of_the_format_with_most_flops():
    found = headroom(DEVELOPMENT / "fifth" / "healthy_eight_bits__before.pt.trace.json.xz")
    assert (found.peak_format, found.peak_flops_per_s) == ("fp8", 1978.9e12)
    # 16 products of 8,192³ take most of two steps of 6.82 ms.
    assert found.mfu == pytest.approx(16 * 2 * 8192**3 / 13.64e-3 / 1978.9e12, rel=0.02)


@pytest.mark.parametrize(
    ("flops", "expected"),
    [
        ({"fp32": 99, "fp8": 1}, "bf16"),
        ({"bf16": 51, "fp8": 49}, "bf16"),
        ({"bf16": 49, "fp8": 51}, "fp8"),
        ({"fp32": 99, "bf16": 1}, "bf16"),
        ({"fp32": None, "fp8": None}, "bf16"),
    ],
)
def test_a_small_product_in_a_narrow_format_does_not_decide_the_peak(flops, expected):
    found = planted("healthy_gemm_loop")
    groups = pl.DataFrame(
        {"category": "gemm", "dtype": list(flops), "flops": pl.Series([*flops.values()], dtype=pl.Int64)}
    )
    assert replace(found, groups=groups).peak_format == expected


def test_decoding_cannot_be_faster_than_reading_its_weights():
    found = planted("lm_decode_one_token")
    assert found.rates.weight_bytes is not None
    assert found.rates.weights_ns <= found.after("precision") <= found.after("idle")


def test_tokens_and_images_come_from_shapes():
    language, vision = planted("healthy_lm_training").rates, planted("healthy_vit_batch").rates
    assert language.tokens % 3 == 0, "of three equal steps"
    assert language.images is None
    assert vision.images == 4 * 128
    assert vision.tokens is None


def tokens_of(*lookups: tuple[list[int], list[int]]) -> int | None:
    """The tokens of a program that looks up these indices (the second shape) in these tables (the first)."""
    found = program(
        [operator(10 * at, 10 * at + 5, "aten::embedding", [*pair, [], [], []]) for at, pair in enumerate(lookups)],
        *zip(*(launched(1000 + 100 * at, 1100 + 100 * at, at + 1, 10 * at + 1, "rows") for at in range(len(lookups))),
             strict=True),
    )  # fmt: skip
    (room,) = headrooms(found, found.window("all"))
    return room.rates.tokens


#: Eight sequences of 512 tokens, and a table of tokens.
IDS, TABLE = [8, 512], [32_000, 768]


@pytest.mark.parametrize(
    "lookups",
    [
        [(TABLE, IDS), ([1024, 768], [512])],
        [([65, 768], IDS), ([1024, 768], [512])],  # characters
        [([65, 768], IDS), ([1024, 768], [1, 512])],
        [(TABLE, IDS), ([512, 768], IDS), ([2, 768], IDS)],  # with kinds of segments
        [(TABLE, IDS), ([32, 12], [512, 512])],  # relative positions of each pair, a number for each head
        [(TABLE, [4, 512]), (TABLE, [4, 512]), ([1024, 768], [512]), ([1024, 768], [512])],  # two batches in a step
    ],
)
def test_tokens_are_those_of_their_own_embedding(lookups):
    assert tokens_of(*lookups) == 8 * 512


def images_of(*steps: list[tuple[list[int], list[int]]], first_late: bool = False) -> float | None:
    """The images per step that are found where each step has convolutions of these inputs and weights."""
    convolutions = [(place, pair) for place, step in enumerate(steps) for pair in step]
    found = program(
        [operator(10 * at, 10 * at + 5, "aten::conv2d", [*pair, []]) for at, (_, pair) in enumerate(convolutions)],
        *zip(
            *(
                launched(start := 10_000 * (step + 1) + 100 * at, start + 100, at + 1, 10 * at + 1, "conv")
                for at, (step, _) in enumerate(convolutions)
            ),
            strict=True,
        ),
    )
    edges = [10_000 * (step + 1) + 150 * (first_late and not step) for step in range(len(steps) + 1)]
    whole = found.window("all")
    told = tuple(Step(index + 1, *edge) for index, edge in enumerate(itertools.pairwise(edges)))
    (room,) = headrooms(found, replace(whole, start_ns=edges[0], end_ns=edges[-1], kind="steady", steps=told))
    return None if room.rates.images is None else room.rates.images / len(steps)


STEM, NARROW_STEM = [64, 3, 7, 7], [64, 3, 1, 1]
SHOWN = ([32, 3, 224, 224], STEM)


@pytest.mark.parametrize(
    ("step", "images"),
    [
        ([SHOWN], 32),
        ([SHOWN, ([32, 3, 224, 224], NARROW_STEM)], 32),  # parallel convolutions
        ([SHOWN, ([32, 1, 224, 224], [64, 1, 7, 7])], 32),  # another sensor
        ([SHOWN, ([32, 64, 112, 112], [64, 64, 3, 3]), ([32, 4, 1, 1], [96, 4, 1, 1])], 32),  # weights of channels
        ([SHOWN, ([32, 2, 48, 128], [128, 2, 7, 7])], 32),  # maps of flow
        ([SHOWN] * 2, None),  # micro-batches, views, or the same images again
        ([SHOWN, ([128, 3, 96, 96], STEM)], None),  # crops
        ([SHOWN, ([64, 3, 224, 224], NARROW_STEM)], None),
        ([SHOWN, ([32, 1, 96, 96], [64, 1, 7, 7]), ([16, 1, 96, 96], STEM)], None),
        ([([16, 1, 1, 160_000], [512, 1, 1, 10])], None),  # sound
        ([([8, 4, 64, 64], [320, 4, 3, 3])], None),  # latents
        ([([8, 3, 64, 64], [64, 3, 3, 3]), ([8, 64, 64, 64], [3, 64, 3, 3])], None),  # what comes out may go in again
        ([([8, 3, 16, 224, 224], [64, 3, 3, 7, 7])], None),  # volumes
    ],
)
def test_images_are_those_that_each_step_reads_once(step, images):
    assert images_of(step, step) == images


def test_images_of_steps_differ_and_the_first_may_begin_before_its_step():
    larger = [([96, 3, 128, 128], STEM)]
    assert images_of([SHOWN], larger) == 64
    assert images_of([SHOWN], [SHOWN], [SHOWN], first_late=True) == 32
    assert images_of([], [SHOWN], [], [SHOWN]) is None


def test_a_network_that_makes_images_reads_a_batch_in_each_step_of_its_training():
    path = DEVELOPMENT / "thirty_second" / "butterfly_wing_generation__before.pt.trace.json.xz"
    assert headroom(path).rates.images == 64


def test_an_unknown_gpu_is_taken_as_it_is():
    kernels = [b.kernel(0, 1000, "sgemm"), b.kernel(2000, 3000, "add")]
    trace = Timeline(b.trace(kernels=kernels))
    (found,) = headrooms(trace, trace.window("all"))
    assert found.roofs is None
    assert found.known_share == 0
    assert found.after("precision") == 2000
    assert found.mfu is None


def test_a_trace_without_a_gpu_tells_the_work_of_kernels_on_the_gpu_of_the_profile():
    found, told = (timeline(PLANTED / f"fp32_products__baseline.{ending}.xz") for ending in ("sqlite", "json"))
    unnamed = Timeline(replace(told.trace, capture=replace(told.trace.capture, devices=())))
    (expected,), (actual,) = (headrooms(found, found.window(), program=program) for program in (told, unnamed))
    assert actual.product_known_share == 1.0
    assert actual.parts.equals(expected.parts)


def test_products_of_unknown_size_that_another_format_makes_faster_do_not_count_as_measured():
    found = headroom(PLANTED / "fp32_products__baseline.sqlite.xz")
    assert found.product_known_share == 0.0
    left = found.parts.filter(pl.col("level") == "limit")
    as_measured = found.groups.filter((pl.col("known") == "none") & (pl.col("limit_ns") == pl.col("measured_ns")))
    assert int(left.filter(part=NO_MODEL)["time_ns"].sum()) == int(as_measured["measured_ns"].sum())
    products = found.parts.filter(part="gemm")
    assert products.select("level", "how", "confidence").rows() == [
        ("precision", "modelled", "low"), ("limit", "modelled", "low"),
    ]  # fmt: skip


@pytest.mark.parametrize(("dtype", "peak"), [("fp32", 10e12), ("bf16", None), ("tf32", None)])
def test_tensor_cores_of_unknown_rate_give_no_utilisation(dtype, peak):
    found = planted("healthy_gemm_loop")
    of_lanes = replace(found.roofs, peaks=Peaks(None, {"fp32": 10e12}))
    unlisted = replace(found, roofs=of_lanes, groups=found.groups.with_columns(dtype=pl.lit(dtype)))
    assert unlisted.peak_flops_per_s == peak
    assert (unlisted.mfu is None) == (peak is None)


def test_without_gpu_work_there_is_no_headroom():
    trace = Timeline(b.trace(kernels=[]))
    assert headrooms(trace, trace.window("all")) == ()


def test_elementwise_kernels_tell_their_bytes_by_name_and_grid():
    name = (
        "void at::native::vectorized_elementwise_kernel<(int)8, at::native::CUDAFunctor_add<c10::BFloat16>, "
        "std::array<char *, (unsigned long)3>>(int, T2, T3)"
    )
    kernels = [b.kernel(0, 1000, "vectorized_elementwise_kernel", full_name=name, grid=(500, 1, 1))]
    trace = Timeline(b.trace(kernels=kernels))
    (found,) = headrooms(trace, trace.window("all"))
    # Eight elements a thread; two tensors read, one written.
    assert found.groups["bytes"].to_list() == [500 * 128 * 8 * 2 * 3]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl<at::native::"
            "CUDAFunctor_add<float>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add<"
            "float> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1}>(int, "
            "at::native::gpu_kernel_impl<float>)",
        ),
        ("void f<(bool)1, (unsigned int)32>(T1 *)", "void f<true, 32u>(float*)"),
    ],
)
def test_tools_spell_one_kernel_in_their_own_ways(one, other):
    assert words_of(one) == words_of(other)
    assert words_of(one) != words_of(one.replace("32", "64").replace("add", "mul"))


def test_counters_replace_what_names_imply():
    report = OTHERS / "ncu" / "h200_topk_reduction.raw.csv"
    if not report.exists():
        pytest.skip("no reports of others here")
    trace = timeline(DATA / "captures" / "deit224_bs1_topk0.1.sqlite.xz")
    (found,) = headrooms(trace, trace.window(), counters=read_counters(report))
    counted = found.groups.filter(pl.col("known") == "counters")
    assert {"gatherTopK", "bitonicSortKVInPlace"} <= set(counted["name"])
    assert (counted["bytes"] > 0).all()


@pytest.mark.parametrize(
    ("name", "bytes_"),
    [
        # 500 blocks of 128 threads; four elements a thread, eight where vectors of eight exist.
        ("vectorized_elementwise_kernel<4, at::native::exp_kernel<float>, std::array<char*, 2ul>>", 4 * 8),
        # A cast has a kernel of its own, or loads another format than it computes in.
        ("vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(), std::array<char*, 2ul>>", 4 * 6),
        ("unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4, "
         "at::native::memory::LoadWithCast<2>, at::native::memory::StoreWithCast<1>>", 4 * 10),
        # Two lists are read, one is written; chunks of 65,536.
        ("(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, "
         "at::native::(anonymous namespace)::TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor<float>>",
         65_536 // 128 * 3 * 4),
        # Rows of 128 threads with two elements each, in registers.
        ("(anonymous namespace)::cunn_SoftMaxForwardReg<float, float, float, at::native::(anonymous namespace)::"
         "SoftMaxForwardEpilogue, long, 2>", 2 * 8),
        # Rows of 128 vectors of 16 bytes are read and written.
        ("vectorized_gather_kernel<16, long>", 32),
    ],
    ids=["vectors", "cast", "load with cast", "lists", "rows in registers", "rows picked"],
)  # fmt: skip
def test_names_and_grids_tell_the_bytes_of_a_thread(name, bytes_):
    full = f"void at::native::{name}(int, T2, T3)"
    kernels = [b.kernel(0, 9_000_000, name.partition("<")[0].rpartition("::")[2], full_name=full, grid=(500, 1, 1))]
    trace = Timeline(b.trace(kernels=kernels))
    (found,) = headrooms(trace, trace.window("all"))
    assert found.groups["bytes"].to_list() == [500 * 128 * bytes_]


@pytest.mark.parametrize("name", ["whisper_eager_attention", "dit_modulation_eager", "minimal_gpt_written_out"])
def test_names_tell_what_the_shapes_of_the_same_launches_say(name):
    """By category of kernel, the bytes of launches that are all of their operator agree within a tenth."""
    entry = next((entry for entry in ENTRIES if entry["name"] == name), None)
    if entry is None:
        pytest.skip("the pairs are not here")
    shaped = timeline(DEVELOPMENT / entry["files"]["torch_before"]["path"])
    bare = Timeline(replace(shaped.trace, operators=shaped.trace.operators.clear()))
    (budget,) = time_budgets(shaped, shaped.window())
    by_shapes, by_names = (headrooms(each, shaped.window())[0].pieces for each in (shaped, bare))
    work = shaped.work.select("kind", "row", op=pl.Series(count_work(shaped).counted_at))
    alone = work.with_columns(alone=pl.len().over("op") == 1)[shaped.rows_on(budget.device, budget.owned_ns > 0)]
    both = (
        pl.concat([by_shapes, by_names.select(pl.all().name.suffix("_by_names")), alone], how="horizontal")
        .filter((pl.col("known") == "shapes") & (pl.col("known_by_names") == "names"))
        .filter((pl.col("kind") == "kernel") & pl.col("alone"))
    )
    categories = classify_names(shaped.trace.kernels)["category"].gather(both["row"]).cast(pl.String)
    sums = both.group_by(categories).agg(pl.col("bytes", "bytes_by_names", "owned_ns").sum())
    told = sums.filter(pl.col("owned_ns") > 0.01 * by_shapes["owned_ns"].sum())
    assert told.height > 0
    off = told.filter((pl.col("bytes_by_names") / pl.col("bytes") - 1).abs() > 0.1)
    assert off.is_empty(), off.to_dicts()


#: Milliseconds of a step after it.
AFTER = {"attention_eager": 60.6, "fp32_vit": 26.6, "checkpoint_small": 41.3, "gc_and_logging": 35.8, "moe_loop": 3.3}
PAIRS = pytest.mark.parametrize("name", [*AFTER, "healthy_gpt"])
needs_pairs = pytest.mark.skipif(not (OTHERS / "pairs").is_dir(), reason="not at hand (see WARPLENS_SHARED)")


def torch_of(name: str) -> Headroom:
    return headroom(OTHERS / "pairs" / f"{name}.pt.trace.json.gz")


def capture_of(name: str) -> Headroom:
    pairs = OTHERS / "pairs"
    return headroom(pairs / f"{name}.sqlite", program=pairs / f"{name}.pt.trace.json.gz")


@needs_pairs
@pytest.mark.parametrize("name", AFTER)
def test_no_measured_remedy_beats_what_is_left_without_what_it_takes_away(name):
    for found in (torch_of(name), capture_of(name)):
        assert found.per_step(found.after("precision")) <= AFTER[name] * 1e6


#: What the headroom takes for needed and a change of the mathematics' order does without; `known-limits.md` names them.
_BEATEN = {
    "answers_repeat_their_context": "74.7 ms at the limit, 44.2 ms measured: a context that is read again counts",
    "recommender_dense_gradients": "4.2 ms at the limit, 1.3 ms measured: no model of sparse gradients",
    "mask_instead_of_is_causal": "19.0 ms at the limit, 16.0 ms measured: hidden scores count as computed",
    "questions_one_by_one": "8.5 ms at the limit, 0.5 ms measured: another batch reads the weights once for all",
    "queries_left_in_fp32": "35.0 ms at the limit, 17.6 ms measured: hidden scores count as computed",
    "adapters_by_loop": "1.2 ms at the limit, 0.6 ms measured: hundreds of small kernels become a grouped product",
    "keys_repeated_for_heads": "0.9 ms measured: keys that were repeated for each head count as read by attention",
    "padded_to_the_longest_allowed": "19.5 ms at the limit, 4.5 ms measured: padding counts as text",
    "cell_typing": "24.1 ms at the limit, 23.3 ms measured: padding counts as genes",
    "speaker_embeddings": "33.3 ms at the limit, 27.2 ms measured: padding counts as speech",
    "song_preferences": "5.6 ms at the limit, 4.9 ms measured: no model of sparse gradients",
    "argon_simulation": "3.5 ms at the limit, 1.6 ms measured: each sum of pairwise terms counts as a pass",
    "load_forecast_from_the_start": "74.8 ms at the limit, 28.9 ms measured: what is computed again counts",
    "tickets_padded_to_the_limit": "19.5 ms at the limit, 8.0 ms measured: padding counts as text",
    "encoder_run_for_each_token": "24.4 ms at the limit, 18.5 ms measured: what is computed again in each turn counts",
    "corpus_normalised_for_each_query": "5.3 ms at the limit, 3.3 ms measured: what is normalised again counts",
    "prompt_in_small_chunks": "26.1 ms at the limit, 12.5 ms measured: each chunk reads the weights",
    "class_names_encoded_each_batch": "6.1 ms at the limit, 4.7 ms measured: what is encoded again counts",
    "policy_evaluated_three_times": "52.7 ms at the limit, 26.1 ms measured: each of three equal runs counts",
    "probe_without_no_grad": "15.0 ms at the limit, 11.4 ms measured: gradients that no optimizer takes are computed",
    "beams_reorder_the_source_too": "9.7 ms at the limit, 6.0 ms measured: gathers that change nothing count",
    "answers_scored_one_by_one": "11.8 ms at the limit, 5.7 ms measured: each of eight passes reads the weights",
    "faces_styled_one_by_one": "2.94 ms at the limit, 2.86 ms measured: weights are made for each picture",
    "features_from_the_middle": "23.4 ms at the limit, 18.8 ms measured: blocks whose results nobody reads count",
    "weights_gathered_for_each_token": "21.6 ms at the limit, 6.4 ms measured: copies of weights are made and read",
    "neighbours_projected_edge_by_edge": "9.1 ms at the limit, 7.2 ms measured: rows picked twice are multiplied twice",
    "bylaw_gap_filling": "28.5 ms at the limit, 24.2 ms measured: scores of places that are not read count",
    "till_receipt_reading": "50.9 ms at the limit, 20.7 ms measured: keys and values that are made again count",
    "dialogues_padded_to_2048": "40.09 ms at the limit, 40.06 ms measured: padding, which is left out, counts as work",
    "photo_library_clusters": "8.9 ms at the limit, 8.4 ms measured: rows that a mask picks count as copied",
    "recipe_step_decoding": "25.3 ms at the limit, 20.0 ms measured: a whole cache counts as copied",
    "car_damage_checklist": "55.6 ms at the limit, 34.0 ms measured: pictures that are encoded again count",
    "harvest_robot_masks": "12.4 ms at the limit, 11.7 ms measured: boxes that are not kept count",
    "holiday_booking_chat": "15.9 ms at the limit, 9.2 ms measured: copies of weights are made and read",
    "museum_photo_labels": "100 ms at the limit, 85.5 ms measured: prompts that are encoded again count",
    "helpdesk_answer_judge": "23.5 ms at the limit, 21.9 ms measured: scores that nobody reads count",
    "podcast_episode_towers": "14.1 ms at the limit, 8.7 ms measured: no model of sparse gradients",
}
TIMED = [
    pytest.param(
        entry,
        id=entry["name"],
        marks=[pytest.mark.xfail(strict=True, reason=_BEATEN[entry["name"]]), pytest.mark.slow]
        if entry["name"] in _BEATEN
        else marks_of(entry["name"]),
    )
    for entry in ENTRIES
    if entry.get("after_ms") and "torch_before" in entry["files"]
]


@pytest.mark.parametrize("entry", TIMED)
def test_no_remedy_of_the_shipped_pairs_beats_the_limit_of_known_work(entry):
    trace, capture = (DEVELOPMENT / entry["files"][kind]["path"] for kind in ("torch_before", "nsys_before"))
    for found in (headroom(trace), headroom(capture, program=trace)):
        if (found.known_share or 0) > 0.5:
            assert found.per_step(found.after("precision")) <= entry["after_ms"][0] * 1e6


@needs_pairs
@PAIRS
def test_a_capture_and_a_trace_of_one_program_agree(name):
    trace, capture = torch_of(name), capture_of(name)
    for step in ("idle", "roof", "avoidable", "precision"):
        one, other = (found.per_step(found.after(step)) for found in (trace, capture))
        assert one == pytest.approx(other, rel=0.015), step
    assert trace.flops / trace.steps == pytest.approx(capture.flops / capture.steps, rel=0.01)


@needs_pairs
def test_a_healthy_program_is_near_its_practical_roof():
    found = torch_of("healthy_gpt")
    assert found.to_roof_share < 0.2, "but for its attention, which reads a mask"
    assert found.known_share == pytest.approx(1, abs=0.01)


@needs_pairs
@PAIRS
def test_only_checkpointing_runs_work_again(name):
    found = torch_of(name)
    share = part(found, "avoidable", "recomputation")
    assert (share > 0.05) == (name == "checkpoint_small")
    assert (found.flops > found.model_flops) == (name == "checkpoint_small")


@needs_pairs
def test_scores_in_memory_are_found_where_attention_is_written_out():
    assert part(torch_of("attention_eager"), "avoidable", "unfused-attention") > 0.3
    assert not part(torch_of("gc_and_logging"), "avoidable", "unfused-attention")


@needs_pairs
def test_a_misaligned_output_layer_is_told_by_its_size():
    lacks = (
        torch_of("attention_eager").groups.filter(pl.col("input_shapes").str.contains("50257"))["lacks"].drop_nulls()
    )
    assert any("50,257 is not a multiple of 8" in text for text in lacks)


@pytest.mark.parametrize(
    ("name", "is_misaligned"),
    [
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_tn_align2", True),
        ("cutlass_75_tensorop_f16_s1688gemm_f16_256x128_tn_align4", True),  # eight bytes
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", False),  # four numbers of TF32: 16 bytes
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align1", True),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x16_align4", False),
        ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", False),
        ("cutlass_80_simt_sgemm_128x128_8x4_nn_align1", False),
    ],
)
def test_alignment_counts_in_bytes(name, is_misaligned):
    timeline = Timeline(b.trace([b.kernel(0, 10, "gemm", full_name=name)]))
    assert _name_facts(timeline)["misaligned"].to_list() == [is_misaligned]


@pytest.mark.parametrize(
    ("m", "n", "k", "told", "size"),
    [
        (197, 768, 3072, {}, None),  # rows are not contiguous anywhere
        (64, 197, 64, {}, "n = 197"),
        (64, 64, 197, {}, "k = 197"),
        (768, 3072, 197, {"backward": True}, None),  # as gradients of weights: both operands' rows are suitable
        (197, 64, 197, {"backward": True}, "k = 197"),  # one of the two is contiguous in the left operand
        (8192, 768, 50257, {"backward": True, "named": True}, "k = 50,257"),
        (50257, 768, 8192, {"backward": True, "named": True}, "m = 50,257"),
    ],
)
def test_only_sizes_that_are_contiguous_in_memory_make_a_product_misaligned(m, n, k, told, size):
    found = misaligned("gemm", "bf16", {"m": m, "n": n, "k": k, "b": 1}, **told)
    assert found == (size and f"{size} is not a multiple of 8")


@pytest.mark.parametrize(("length", "possible"), [(50_000, False), (200_000, True)])
def test_a_product_that_is_faster_than_the_gpu_can_be_is_no_known_work_and_a_caution(length, possible):
    """4096³ in bf16: 139 µs at the data sheet's peak."""
    square = [[4096, 4096], [4096, 4096]]
    name = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
    found = program(
        [operator(0, 50, "aten::mm", square, ["c10::BFloat16"] * 2)],
        *([row] for row in launched(100, 100 + length, 1, 10, name)),
    )
    window = found.window("all")
    (room,) = headrooms(found, window)
    assert room.known_share == (1 if possible else 0)
    assert room.groups["theoretical_ns"].null_count() == (0 if possible else 1)
    notes = {note.code: note.text for note in quality_notes(found, window)}
    assert ("beyond-peak" in notes) == (not possible)
    assert possible or "2.8 times as fast as the data sheet of NVIDIA H200" in notes["beyond-peak"]
    assert ("saturated" in [each.id for each in diagnose(found, window).findings]) == possible


#: A name of a product on tensor cores.
PRODUCT = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT"


def at_once(*sides: int, streams: int, length: int = 4_000_000) -> Headroom:
    """The headroom of square products in bf16, which begin together and take as long on so many streams."""
    operators, kernels, calls = [], [], []
    for place, side in enumerate(sides):
        shapes = [[side, side], [side, side]]
        operators.append(operator(20 * place, 20 * place + 19, "aten::mm", shapes, ["c10::BFloat16"] * 2))
        start = 1000 + length * (place // streams)
        kernels.append(b.kernel(start, start + length, PRODUCT, correlation=place + 1, stream=7 + place % streams))
        calls.append(b.launch(20 * place + 5, 20 * place + 6, place + 1))
    found = program(operators, kernels, calls)
    (room,) = headrooms(found, found.window("all"))
    return room


@pytest.mark.parametrize("sides", [(8192, 8192), (8192, 6144), (6144, 8192)])
def test_products_of_two_streams_at_once_need_no_less_than_one_after_the_other(sides):
    alone, both = at_once(*sides, streams=1), at_once(*sides, streams=2)

    assert both.flops == alone.flops == sum(2 * side**3 for side in sides)
    assert both.groups["calls"].sum() == 2
    assert both.after("idle") == 4_000_000
    assert int(both.groups["measured_ns"].sum()) == 4_000_000
    assert both.after("roof") == pytest.approx(alone.after("roof"), rel=1e-3)
    assert both.pieces["owned_ns"].to_list() == [4_000_000], "each instant has one owner in the order of the work"


def test_a_kernel_that_begins_early_on_its_stream_waits_for_the_one_before():
    shapes, types = [[4096, 4096], [4096, 4096]], ["c10::BFloat16"] * 2
    kernels = [b.kernel(start, start + 210_000, PRODUCT, correlation=start) for start in (1_000, 201_000)]
    found = program(
        [operator(at, at + 19, "aten::mm", shapes, types) for at in (0, 20)],
        kernels,
        [b.launch(at + 5, at + 6, kernel["correlation"]) for at, kernel in zip((0, 20), kernels, strict=True)],
    )
    (room,) = headrooms(found, found.window("all"))

    assert room.flops == 2 * 2 * 4096**3
    assert room.pieces["owned_ns"].to_list() == [210_000, 200_000]


def with_helper(length: int) -> Headroom:
    """The headroom of a product of 200 µs whose operator launches a sum of this length, too."""
    name = "aten::mm"
    pairs = [launched(1_000, 201_000, 1, 10, PRODUCT), launched(201_000, 201_000 + length, 2, 20, "reduce_kernel")]
    found = program(
        [operator(0, 50, name, [[4096, 4096], [4096, 4096]], ["c10::BFloat16"] * 2)],
        *map(list, zip(*pairs, strict=True)),
    )
    (room,) = headrooms(found, found.window("all"))
    return room


def test_a_helper_that_takes_longer_than_the_product_is_above_the_roof():
    shorter, longer = with_helper(199_000), with_helper(201_000)

    assert longer.groups["dtype"].to_list() == ["bf16"]
    assert longer.groups["tensor_cores"].to_list() == [True]
    assert longer.after("roof") == shorter.after("roof") < 0.5 * longer.duration_ns
    assert longer.groups["lacks"].to_list() == ["helper kernels (sums, conversions) take 50 % of it"]


@pytest.mark.parametrize(
    ("second_ns", "reason"),
    [(1_000, "unknown from the trace: collect counters"), (60_000, "2 kernels instead of one pass")],
)
def test_a_second_kernel_is_the_reason_if_it_takes_most_of_the_excess(second_ns, reason):
    """A product that takes 100 µs longer than its roof; cuBLAS may launch a fill of about 1 µs with it."""
    side = 4096
    roof = roofs_of(Device(ordinal=0, name="NVIDIA H200")).time_ns(
        Task("gemm", 2 * side**3, 2 * 3 * side**2, "bf16", True, sizes={"b": 1, "m": side, "n": side, "k": side})
    )
    end = 1_000 + round(roof) + 100_000 - second_ns
    rows = [launched(1_000, end, 1, 10, PRODUCT), launched(end, end + second_ns, 2, 20, PRODUCT.replace("NNT", "TNN"))]
    found = program(
        [operator(0, 50, "aten::mm", [[side, side], [side, side]], ["c10::BFloat16"] * 2)],
        *map(list, zip(*rows, strict=True)),
    )
    (room,) = headrooms(found, found.window("all"))
    assert room.groups["kernels"].to_list() == [2]
    assert room.groups["lacks"].to_list() == [reason]


def test_on_assumed_roofs_nothing_modelled_is_sure():
    """Of an A100 no roofs were measured; of an H200 they were. Times that the profile has stay sure."""
    shapes, types = [[4096, 4096], [4096, 4096]], ["c10::BFloat16"] * 2
    sure = {}
    for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"):
        found = program(
            [operator(0, 50, "aten::mm", shapes, types)],
            *([row] for row in launched(1_000, 2_001_000, 1, 10, PRODUCT)),
            device=Device(ordinal=0, name=name),
        )
        (room,) = headrooms(found, found.window("all"))
        sure[name] = set(room.parts.filter(pl.col("level").is_in(["roof", "limit"]))["confidence"])
        assert "high" in room.parts.filter(pl.col("how") == "measured")["confidence"]
    assert sure == {"NVIDIA H200": {"high"}, "NVIDIA A100-SXM4-80GB": {"medium"}}


#: 2048³ in complex64 by `cgemm`: 1.03 ms at 67 TFLOP/s.
OF_COMPLEX = "void cutlass::Kernel2<cutlass_80_simt_cgemm_128x64_8x5_nn_align1>(Params)"


@pytest.mark.parametrize("shapes", [[[2048, 2048], [2048, 2048]], None])
def test_complex_products_take_eight_flops_and_have_no_cost_of_their_format(shapes):
    types = None if shapes is None else ["c10::complex<float>"] * 2
    found = program(
        [operator(0, 50, "aten::mm", shapes, types)],
        *([row] for row in launched(1_000, 1_501_000, 1, 10, OF_COMPLEX)),
    )
    (room,) = headrooms(found, found.window("all"))
    assert room.flops == (8 * 2048**3 if shapes else 0)
    assert room.groups["dtype"].to_list() == ["fp32"]
    assert room.groups["precision_loss_ns"].to_list() == [0]
    if shapes:
        assert room.groups["theoretical_ns"].to_list() == [pytest.approx(8 * 2048**3 / 67e12 * 1e9)]


@pytest.mark.parametrize(
    ("name", "is_complex", "in_half"),
    [
        ("ampere_cgemm_64x64_nn", True, False),
        ("cutlass_80_tensorop_c1688gemm_64x64_16x4_nn_align1", True, False),
        ("cutlass_80_tensorop_z884gemm_32x32_8x5_nn_align1", True, False),
        ("sm80_xmma_gemm_cf32cf32_tf32f32_cf32_nn_n_tilesize64x64x16_stage3_warpsize2x2x1_tensor16x8x8", True, False),
        ("void gemvNSP_kernel<float2, float2, float2, float2, 1, 32, 4, 1024>(Params)", True, False),
        ("void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024>(Params)", False, False),
        ("ampere_sgemm_64x64_nn", False, False),
        ("ampere_h16816gemm_128x128_ldg8_stages_32x5_tn", False, True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_h16816gemm_128x64_32x6_nn_align8>(Params)", False, True),
        ("turing_h1688gemm_256x128_ldg8_nn", False, True),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_nn", False, False),
        ("sm80_xmma_gemm_f16f16_f16f16_f16_nn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16", False, True),
        ("sm80_xmma_gemm_f16f16_f16f32_f16_nn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16", False, False),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", False, False),
    ],
)
def test_names_tell_complex_numbers_and_sums_in_fp16(name, is_complex, in_half):
    facts_of_name = _name_facts(Timeline(b.trace(kernels=[b.kernel(0, 1, name)])))
    assert facts_of_name.select("complex", "half_sums").row(0) == (is_complex, in_half)


@pytest.mark.parametrize(("name", "peak"), [("h16816gemm", 330.3e12), ("fp16_s16816gemm_fp16", 165.2e12)])
def test_products_summed_in_fp16_are_held_against_the_rate_of_such_products(name, peak):
    """8192³ at 300 TFLOP/s, which an RTX 4090 reaches with sums in fp16 alone."""
    length = round(2 * 8192**3 / 300e12 * 1e9)
    found = program(
        [operator(0, 50, "aten::mm", [[8192, 8192], [8192, 8192]], ["c10::Half"] * 2)],
        *([row] for row in launched(1_000, 1_000 + length, 1, 10, f"ampere_{name}_128x128_ldg8_stages_32x5_tn")),
        device=Device(0, "NVIDIA GeForce RTX 4090", sm_count=128),
    )
    window = found.window("all")
    (room,) = headrooms(found, window)
    assert operator_work(found, window).operators["peak_flops_per_s"].to_list() == [peak]
    assert room.known_share == (1 if peak > 300e12 else 0), "no product is twice as fast as its peak"


def recurrent(product_ns: int) -> Headroom:
    """The headroom of a GRU of 100 µs whose sizes were not recorded, and of a product."""
    pairs = [launched(1_000, 101_000, 1, 10, "RNN_blockPersist_fp_GRU"),
             launched(101_000, 101_000 + product_ns, 2, 60, PRODUCT)]  # fmt: skip
    square, types = [[512, 512], [512, 512]], ["c10::BFloat16"] * 2
    found = program(
        [operator(0, 50, "aten::_cudnn_rnn", [[5, 2, 10]]), operator(51, 99, "aten::mm", square, types)],
        *map(list, zip(*pairs, strict=True)),
    )
    (room,) = headrooms(found, found.window("all"))
    return room


def test_where_the_flops_of_most_products_are_unknown_there_is_no_utilisation():
    most, few = recurrent(150_000), recurrent(50_000)

    assert most.product_known_share == pytest.approx(0.6)
    assert most.mfu == pytest.approx(2 * 512**3 / (most.duration_ns / 1e9) / 989.4e12)
    assert few.product_known_share == pytest.approx(1 / 3)
    assert few.mfu is few.hfu is None
    assert any("FLOPs of most of the products' time are not" in fact for fact in facts(few))


def test_a_recurrent_network_has_flops_but_no_roof_of_large_products():
    rnn = operator(
        0, 50, "aten::_cudnn_rnn", [[96, 768, 512], *([[]] * 15)], ["c10::Half", *["Scalar"] * 15],
        ["", *[""] * 5, "3", "2048", "0", "2", "False", "0.", "True", "False"],
    )  # fmt: skip
    found = program([rnn], *([row] for row in launched(1_000, 17_201_000, 1, 10, PRODUCT)))
    (room,) = headrooms(found, found.window("all"))

    assert room.flops == 2 * 96 * 768 * 3 * 2048 * (512 + 3 * 2048)
    assert room.product_known_share == 1.0
    assert room.after("precision") == room.after("idle")


@pytest.mark.parametrize(
    ("name", "shapes", "numbers", "length", "elements"),
    [
        # Both operands of a gradient are read, and the result takes the place of one.
        ("poi_fused_mul_tanh_tanh_backward_view_6", [[16, 1024, 4096], [16384, 4096]], [2**26], 111_000, 3 * 2**26),
        ("poi_fused_relu_7", [[8192, 8192]], [2**26], 77_000, 2 * 2**26),
        ("poi_fused_convolution_relu_0", [[16, 256, 128, 128], [256]], [2**26], 77_000, 2 * 2**26 + 256),
        # A copy of a gradient, zeros, and a product of vectors only write their result.
        ("poi_fused_attention_backward_transpose_view_3", [[8192, 8192]] * 2, [2**26], 77_000, 2 * 2**26),
        ("poi_fused_embedding_dense_backward_9", [[8192, 8192]], [2**26], 77_000, 2**26),
        ("poi_fused_add_mul_unsqueeze_0", [[8192], [8192], [8192, 8192]], [2**26], 77_000, 2**26 + 2 * 8192),
        # Rows that indices pick out of a table, one element of each row, and one of three slices.
        ("poi_fused_index_4", [[16384], [4_000_000, 256], [16384, 256]], [16384, 256], 5_000, 2 * 2**22 + 16384),
        ("red_fused_nll_loss_forward_1", [[4096], [4096, 50304], [1]], [1, 4096], 7_000, 2 * 4096 + 1),
        ("poi_fused_cat_split_view_5", [[16384, 3072], [16384, 1024]], [2**24], 16_000, 2 * 2**24),
        # All slices, and all that is pooled.
        ("poi_fused_mul_silu_split_3", [[8192, 16384], [8192, 8192]], [2**26], 91_000, 3 * 2**26),
        ("poi_fused_max_pool2d_8", [[64, 64, 256, 256], [64, 64, 128, 128]], [2**26], 155_000, 5 * 2**26),
        # Too fast for its work, and nothing tells why.
        ("poi_fused_add_1", [[8192, 8192]] * 3, [2**26], 30_000, None),
    ],
)  # fmt: skip
def test_a_generated_kernel_moves_what_its_arguments_and_its_time_allow(name, shapes, numbers, length, elements):
    types = ["long int" if "index" in name or "nll" in name else "c10::BFloat16", *["c10::BFloat16"] * len(shapes)]
    types = [*types[: len(shapes)], *["Scalar"] * len(numbers)]
    values = [*[""] * len(shapes), *map(str, numbers)]
    name = f"triton_{name}"
    found = program(
        [operator(0, 50, name, [*shapes, *[[]] * len(numbers)], types, values)],
        *([row] for row in launched(100, 100 + length, 1, 10, name)),
    )
    (room,) = headrooms(found, found.window("all"))

    wider = 6 * shapes[0][0] if types[0] == "long int" else 0
    assert room.groups["bytes"].to_list() == [None if elements is None else 2 * elements + wider]
    assert room.groups["known"].to_list() == ["none" if elements is None else "shapes"]


H200 = Device(0, "NVIDIA H200", sm_count=132)
A100 = Device(0, "NVIDIA A100-SXM4-80GB", sm_count=108)


def roofs(device: Device = H200) -> Roofs:
    found = roofs_of(device)
    assert found is not None
    return found


def product(m: int, n: int, k: int, dtype: str = "bf16") -> Task:
    bytes_ = 2 * (m * k + k * n + m * n)
    return Task("gemm", 2.0 * m * n * k, bytes_, dtype, True, sizes={"m": m, "n": n, "k": k, "b": 1})


def passes(bytes_: float, family: str = "elementwise") -> Task:
    return Task(family, 0, bytes_, "bf16", False)


def test_a_gpu_of_which_nothing_is_known_has_no_roofs():
    assert roofs_of(None) is None
    assert roofs_of(Device(0, "something else")) is None


def test_the_measured_table_holds_for_the_very_gpu_and_factors_for_others():
    assert roofs().measured
    assert "measured on one NVIDIA H200" in roofs().source
    assert not roofs(Device(0, "NVIDIA H200 NVL")).measured, "another card with the same chip"
    assert not roofs(A100).measured
    assert "stated factors" in roofs(A100).source


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
@pytest.mark.parametrize(
    "task",
    [product(8192, 8192, 8192), product(1, 4096, 4096), product(128, 128, 128), passes(1e3), passes(1e9),
     passes(1e9, "normalization"), passes(1e8, "softmax"), passes(1e8, "gather-scatter"),
     Task("attention", 1e12, 1e8, "bf16", True, sizes={"q": 2048, "s": 2048, "d": 128, "causal": 1}),
     Task("convolution", 1e11, 1e8, "bf16", True,
          sizes={"b": 128, "in": 256, "out": 256, "side": 14, "kernel": 3, "groups": 1})],
    ids=lambda task: f"{task.family}-{task.flops:.0e}-{task.bytes:.0e}",
)  # fmt: skip
def test_a_practical_roof_is_above_the_data_sheet_and_above_the_shortest_kernel(device, task):
    time, theory, large = (getattr(roofs(device), name)(task) for name in ("time_ns", "theoretical_ns", "large_ns"))
    assert time >= SHORTEST_NS
    assert time >= theory
    assert theory <= large <= time * 1.001, "as a part of larger work it takes no longer"


def test_small_products_reach_less_than_large_ones():
    rates = []
    for side in (256, 1024, 2048, 8192):
        task = product(side, side, side)
        rates.append((task.flops or 0) / (roofs().time_ns(task) or 1))
    assert rates == sorted(rates)
    assert rates[-1] * 1e9 == pytest.approx(793e12, rel=0.03), "an entry of the table itself"


def test_time_rises_with_size():
    times = [roofs().time_ns(passes(2.0**power)) or 0 for power in range(8, 34)]
    assert all(before <= after for before, after in itertools.pairwise(times))


def test_the_table_says_what_unaligned_sizes_cost():
    share = roofs().unaligned_share("bf16")
    assert 0.1 < share < 0.9
    assert roofs(A100).unaligned_share("bf16") is None


def test_products_of_the_vector_units_have_their_own_roof():
    wide = Task("gemm", 2.0 * 4096**3, 3 * 4 * 4096**2, "fp32", False, sizes={"m": 4096, "n": 4096, "k": 4096, "b": 1})
    assert (roofs().time_ns(wide) or 0) > 8 * (roofs().time_ns(product(4096, 4096, 4096)) or 0)
    rate = (wide.flops or 0) / (roofs(A100).large_ns(wide) or 1) * 1e9
    assert rate == pytest.approx(19.5e12 * STATED["vector"])


def test_attention_that_reads_a_mask_has_a_lower_roof():
    sizes = {"b": 16, "h": 16, "q": 1024, "s": 1024, "d": 64, "causal": 0, "mask": 0}
    bare = Task("attention", 4.0 * 16 * 16 * 1024 * 1024 * 64, 1e8, "bf16", True, sizes=sizes)
    masked = replace(bare, sizes={**sizes, "mask": 1})
    # Every score reads an element of the mask once: 0.54 to 0.64 of the rate was seen of cuDNN's and PyTorch's kernels.
    assert 0.5 < (roofs().time_ns(bare) or 0) / (roofs().time_ns(masked) or 1) < 0.65


def attention(size: float | None, causal: int | None, *, backward: bool = False, length: int = 512) -> Task:
    sizes = {"b": 1, "h": 4, "q": length, "s": length, "d": size, "causal": causal}
    known = {name: value for name, value in sizes.items() if value is not None}
    return Task("attention", 1e12, 1.0, "bf16", True, backward, sizes=known)


@pytest.mark.parametrize(
    ("task", "rate"),
    [  # the highest of the table of the H200 (TFLOP/s)
        (attention(64, 0), 488.4),
        (attention(64, 1), 438.6),
        (attention(128, 0), 677.4),
        (attention(128, 1), 612.4),
        (attention(96, 1), 278.2),
        (attention(64, 1, backward=True), 412.2),
        (attention(64, None), 488.4),
        (attention(None, None), 677.4),
    ],
)
def test_larger_attention_is_as_fast_as_its_head_size_and_mask_allow(task, rate):
    assert (task.flops or 0) / (roofs().large_ns(task) or 1) / 1e3 == pytest.approx(rate)


def test_of_a_head_size_that_was_not_measured_nothing_tells_what_larger_work_gains():
    found = roofs()
    assert found.large_ns(attention(32, 0)) == found.time_ns(attention(32, 0))


def test_attention_of_a_profile_is_compared_with_that_of_its_own_head_size_and_mask():
    tasks = [attention(64, 0), attention(128, 0), attention(64, 1), attention(None, None), attention(64, 0)]
    keys = [key for task in tasks for _, _, key in _sides(task)]
    assert len(set(keys)) == 4
    assert keys[0] == keys[-1]


def test_a_sort_is_held_against_sorts_and_not_against_the_fastest_pass_over_memory():
    by = {name: roofs().time_ns(Task("sort-topk", 0, 1e8, "fp32", operation=name)) or 0 for name in ("sort", "topk")}
    assert by["sort"] > 10 * (roofs().time_ns(passes(1e8)) or 0)
    assert by["sort"] != by["topk"]


def test_what_one_way_to_add_rows_takes_is_no_limit_of_another():
    added = Task("gather-scatter", 0, 1e9, "fp32", operation="index_add")
    assert (roofs().time_ns(added) or 0) > 2 * (roofs().large_ns(added) or 0)


def test_work_of_unknown_size_has_no_roof():
    assert roofs().time_ns(Task("gemm", None, None)) is None


def test_a_product_takes_the_rate_of_the_three_nearest_measured_ones():
    """By hand: distances are differences of binary logarithms, and weights their inverse squares."""

    def entry(m: int, n: int, k: int, rate: float) -> dict[str, Any]:
        return {
            "kind": "gemm",
            "op": "linear",
            "dtype": "bf16",
            "m": m,
            "n": n,
            "k": k,
            "rate": rate,
            "unit": "TFLOP/s",
        }

    sizes = [(1024, 1024, 1024, 400.0), (4096, 1024, 1024, 500.0), (1024, 4096, 1024, 520.0), (64, 64, 64, 1.0)]
    sizes += [(2048, 1024, 1024, 450.0), (1024, 1024, 1020, 900.0)]  # the last one is no multiple of 8
    table = tuple(entry(*each) for each in sizes)
    task = Task("gemm", 1e15, None, "bf16", True, sizes={"m": 4096, "n": 1024, "k": 1024})
    # 4096 × 1024 and its transpose at distance 0, the better of which counts; then 2048 × 1024 and 1024 × 1024
    weights = {520.0: 1 / 0.1**2, 450.0: 1 / 1.1**2, 400.0: 1 / 2.1**2}
    rate = sum(weight * rate for rate, weight in weights.items()) / sum(weights.values())
    assert replace(roofs(), table=table).time_ns(task) == pytest.approx(1e15 / (rate * 1e12) * 1e9)
    assert replace(roofs(), table=table).large_ns(task) == pytest.approx(1e15 / 520e12 * 1e9)
