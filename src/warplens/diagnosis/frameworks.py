"""Remedies for programs that do not use PyTorch: the same change in JAX, CuPy or CUDA C++.

Rules write their remedies for PyTorch; the table here has their counterparts. A remedy without a counterpart is left
out, unless none would be left.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from warplens.analysis.categories import class_table, classify
from warplens.analysis.frames import once
from warplens.diagnosis.findings import Remedy
from warplens.profile.schema import rows_named

if TYPE_CHECKING:
    from warplens.diagnosis.facts import Facts

#: Framework of a program, as far as its profile shows. `cuda` is C++: its own kernels have argument types in their
#: names, unlike those compiled from Python, or are TensorRT's, and there are no kernels of the other frameworks.
Framework: TypeAlias = Literal["pytorch", "jax", "cupy", "cuda"]

#: Libraries whose kernels hardly run outside PyTorch programs, or that have their own options.
_WITH_PYTORCH: Final = ("at-native", "triton", "vllm", "sglang", "tensorrt-llm", "fbgemm", "torchvision", "deepep")
#: Libraries whose kernels a program of its own launches; PyTorch's copies are in a namespace of PyTorch.
_OF_CPP: Final = frozenset({"cub", "thrust", "cufft"})
_PYTORCH_KERNEL: Final = re.compile(r"\b(?:at|at_cuda_detail|c10d?|caffe2)::|^triton_|\btorch")
_PYTORCH_RANGE: Final = re.compile(
    r"^aten::|^ProfilerStep|\b[Tt]orch|CompiledFxGraph|^Optimizer\.step#|^autograd::|DataLoader"
)
_XLA_KERNEL: Final = re.compile(r"\bstream_executor::|\bxla::")
_XLA_RANGE: Final = re.compile(r"^(?:XlaModule|Thunk|XlaPass|TSL):")
_CUPY_KERNEL: Final = re.compile(r"^cupy_|\bcupy::")
#: Kernels of TensorRT, which runs in C++ programs, and inside PyTorch ones beside its kernels or ranges.
_TENSORRT_KERNEL: Final = re.compile(r"^__myl_|_trt$")

#: Text that only occurs in code for PyTorch.
_OF_PYTORCH: Final = re.compile(
    r"\btorch|\bDataLoader\b|\bF\.\w+\(|\bmodel\b|\.detach\(|\.backward\(|Lightning|transformers|vllm|\bmodel\(|no_sync"
    r"|PYTORCH|TORCH|register_buffer|Tensor\b|\.contiguous\(\)|\.float\(\)|scikit|g\.replay|device_map"
    r"|\bnn\.|\.to\('cuda'|\.unique\(|index_select"
)

#: `Remedy.id` → framework → the code for it; or an action of its own, the code and, if it differs, the expected effect.
#: `*`: other frameworks.
_ELSEWHERE: Final[dict[str, dict[str, str | tuple[str, ...]]]] = {
    "pinned-input": {
        "jax": ("Send data ahead", "x = jax.device_put(batch)  # returns at once: call it one step ahead"),
        "cupy": "pinned = cupyx.empty_pinned(shape, dtype); pinned[...] = array\nx.set(pinned, stream=stream)",
        "*": "cudaMallocHost(&host, bytes);  // or cudaHostRegister for memory that is there already\n"
        "cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);",
    },
    "async-copies": {
        "jax": ("Send data ahead", "x = jax.device_put(batch)  # returns at once: call it one step ahead"),
        "cupy": "x.set(pinned, stream=stream); y.get(stream=stream, out=pinned, blocking=False)",
        "*": "cudaMemcpyAsync(to, from, bytes, kind, stream);  // not cudaMemcpy",
    },
    "input-ahead": {
        "jax": (
            "Send the next batch while this one is computed",
            "coming = jax.device_put(next_batch)  # before the result of this step is read",
        ),
        "cupy": (
            "Copy the next input while this one is computed",
            "with copies: coming.set(pinned)  # copies = cupy.cuda.Stream(non_blocking=True)\n"
            "compute.wait_event(copies.record())  # before use",
        ),
        "*": (
            "Copy the next input while this one is computed",
            "cudaMemcpyAsync(coming, pinned, bytes, cudaMemcpyHostToDevice, copies);  // a stream of its own\n"
            "cudaEventRecord(ready, copies); cudaStreamWaitEvent(compute, ready);  // before use",
        ),
    },
    "overlapped-both-ways": {
        "jax": (
            "Copy in both directions while the GPU computes",
            "coming = jax.device_put(next_batch); result.copy_to_host_async()\n"
            "# np.asarray(result) when the next step has been started",
        ),
        "cupy": (
            "Copy in both directions while the GPU computes",
            "with sending: coming.set(pinned)  # sending = cupy.cuda.Stream(non_blocking=True)\n"
            "compute.wait_event(sending.record())  # before use\n"
            "fetching.wait_event(compute.record()); result.get(stream=fetching, out=kept, blocking=False)\n"
            "# two or three buffers of each in turn",
        ),
        "*": (
            "Copy in both directions while the GPU computes",
            "cudaMemcpyAsync(coming, pinned, bytes, cudaMemcpyHostToDevice, sending);  // streams of their own\n"
            "cudaEventRecord(sent, sending); cudaStreamWaitEvent(compute, sent);  // before use\n"
            "cudaEventRecord(done, compute); cudaStreamWaitEvent(fetching, done);\n"
            "cudaMemcpyAsync(kept, result, bytes, cudaMemcpyDeviceToHost, fetching);\n"
            "// two or three buffers of each in turn: one chunk's input, another's work, a third's results at a time",
        ),
    },
    "overlapped-results": {
        "jax": (
            "Copy these results while the next step is computed",
            "result.copy_to_host_async()  # np.asarray(result) when the next step has been started",
        ),
        "cupy": (
            "Copy these results while the next input is computed",
            "fetching.wait_event(compute.record()); result.get(stream=fetching, out=kept, blocking=False)\n"
            "# read `kept` after fetching.synchronize(), before the next copy into it: two buffers in turn",
        ),
        "*": (
            "Copy these results while the next input is computed",
            "cudaEventRecord(done, compute); cudaStreamWaitEvent(fetching, done);  // a stream of its own\n"
            "cudaMemcpyAsync(kept, result, bytes, cudaMemcpyDeviceToHost, fetching);  // into pinned memory\n"
            "// two buffers in turn",
        ),
    },
    "pinned-results": {
        "jax": "result.copy_to_host_async()  # np.asarray(result) when the next step has been started",
        "cupy": "kept = cupyx.empty_pinned(shape, dtype)  # once\n"
        "result.get(stream=stream, out=kept, blocking=False); done = stream.record()\n"
        "# read `kept` after done.synchronize(), when the next input has been launched",
        "*": "cudaMallocHost(&kept, bytes);  // once\n"
        "cudaMemcpyAsync(kept, result, bytes, cudaMemcpyDeviceToHost, stream); cudaEventRecord(done, stream);\n"
        "// read `kept` after cudaEventSynchronize(done), when the next input has been launched",
    },
    "data-ahead": {
        "jax": "coming = jax.device_put(data)  # before what runs now has ended",
        "cupy": "with copies: coming.set(pinned)  # copies = cupy.cuda.Stream(non_blocking=True)\n"
        "compute.wait_event(copies.record())  # before use",
        "*": "cudaMemcpyAsync(coming, pinned, bytes, cudaMemcpyHostToDevice, copies);  // a stream of its own\n"
        "cudaEventRecord(ready, copies); cudaStreamWaitEvent(compute, ready);  // before use",
    },
    "fewer-copies": {"*": "# send narrow types and convert on the GPU; keep results there"},
    "kept-inputs": {"*": "# allocate and copy it once, before the loop"},
    "kept-round-trips": {"*": "# where memory allows: no copy to the host in between"},
    "fewer-readbacks": {
        "jax": (
            "Read results back less often",
            "# no float(x), x.item(), np.asarray(x) or block_until_ready() in the loop: metrics every N steps\n"
            "# what depends on values: jax.lax.cond and jax.lax.while_loop inside jit",
        ),
        "cupy": (
            "Read results back less often",
            "# no float(x), x.item(), x.get() or `if x:` in the loop: test for the end every N turns",
        ),
        "*": (
            "Wait for the GPU less often",
            "# no cudaDeviceSynchronize, cudaStreamSynchronize or cudaMemcpy between launches: work of one stream\n"
            "# runs in order anyway; keep sums and flags on the GPU and copy them every N steps",
        ),
    },
    "no-waits": {
        "jax": "# no block_until_ready() between jitted functions: once, to time them all",
        "cupy": "# no cupy.cuda.Device().synchronize() or stream.synchronize() between launches: work of one stream\n"
        "# runs in order anyway",
        "*": "# no cudaDeviceSynchronize or cudaStreamSynchronize between launches: work of one stream\n"
        "# runs in order anyway; check errors with cudaGetLastError, which does not wait",
    },
    "find-waits": {
        "jax": ("Find all transfers", "jax.config.update('jax_transfer_guard', 'log')  # a line for each"),
        "*": ("Find all calls that wait", "warplens api PATH  # …Synchronize, cudaMemcpy, cudaFree"),
    },
    "later-readbacks": {
        "jax": "value.copy_to_host_async()  # float(value) one step later",
        "cupy": "value.get(stream=stream, out=pinned, blocking=False); done = stream.record()\n"
        "# read `pinned` after done.synchronize() in the next step",
        "*": "cudaMemcpyAsync(pinned, value, bytes, cudaMemcpyDeviceToHost, stream); cudaEventRecord(done, stream);\n"
        "// read `pinned` after cudaEventSynchronize(done) in the next step",
    },
    "all-items-at-once": {
        "jax": "values = jax.device_get(values)  # all of them once, after the loop\n"
        "# one jitted function over all items (jax.vmap, jax.tree.map inside jit) instead of a call for each",
        "cupy": "values = cupy.stack(values).get()  # once, after the loop\n"
        "# a loop that tests for its end: every N turns only",
        "*": "# one kernel and one copy for all of them; a loop that tests for its end: every N turns only",
    },
    "all-turns-at-once": {
        "jax": "# jax.vmap, or jax.lax.scan inside jit, instead of a Python loop",
        "cupy": "# one operation over the whole array: broadcasting, cupy.where",
        "*": "# one kernel over the whole array; library calls that take a batch",
    },
    "cached-memory": {
        "jax": (
            "Let XLA keep its memory",
            "# no XLA_PYTHON_CLIENT_ALLOCATOR=platform; XLA_PYTHON_CLIENT_PREALLOCATE=true",
        ),
        "cupy": (
            "Let the memory pool keep its memory",
            "# no free_all_blocks() in the loop, no cupy.cuda.set_allocator(None)",
        ),
        "*": (
            "Let a pool keep the memory",
            "cudaMallocAsync(&memory, bytes, stream); cudaFreeAsync(memory, stream);\n"
            "cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most);  // most = UINT64_MAX",
        ),
    },
    "reused-buffers": {
        "jax": "step = jax.jit(step, donate_argnums=0)  # and inputs padded to few distinct shapes",
        "cupy": "# out=, and operations in place; allocate once, before the loop",
        "*": "# allocate once, before the loop",
    },
    "cuda-graph": {
        "jax": (
            "Run the whole step as one compiled program",
            "step = jax.jit(step)  # loss, gradients and update together; several steps: jax.lax.scan inside\n"
            "# XLA_FLAGS=--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUDNN,CUSTOM_CALL replays them as CUDA graphs",
        ),
        "cupy": "with stream: stream.begin_capture(); step(); graph = stream.end_capture()  # once, after warm-up\n"
        "graph.launch(stream)  # stream = cupy.cuda.Stream(non_blocking=True)",
        "*": "cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal); step(stream);\n"
        "cudaStreamEndCapture(stream, &graph); cudaGraphInstantiate(&ready, graph, 0);\n"
        "cudaGraphLaunch(ready, stream);  // in each step",
    },
    "graphs-ahead": {
        "jax": (
            "Call the next step before this one has finished",
            "# jitted functions return at once: no block_until_ready(), float() or np.asarray() between steps",
        ),
        "*": "# a launch returns at once: do not wait between them, read results one replay later",
    },
    "larger-graphs": {
        "jax": ("Put more into one program", "# several steps in one jit: jax.lax.scan; metrics and updates in it, too")
    },
    "fewer-launches": {
        "jax": "step = jax.jit(step)  # outside jit, each operation is a separate kernel",
        "cupy": "@cupy.fuse()  # or one cupy.ElementwiseKernel for a chain of operations",
        "*": "# one kernel for all passes over the same data; library calls that take a batch",
    },
    "more-work-per-launch": {"*": "# a larger batch: several requests, or chunks of the input, in one pass"},
    "fused-passes": {
        "jax": "step = jax.jit(step)  # XLA fuses operations inside one jit",
        "cupy": "@cupy.fuse()  # or cupy.ElementwiseKernel, cupy.ReductionKernel",
        "*": ("Fuse kernels that pass over the same data", "# one pass over the data instead of several"),
    },
    "fewer-bytes": {"*": "# 16-bit instead of 32-bit numbers; results in place"},
    "16-bit-tensors": {"*": ("Keep arrays in 16 bits", "# sums and norms in 32 bits inside of kernels only")},
    "larger-launches": {
        "jax": "# a larger batch, or independent problems stacked: jax.vmap",
        "*": "# a larger batch, or independent problems in one launch: more blocks, library calls that take a batch",
    },
    "concurrent-kernels": {
        "cupy": "side.wait_event(stream.record())  # side = cupy.cuda.Stream(non_blocking=True), once\n"
        "with side: y = branch(x)\n"
        "stream.wait_event(side.record())  # before y is used",
        "*": "# on streams of their own (cudaStreamNonBlocking), or as parallel branches of one CUDA graph",
    },
    "shorter-pauses": {"*": "# a CUDA graph: its nodes start sooner after one another; one kernel instead of several"},
    "compiled-before-loop": {
        "jax": "step.lower(params, batch).compile()  # with each shape; inputs padded to few shapes\n"
        "JAX_LOG_COMPILES=1 python train.py  # names what is compiled, and why\n"
        "jax.config.update('jax_compilation_cache_dir', 'cache')  # for the next run",
        "cupy": "# call each kernel once before it: RawModule(…).compile()",
        "*": (
            "Load code before the loop",
            "# one call of each kernel, and of each library with each size, before it; CUDA_MODULE_LOADING=EAGER",
        ),
    },
    "prefetched-input": {
        "jax": "# grain or tf.data with prefetching; jax.device_put(next_batch) before this step's result is read",
        "*": "# a thread that reads and converts the next input into pinned memory",
    },
    "data-on-gpu": {"*": "# send them as they are; convert, count, compare and select there"},
    "work-on-gpu": {"*": "# on the GPU, without copies to the host and back between two kernels"},
    "results-on-gpu": {"*": "# one number read back instead of an array; or hand them to another thread"},
    "find-host-work": {
        "jax": "py-spy record --gil -- python train.py\n"
        "nsys profile --trace=cuda,nvtx,osrt --python-sampling=true python train.py\n"
        "# ranges: with nvtx.annotate('data'): ...  # the package nvtx",
        "cupy": "py-spy record --gil -- python program.py\n"
        "nsys profile --trace=cuda,nvtx,osrt --python-sampling=true python program.py\n"
        "# ranges: with cupyx.profiler.time_range('data'): ...",
        "*": "nsys profile --trace=cuda,nvtx,osrt --sample=process-tree ./program\n"
        '// ranges: nvtxRangePushA("data"); … nvtxRangePop();',
    },
    "narrower-products": {
        "*": "# products in fp8 or int8 (cuBLASLt, CUTLASS); 2:4 sparsity; fewer or smaller products"
    },
    "fewer-flops": {"*": "# 2:4 sparsity; fewer or smaller products"},
    "no-float64": {
        "jax": "# no jax_enable_x64; jax.config.update('jax_default_matmul_precision', 'tensorfloat32')",
        "cupy": "x = cupy.asarray(array, dtype=cupy.float32)  # NumPy's floats are float64",
        "*": "# float instead of double, also for constants: 0.5f",
    },
    "tf32": {
        "jax": "jax.config.update('jax_default_matmul_precision', 'tensorfloat32')",
        "cupy": "CUPY_TF32=1 python program.py",
        "*": "cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);",
    },
    "bfloat16": {
        "jax": (
            "Compute in bfloat16",
            "params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)\n# Flax: dtype=jnp.bfloat16 of each layer",
        ),
        "cupy": ("Compute in fp16", "y = x.astype(cupy.float16) @ w.astype(cupy.float16)"),
        "*": ("Compute in bfloat16", "# cublasGemmEx or cublasLtMatmul with CUDA_R_16BF operands"),
    },
    "fp16": {
        "jax": "params = jax.tree.map(lambda x: x.astype(jnp.float16), params)",
        "cupy": "y = x.astype(cupy.float16) @ w.astype(cupy.float16)",
        "*": "# cublasGemmEx or cublasLtMatmul with CUDA_R_16F operands",
    },
    "record-shapes": {
        "*": (
            "Collect counters of the kernels",
            "ncu --set roofline -c 20 python program.py\nwarplens diagnose PATH --counters REPORT",
            "shows which roof limits each of them, and why",
        )
    },
    "same-stream": {
        "*": "# no separate stream for work that waits for the other one anyway\n"
        "# close other programs that use the GPU"
    },
}

#: `Remedy.id` of what only PyTorch has, though a part of the code would stay.
_ONLY_PYTORCH: Final = ("no-retries",)

#: Part of an experiment → framework → the part for it. `*`: other frameworks.
_EXPERIMENTS: Final[dict[str, dict[str, str]]] = {
    ", gc.disable()": {"cuda": ""},
    " (torch.cuda.Event)": {
        "jax": " (block_until_ready after many steps)",
        "cupy": " (cupyx.profiler.benchmark)",
        "*": " (cudaEventElapsedTime)",
    },
    "Compile one block (torch.compile(block))": {
        "jax": "Compile one block (jax.jit(block))",
        "*": "Fuse the kernels of one chain",
    },
    "torch.nn.functional.scaled_dot_product_attention": {
        "jax": "jax.nn.dot_product_attention",
        "*": "one fused kernel (cuDNN)",
    },
    "Skip optimizer.step()": {"*": "Skip the update of the parameters"},
}


@once
def framework_of(facts: Facts) -> Framework | None:
    """The framework of the program, by the whole profile; None if unknown, such as with products of libraries only."""
    trace = facts.timeline.trace
    names = trace.kernels["full_name"]
    if facts.timeline.has_operators:
        return "pytorch"
    of_xla, of_pytorch = (_any_named(trace.ranges["name"], pattern) for pattern in (_XLA_RANGE, _PYTORCH_RANGE))
    if not len(names):
        return "pytorch" if of_pytorch else "jax" if of_xla else None
    libraries = class_table(names)["library"].cast(pl.String).gather(names.to_physical().unique())
    of_pytorch |= _any_named(names, _PYTORCH_KERNEL)
    of_xla |= _any_named(names, _XLA_KERNEL) or "xla" in libraries
    if of_xla and not (of_pytorch and _mostly_pytorch(facts)):
        return "jax"
    if of_pytorch or libraries.is_in(_WITH_PYTORCH).any():
        return "pytorch"
    if _any_named(names, _CUPY_KERNEL):
        return "cupy"
    if _any_named(names, _TENSORRT_KERNEL):
        return "cuda"
    texts = names.unique().cast(pl.String)
    kinds = ((classify(text).library, "(" in text) for text in texts if text is not None)
    own = (library in _OF_CPP or (library is None and has_signature) for library, has_signature in kinds)
    return "cuda" if any(own) else None


def _any_named(names: pl.Series, pattern: re.Pattern[str]) -> bool:
    return bool(rows_named(names, pattern).any())


def _mostly_pytorch(facts: Facts) -> bool:
    """Whether PyTorch's kernels take more of the profile's time than XLA's."""
    kernels = facts.timeline.trace.kernels
    codes = kernels["full_name"].to_physical().to_numpy()
    libraries = class_table(kernels["full_name"])["library"].cast(pl.String).fill_null("").to_numpy()[codes]
    spent = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
    return bool(np.sum(spent[libraries == "at-native"]) > np.sum(spent[libraries == "xla"]))


def is_of_pytorch(remedy: Remedy) -> bool:
    """Whether a remedy's code is for programs that use PyTorch."""
    return _OF_PYTORCH.search(remedy.how) is not None


def in_words_of(framework: Framework | None, remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """The remedies for that framework; those that only PyTorch has are left out, unless none would be left."""
    if framework is None:
        return tuple(
            replace(remedy, how=f"# in PyTorch:\n{remedy.how}") if is_of_pytorch(remedy) else remedy
            for remedy in remedies
        )
    if framework == "pytorch":
        return remedies
    translated = [_translated(framework, remedy) for remedy in remedies]
    return tuple(remedy for remedy in translated if not is_of_pytorch(remedy)) or remedies


def experiment_for(framework: Framework | None, experiment: str) -> str:
    """The experiment that would refute a finding, in the words of that framework."""
    if framework is None or framework == "pytorch":
        return experiment
    for part, elsewhere in _EXPERIMENTS.items():
        if (counterpart := elsewhere.get(framework, elsewhere.get("*"))) is not None:
            experiment = experiment.replace(part, counterpart)
    return experiment


def _translated(framework: Framework, remedy: Remedy) -> Remedy:
    elsewhere = _ELSEWHERE.get(remedy.id, {})
    if counterpart := elsewhere.get(framework) or elsewhere.get("*"):
        remedy = _in_its_words(remedy, counterpart)
    elif remedy.id in _ONLY_PYTORCH:
        return remedy
    elif lines := [line for line in remedy.how.split("\n") if not _OF_PYTORCH.search(line)]:
        remedy = replace(remedy, how="\n".join(lines))
    if framework == "cuda":
        remedy = replace(remedy, how=re.sub(r"python \w+\.py", "./program", remedy.how))
    return remedy


def _in_its_words(remedy: Remedy, counterpart: str | tuple[str, ...]) -> Remedy:
    """The remedy as its counterpart tells it; one with another effect has no known gain."""
    if isinstance(counterpart, str):
        return replace(remedy, how=counterpart)
    action, how, *expected = counterpart
    if expected:
        return Remedy(action, how, expected[0], id=remedy.id)
    # Another framework's own way to the same end captures no graph.
    return replace(remedy, action=action, how=how, captures=False)
