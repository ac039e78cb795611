"""Remedies fit the program that they are given to: its collectives, its GPU, what it does already, what runs it."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.analysis import builders
from tests.diagnosis import programs
from tests.diagnosis import test_structure as structure
from tests.diagnosis.machine import ADD, BF16_GEMM, FP32_GEMM, MS, NCCL, US, Machine
from tests.diagnosis.programs import STEPS, judged, record, verdict
from warplens.analysis.trees import OPERATOR_KIND
from warplens.diagnosis import Diagnosis, fitting, frameworks
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.rules import RULES, rows
from warplens.diagnosis.rules.stalls import HostStall
from warplens.report.brief import brief

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
BACKWARD = "void at::native::threshold_backward_kernel<float>(int)"
FUSION = "loop_add_fusion"
MYELIN = "__myl_AddMulSumDivSqrt_0x5d2b1a6c"
TENSORRT = (
    "sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1"
    "_tensor16x8x16_kernel_trt"
)


def advice(found: Diagnosis, id_: str) -> str:
    """Everything that the remedies of a finding say to do."""
    finding = found.finding(id_)
    assert finding is not None
    return "\n".join(f"{remedy.action}\n{remedy.how}" for remedy in finding.remedies)


@pytest.mark.parametrize(
    ("collective", "computing", "told", "untold"),
    [
        (NCCL, BACKWARD, "bf16_compress_hook", "fewer GPUs"),
        (NCCL.replace("f32", "bf16"), BACKWARD, "no_sync", "bf16_compress_hook"),
        (NCCL, ADD, "16 bits", "no_sync"),
        (NCCL.replace("f32", "bf16"), ADD, "fewer GPUs", "16 bits"),
        (SEND, ADD, "isend", "DistributedDataParallel"),
        (SEND, BACKWARD, "isend", "DistributedDataParallel"),
    ],
)
def test_collectives_are_hidden_as_their_kind_and_the_program_allow(
    collective: str, computing: str, told: str, untold: str
) -> None:
    def step(machine: Machine) -> None:
        machine.launch(2 * MS)
        machine.launch(200 * US, computing)
        machine.launch(1 * MS, collective)

    said = advice(verdict(step), "exposed-communication")
    assert told in said
    assert untold not in said


@pytest.mark.parametrize("ahead", ["## wait_sparse_data_dist ##", "## wait_sparse_data_dist 3 ##", "wait"])
def test_a_batch_that_torchrec_exchanges_ahead_is_not_to_be_exchanged_ahead(ahead: str) -> None:
    """The exchange of the pooled rows, of a pipeline that exchanges the next batch in ranges of its own, or of none."""
    machine = Machine()
    for _ in range(STEPS):
        with machine.step():
            machine.launch(2 * MS)
            machine.launch(200 * US, BACKWARD)
            with machine.range("nccl:all_to_all"):
                machine.launch(1 * MS, SEND)
            with machine.range(ahead):
                machine.think(10 * US)
    machine.ranges = [
        {**named, "kind": OPERATOR_KIND if named["name"].startswith("nccl") else "push-pop"} for named in machine.ranges
    ]
    found = judged(machine.trace())
    said, is_ahead = advice(found, "exposed-communication"), ahead != "wait"
    assert "Exchange rows while others are computed" in said
    assert ("TrainPipelineSparseDist" in said) == (not is_ahead)
    assert ("sparse_data_dist" in said) == ("pooled rows" in said) == is_ahead
    hidden = found.findings[0].remedies[0]
    assert hidden.gain == found.findings[0].bound == pytest.approx(3.2 / 2.2, rel=0.02)
    assert hidden.expected.endswith("the most that it can bring, if all of it hides")


def test_no_tool_of_another_maker_is_advised() -> None:
    profile = record(programs.stalled_input)
    recorder = replace(profile.capture.recorder, counters="rocprof-compute")
    on_amd = replace(profile, capture=replace(profile.capture, recorder=recorder))
    assert "nsys" in advice(judged(profile), "host-stall")
    assert "nsys" not in advice(judged(on_amd), "host-stall")
    assert "py-spy" in advice(judged(on_amd), "host-stall")


@pytest.mark.parametrize(("maker", "named"), [("ncu", True), ("rocprof-compute", False)])
def test_no_experiment_asks_for_a_tool_of_another_maker(maker: str, named: bool) -> None:
    profile = record(programs.large_products)
    recorder = replace(profile.capture.recorder, counters=maker)
    found = judged(replace(profile, capture=replace(profile.capture, recorder=recorder)))
    refuted = next(finding.refute for finding in found.findings if finding.id == "tensor-compute")
    assert ("ncu" in refuted) == named
    assert "(2·M·N·K over their time" in refuted


@pytest.mark.parametrize(("maker", "said"), [("ncu", "Nsight Compute"), ("rocprof-compute", "rocprof-compute tells")])
def test_what_happens_inside_kernels_is_told_by_a_tool_for_the_gpu(maker: str, said: str) -> None:
    profile = record(programs.large_products)
    recorder = replace(profile.capture.recorder, counters=maker)
    found = judged(replace(profile, capture=replace(profile.capture, recorder=recorder)))
    (inside,) = [line for line in found.coverage.unavailable if "inside kernels" in line]
    assert said in inside
    assert ("Nsight" in inside) == (maker == "ncu")


APEX = (
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float>"
    "(long, int volatile*, TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float)"
)
FOREACH = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, "
    "BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies<float>, float>(int)"
)


@pytest.mark.parametrize(("update", "fused"), [(APEX, True), (FOREACH, False)])
def test_an_optimizer_of_apex_is_fused_already(update: str, fused: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(2 * US, BF16_GEMM, times=200)
        machine.launch(2 * US, BACKWARD, times=200)
        machine.launch(20 * US, update, times=2)
        machine.wait()

    assert ("fused=True" not in advice(verdict(step), "launch-overhead")) == fused


SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*)"


@pytest.mark.parametrize(("kernel", "told"), [(SOFTMAX, True), (ADD, False)])
def test_attention_is_not_to_be_fused_where_there_is_none_to_fuse(kernel: str, told: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(3 * US, kernel, times=200)
        machine.wait()

    assert ("scaled_dot_product_attention" in advice(verdict(step), "launch-overhead")) == told


FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)"


def test_a_softmax_beside_fused_attention_may_be_of_a_router() -> None:
    def step(machine: Machine) -> None:
        machine.launch(3 * US, SOFTMAX, times=200)
        machine.launch(3 * US, FLASH)
        machine.wait()

    assert "scaled_dot_product_attention" not in advice(verdict(step), "launch-overhead")


def test_an_engine_is_told_to_replay_its_own_graphs() -> None:
    def step(machine: Machine) -> None:
        for _ in range(100):
            machine.launch(3 * US, "void vllm::rms_norm_kernel<c10::BFloat16>(int)")
            machine.launch(3 * US)
        machine.wait()

    said = advice(verdict(step), "launch-overhead")
    assert "enforce-eager" in said
    assert "reduce-overhead" not in said
    assert "torch.compile(model)" not in said
    assert "--max-num-seqs" in said


@pytest.mark.parametrize(("kernel", "started"), [("void vllm::rms_norm_kernel(int)", True), (ADD, False)])
def test_tools_start_the_engine_that_runs_the_model(kernel: str, started: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(2 * MS, kernel)
        machine.wait()
        machine.think(5 * MS)

    said = advice(verdict(step), "host-stall")
    assert ("vllm serve" in said) == started
    assert ("program.py" in said) != started


def test_an_engine_plans_ahead_instead_of_loading_a_data_set() -> None:
    def step(machine: Machine) -> None:
        machine.think(4 * MS)
        machine.copy(1 * US, 4_096, pinned=True)
        machine.launch(2 * MS, "void vllm::rms_norm_kernel(int)")
        machine.item()

    found = verdict(step)
    (stall,) = (finding for finding in found.findings if finding.id == "host-stall")
    assert stall.variant == HostStall.variants["input"]
    said = advice(found, "host-stall")
    assert "--async-scheduling" in said
    assert "DataLoader" not in said
    assert "each epoch" not in said


SORTED_BY_PYTORCH = "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<Policy800, unsigned int>(int*)"
CUPY = "cupy_add__float32_float32_float32"


@pytest.mark.parametrize(
    ("kernel", "told", "untold"),
    [
        (ADD, "torch.cuda.CUDAGraph", "cudaGraphLaunch"),
        (FUSION, "jax.jit", "torch"),
        (CUPY, "begin_capture", "torch"),
        ("saxpy(int, float, const float *, float *)", "cudaGraphLaunch", "torch"),
        ("void cub::DeviceRadixSortOnesweepKernel<Policy800, unsigned int>(int*)", "cudaGraphLaunch", "torch"),
        (SORTED_BY_PYTORCH, "torch.cuda.CUDAGraph", "cudaGraphLaunch"),
    ],
)
def test_remedies_are_in_the_words_of_what_the_program_is_written_with(kernel: str, told: str, untold: str) -> None:
    found = verdict(lambda machine: machine.launch(3 * US, kernel, times=200))
    said = advice(found, "launch-overhead")
    assert told in said
    assert untold not in said
    assert not [text for text in found.coverage.unavailable if "remedies fit" in text]


@pytest.mark.parametrize("kernel", [BF16_GEMM, "matmul_kernel"])
def test_remedies_are_doubted_where_nothing_shows_what_the_program_is_written_with(kernel: str) -> None:
    found = verdict(lambda machine: machine.launch(3 * US, kernel, times=200))
    finding = found.finding("launch-overhead")
    assert finding.remedies[0].how.startswith("# in PyTorch:\n")
    assert "torch.cuda.CUDAGraph" in finding.remedies[0].how
    assert any("remedies fit" in text and "nothing shows" in text for text in found.coverage.unavailable)


def test_one_kernel_of_pytorch_shows_that_a_program_uses_it() -> None:
    def step(machine: Machine) -> None:
        machine.launch(3 * US, "matmul_kernel", times=200)
        machine.launch(3 * US, ADD)

    assert "torch.cuda.CUDAGraph" in advice(verdict(step), "launch-overhead")


@pytest.mark.parametrize(("beside", "in_pytorch"), [(MYELIN, False), (ADD, True)])
def test_tensorrt_alone_is_no_pytorch(beside: str, in_pytorch: bool) -> None:
    def step(machine: Machine) -> None:
        machine.copy(2 * MS, 12 << 20, pinned=False)
        machine.launch(50 * US, TENSORRT, times=20)
        machine.launch(10 * US, beside)
        machine.wait()

    said = advice(verdict(step), "blocking-copy")
    assert ("DataLoader" in said) == in_pytorch
    assert ("cudaMallocHost" in said) != in_pytorch


def test_input_is_prepared_ahead_before_its_work_moves_to_the_gpu() -> None:
    def step(machine: Machine) -> None:
        machine.think(30 * MS)
        machine.copy(1 * MS, 8 << 20, pinned=False)
        machine.launch(100 * US, "loop_add_fusion(float)", times=300)
        machine.wait()

    stall = verdict(step).finding("host-stall")
    assert stall is not None
    assert [remedy.action for remedy in stall.remedies[:2]] == [
        "Prepare the input while the GPU computes",
        "Process these data on the GPU",
    ]
    assert "result back" not in stall.remedies[1].how


def test_every_counterpart_belongs_to_a_remedy_and_has_no_word_of_pytorch() -> None:
    rules = Path(frameworks.__file__).with_name("rules")
    written = "".join(path.read_text(encoding="utf-8") for path in sorted(rules.glob("*.py")))
    for id_, elsewhere in frameworks._ELSEWHERE.items():
        assert f'"{id_}"' in written
        for told in elsewhere.values():
            action, how, *_ = ("", told) if isinstance(told, str) else told
            assert not frameworks.is_of_pytorch(Remedy(action, how, ""))


@pytest.mark.parametrize(
    ("code", "flag"),
    [
        (r"torch\.compile\((?!.*reduce-overhead)", "compiles"),
        (r"reduce-overhead|torch\.cuda\.graph\(|CUDAGraph\(", "captures"),
    ],
)
def test_remedies_whose_code_compiles_or_captures_graphs_say_so(code: str, flag: str) -> None:
    for path in sorted(Path(frameworks.__file__).with_name("rules").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Remedy":
                texts = (node.value for node in ast.walk(call) if isinstance(node, ast.Constant))
                told = "".join(text for text in texts if isinstance(text, str))
                flags = {keyword.arg for keyword in call.keywords}
                assert flag in flags or not re.search(code, told), f"{path.name}:{call.lineno}"


def test_a_remedy_without_counterpart_is_left_out_while_others_remain() -> None:
    only = Remedy("Score what has a label", "scores = model.head(hidden[labels != -100])", "")
    other = Remedy("Choose shapes that fill whole tiles", "# dimensions in multiples of 64", "")
    partly = Remedy("Prepare it once, or on the GPU", "# store the result\n# or torchvision.transforms.v2", "")
    run = Remedy("Record", "nsys profile python train.py", "")
    assert frameworks.in_words_of("cuda", (only, other)) == (other,)
    assert frameworks.in_words_of("jax", (only,)) == (only,)
    assert [each.how for each in frameworks.in_words_of("cuda", (partly, run))] == [
        "# store the result",
        "nsys profile ./program",
    ]
    assert frameworks.in_words_of("pytorch", (only, other)) == (only, other)
    cached = Remedy("Ask for more", "export PYTORCH_X=1\n# or a smaller batch", "", id="no-retries")
    assert frameworks.in_words_of("cuda", (cached, other)) == (other,)


def test_experiments_are_in_the_words_of_what_the_program_is_written_with() -> None:
    written = {each.refutation for each in RULES}
    for part, elsewhere in frameworks._EXPERIMENTS.items():
        (experiment,) = (text for text in written if part in text)
        assert frameworks.experiment_for("pytorch", experiment) == frameworks.experiment_for(None, experiment)
        for framework in elsewhere:
            if framework != "*":
                assert part not in frameworks.experiment_for(framework, experiment)
    stalled = programs.judged(record(programs.stalled_input)).finding("host-stall")
    assert stalled is not None
    assert "gc.disable()" in stalled.refute
    assert "gc.disable()" not in frameworks.experiment_for("cuda", stalled.refute)


def test_what_a_compiler_made_is_not_to_be_compiled() -> None:
    compiled = advice(verdict(lambda machine: machine.launch(3 * US, FUSION, times=200)), "launch-overhead")
    eager = advice(verdict(lambda machine: machine.launch(3 * US, ADD, times=200)), "launch-overhead")
    assert "torch.compile(model)" in eager
    assert "torch.compile(model)" not in compiled


@pytest.mark.parametrize(("apart", "stays"), [(True, True), (False, False)])
def test_the_next_batch_that_is_sent_in_one_go_need_not_stay(apart: bool, stays: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US)
        for _ in range(8):
            machine.copy(200 * US, 8_000_000, pinned=True)
            if apart:
                machine.launch(100 * US)
        machine.launch(100 * US, times=8)

    assert ("register_buffer" in advice(verdict(step), "blocking-copy")) == stays


@pytest.mark.parametrize(("sizes", "stays"), [(8, True), (1, False)])
def test_tensors_of_many_sizes_that_go_round_are_weights(sizes: int, stays: bool) -> None:
    """Two models that take turns on the GPU are sent before they run; pictures in and out have one size."""

    def step(machine: Machine) -> None:
        for number in range(8):
            machine.copy(200 * US, 8_000_000 + 4096 * (number % sizes), pinned=False)
        machine.launch(100 * US, times=8)
        for number in range(8):
            machine.copy(200 * US, 8_000_000 + 4096 * (number % sizes), "device-to-host", pinned=False)

    found = verdict(step)
    said, finding = advice(found, "blocking-copy"), found.finding("blocking-copy")
    assert finding is not None
    assert ("no offloading" in said) == ("to the host and back" in finding.title) == stays
    assert ("next batch" in said) == ("uint8" in said) == ("one batch" in finding.refute) != stays
    assert "record_stream" in said


def test_what_is_copied_ahead_is_pinned_first() -> None:
    def step(machine: Machine, *, pinned: bool) -> None:
        machine.copy(2 * MS, 8_000_000, pinned=pinned)
        machine.launch(2 * MS)

    ahead = [
        next(remedy.how for remedy in finding.remedies if "next batch" in remedy.action)
        for pinned in (True, False)
        if (finding := verdict(partial(step, pinned=pinned)).finding("blocking-copy")) is not None
    ]
    assert ["pin_memory" in how for how in ahead] == [False, True]


def test_all_copies_are_counted_with_those_that_kernels_hide() -> None:
    def step(machine: Machine) -> None:
        machine.copy(2 * MS, 8_000_000, pinned=False)
        machine.launch(2 * MS)
        machine.copies.append(builders.copy(machine.gpu - 1 * MS, machine.gpu - MS // 2, size=2_000_000, stream=8))

    finding = verdict(step).finding("blocking-copy")
    assert finding is not None
    assert finding.evidence["copies_per_step"] == 2
    assert finding.evidence["copied_bytes_per_step"] == 10_000_000


def test_allocations_that_are_not_seen_to_recur_may_belong_to_the_start() -> None:
    machine = Machine()
    with machine.step():
        programs.allocating(machine)
    found = judged(machine.trace())
    one = found.finding("allocator-churn")
    many = verdict(programs.allocating).finding("allocator-churn")
    assert many is not None
    assert "start" in one.title
    assert one.confidence == "low"
    assert (one.remedies[0].action, one.remedies[0].gain) == ("Record steps only", None)
    (gain,) = (line.text for line in brief(found) if line.label == "gain")
    assert f"by a later remedy (“{one.remedies[1].action}”), where steady steps have this cause, too" in gain
    assert "inside the steps" in many.title


@pytest.mark.parametrize(("steps", "starts"), [(1, True), (6, False)])
def test_memory_that_is_only_allocated_is_a_start_up_unless_steps_repeat_it(steps: int, starts: bool) -> None:
    machine = Machine()
    for _ in range(steps):
        with machine.step():
            for _ in range(4):
                machine.allocate(5 * MS)
                machine.launch(100 * US)
    found = judged(machine.trace())
    assert found.verdict == ("incomplete-profile" if starts else "allocator-churn")
    assert ("while memory is allocated" in found.headline) == starts


def test_the_pauses_of_all_waits_are_those_of_each() -> None:
    found = verdict(programs.launch_bound_with_items).finding("host-sync")
    assert found.evidence["launches_behind_ns"] > 0, "what a model adds belongs to no wait"
    waits = found.evidence["waits_per_step"] * programs.STEPS
    assert found.evidence["idle_ns_per_wait"] * waits == pytest.approx(found.evidence["idle_ns"])


FUSED_ADAM = (
    "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float>>"
)


@pytest.mark.parametrize("fused", [True, False])
def test_a_loop_over_the_parameters_is_not_the_optimizer_that_is_fused(fused: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(20 * US, times=20)
        if fused:
            machine.launch(20 * US, FUSED_ADAM)
        for tensor in range(200):
            machine.launch(2 * US, ADD, (1 + tensor % 5, 1, 1))

    found = verdict(step, Machine(python_ns=26 * US))
    assert found.verdict == "unfused-optimizer"
    assert ("AdamW" in advice(found, "unfused-optimizer")) != fused
    assert ("loop over the parameters" in found.headline) == fused
    assert ("but not optimizer.step()" in found.findings[0].refute) == fused


@pytest.mark.parametrize(
    ("named", "told", "untold"),
    [
        ("SGD", "torch.optim.SGD(model.parameters(), fused=True)", "Adam"),
        ("RMSprop", "torch.optim.RMSprop has no fused=True", "fused=True)"),
        ("Lion", "torch.compile(optimizer.step)", "torch.optim."),
        ("", "your class, if it is Adam, AdamW or SGD", "foreach"),
    ],
)
def test_the_fused_optimizer_is_one_of_the_class_that_the_program_steps(named: str, told: str, untold: str) -> None:
    def step(machine: Machine) -> None:
        machine.launch(20 * US, times=20)
        with machine.range(f"Optimizer.step#{named}.step" if named else "update"):
            for tensor in range(200):
                machine.launch(2 * US, ADD, (1 + tensor % 5, 1, 1))

    first = verdict(step, Machine(python_ns=26 * US)).findings[0]
    assert first.id == "unfused-optimizer"
    assert told in first.remedies[0].how
    assert untold not in first.remedies[0].how


def test_an_optimizer_of_ones_own_is_not_the_one_that_a_range_names() -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, times=4)
        with machine.range("Optimizer.step#AdamW.step"):
            machine.launch(20 * US, FUSED_ADAM)
        for number in range(240):
            machine.launch(2 * US, structure.LISTS.format(number % 6, number % 6))

    said = advice(verdict(step), "unfused-optimizer")
    assert "AdamW" not in said
    assert "fused=True" not in said, "one of them is fused already, the other cannot be"


@pytest.mark.parametrize("clones", [200, 5])
def test_a_loop_over_parameters_may_clone_each_and_a_few_copies_between_kernels_may_be_anything(clones: int) -> None:
    """Lion as it was published clones its moment, which is a copy and no kernel."""

    def step(machine: Machine) -> None:
        machine.launch(20 * US, times=20)
        for tensor in range(200):
            if tensor % (200 // clones) == 0:
                machine.copy(2 * US, 1024, "device-to-device", pinned=True)
            machine.launch(2 * US, ADD, (1 + tensor % 5, 1, 1), times=2)

    found = verdict(step, Machine(python_ns=26 * US)).finding("unfused-optimizer")
    assert (found is not None) is (clones == 200)


@pytest.mark.parametrize("network", [True, False])
def test_passes_without_products_are_told_of_narrower_tensors_and_of_no_operators_of_networks(network: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(100 * US, ADD, times=30)
        if network:
            machine.launch(100 * US)

    said = advice(verdict(step), "memory-bandwidth")
    assert "autocast" not in said, "it narrows the operands of products only"
    assert "bfloat16()" in said
    assert ("scaled_dot_product_attention" in said) is network


@pytest.mark.parametrize("inside", [True, False], ids=["hooks of the backward pass", "minibatches"])
def test_an_optimizer_in_hooks_is_one_that_steps_within_the_backward_pass(inside: bool) -> None:
    """Eighty minibatches in a step have as many optimizer steps, each of them over all parameters."""

    def step(machine: Machine) -> None:
        with machine.range("backward" if inside else "minibatches"):
            for _ in range(80):
                machine.launch(8 * US)
                machine.launch(4 * US, BACKWARD)
                machine.launch(2 * US, FUSED_ADAM, (1, 1, 1))

    found = verdict(step, Machine(python_ns=26 * US)).finding("unfused-optimizer")
    assert (found is not None and "one parameter at a time" in found.title) == inside


@pytest.mark.parametrize(
    ("table", "read", "repeats"),
    [
        ("[[128, 1536, 2048], []]", "[[1024, 1536, 2048], [1024, 2048, 1]]", 8),
        ("[[128, 1536, 2048], []]", "[[1024, 1, 2048], [1024, 2048, 1536]]", 8),
        ("[[8, 1024, 1024], []]", "[[64, 2048, 1024], [64, 1024, 1024]]", 0),  # computes for longer than it reads
        ("[[4000, 64], []]", "[[9000, 64], [64, 64]]", 0),
        (None, None, 0),
    ],
)
def test_copies_of_matrices_are_read_by_products_of_few_rows(table: str | None, read: str | None, repeats: int) -> None:
    assert rows._repeats(table, read, 16) == repeats


def test_rows_that_are_picked_for_long_are_no_part_of_the_loss_beside_them() -> None:
    log_softmax = "void at::native::softmax_warp_forward<float, float, float, 6, true, false>(float*)"
    pick = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)"

    def step(machine: Machine) -> None:
        machine.launch(1 * MS)
        machine.launch(2 * MS, pick)
        machine.launch(100 * US, log_softmax)

    found = verdict(step).finding("unfused-chain")
    assert found is None or "loss" not in found.title


def test_a_verdict_that_is_worth_little_says_so() -> None:
    def step(machine: Machine) -> None:  # three causes of a fifteenth each
        machine.launch(100 * US, times=10)
        machine.wait()
        machine.think(118 * US)
        machine.launch(5 * US, times=14)
        machine.allocate(110 * US)
        machine.launch(2 * US, times=6)

    found = verdict(step)
    assert found.findings[0].severity == "info"
    assert found.headline.startswith("Little to gain; limited by")


@pytest.mark.parametrize(("name", "hidden"), [(FP32_GEMM, True), (BF16_GEMM, False)])
def test_a_small_gain_is_not_little_if_it_may_be_large_or_another_cause_hides_it(name: str, hidden: bool) -> None:
    """The host takes 17.4 µs for each kernel of 16 µs without nsys, and up to 30 µs if nsys adds nothing."""

    def step(machine: Machine) -> None:
        machine.launch(16 * US, name, times=200)
        machine.wait()

    found = verdict(step, Machine(python_ns=26 * US))
    finding = found.findings[0]
    assert finding.id == "launch-overhead"
    assert finding.expected < 1.1
    assert finding.expected_interval[1] > 30 / 17.4
    assert found.headline.startswith("Limited by")
    assert ("hide each other: without precision as well, it is about" in found.headline) is hidden


@pytest.mark.parametrize(
    ("softmax", "found"), [("triton_red_fused__softmax_add_mul_7", True), ("triton_red_fused__log_softmax_7", False)]
)
def test_attention_that_a_compiler_leaves_written_out_is_seen(softmax: str, found: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(200 * US)
            machine.launch(150 * US)
            machine.launch(300 * US, softmax)
            machine.launch(150 * US)

    assert (verdict(step).verdict == "unfused-attention") == found


def test_what_mostly_runs_in_graphs_is_not_to_be_captured_however_idle_the_gpu_is() -> None:
    def step(machine: Machine) -> None:
        machine.graph(400 * US)
        machine.wait()
        machine.launch(1 * US, ADD, times=300)
        machine.wait()

    said = "\n".join(remedy.how for finding in verdict(step).findings for remedy in finding.remedies)
    assert "torch.cuda.CUDAGraph" not in said
    assert "reduce-overhead" not in said


@pytest.mark.parametrize(("inside", "told"), [(False, "Between the steps"), (True, "The host is busy with other work")])
def test_pauses_outside_of_the_steps_are_no_work_of_theirs(inside: bool, told: str) -> None:
    """A server that waits for requests, and a step that thinks."""
    machine = Machine()
    for _ in range(6):
        machine.think(0 if inside else 20 * MS)
        with machine.range("request"):
            machine.think(20 * MS if inside else 0)
            machine.launch(100 * US, BF16_GEMM, times=20)
            machine.wait()
    finding = judged(machine.trace()).finding("host-stall")
    assert told in finding.title
    assert ("under load" in finding.remedies[0].how) == (not inside)
    assert finding.where == (("request",) if inside else ())


def test_pauses_inside_the_steps_are_told_there_where_graphs_launch_everything() -> None:
    machine = Machine()
    for _ in range(6):
        with machine.range("request"):
            machine.think(20 * MS)
            machine.graph(400 * US)
            machine.wait()
    finding = judged(machine.trace()).finding("host-stall")
    assert "Between the steps" not in finding.title
    assert finding.where == ("request",)


@pytest.mark.parametrize(("kernel", "trains"), [(BACKWARD, True), (ADD, False)])
def test_the_graph_of_a_step_that_trains_has_its_backward_pass_and_its_update(kernel: str, trains: bool) -> None:
    said = advice(verdict(lambda machine: machine.launch(3 * US, kernel, times=200)), "launch-overhead")
    assert ("loss.backward(); optimizer.step()" in said) == trains
    assert ("capturable=True" in said) == trains
    assert "side stream" in said


@pytest.mark.parametrize(("growth", "told"), [(4096, True), (0, False)])
def test_a_cache_that_grows_has_to_get_a_fixed_size_before_it_is_captured(growth: int, told: bool) -> None:
    def step(machine: Machine) -> None:
        for token in range(3):
            for _ in range(2):
                machine.copy(10 * US, 4_000_000 + token * growth, pinned=True)
                machine.launch(3 * US, times=100)

    finding = verdict(step).finding("launch-overhead")
    assert finding is not None
    (graph,) = (remedy for remedy in finding.remedies if "CUDA graph" in remedy.action)
    assert ("StaticCache" in graph.expected) == told


GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>(int)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)"


SECOND_GEMM = "nvjet_sm90_tst_64x16_64x16_2x4_h_bz_splitK_bias_TNT"
SUM = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)"


@pytest.mark.parametrize(
    ("second", "last", "turns", "told"),
    [
        (SECOND_GEMM, GELU, 64, True),
        (SECOND_GEMM, NORM, 64, False),
        (SECOND_GEMM, GELU, 4, False),
        (SUM, GELU, 64, False),
    ],
)
def test_networks_of_equal_sizes_in_a_loop_are_stacked(second: str, last: str, turns: int, told: bool) -> None:
    def step(machine: Machine) -> None:
        for _ in range(turns):
            machine.launch(3 * US, BF16_GEMM)
            machine.launch(3 * US, last)
            machine.launch(3 * US, second)
        machine.wait()

    assert ("stack_module_state" in advice(verdict(step), "launch-overhead")) == told


@pytest.mark.parametrize(("updates", "told"), [(200, True), (20, False)])
def test_launches_are_told_that_are_mostly_behind_the_backward_pass(updates: int, told: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(3 * US, BF16_GEMM, times=50)
        with machine.range("backward"):
            machine.launch(3 * US, BACKWARD, times=50)
        machine.launch(3 * US, BF16_GEMM, times=updates)
        machine.wait()

    found = verdict(step)
    finding = found.finding("launch-overhead")
    assert finding is not None
    assert finding.evidence.get("behind_backward_per_step") == (updates if told else None)
    assert ("most launches are behind the backward pass" in advice(found, "launch-overhead")) == told


def test_every_action_of_an_engine_belongs_to_a_remedy() -> None:
    folder = Path(fitting.__file__).parent
    written = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")))
    assert not [id_ for id_ in fitting._IN_ENGINES if f'id="{id_}"' not in written]


@pytest.mark.parametrize("generates", [True, False])
def test_only_what_generates_tokens_can_guess_them_ahead(generates: bool) -> None:
    def step(machine: Machine) -> None:
        machine.launch(60 * US, structure.VECTOR_PRODUCT, times=40)
        machine.launch(5 * US, structure.ARGMAX if generates else ADD)

    found = verdict(step)
    said = advice(found, "weight-bound")
    assert ("speculative" in said) == ("generate()" in said) == generates
    assert found.finding("tensor-compute") is None  # fewer FLOPs do not help what reads its weights


def test_the_graph_of_a_step_is_captured_as_its_optimizer_and_its_ranks_need() -> None:
    def step(machine: Machine) -> None:
        with machine.range("DistributedDataParallel.forward"):
            machine.launch(3 * US, ADD, times=100)
        machine.launch(3 * US, BACKWARD, times=100)
        with machine.range("Optimizer.step#SGD.step"):
            machine.launch(3 * US, ADD, times=10)

    said = advice(verdict(step), "launch-overhead")
    assert "11 steps" in said
    assert "torch.optim.SGD needs no capturable" in said
    assert "torch.optim.SGD(model.parameters(), fused=True)" in said
    assert "AdamW" not in said


def test_tiles_are_those_of_the_maker_of_the_gpu() -> None:
    profile = record(lambda machine: machine.launch(500 * US, BF16_GEMM, times=6))
    recorder = replace(profile.capture.recorder, counters="rocprof-compute")
    on_amd = replace(profile, capture=replace(profile.capture, recorder=recorder))
    said = [advice(judged(each), "tensor-compute") for each in (profile, on_amd)]
    assert ["compute capability" in text for text in said] == [True, False]


#: Kernels of PyTorch, by the operator that launches them.
LAUNCHED = {
    "add": ADD,
    "+ number": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float>>(int)",
    "mul": "void at::native::elementwise_kernel<128, 2, at::native::BinaryFunctor<float, at::native::MulFunctor>>(int)",
    "pow": "void at::native::vectorized_elementwise_kernel<4, at::native::pow_tensor_scalar_kernel_impl<float>>(int)",
    "mean": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(int)",
    "var": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::WelfordOps<float>>>(int)",
    **{
        name: f"void at::native::vectorized_elementwise_kernel<4, at::native::{name}_kernel_cuda(int)>(int)"
        for name in ("rsqrt", "sqrt", "tanh", "erf", "neg", "direct_copy")
    },
    "cat": structure.CAT,
    "gelu": structure.GELU,
    "layer_norm": structure.LAYER_NORM,
    "log_softmax": structure.LOG_SOFTMAX,
    "nll_loss": "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*)",
    "gather": "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)",
}


@pytest.mark.parametrize(
    ("launched", "told"),
    [
        ("direct_copy, pow, mean, + number, rsqrt, mul, direct_copy, mul", "F.rms_norm"),  # as Llama's
        ("mean, add, pow, mean, add, + number, sqrt, mul, mul, add", "F.layer_norm"),
        ("mean, var, add, + number, rsqrt, mul", "F.layer_norm"),
        ("mul, pow, mul, add, mul, tanh, + number, mul", "F.gelu"),  # as GPT-2's
        ("mul, erf, + number, mul, mul", "F.gelu"),
        ("mul, neg, cat, mul, add", "rotary"),  # halves, as Llama's
        ("mul, neg, direct_copy, direct_copy, mul, add", "rotary"),  # pairs, as GPT-J's: copies make the stack
        ("mul, mul, add, mul, mul, add, cat", "rotary"),
        ("log_softmax, neg, gather, mean", "F.cross_entropy"),
        # Operators that are fused already, and kernels of other functions.
        ("layer_norm, gelu, layer_norm, gelu", ""),
        ("log_softmax, nll_loss, add, add", ""),
        ("tanh, mul, add, tanh", ""),  # gates
        ("cat, add, cat, mul", ""),
        ("rsqrt, mul, add, mul", ""),  # of a variance that is known
        ("mul, neg, add, mul", ""),
    ],
)
def test_a_fused_operator_is_told_where_its_function_is_written_out(launched: str, told: str) -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(100 * US)
            for name in launched.split(", "):
                machine.launch(100 * US, LAUNCHED[name])
        machine.launch(1 * US, BACKWARD)  # training keeps no cache that a concatenation could belong to

    found = verdict(step)
    lines = [line for line in advice(found, "unfused-chain").splitlines() if line.startswith("# ")]
    operators = ("F.rms_norm", "F.layer_norm", "F.gelu", "F.cross_entropy", "rotary")
    assert [name for name in operators if name in "".join(lines)] == ([told] if told else [])
    assert ("otary" in found.findings[0].title) == (told == "rotary")


def test_networks_of_convolutions_are_told_of_their_batch_norms() -> None:
    def step(machine: Machine) -> None:
        for _ in range(8):
            machine.launch(100 * US, structure.CONVOLUTION)
            for name in (structure.BATCH_NORM, ADD) * 3:
                machine.launch(100 * US, name)

    said = advice(verdict(step), "unfused-chain")
    assert "batch norms" in said
    assert "model.layers" not in said


@pytest.mark.parametrize(("product", "told"), [("_product_gelu", "tl.dot"), (BF16_GEMM, "nn.Linear")])
def test_a_narrower_format_is_that_of_the_kernels_that_multiply(product: str, told: str) -> None:
    profile = record(lambda machine: machine.launch(500 * US, product, times=6))
    found = judged(replace(profile, capture=replace(profile.capture, devices=(structure.H200,))))
    assert told in advice(found, "tensor-compute")
