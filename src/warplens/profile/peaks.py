"""Peak rates of GPUs, from their makers' data sheets: arithmetic by number format, and memory bandwidth.

Rates are those of dense matrices at the boost clock, with fp32 accumulation where a chip is slower that way. A profile
rarely states them; where it states the bandwidth, that value is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from warplens.errors import UsageError
from warplens.profile.trace import Device, Note, NoteLevel, Trace

#: Formats that are multiplied on the vector units; all others need tensor (matrix) cores.
VECTOR: Final = ("fp32", "fp64")

_TERA: Final = 1e12
_GIGA: Final = 1e9


@dataclass(frozen=True)
class Peaks:
    """The roofs of one GPU."""

    bytes_per_s: float | None  #: bandwidth of its memory; None where it is not known
    #: format → rate. `fp32` and `fp64` are those of the vector units, `fp64-tensor` and the other formats those of the
    #: tensor cores.
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    source: str = ""  #: source of the numbers

    def of(self, precision: str | None, *, tensor_cores: bool | None) -> float | None:
        """The rate for operands of this format; None for an unknown one.

        Args:
            precision: format of the operands (`bf16`, `tf32`, `fp32`, …).
            tensor_cores: whether tensor cores multiply them; None if unknown.
        """
        if precision in VECTOR and tensor_cores:
            precision = {"fp64": "fp64-tensor"}.get(precision, precision)
        elif tensor_cores is False and precision is not None and precision not in VECTOR:
            # Narrow formats on the vector units run at the rate of fp32, to which frameworks convert them.
            precision = "fp32"
        return self.flops_per_s.get(precision) if precision is not None else None


#: Formats in the order in which rates are shown.
_FORMATS: Final[tuple[str, ...]] = ("fp64", "fp64-tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")


def _chip(
    names: str, gigabytes_per_s: float, fp64: float, fp32: float, source: str, **more: float
) -> tuple[str, Peaks]:
    """The pattern of a device's names, and its peaks; rates are in TFLOP/s."""
    rates = {"fp64": fp64, "fp32": fp32, **{name.replace("_", "-"): rate for name, rate in more.items()}}
    flops_per_s = {name: rates[name] * _TERA for name in _FORMATS if name in rates}
    return names, Peaks(gigabytes_per_s * _GIGA, flops_per_s, source)


_HOPPER_SXM: Final = {"fp64_tensor": 67, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_HOPPER_NVL: Final = {"fp64_tensor": 60, "tf32": 417.5, "fp16": 835.5, "bf16": 835.5, "fp8": 1670.5, "int8": 1670.5}
_A100: Final = {"fp64_tensor": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}
_MI300: Final = {
    "fp64_tensor": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9,
}  # fmt: skip

#: The first entry whose pattern matches a device's name applies. Rates printed with sparsity are halved here.
_CHIPS: Final = (
    _chip(r"GB200", 8000, 40, 80, "NVIDIA GB200 NVL72 data sheet, per GPU", fp64_tensor=40, tf32=1250, fp16=2500,
          bf16=2500, fp8=5000, int8=5000, fp4=10_000),
    _chip(r"\bB200\b", 7700, 37, 75, "NVIDIA HGX B200 data sheet, per GPU", fp64_tensor=37, tf32=1100, fp16=2250,
          bf16=2250, fp8=4500, int8=4500, fp4=9000),
    _chip(r"GH200.*(144|HBM3e)", 4900, 34, 67, "NVIDIA GH200 Grace Hopper Superchip data sheet", **_HOPPER_SXM),
    _chip(r"GH200", 4000, 34, 67, "NVIDIA GH200 Grace Hopper Superchip data sheet", **_HOPPER_SXM),
    _chip(r"H200 NVL", 4800, 30, 60, "NVIDIA H200 Tensor Core GPU data sheet (NVL)", **_HOPPER_NVL),
    _chip(r"\bH200\b", 4800, 34, 67, "NVIDIA H200 Tensor Core GPU data sheet (SXM)", **_HOPPER_SXM),
    _chip(r"H100 NVL", 3900, 30, 60, "NVIDIA H100 Tensor Core GPU data sheet (NVL)", **_HOPPER_NVL),
    _chip(r"H100.*PCIe", 2000, 26, 51, "NVIDIA H100 Tensor Core GPU data sheet (PCIe, 2022)", fp64_tensor=51, tf32=378,
          fp16=756, bf16=756, fp8=1513, int8=1513),
    _chip(r"\bH100\b", 3350, 34, 67, "NVIDIA H100 Tensor Core GPU data sheet (SXM)", **_HOPPER_SXM),
    _chip(r"A100.*(PCI.*80GB|80GB.*PCI)", 1935, 9.7, 19.5, "NVIDIA A100 data sheet (80 GB PCIe)", **_A100),
    _chip(r"A100.*80GB", 2039, 9.7, 19.5, "NVIDIA A100 data sheet (80 GB SXM)", **_A100),
    _chip(r"A100", 1555, 9.7, 19.5, "NVIDIA A100 data sheet (40 GB)", **_A100),
    _chip(r"V100.*PCI", 900, 7, 14, "NVIDIA V100 data sheet (PCIe)", fp16=112),
    _chip(r"V100", 900, 7.8, 15.7, "NVIDIA V100 data sheet (SXM2)", fp16=125),
    _chip(r"\bT4\b", 320, 0.254, 8.1, "NVIDIA T4 product brief", fp16=65, int8=130),
    _chip(r"A10G", 600, 0.547, 35, "NVIDIA A10G data sheet", tf32=35, fp16=70, bf16=70, int8=140),
    _chip(r"\bA10\b", 600, 0.488, 31.2, "NVIDIA A10 data sheet", tf32=62.5, fp16=125, bf16=125, int8=250),
    _chip(r"\bL40S\b", 864, 1.43, 91.6, "NVIDIA L40S data sheet", tf32=183, fp16=362, bf16=362, fp8=733, int8=733),
    _chip(r"\bL40\b", 864, 1.41, 90.5, "NVIDIA L40 data sheet", tf32=90.5, fp16=181, bf16=181, fp8=362, int8=362),
    _chip(r"\bL4\b", 300, 0.473, 30.3, "NVIDIA L4 data sheet", tf32=60, fp16=121, bf16=121, fp8=242.5, int8=242.5),
    _chip(r"RTX 5090(?! .*Laptop)", 1792, 1.64, 104.8, "NVIDIA RTX Blackwell GPU architecture, appendix", tf32=104.8,
          fp16=209.5, bf16=209.5, fp8=419, int8=838, fp4=1676),
    _chip(r"RTX 4090(?! .*Laptop)", 1008, 1.29, 82.6, "NVIDIA Ada GPU architecture, appendix", tf32=82.6, fp16=165.2,
          bf16=165.2, fp8=330.3, int8=660.6),
    _chip(r"RTX 3090(?! Ti)", 936, 0.556, 35.6, "NVIDIA Ampere GA102 GPU architecture, appendix", tf32=35.6, fp16=71,
          bf16=71, int8=284),
    _chip(r"MI355X", 8000, 78.6, 157.3, "AMD Instinct MI355X data sheet", fp64_tensor=78.6, fp16=2516.6, bf16=2516.6,
          fp8=5033.2, int8=5033.2, fp4=10_066.3),
    _chip(r"MI325X", 6000, 81.7, 163.4, "AMD Instinct MI325X data sheet", **_MI300),
    _chip(r"MI300X", 5300, 81.7, 163.4, "AMD Instinct MI300X data sheet", **_MI300),
    # A program sees each of the two dies of an MI250X as a GPU: half of the data sheet's figures.
    _chip(r"MI250X", 1638.4, 23.95, 23.95, "AMD Instinct MI250X data sheet, one of two dies", fp64_tensor=47.85,
          fp16=191.5, bf16=191.5, int8=191.5),
)  # fmt: skip

#: fp32 lanes of a multiprocessor by compute capability (CUDA C++ Programming Guide, throughput of instructions).
_FP32_LANES: Final = {
    (6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128,
    (12, 0): 128,
}  # fmt: skip


#: Name of a GPU that a profile describes without a name.
UNNAMED: Final = "GPU"
UNNAMED_AMD: Final = "AMD GPU"


def peaks_of(device: Device | None) -> Peaks | None:
    """The peaks of a GPU; None where neither its name nor its attributes in the profile give any."""
    if device is None:
        return None
    listed = _listed(device.name)
    stated = device.memory_bandwidth_bytes_per_s
    if listed is None:
        fp32 = _vector_rate(device)
        if fp32 is None and not stated:
            return None
        source = "attributes of the device in the profile: lanes × clock, and bandwidth"
        return Peaks(float(stated) if stated else None, {"fp32": fp32} if fp32 else {}, source)
    if stated:
        return Peaks(float(stated), listed.flops_per_s, f"{listed.source}; bandwidth: stated in the profile")
    return listed


def _listed(name: str) -> Peaks | None:
    return next((peaks for names, peaks in _CHIPS if re.search(names, name, re.IGNORECASE)), None)


def with_gpu(trace: Trace, name: str) -> Trace:
    """The trace with this name for GPUs that the profile does not name.

    A name gives the rates of its data sheet, or the measured ones of a stored table, and nothing else: limits that the
    profile does not state, such as the number of multiprocessors, stay unknown.

    Args:
        trace: the trace.
        name: of the GPU, as in its data sheet (`H100 PCIe`, `MI300X`).

    Raises:
        UsageError: no data sheet of that name is known.
    """
    chip = _listed(name)
    if chip is None:
        known = ", ".join(dict.fromkeys(re.sub(r"\\b|\(.*|\.\*.*", "", names) for names, _ in _CHIPS))
        raise UsageError(f"--gpu {name!r}: no such GPU is known. Known are {known}")
    maker = chip.source.split()[0]
    full_name = (
        name if re.search("NVIDIA|AMD", name, re.IGNORECASE) else f"{maker}{' Instinct' * (maker == 'AMD')} {name}"
    )
    work = (trace.kernels, trace.copies, trace.memsets, trace.graph_launches)
    capture = trace.capture
    used = {ordinal for frame in work for ordinal in frame["device"].unique()}
    unnamed = {device.ordinal for device in capture.devices if device.name in (UNNAMED, UNNAMED_AMD)}
    missing = sorted(used - {device.ordinal for device in capture.devices})
    if not missing and not unnamed:
        return trace
    text = f"The profile does not name its GPUs: roofs are those of {full_name}, as was asked for."
    notes = (note for note in capture.notes if note.code != "no-device-info")
    renamed = (replace(device, name=full_name) if device.ordinal in unnamed else device for device in capture.devices)
    devices = (*renamed, *(Device(ordinal, full_name) for ordinal in missing))
    named = Note("gpu-as-named", NoteLevel.INFO, text)
    return replace(trace, capture=replace(capture, devices=devices, notes=(*notes, named)))


def _vector_rate(device: Device) -> float | None:
    """fp32 operations a second on the vector units: a multiply-add on every lane in every cycle."""
    lanes = _FP32_LANES.get(device.compute_capability) if device.compute_capability else None
    if lanes is None or device.sm_count is None or device.clock_hz is None:
        return None
    return 2.0 * lanes * device.sm_count * device.clock_hz
