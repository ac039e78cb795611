from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warplens.analysis.work.amounts import Work
from warplens.analysis.work.formulas import FORMULAS, work_of
from warplens.analysis.work.products import unmasked_pairs

RECORDED = json.loads((Path(__file__).parent / "data" / "flop_counter.json").read_text("utf-8"))


def work(name: str, shapes: list[Any], types: list[str] | None = None, values: list[str] | None = None) -> Work:
    found = work_of(
        name,
        json.dumps(shapes),
        json.dumps(["float" if shape else "Scalar" for shape in shapes] if types is None else types),
        None,
        None if values is None else json.dumps(values),
    )
    assert isinstance(found, Work), found
    return found


def of_entry(entry: dict[str, Any]) -> Work | str:
    texts = (None if entry[key] is None else json.dumps(entry[key]) for key in ("shapes", "types", "strides", "values"))
    return work_of(entry["name"], *texts)


#: The counter gives the weights' gradient of a grouped convolution the work of all channels (its comment says that it
#: skips groups): 4 groups, so 4 × 115,200 instead of 115,200 beside the 115,200 of the inputs' gradient.
COUNTER_IGNORES_GROUPS = {"conv2d of groups, backward": 2 * 115_200}


@pytest.mark.parametrize("entry", RECORDED["operators"], ids=lambda entry: entry["title"])
def test_products_convolutions_and_attention_have_the_flops_that_pytorch_counts(entry):
    found = of_entry(entry)

    assert isinstance(found, Work)
    full = found.flops if found.flops_full is None else found.flops_full
    assert full == COUNTER_IGNORES_GROUPS.get(entry["title"], entry["flops"])


def test_the_record_is_what_pytorch_counts_today():
    pytest.importorskip("torch", reason="PyTorch is not installed: the record cannot be made anew")
    from tests.analysis.work.record_flop_counter import entries

    now = {(entry["title"], entry["name"]): entry["flops"] for entry in entries()}

    assert now == {(entry["title"], entry["name"]): entry["flops"] for entry in RECORDED["operators"]}


#: Operators on complex numbers, and the shapes of the product of real numbers that makes them: [[Re, −Im], [Im, Re]] ×
#: [[Re], [Im]].
OF_COMPLEX = {
    "mm": ([[4, 3], [3, 5]], [[8, 6], [6, 5]]),
    "bmm": ([[7, 4, 3], [7, 3, 5]], [[7, 8, 6], [7, 6, 5]]),
    "matmul": ([[7, 4, 3], [3, 5]], [[7, 8, 6], [6, 5]]),
    "linear": ([[7, 4, 3], [5, 3]], [[7, 8, 6], [5, 6]]),
    "addmm": ([[4, 5], [4, 3], [3, 5]], [[8, 5], [8, 6], [6, 5]]),
    "mv": ([[4, 3], [3]], [[8, 6], [6]]),
    "vdot": ([[9], [9]], [[4 * 9], [4 * 9]]),  # four real ones
}


@pytest.mark.parametrize("name", OF_COMPLEX)
@pytest.mark.parametrize(("type_", "item"), [("c10::complex<float>", 8), ("c10::complex<double>", 16)])
def test_products_of_complex_numbers_take_the_flops_of_those_of_real_ones(name, type_, item):
    shapes, of_real = OF_COMPLEX[name]

    found = work(f"aten::{name}", shapes, [type_] * len(shapes))

    assert found.flops == work(f"aten::{name}", of_real).flops
    assert found.bytes == item // 4 * work(f"aten::{name}", shapes).bytes


def test_a_complex_number_times_another_takes_four_products_and_two_sums():
    shapes = [[4], [5]]

    assert work("aten::outer", shapes, ["c10::complex<float>"] * 2).flops == 6 * work("aten::outer", shapes).flops


def test_a_convolution_of_complex_numbers_is_counted_at_the_real_ones_that_pytorch_makes_of_it():
    shapes, values = [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []], ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "1"]

    def of(type_: str) -> Work | str:
        types = [type_, type_, "", *["ScalarList"] * 3, "Scalar"]
        return work_of("aten::conv2d", json.dumps(shapes), json.dumps(types), None, json.dumps(values))

    assert isinstance(of("float"), Work)
    assert "of complex numbers" in of("c10::complex<float>")


#: Scalars of a recurrent network: mode (GRU), hidden size, projection, layers, …, both directions.
RNN = ["3", "8", "0", "2", "False", "0.", "True", "True"]
RNN_TYPES = ["c10::Half", *["Scalar"] * 21]

#: Operators with shapes, types and values of their inputs, and their work by hand.
COUNTED = {
    "a product reads both operands once and writes the result once": (
        ("aten::mm", [[4, 3], [3, 5]], ["c10::BFloat16", "c10::BFloat16"]),
        {"family": "gemm", "flops": 2 * 4 * 3 * 5, "bytes": 2 * (4 * 3 + 3 * 5 + 4 * 5)},
    ),
    "a scaled product writes the type that it was asked for": (
        (
            "aten::_scaled_mm", [[16, 32], [32, 8], [], [], [], [], [], []],
            ["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float", "float", "", "", "Scalar", "Scalar"],
            ["", "", "", "", "", "", "15", "True"],
        ),
        {"bytes": 16 * 32 + 32 * 8 + 2 * (16 * 8) + 2 * 4},
    ),
    "broadcast inputs are read at their own size": (
        ("aten::mul", [[4, 256, 768], [4, 256, 1]]),
        {"bytes": 4 * (4 * 256 * 768 * 2 + 4 * 256), "flops": 4 * 256 * 768},
    ),
    "a number does not widen what it is multiplied with": (
        ("aten::mul", [[100], []], ["c10::Half", "double"]), {"bytes": 2 * 100 + 8 + 2 * 100},
    ),
    "comparisons write one byte an element": (
        ("aten::eq", [[100], []], ["long int", "Scalar"]), {"bytes": 8 * 100 + 100},
    ),
    "what writes in place reads and writes its first input": (
        ("aten::add_", [[100], [100], []]), {"bytes": 4 * 300},
    ),
    "what makes a result writes it": (("aten::add", [[100], [100], []]), {"bytes": 4 * 300}),
    "a result given to write to is not read": (("aten::add", [[100], [100], [], [100]]), {"bytes": 4 * 300}),
    "a copy reads one type and writes the other": (
        ("aten::copy_", [[100], [100], []], ["c10::BFloat16", "float", "Scalar"]), {"bytes": 2 * 100 + 4 * 100},
    ),
    "a reduction writes what its dimensions leave": (
        (
            "aten::sum", [[4, 256, 768], [], [], []], ["float", "ScalarList", "Scalar", ""],
            ["", "[0, 1]", "True", ""],
        ),
        {"flops": 4 * 256 * 768, "bytes": 4 * (4 * 256 * 768 + 768)},
    ),
    "an embedding moves the rows that were asked for, not the table": (
        ("aten::index_select", [[50_000, 64], [], [7]], ["float", "Scalar", "long int"], ["", "0", ""]),
        {"bytes": 7 * 8 + 2 * 7 * 64 * 4},
    ),
    "lists of tensors have elements but no recorded type": (
        ("aten::_foreach_add_", [[[10, 10], [5]], [[10, 10], [5]], []], ["TensorList", "TensorList", "Scalar"]),
        {"flops": 105, "bytes": 0, "untyped": 3 * 105},
    ),
    "rows added to a copy are moved beside the copy": (
        ("aten::index_add", [[50, 4], [], [7], [7, 4]], ["float", "Scalar", "long int", "float"]),
        {"flops": 7 * 4, "bytes": 7 * 8 + 3 * 7 * 4 * 4 + 2 * 50 * 4 * 4},
    ),
    "a pool writes its results and where they came from": (
        (
            "aten::max_pool2d_with_indices", [[2, 3, 8, 9], *([[]] * 5)], ["c10::Half", *["ScalarList"] * 4, "Scalar"],
            ["", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"],
        ),
        {"family": "reduction", "flops": 2 * 3 * 4 * 5 * 9, "bytes": 2 * 3 * (8 * 9 * 2 + 4 * 5 * (2 + 8))},
    ),
    "a pool without a stride has that of its windows, and may round up": (
        (
            "aten::avg_pool2d", [[3, 8, 9], *([[]] * 6)], ["float", *["ScalarList"] * 3, "Scalar", "Scalar", ""],
            ["", "[2]", "[]", "[0]", "True", "True", ""],
        ),
        {"flops": 3 * 4 * 5 * 4, "bytes": 4 * 3 * (8 * 9 + 4 * 5)},
    ),
    "the gradient of a pool is as large as its input": (
        (
            "aten::max_pool2d_with_indices_backward", [[2, 4, 4], [2, 8, 8], *([[]] * 5), [2, 4, 4]],
            ["float", "float", *["ScalarList"] * 4, "Scalar", "long int"],
        ),
        {"bytes": 2 * (4 * 4 * (4 + 8) + 8 * 8 * 4)},
    ),
    "a bilinear resampling weighs four elements for each result": (
        ("aten::upsample_bilinear2d", [[2, 3, 4, 4], [], [], []], ["float", "ScalarList", "Scalar", ""],
         ["", "[8, 6]", "False", ""]),
        {"flops": 8 * 2 * 3 * 8 * 6, "bytes": 4 * 2 * 3 * (4 * 4 + 8 * 6)},
    ),
    "the gradient of a resampling has the size of its input": (
        ("aten::upsample_nearest2d_backward", [[2, 3, 8, 6], [], []], ["float", "ScalarList", "ScalarList"],
         ["", "[8, 6]", "[2, 3, 4, 4]"]),
        {"flops": 0, "bytes": 4 * 2 * 3 * (4 * 4 + 8 * 6)},
    ),
    "a GRU multiplies each time step with the weights of three gates": (
        ("aten::_cudnn_rnn", [[5, 2, 10], *([[]] * 15)], RNN_TYPES, ["", *[""] * 5, *RNN]),
        # two layers of two directions, the second of which reads both outputs of the first
        {"family": "recurrence", "flops": 2 * 5 * 2 * 2 * 3 * 8 * ((10 + 8) + (16 + 8))},
    ),
    "its backward pass multiplies twice as often": (
        ("aten::_cudnn_rnn_backward", [[5, 2, 10], *([[]] * 21)], RNN_TYPES,
         ["", *[""] * 9, *RNN, "[]", "", "", "[True, False, False, True]"]),
        {"flops": 2 * 2 * 5 * 2 * 2 * 3 * 8 * ((10 + 8) + (16 + 8))},
    ),
    "an LSTM with projected outputs, one layer and one direction": (
        ("aten::_cudnn_rnn", [[5, 2, 10], *([[]] * 15)], RNN_TYPES,
         ["", *[""] * 5, "2", "8", "4", "1", "False", "0.", "True", "False"]),
        {"flops": 2 * 5 * 2 * (4 * 8 * (10 + 4) + 8 * 4)},
    ),
    "a fused optimizer reads four lists and writes three": (
        ("aten::_fused_adamw_", [*([[[100]]] * 4), [], [[1]]], ["TensorList"] * 6), {"untyped": 7 * 100},
    ),
}  # fmt: skip


@pytest.mark.parametrize("operator", COUNTED)
def test_work_is_that_counted_by_hand(operator):
    inputs, counted = COUNTED[operator]
    found = work(*inputs)

    assert {name: getattr(found, name) for name in counted} == counted


def test_expanded_tensors_are_read_as_far_as_they_are_stored():
    # a gradient of one number, expanded to 1,000 with stride 0
    found = work_of("aten::mul", "[[1000], [1000]]", '["float", "float"]', "[[0], [1]]")

    assert isinstance(found, Work)
    assert found.bytes == 4 * (1 + 1000 + 1000)


@given(st.integers(1, 12), st.integers(1, 12), st.booleans(), st.none() | st.integers(0, 12), st.integers(0, 12))
def test_unmasked_pairs_are_those_that_a_mask_leaves(queries, keys, from_end, left, right):
    shift = keys - queries if from_end else 0
    seen = sum(
        (left is None or key >= query + shift - left) and key <= query + shift + right
        for query in range(queries)
        for key in range(keys)
    )

    assert unmasked_pairs(queries, keys, from_end=from_end, left=left, right=right) == seen


def flash(values: list[str], query: list[int], key: list[int]) -> Work:
    shapes = [query, key, key, *([[]] * 12)]
    types = ["c10::BFloat16"] * 3 + ["", "", *(["Scalar"] * 8), "", ""]
    return work("aten::_flash_attention_forward", shapes, types, ["", "", "", *values, *([""] * (12 - len(values)))])


def test_a_causal_mask_leaves_half_of_the_pairs_and_the_diagonal():
    found = flash(["", "", "559", "559", "0.", "True"], [16, 559, 16, 64], [16, 559, 16, 64])

    pairs = 16 * 16 * 559 * 560 // 2
    assert found.flops == 4 * 64 * pairs
    assert found.flops_full == 4 * 64 * 16 * 16 * 559 * 559


def test_grouped_queries_multiply_per_query_head_but_read_few_keys():
    found = flash(["", "", "128", "128", "0.", "False"], [2, 128, 32, 64], [2, 128, 4, 64])

    assert found.flops == 4 * 2 * 32 * 128 * 128 * 64
    assert found.bytes == 2 * 2 * 128 * 64 * (32 + 4 + 4 + 32)


def test_a_sliding_window_bounds_the_pairs():
    found = flash(["", "", "8", "8", "0.", "True", "False", "0.125", "3", "0"], [1, 8, 1, 16], [1, 8, 1, 16])

    assert found.flops == 4 * 16 * (1 + 2 + 3 + 4 * 5)


def varlen(tokens: int, longest: int) -> Work | str:
    shapes = [[tokens, 8, 64]] * 3 + [[5], [5], *([[]] * 10)]
    types = ["c10::BFloat16"] * 3 + ["int", "int", *(["Scalar"] * 8), "", ""]
    values = ["", "", "", "", "", str(longest), str(longest), "0.", "False", *([""] * 6)]
    return work_of("aten::_flash_attention_forward", json.dumps(shapes), json.dumps(types), None, json.dumps(values))


def test_sequences_of_equal_length_one_after_the_other_are_known():
    found = varlen(tokens=4 * 100, longest=100)

    assert isinstance(found, Work)
    assert found.flops == 4 * 4 * 8 * 100 * 100 * 64


def test_sequences_of_unknown_lengths_are_not_guessed():
    assert varlen(tokens=390, longest=100) == "lengths of the sequences are not recorded"


def test_a_convolution_whose_stride_was_not_recorded_is_not_guessed():
    found = work_of("aten::cudnn_convolution", "[[1, 3, 32, 32], [8, 3, 3, 3]]", '["float", "float"]')

    assert found == "stride and padding were not recorded"


def test_long_lists_of_tensors_have_no_shapes():
    found = work_of("aten::_foreach_mul_", "[[], []]", '["TensorList", "Scalar"]', None, '["", "0.9"]')

    assert found == "shapes of lists of more than 30 tensors are not recorded"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my_extension::op", "there is no formula for it"),
        ("triton_poi_fused_add_0", "generated code: bytes known from its arguments, FLOPs not"),
        ("triton_tem_fused_mm_0", "generated code, whose name does not say what it computes"),
        ("c10d::allreduce_", "communication"),
        ("aten::index", "depends on values not recorded"),
    ],
)
def test_an_operator_without_a_formula_says_why(name, reason):
    assert work_of(name, "[[2, 2]]", '["float"]') == reason


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("aten::mm", "[[-4, 8], [8, 4]]", "a recorded size is negative"),
        ("aten::bmm", "[[4, 8], [8, 4]]", "an input has fewer dimensions than its operator needs"),
    ],
)
def test_shapes_that_the_operator_cannot_have_give_no_work(name, shapes, reason):
    assert work_of(name, shapes, '["float", "float"]') == reason


def test_without_shapes_nothing_is_modelled():
    assert work_of("aten::mm", None, None) == "shapes were not recorded"


SIZES = st.lists(st.integers(-1, 5), max_size=4)
INPUT = st.tuples(
    st.one_of(SIZES, st.lists(SIZES, max_size=3), st.none()),
    st.sampled_from(["float", "c10::Half", "bool", "long int", "Scalar", "ScalarList", "TensorList", "", "?"]),
    st.sampled_from(["", "0", "1", "-7", "9", "True", "[0, 3]", "[1, y]", "[True, False]", "[]", "None"]),
)


# One input of many shapes, types and texts: fewer draws miss whole formulas.
@settings(max_examples=150)
@given(st.lists(INPUT, max_size=12))
def test_odd_inputs_give_work_or_a_reason_never_an_error(inputs):
    shapes, types, values = (json.dumps([item[place] for item in inputs]) for place in range(3))
    for name in FORMULAS:
        found = work_of(name, shapes, types, shapes, values)

        assert isinstance(found, str) or (found.flops >= 0 and found.bytes >= 0), name


@pytest.mark.parametrize("text", ["not json", "{}", "7", "null"])
def test_inputs_that_are_no_lists_give_a_reason(text):
    assert work_of("aten::mm", text, text, text, text) == "shapes were not recorded"


def test_the_work_of_a_sparse_operand_is_not_that_of_a_dense_one_of_its_shape():
    shapes, types = [[150_000, 150_000], [150_000, 256]], ["float", "float"]
    entry = {"name": "aten::mm", "shapes": shapes, "types": types, "strides": [[], [256, 1]], "values": None}

    assert of_entry(entry) == "an input is sparse, and how many of its elements are stored was not recorded"
    assert isinstance(of_entry({**entry, "strides": [[150_000, 1], [256, 1]]}), Work)
