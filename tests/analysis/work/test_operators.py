from __future__ import annotations

import polars as pl
import pytest

from tests.analysis.builders import AUTOGRAD_THREAD, copy, kernel, launch
from tests.analysis.work.programs import H200, launched, operator, program
from tests.shipped import of_others
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.analysis.work.catalogue import operator_work, work_statistics
from warplens.errors import UsageError
from warplens.profile import Device
from warplens.readers import read
from warplens.studies.grid.cells import model_size

ALL = Window(0, 10_000, "all", "everything")

LINEAR = [[8, 16], [32, 16], [32]]
ADDMM = [[32], [8, 16], [16, 32], [], []]
LINEAR_FLOPS = 2 * 8 * 16 * 32


def test_a_product_is_counted_once_however_many_operators_are_around_it():
    gemm, call = launched(100, 200, 1, at=30)
    timeline = program(
        [
            operator(0, 90, "nn.Module: MLP"),
            operator(10, 80, "aten::linear", LINEAR),
            operator(20, 70, "aten::addmm", ADDMM),
        ],
        [gemm],
        [call],
    )

    modelled = operator_work(timeline, ALL)

    assert modelled.operators.select("name", "flops", "gpu_ns", "kernels").rows() == [
        ("aten::addmm", LINEAR_FLOPS, 100, 1)
    ]
    assert (modelled.coverage_share, modelled.flops) == (1.0, LINEAR_FLOPS)


def test_an_operator_without_a_formula_is_counted_through_the_one_that_called_it():
    gemm, call = launched(100, 200, 1, at=30)
    timeline = program(
        [operator(10, 80, "aten::linear", LINEAR), operator(20, 70, "vendor::gemm", LINEAR)], [gemm], [call]
    )

    assert operator_work(timeline, ALL).operators["name"].to_list() == ["aten::linear"]


def test_an_operator_that_stands_for_one_inside_it_takes_the_time_of_that_one_too():
    # The attention launches its own kernel; the buffer that it fills first belongs to it.
    query = [[1, 64, 8, 32]] * 3
    fill, fill_call = launched(100, 110, 1, at=21, name="fill")
    attend, attend_call = launched(110, 200, 2, at=40, name="flash_fwd_kernel")
    timeline = program(
        [
            operator(10, 80, "flash_attn::_flash_attn_forward", query, ["c10::BFloat16"] * 3),
            operator(20, 30, "aten::fill_", [[64], []], ["float", "Scalar"]),
        ],
        [fill, attend],
        [fill_call, attend_call],
    )

    (row,) = operator_work(timeline, ALL).operators.rows(named=True)

    assert (row["name"], row["kernels"], row["gpu_ns"]) == ("flash_attn::_flash_attn_forward", 2, 100)
    assert row["flops"] == 4 * 8 * 64 * 64 * 32


def test_what_has_no_model_is_listed_with_its_reason_and_its_share():
    gemm, gemm_call = launched(100, 200, 1, at=5)
    mystery, mystery_call = launched(200, 500, 2, at=25)
    loose, loose_call = launched(500, 600, 3, at=60)
    timeline = program(
        [operator(0, 10, "aten::mm", [[4, 4], [4, 4]]), operator(20, 40, "vendor::fused", [[4, 4]])],
        [gemm, mystery, loose, kernel(600, 700, "orphan"), kernel(700, 900, "node", graph_node=7)],
        [gemm_call, mystery_call, loose_call],
    )

    modelled = operator_work(timeline, ALL)

    assert modelled.coverage_share == 100 / 800
    assert modelled.unmodelled.select("name", "reason", "operators", "gpu_ns", "share").rows() == [
        ("vendor::fused", "there is no formula for it", 1, 300, 300 / 800),
        (None, "replayed from a CUDA graph", 0, 200, 200 / 800),
        (None, "its launching call is not in the profile", 0, 100, 100 / 800),
        (None, "launched outside all operators", 0, 100, 100 / 800),
    ]


def test_adjoining_windows_add_up_to_the_whole():
    # The second kernel of the first product begins in the second window.
    first, first_call = launched(100, 200, 1, at=21)
    second, second_call = launched(200, 260, 2, at=22)
    third, third_call = launched(260, 300, 3, at=51)
    timeline = program(
        [operator(20, 30, "aten::mm", [[4, 4], [4, 4]]), operator(50, 60, "aten::mm", [[8, 8], [8, 8]])],
        [first, second, third],
        [first_call, second_call, third_call],
    )

    parts = [operator_work(timeline, Window(*span, "explicit", "")) for span in ((0, 150), (150, 400))]

    whole = operator_work(timeline, ALL)
    assert sum(part.flops for part in parts) == whole.flops == 2 * 4**3 + 2 * 8**3
    assert sum(part.modelled_ns for part in parts) == whole.modelled_ns == 200


def test_backward_products_count_by_their_own_shapes():
    gemms = [launched(100 * place, 100 * place + 50, place, at=10 * place + 2) for place in (1, 2)]
    engine = operator(0, 90, "autograd::engine::evaluate_function: MmBackward0", thread=AUTOGRAD_THREAD)
    products = [
        operator(10, 19, "aten::mm", [[16, 8], [8, 32]], thread=AUTOGRAD_THREAD),
        operator(20, 29, "aten::mm", [[8, 32], [32, 16]], thread=AUTOGRAD_THREAD),
    ]
    calls = [{**call, "thread": AUTOGRAD_THREAD} for _, call in gemms]
    timeline = program([engine, *products], [gemm for gemm, _ in gemms], calls)

    modelled = operator_work(timeline, ALL)

    assert modelled.flops == 2 * LINEAR_FLOPS
    assert set(modelled.operators["phase"]) == {"backward"}


def test_the_type_of_a_list_is_read_from_the_name_of_the_kernel():
    lists, types = [[[10], [20]], [[10], [20]], []], ["TensorList", "TensorList", "Scalar"]
    opaque, opaque_call = launched(100, 110, 1, at=5, name="k<OpaqueType<2u> >")
    silent, silent_call = launched(110, 120, 2, at=15, name="k")
    timeline = program(
        [operator(start, start + 10, "aten::_foreach_add_", lists, types) for start in (0, 10)],
        [opaque, silent],
        [opaque_call, silent_call],
    )

    modelled = operator_work(timeline, ALL)

    assert modelled.operators["bytes"].to_list() == [2 * 90, None]
    assert work_statistics(modelled, "name")["bytes"].to_list() == [None]


def statistics_of(shapes: list, duration: int, name: str, device: Device = H200, kind: str = "aten::mm") -> dict:
    gemm, call = launched(100, 100 + duration, 1, at=5, name=name)
    types = ["c10::BFloat16"] * len(shapes)
    timeline = program([operator(0, 10, kind, shapes, types)], [gemm], [call], device=device)
    (row,) = work_statistics(operator_work(timeline, ALL)).rows(named=True)
    return row


def test_a_large_product_stands_on_the_compute_side_of_the_ridge():
    row = statistics_of([[4096, 4096], [4096, 4096]], 200_000, "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT")

    flops, moved = 2 * 4096**3, 3 * 2 * 4096**2
    assert row["flops_per_s"] == pytest.approx(flops / 200e-6)
    assert row["bytes_per_s"] == pytest.approx(moved / 200e-6)
    assert row["intensity"] == flops / moved
    assert (row["side"], row["peak_flops_per_s"]) == ("compute", 989.4e12)
    assert row["roof_share"] == row["flops_share"] == pytest.approx(flops / 200e-6 / 989.4e12)


@pytest.mark.parametrize("helper", [1_000, 300_000])
def test_a_helper_that_takes_longer_than_the_product_is_not_what_multiplies(helper):
    name, shapes = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", [[4096, 4096], [4096, 4096]]
    product, product_call = launched(100, 200_100, 1, at=5, name=name)
    reduction, reduction_call = launched(200_100, 200_100 + helper, 2, at=7, name="reduce_kernel")
    found = program(
        [operator(0, 10, "aten::mm", shapes, ["c10::BFloat16"] * 2)],
        [product, reduction],
        [product_call, reduction_call],
    )
    (row,) = work_statistics(operator_work(found, ALL)).rows(named=True)

    assert row["peak_flops_per_s"] == 989.4e12
    assert row["flops_share"] == pytest.approx(2 * 4096**3 / (200_000 + helper) * 1e9 / 989.4e12)


def test_of_generated_kernels_the_bytes_alone_are_known():
    generated, call = launched(100, 200, 1, at=5, name="triton_poi_fused_add_0")
    modelled = operator_work(program([operator(0, 10, "triton_poi_fused_add_0", [[64]])], [generated], [call]), ALL)

    assert (modelled.coverage_share, modelled.bytes_only_ns) == (0.0, 100)


def test_a_product_with_one_row_stands_on_the_memory_side():
    row = statistics_of([[1, 4096], [4096, 4096]], 10_000, "gemvx::kernel<__nv_bfloat16>")

    assert row["side"] == "memory"
    assert row["roof_share"] == row["bytes_share"] == pytest.approx(row["bytes"] / 10e-6 / 4.8e12)


@pytest.mark.parametrize(("nanoseconds", "side"), [(1_000, "memory"), (100_000, None)])
def test_a_short_transfer_does_not_hide_the_roof_of_operators_of_its_name(nanoseconds: int, side: str | None):
    shapes, types = [[1_000_000]] * 2, ["float"] * 2
    cast, cast_call = launched(100, 200_100, 1, at=5, name="vectorized_elementwise_kernel")
    sent = copy(300_000, 300_000 + nanoseconds, "host-to-device", 4_000_000, correlation=2)
    timeline = program(
        [operator(start, start + 10, "aten::copy_", shapes, types) for start in (0, 10)],
        [cast],
        [cast_call, launch(15, 18, 2)],
        copies=[sent],
    )
    (row,) = work_statistics(operator_work(timeline, Window(0, 1_000_000, "all", "everything"))).rows(named=True)

    assert (row["side"], row["peak_bytes_per_s"]) == (side, side and pytest.approx(4.8e12, rel=1e-6))


def test_elementwise_work_is_measured_against_the_vector_units():
    row = statistics_of([[1_000_000], [1_000_000]], 2_000, "vectorized_elementwise_kernel", kind="aten::mul")

    assert (row["side"], row["peak_flops_per_s"], row["bytes"]) == ("memory", 67e12, 6_000_000)


def test_a_gpu_whose_roofs_are_not_known_has_rates_but_no_place():
    row = statistics_of([[64, 64], [64, 64]], 1_000, "gemm", Device(ordinal=0, name="Some GPU"))

    assert row["flops_per_s"] == pytest.approx(2 * 64**3 / 1e-6)
    assert (row["peak_flops_per_s"], row["side"], row["roof_share"]) == (None, None, None)


def test_fp32_products_of_unknown_arithmetic_have_no_roof_of_their_own():
    # The name of the kernel does not tell whether tf32 was allowed.
    gemm, call = launched(100, 200, 1, at=5, name="gemm_kernel")
    timeline = program([operator(0, 10, "aten::mm", [[64, 64], [64, 64]])], [gemm], [call])

    assert work_statistics(operator_work(timeline, ALL))["peak_flops_per_s"].to_list() == [None]


@pytest.mark.parametrize(("kind", "precision"), [("aten::mm", "bf16"), ("aten::mul", None)])
def test_the_format_of_a_product_is_that_of_its_inputs_if_its_kernel_does_not_tell(kind, precision):
    # What else computes on narrow tensors computes in fp32, or in a format that only its kernel tells.
    gemm, call = launched(100, 200, 1, at=5, name="attn_fwd")
    timeline = program([operator(0, 10, kind, [[64, 64], [64, 64]], ["c10::BFloat16"] * 2)], [gemm], [call])

    assert work_statistics(operator_work(timeline, ALL), "precision")["precision"].to_list() == [precision]


def test_copies_across_the_link_have_no_place_under_the_roofs_of_memory():
    moved = copy(100, 200, "host-to-device", 4_000, correlation=1)
    timeline = program(
        [operator(0, 10, "aten::copy_", [[1000], [1000], []], ["float", "float", "Scalar"])],
        [],
        [launch(5, 6, 1, "cudaMemcpyAsync")],
        copies=[moved],
    )

    (row,) = work_statistics(operator_work(timeline, ALL)).rows(named=True)

    assert (row["gpu_ns"], row["peak_bytes_per_s"], row["roof_share"]) == (100, None, None)


def test_groups_add_up_however_they_are_made():
    pairs = [launched(100 * place, 100 * place + 60, place, at=10 * place + 1) for place in range(1, 5)]
    shapes = [[[8, 8], [8, 8]], [[8, 8], [8, 8]], [[16, 8], [8, 8]], [[8], [8]]]
    names = ["aten::mm", "aten::mm", "aten::mm", "aten::mul"]
    inputs = zip(range(1, 5), names, shapes, strict=True)
    operators = [operator(10 * place, 10 * place + 9, name, shape) for place, name, shape in inputs]
    timeline = program(operators, [one for one, _ in pairs], [call for _, call in pairs])
    modelled = operator_work(timeline, ALL)

    heights = {by: work_statistics(modelled, by).height for by in ("name", "shapes", "family", "phase")}

    assert heights == {"name": 2, "shapes": 3, "family": 2, "phase": 1}
    for by in heights:
        table = work_statistics(modelled, by)
        assert table["flops"].sum() == modelled.flops
        assert table["share"].sum() == pytest.approx(1.0)


def test_an_unknown_grouping_is_refused():
    with pytest.raises(UsageError, match="choose one of name, shapes"):
        work_statistics(operator_work(program([], [], []), ALL), "colour")


def test_a_profile_without_operators_has_nothing_to_model():
    one, call = launched(100, 200, 1, at=5)

    modelled = operator_work(program([], [one], [call]), ALL)

    assert modelled.operators.is_empty()
    assert (modelled.flops, modelled.coverage_share) == (0, 0.0)
    assert work_statistics(modelled).is_empty()


def kineto(name: str) -> Timeline:
    return Timeline(read(of_others(f"kineto/{name}")))


def test_three_training_steps_of_a_transformer_have_nine_times_the_flops_of_its_forward_pass():
    timeline = kineto("h200_lm_small_train.json.gz")

    modelled = operator_work(timeline, timeline.window("all"))

    forward = 2 * model_size("small").forward_macs(batch=4, context=256)
    assert round(forward / 1e12, 3) == 0.257
    assert modelled.matmul_flops == 3 * 3 * forward
    products = modelled.operators.filter(pl.col("family") == "gemm")
    assert products.filter(pl.col("phase") == "backward")["flops"].sum() == 3 * 2 * forward
    assert modelled.coverage_share > 0.89


def test_a_vision_transformer_with_token_reduction_has_the_macs_of_its_formula():
    timeline = kineto("h200_topk_deit224_bs1.json.gz")
    modelled = operator_work(timeline, timeline.window("all"))

    # DeiT-B/16: 196 patches and a class token; after the attention of blocks 3, 6 and 9 a top-k keeps 19 of 196, 1 of
    # 19 and 1 of 1 tokens beside the class token, as the operators aten::topk of the trace say.
    width, classes, tokens, macs = 768, 1000, 197, 196 * 768 * 768
    kept = {3: 20, 6: 2, 9: 2}
    for block in range(12):
        left = kept.get(block, tokens)
        macs += 4 * tokens * width**2 + 2 * tokens**2 * width + 8 * left * width**2
        tokens = left
    macs += width * classes

    assert modelled.matmul_flops == 5 * 2 * macs
    assert modelled.coverage_share == 1.0


@pytest.mark.parametrize("name", ["tracelens_h100_qwen0p5b.json.gz", "tracelens_mi300_qwen0p5b.json.gz"])
def test_the_same_model_has_the_same_flops_on_two_vendors_gpus(name):
    timeline = kineto(name)
    modelled = operator_work(timeline, timeline.window("all"))

    # Qwen1.5-0.5B (24 layers, width 1,024, 16 heads, MLP of 2,816) on 16 sequences of 559 tokens, without the head;
    # one product of 32 × 559 makes the angles of the rotary embedding.
    tokens, pairs = 16 * 559, 16 * 16 * 559 * 560 // 2
    layer = 2 * tokens * (4 * 1024**2 + 3 * 1024 * 2816) + 4 * pairs * 64
    assert modelled.matmul_flops == 24 * layer + 2 * 32 * 559


def test_every_operator_is_counted_at_most_once_and_all_time_is_accounted_for():
    for name in ("h200_lm_small_train.json.gz", "tracelens_b200_eager_trace.json.gz"):
        timeline = kineto(name)
        modelled = operator_work(timeline, timeline.window("all"))

        assert modelled.operators["range"].is_unique().all()
        assert modelled.modelled_ns + modelled.unmodelled["gpu_ns"].sum() == modelled.total_ns
        counted = set(modelled.operators["range"].to_list())
        parent = timeline.operators.forest.parent
        for row in modelled.operators["range"].to_list():
            above = int(parent[row])
            while above >= 0:
                assert above not in counted
                above = int(parent[above])
