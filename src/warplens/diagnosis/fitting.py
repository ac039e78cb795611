"""Remedies that fit the program: without those already taken or impossible on its GPU, and for its framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from warplens.analysis.categories import class_table
from warplens.analysis.frames import once
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import Finding, Remedy
from warplens.diagnosis.frameworks import experiment_for, framework_of, in_words_of, is_of_pytorch
from warplens.profile.schema import name_categories

#: Engines that serve language models, by their kernel libraries.
_ENGINES: Final = ("vllm", "sglang", "tensorrt-llm")

#: For engines that launch each kernel.
_ENGINE_GRAPHS: Final = Remedy(
    "Let the engine replay its CUDA graphs",
    "vllm serve MODEL  # without --enforce-eager; batches up to --max-cudagraph-capture-size are captured\n"
    "# sglang: without --disable-cuda-graph, and --cuda-graph-max-bs for larger batches\n"
    "# TensorRT-LLM: cuda_graph_config; prefills are captured in parts, if at all",
    "",
    captures=True,
)

#: What compiles the model in an engine, and what takes its host code out.
_COMPILED_BY_ENGINE: Final = "# vllm compiles the model without --enforce-eager; sglang: --enable-torch-compile"
_WITHOUT_HOST: Final = (
    "# the engine's CUDA graphs launch these kernels without host code:\n"
    "# no --enforce-eager; sglang: no --disable-cuda-graph"
)

#: What takes the engine's own work on the host out of the way of the next pass.
_PLANNED_AHEAD: Final = (
    "vllm serve MODEL --async-scheduling  # plans the next pass during this one\n"
    "# sglang: without --disable-overlap-schedule"
)

#: `Remedy.id` → the code for it where an engine runs the model, whose loop and steps are not the user's; empty if there
#: is none.
_IN_ENGINES: Final = {
    "fewer-launches": _COMPILED_BY_ENGINE,
    "compiled-blocks": _COMPILED_BY_ENGINE,
    "more-work-per-launch": "# more requests at a time: load for them, --max-num-seqs, --max-num-batched-tokens\n"
    "# (sglang: --max-running-requests, --chunked-prefill-size)",
    "no-host-operators": _WITHOUT_HOST,
    "lighter-forward": _WITHOUT_HOST,
    "lighter-decoding": _PLANNED_AHEAD,
    "prefetched-input": _PLANNED_AHEAD,
    "prepared-once": "",
    "prefetched-requests": _PLANNED_AHEAD,
    "find-host-work": "py-spy record --gil --subprocesses -- vllm serve MODEL\n"
    "nsys profile --trace=cuda,nvtx,osrt --python-sampling=true --trace-fork-before-exec=true vllm serve MODEL",
    "steps-only": "# some seconds under load: POST /start_profile, then /stop_profile (vllm, sglang)\n"
    "# they need --profiler-config (vllm; until 0.12 VLLM_TORCH_PROFILER_DIR) or SGLANG_TORCH_PROFILER_DIR\n"
    "# or --window for the profile at hand",
}


def _on_amd(facts: Facts) -> bool:
    return not facts.of_nvidia


def _attention_is_fused(facts: Facts) -> bool:
    """Whether no softmax could be part of unfused attention: beside fused attention, another softmax may be routing."""
    program = facts.program
    if program.labelled("attention").any():
        return True
    return not (program.labelled("softmax") & ~program.marked("log-softmax")).any()


def _optimizer_is_fused(facts: Facts) -> bool:
    return not facts.trains or bool(facts.program.marked("fused-optimizer").any())


@once
def _exchanges_ahead(facts: Facts) -> bool:
    """Whether a pipeline of torchrec, which names its ranges so, exchanges the next batch during this one already."""
    names = name_categories(facts.timeline.trace.ranges["name"])
    return bool(names.str.contains("wait_sparse_data_dist", literal=True).any())


#: Pattern of lines of a remedy's code, and the programs to which they do not apply.
_LINES: Final[tuple[tuple[re.Pattern[str], Callable[[Facts], bool]], ...]] = (
    (re.compile(r"\bn(?:sys|cu)\b|gpu-metrics-devices"), _on_amd),
    (re.compile(r"written-out attention"), _attention_is_fused),
    (re.compile(r"a fused optimizer for its kernels"), _optimizer_is_fused),
    (re.compile(r"TrainPipelineSparseDist"), _exchanges_ahead),
    (re.compile(r"in sparse_data_dist|pooled rows"), lambda facts: not _exchanges_ahead(facts)),
)

#: Mention of an NVIDIA tool in an experiment, in brackets or at their end.
_NVIDIA_TOOL: Final = re.compile(r" \(ncu [^)]*\)|; ncu [^)]*(?=\))")


def fitting(facts: Facts, finding: Finding) -> Finding:
    """The finding with the remedies and the experiment that fit; remedies already taken go, unless none were left."""
    if _on_amd(facts):
        finding = replace(finding, refute=_NVIDIA_TOOL.sub("", finding.refute))
    framework = None if _on_amd(facts) else framework_of(facts)
    finding = replace(finding, refute=experiment_for(framework, finding.refute))
    if not finding.remedies:
        return finding
    engine = is_served(facts)
    served = finding.id == "launch-overhead" and not facts.graphed and engine
    compiled, captured = facts.compiled, facts.graphed or served
    left = [
        remedy for remedy in finding.remedies if not ((compiled and remedy.compiles) or (captured and remedy.captures))
    ]
    remedies = in_words_of(framework, tuple(left) or finding.remedies)
    remedies = tuple(map(_in_engine, remedies)) if engine else remedies
    unfit = [pattern for pattern, applies in _LINES if applies(facts)]
    left = [replace(remedy, how=how) for remedy in remedies if (how := _without(remedy.how, unfit))]
    if served:
        graphs = next((remedy for remedy in finding.remedies if remedy.captures), _ENGINE_GRAPHS)
        left.insert(0, replace(graphs, action=_ENGINE_GRAPHS.action, how=_ENGINE_GRAPHS.how))
    return replace(finding, remedies=tuple(left)) if left else finding


def _in_engine(remedy: Remedy) -> Remedy:
    """The remedy where an engine runs the model: its options, and commands that start it."""
    how = _IN_ENGINES.get(remedy.id, remedy.how)
    return replace(remedy, how=how.replace("python train.py", "vllm serve MODEL"))


def _without(how: str, unfit: list[re.Pattern[str]]) -> str:
    return "\n".join(line for line in how.split("\n") if not any(pattern.search(line) for pattern in unfit))


@once
def is_served(facts: Facts) -> bool:
    """Whether the profile has kernels of an engine that serves language models, and no training."""
    kernels = facts.timeline.trace.kernels["full_name"]
    return bool(class_table(kernels)["library"].is_in(_ENGINES).any()) and not facts.trains


def framework_doubt(facts: Facts, findings: Iterable[Finding]) -> str | None:
    """Why remedies for PyTorch may not fit this program; None if it uses PyTorch, or no remedy is for PyTorch."""
    framework = framework_of(facts)
    remedies = (remedy for finding in findings for remedy in finding.remedies)
    if framework == "pytorch" or not facts.program.is_kernel.any() or not any(map(is_of_pytorch, remedies)):
        return None
    reason = "XLA made the kernels" if framework == "jax" else "nothing shows that the program uses it"
    return f"some are written for PyTorch, and {reason}"
