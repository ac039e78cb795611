"""Peak rates of GPUs, from their makers' data sheets: arithmetic by number format, and memory bandwidth.

Rates are those of dense matrices at the boost clock, with fp32 accumulation where a chip is slower that way. A profile
rarely states them; where it states the bandwidth, that value is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from warplens.errors import UsageError
from warplens.profile.trace import WORK_TABLES, Device, Note, NoteLevel, Trace

#: Formats that are multiplied on the vector units; all others need tensor (matrix) cores.
VECTOR: Final = ("fp32", "fp64")

_HALF: Final = "fp16-half"
_TERA: Final = 1e12
_GIGA: Final = 1e9


@dataclass(frozen=True)
class Peaks:
    """The roofs of one GPU."""

    bytes_per_s: float | None  #: bandwidth of its memory; None where it is not known
    #: format → rate. `fp32` and `fp64` are those of the vector units, `fp32-tensor` (AMD's matrix units), `fp64-tensor`
    #: and the other formats those of the tensor cores; `fp16-half` those of products in fp16 that are summed in fp16,
    #: where they are faster.
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    source: str = ""  #: source of the numbers

    def of(self, precision: str | None, *, tensor_cores: bool | None, half_sums: bool = False) -> float | None:
        """The rate for operands of this format; None for an unknown one.

        Args:
            precision: format of the operands (`bf16`, `tf32`, `fp32`, …).
            tensor_cores: whether tensor cores multiply them; None if unknown.
            half_sums: whether products in fp16 are summed in fp16, too.
        """
        if precision in VECTOR and tensor_cores:
            wide = f"{precision}-tensor"
            precision = wide if precision == "fp64" or wide in self.flops_per_s else precision
        elif tensor_cores is False and precision is not None and precision not in VECTOR:
            # Narrow formats on the vector units run at the rate of fp32, to which frameworks convert them.
            precision = "fp32"
        elif precision == "fp16" and half_sums and _HALF in self.flops_per_s:
            precision = _HALF
        return self.flops_per_s.get(precision) if precision is not None else None


#: Formats in the order in which rates are shown.
_FORMATS: Final[tuple[str, ...]] = (
    "fp64",
    "fp64-tensor",
    "fp32",
    "fp32-tensor",
    "tf32",
    "fp16",
    _HALF,
    "bf16",
    "fp8",
    "int8",
    "fp4",
)


def _chip(
    names: str, gigabytes_per_s: float, fp64: float, fp32: float, source: str, **more: float
) -> tuple[str, Peaks]:
    """The pattern of a device's names, and its peaks; rates are in TFLOP/s."""
    rates = {"fp64": fp64, "fp32": fp32, **{name.replace("_", "-"): rate for name, rate in more.items()}}
    flops_per_s = {name: rates[name] * _TERA for name in _FORMATS if name in rates}
    return names, Peaks(gigabytes_per_s * _GIGA, flops_per_s, source)


_HOPPER_SXM: Final = {"fp64_tensor": 67, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4, "fp8": 1978.9, "int8": 1978.9}
_HOPPER_NVL: Final = {"fp64_tensor": 60, "tf32": 417.5, "fp16": 835.5, "bf16": 835.5, "fp8": 1670.5, "int8": 1670.5}
#: The same matrix units, with fp64 cut.
_HOPPER_FOR_EXPORT: Final = {**_HOPPER_SXM, "fp64_tensor": 1}
_A100: Final = {"fp64_tensor": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}
_MI300: Final = {
    "fp64_tensor": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9,
}  # fmt: skip


def _geforce(
    names: str, gigabytes_per_s: float, fp32: float, source: str, fp64_part: int = 64, **multiples: float
) -> tuple[str, Peaks]:
    """A graphics card: its tensor cores have fixed multiples of the rate of the vector units, with fp32 accumulation.

    Args:
        names: pattern of the device's names, without a mobile chip of that name, which has other units and clocks.
        gigabytes_per_s: bandwidth of its memory.
        fp32: rate of the vector units at the boost clock in TFLOP/s.
        source: source of the numbers.
        fp64_part: fp64 has one over this of that rate.
        multiples: rates of other formats over that rate.
    """
    rates = {name: multiple * fp32 for name, multiple in multiples.items()}
    return _chip(rf"{names}\b(?! .*(Laptop|Max-Q|Embedded))", gigabytes_per_s, fp32 / fp64_part, fp32, source, **rates)


#: Cards for games sum in fp32 at half of the rate of their tensor cores.
_TURING: Final = {"fp16": 4, "fp16_half": 8, "int8": 16}
_AMPERE: Final = {"tf32": 1, "fp16": 2, "fp16_half": 4, "bf16": 2, "int8": 8}
_ADA: Final = {"tf32": 1, "fp16": 2, "fp16_half": 4, "bf16": 2, "fp8": 4, "int8": 8}
_BLACKWELL: Final = {**_ADA, "fp4": 16}
#: Cards for workstations and servers accumulate in fp32 at the full rate of the tensor cores.
_TURING_PRO: Final = {"fp16": 8, "int8": 16}
_AMPERE_PRO: Final = {"tf32": 2, "fp16": 4, "bf16": 4, "int8": 8}
_ADA_PRO: Final = {**_AMPERE_PRO, "fp8": 8}
_BLACKWELL_PRO: Final = {**_ADA_PRO, "fp4": 16}
_OF_TURING: Final = "NVIDIA Turing GPU architecture, appendix"
_OF_AMPERE: Final = "NVIDIA Ampere GA102 GPU architecture, multiples of the rate of fp32"
_OF_ADA: Final = "NVIDIA Ada GPU architecture, multiples of the rate of fp32"
_OF_BLACKWELL: Final = "NVIDIA RTX Blackwell GPU architecture, multiples of the rate of fp32"

#: The first entry whose pattern matches a device's name applies. Rates printed with sparsity are halved here.
_CHIPS: Final = (
    _chip(r"GB300(?!.*WS)", 8000, 1.3, 80, "NVIDIA GB300 NVL72 data sheet, per GPU", fp64_tensor=1.3, tf32=1250,
          fp16=2500, bf16=2500, fp8=5000, int8=165, fp4=15_000),
    _chip(r"\bB300\b", 7700, 1.2, 75, "NVIDIA HGX B300 data sheet, per GPU", fp64_tensor=1.2, tf32=1100, fp16=2250,
          bf16=2250, fp8=4500, int8=150, fp4=14_000),
    _chip(r"GB200", 8000, 40, 80, "NVIDIA GB200 NVL72 data sheet, per GPU", fp64_tensor=40, tf32=1250, fp16=2500,
          bf16=2500, fp8=5000, int8=5000, fp4=10_000),
    _chip(r"\bB200\b", 7700, 37, 75, "NVIDIA HGX B200 data sheet, per GPU", fp64_tensor=37, tf32=1100, fp16=2250,
          bf16=2250, fp8=4500, int8=4500, fp4=9000),
    _chip(r"GH200.*(144|HBM3e)", 4900, 34, 67, "NVIDIA GH200 Grace Hopper Superchip data sheet", **_HOPPER_SXM),
    _chip(r"GH200", 4000, 34, 67, "NVIDIA GH200 Grace Hopper Superchip data sheet", **_HOPPER_SXM),
    _chip(r"H200 NVL", 4800, 30, 60, "NVIDIA H200 Tensor Core GPU data sheet (NVL)", **_HOPPER_NVL),
    _chip(r"\bH200\b(?!-)", 4800, 34, 67, "NVIDIA H200 Tensor Core GPU data sheet (SXM)", **_HOPPER_SXM),
    _chip(r"H100 NVL", 3900, 30, 60, "NVIDIA H100 Tensor Core GPU data sheet (NVL)", **_HOPPER_NVL),
    _chip(r"H100(.*PCIe|.*80GB HBM2e|-\d)", 2000, 26, 51, "NVIDIA H100 Tensor Core GPU data sheet (PCIe, 2022)",
          fp64_tensor=51, tf32=378, fp16=756, bf16=756, fp8=1513, int8=1513),
    _chip(r"\bH100\b(?!.*(HBM2|CNX))", 3350, 34, 67, "NVIDIA H100 Tensor Core GPU data sheet (SXM)", **_HOPPER_SXM),
    _chip(r"H800(.*PCIe|-\d)", 2000, 0.8, 51, "NVIDIA H800 data sheet (PCIe)", fp64_tensor=0.8, tf32=378, fp16=756,
          bf16=756, fp8=1513, int8=1513),
    _chip(r"\bH800\b(?! NVL)", 3350, 1, 67, "NVIDIA H800 data sheet (SXM)", **_HOPPER_FOR_EXPORT),
    _chip(r"\bH20\b(?!-3e)", 4000, 1, 44, "NVIDIA H20 data sheet", fp64_tensor=1, tf32=74, fp16=148, bf16=148,
          fp8=296, int8=296),
    _chip(r"\bA[18]00\b.*(PCI.*80GB|80GB.*PCI)", 1935, 9.7, 19.5, "NVIDIA A100 and A800 data sheets (80 GB PCIe)",
          **_A100),
    _chip(r"\bA[18]00\b.*80GB", 2039, 9.7, 19.5, "NVIDIA A100 and A800 data sheets (80 GB SXM)", **_A100),
    _chip(r"\bA[18]00\b(?!.*64GB)", 1555, 9.7, 19.5, "NVIDIA A100 and A800 data sheets (40 GB)", **_A100),
    _chip(r"\bA30\b", 933, 5.2, 10.3, "NVIDIA A30 data sheet", fp64_tensor=10.3, tf32=82, fp16=165, bf16=165, int8=330),
    _chip(r"\bP100\b.*SXM2", 732, 5.3, 10.6, "NVIDIA Tesla P100 data sheet (SXM2)"),
    _chip(r"\bP100\b.*PCI.*12GB", 549, 4.7, 9.3, "NVIDIA Tesla P100 data sheet (PCIe, 12 GB)"),
    _chip(r"\bP100\b", 732, 4.7, 9.3, "NVIDIA Tesla P100 data sheet (PCIe)"),
    _chip(r"Quadro GV100", 870, 7.4, 14.8, "NVIDIA Quadro GV100 data sheet", fp16=118.5),
    _chip(r"\bV100S\b", 1134, 8.2, 16.4, "NVIDIA V100S data sheet", fp16=130),
    _chip(r"\bV100(.*PCI|-\d)", 900, 7, 14, "NVIDIA V100 data sheet (PCIe)", fp16=112),
    _chip(r"\bV100\b(?!.*FHHL)", 900, 7.8, 15.7, "NVIDIA V100 data sheet (SXM2)", fp16=125),
    _chip(r"\bT4\b", 320, 0.254, 8.1, "NVIDIA T4 product brief", fp16=65, int8=130),
    _chip(r"\bA10G\b", 600, 0.547, 35, "NVIDIA A10G data sheet", tf32=35, fp16=70, bf16=70, int8=140),
    _chip(r"\bA10\b", 600, 0.488, 31.2, "NVIDIA A10 data sheet", tf32=62.5, fp16=125, bf16=125, int8=250),
    _chip(r"\bA40\b", 696, 0.585, 37.4, "NVIDIA A40 data sheet", tf32=74.8, fp16=149.7, bf16=149.7, int8=299.3),
    _chip(r"RTX A6000", 768, 0.605, 38.7, "NVIDIA RTX A6000 data sheet", tf32=77.4, fp16=154.8, bf16=154.8, int8=309.7),
    _chip(r"RTX 6000 Ada", 960, 1.42, 91.1, "NVIDIA RTX 6000 Ada data sheet", tf32=182.1, fp16=364.2, bf16=364.2,
          fp8=728.5, int8=728.5),
    _chip(r"\bL40S\b", 864, 1.43, 91.6, "NVIDIA L40S data sheet", tf32=183, fp16=362, bf16=362, fp8=733, int8=733),
    _chip(r"\bL40\b", 864, 1.41, 90.5, "NVIDIA L40 data sheet", tf32=90.5, fp16=181, bf16=181, fp8=362, int8=362),
    _chip(r"\bL20\b", 864, 0.933, 59.8, "NVIDIA L20 data sheet", tf32=59.8, fp16=119.5, bf16=119.5, fp8=239, int8=239),
    _chip(r"\bL4\b", 300, 0.473, 30.3, "NVIDIA L4 data sheet", tf32=60, fp16=121, bf16=121, fp8=242.5, int8=242.5),
    _chip(r"RTX 5090(?! D\b| .*Laptop)", 1792, 1.64, 104.8, "NVIDIA RTX Blackwell GPU architecture, appendix",
          tf32=104.8, fp16=209.5, fp16_half=419, bf16=209.5, fp8=419, int8=838, fp4=1676),
    _geforce(r"RTX 5080", 960, 56.3, _OF_BLACKWELL, **_BLACKWELL),
    _geforce(r"RTX 5070 Ti", 896, 43.9, _OF_BLACKWELL, **_BLACKWELL),
    _geforce(r"RTX 5070(?! Ti)", 672, 30.9, _OF_BLACKWELL, **_BLACKWELL),
    _geforce(r"RTX 4090 D\b", 1008, 73.5, _OF_ADA, **_ADA),
    _chip(r"RTX 4090(?! D\b| .*Laptop)", 1008, 1.29, 82.6, "NVIDIA Ada GPU architecture, appendix", tf32=82.6,
          fp16=165.2, fp16_half=330.3, bf16=165.2, fp8=330.3, int8=660.6),
    _geforce(r"RTX 4080 SUPER", 736, 52.2, _OF_ADA, **_ADA),
    _geforce(r"RTX 4080(?! SUPER)", 716.8, 48.7, _OF_ADA, **_ADA),
    _geforce(r"RTX 4070 Ti SUPER", 672, 44.1, _OF_ADA, **_ADA),
    _geforce(r"RTX 4070 Ti(?! SUPER)", 504, 40.1, _OF_ADA, **_ADA),
    _geforce(r"RTX 4070 SUPER", 504, 35.5, _OF_ADA, **_ADA),
    _geforce(r"RTX 4070(?! SUPER| Ti)", 504, 29.1, _OF_ADA, **_ADA),
    _geforce(r"RTX 4060 Ti", 288, 22.1, _OF_ADA, **_ADA),
    _geforce(r"RTX 4060(?! Ti)", 272, 15.1, _OF_ADA, **_ADA),
    _geforce(r"RTX 3090 Ti", 1008, 40, _OF_AMPERE, **_AMPERE),
    _chip(r"RTX 3090(?! Ti)", 936, 0.556, 35.6, "NVIDIA Ampere GA102 GPU architecture, appendix", tf32=35.6, fp16=71,
          fp16_half=142, bf16=71, int8=284),
    _geforce(r"RTX 3080 Ti", 912, 34.1, _OF_AMPERE, **_AMPERE),
    _geforce(r"RTX 3080(?! Ti)", 760, 29.8, f"{_OF_AMPERE} (10 GB)", **_AMPERE),
    _geforce(r"RTX 3070 Ti", 608, 21.7, _OF_AMPERE, **_AMPERE),
    _geforce(r"RTX 3070(?! Ti)", 448, 20.3, _OF_AMPERE, **_AMPERE),
    _geforce(r"RTX 3060 Ti", 448, 16.2, _OF_AMPERE, **_AMPERE),
    _geforce(r"RTX 3060(?! Ti)", 360, 12.7, f"{_OF_AMPERE} (12 GB)", **_AMPERE),
    _geforce(r"RTX 2080 Ti", 616, 13.4, _OF_TURING, fp64_part=32, **_TURING),
    _geforce(r"RTX 2080 SUPER", 496, 11.2, _OF_TURING, fp64_part=32, **_TURING),
    _geforce(r"RTX 2080(?! Ti| SUPER)", 448, 10, _OF_TURING, fp64_part=32, **_TURING),
    _geforce(r"RTX 2070(?! SUPER)", 448, 7.5, _OF_TURING, fp64_part=32, **_TURING),
    _geforce(r"TITAN RTX", 672, 16.3, _OF_TURING, fp64_part=32, **_TURING_PRO),
    _geforce(r"Quadro RTX [68]000", 672, 16.3, _OF_TURING, fp64_part=32, **_TURING_PRO),
    _geforce(r"RTX A5000", 768, 27.8, _OF_AMPERE, **_AMPERE_PRO),
    _geforce(r"RTX A4000", 448, 19.2, _OF_AMPERE, **_AMPERE_PRO),
    _geforce(r"\bA2\b", 200, 4.5, "NVIDIA A2 data sheet", **_AMPERE_PRO),
    _geforce(r"RTX 5000 Ada", 576, 65.3, _OF_ADA, **_ADA_PRO),
    _geforce(r"RTX 4500 Ada", 432, 39.6, _OF_ADA, **_ADA_PRO),
    _geforce(r"RTX 4000 Ada", 360, 26.7, _OF_ADA, **_ADA_PRO),
    _chip(r"RTX PRO 6000 Blackwell.*Max-Q", 1792, 1.72, 110, _OF_BLACKWELL,
          **{name: 110 * multiple for name, multiple in _BLACKWELL_PRO.items()}),
    _geforce(r"RTX PRO 6000 Blackwell.*Server", 1597, 120, _OF_BLACKWELL, **_BLACKWELL_PRO),
    _geforce(r"RTX PRO 6000 Blackwell.*Workstation", 1792, 126, _OF_BLACKWELL, **_BLACKWELL_PRO),
    _chip(r"MI355X", 8000, 78.6, 157.3, "AMD Instinct MI355X data sheet", fp64_tensor=78.6, fp16=2516.6, bf16=2516.6,
          fp8=5033.2, int8=5033.2, fp4=10_066.3),
    _chip(r"MI325X", 6000, 81.7, 163.4, "AMD Instinct MI325X data sheet", **_MI300),
    _chip(r"MI300X", 5300, 81.7, 163.4, "AMD Instinct MI300X data sheet", **_MI300),
    _chip(r"MI300A", 5300, 61.3, 122.6, "AMD Instinct MI300A data sheet", fp64_tensor=122.6, tf32=490.3, fp16=980.6,
          bf16=980.6, fp8=1961.2, int8=1961.2),
    _chip(r"MI210", 1638.4, 22.6, 22.6, "AMD Instinct MI210 data sheet", fp64_tensor=45.3, fp32_tensor=45.3,
          fp16=181, bf16=181, int8=181),
    # A program sees each of the two dies of an MI250X as a GPU: half of the data sheet's figures.
    _chip(r"MI250X", 1638.4, 23.95, 23.95, "AMD Instinct MI250X data sheet, one of two dies", fp64_tensor=47.85,
          fp32_tensor=47.85, fp16=191.5, bf16=191.5, int8=191.5),
)  # fmt: skip

#: fp32 lanes of a multiprocessor by compute capability (CUDA C++ Programming Guide, throughput of instructions).
_FP32_LANES: Final = {
    (6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128,
    (10, 0): 128, (10, 3): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip


#: Name of a GPU that a profile describes without a name.
UNNAMED: Final = "GPU"
UNNAMED_AMD: Final = "AMD GPU"


def peaks_of(device: Device | None) -> Peaks | None:
    """The peaks of a GPU; None where neither its name nor its attributes in the profile give any.

    A slice of a GPU (MIG) has the part of the peaks that its multiprocessors and its slices of memory make; one of a
    GPU whose size is not known has no peaks from its name, nor a bandwidth, which may be that of the whole GPU.
    """
    if device is None:
        return None
    listed, stated, share = _listed(device.name), device.memory_bandwidth_bytes_per_s, 1.0
    if (part := _SLICE.search(device.name)) is not None:
        listed, share = _sliced(device, listed, part)
        stated = stated if listed else None
    if listed is None:
        fp32 = _vector_rate(device)
        if fp32 is None and not stated:
            return None
        source = "attributes of the device in the profile: lanes × clock, and bandwidth"
        return Peaks(float(stated) if stated else None, {"fp32": fp32} if fp32 else {}, source)
    # For a slice, a profile may state the bandwidth of the whole GPU.
    if stated and listed.bytes_per_s and share < 1 and stated > _MOST_OF_SLICE * listed.bytes_per_s:
        stated = round(stated * share)
    if stated:
        return Peaks(float(stated), listed.flops_per_s, f"{listed.source}; bandwidth: stated in the profile")
    return listed


#: Name of a slice: of the multiprocessors in sevenths (A30: quarters), and its memory in GB; `1c.` is a part of it. A
#: virtual GPU on a slice has the same two numbers (`A100-1-5C`).
_SLICE: Final = re.compile(
    r"(?:\bMIG (?:\d+c\.)?|-)(?P<parts>\d+)(?:g\.|-)(?P<gigabytes>\d+)(?:gb|[CQ])", re.IGNORECASE
)

#: Pattern of GPUs that can be sliced → multiprocessors, memory in GB, and parts (NVIDIA Multi-Instance GPU user guide).
_WHOLE: Final = (
    (r"GH200.*(144|HBM3e)", 132, 144, 7),
    (r"GH200", 132, 96, 7),
    (r"H200", 132, 141, 7),
    (r"H100 NVL", 132, 94, 7),
    (r"H[18]00(.*PCIe|.*HBM2e|-\d)", 114, 80, 7),
    (r"H[18]00", 132, 80, 7),
    (r"H20\b", 78, 96, 7),
    (r"A[18]00.*80GB", 108, 80, 7),
    (r"A[18]00", 108, 40, 7),
    (r"A30\b", 56, 24, 4),
    (r"GB200", 152, 186, 7),
    (r"\bB200", 148, 180, 7),
    (r"GB300", 152, 278, 7),
    (r"\bB300", 148, 269, 7),
    (r"RTX PRO 6000 Blackwell", 188, 96, 4),
)

#: The memory of most of these GPUs has eight slices; of the others, with four parts, a slice counts as two.
_MEMORY_SLICES: Final = 8

#: A bandwidth above this multiple of a slice's part is that of the whole GPU.
_MOST_OF_SLICE: Final = 1.25


def _sliced(device: Device, listed: Peaks | None, slice_: re.Match[str]) -> tuple[Peaks | None, float]:
    """The peaks of the part of a GPU that a slice of it has, and its share of the bandwidth."""
    whole = next((sizes for names, *sizes in _WHOLE if re.search(names, device.name, re.IGNORECASE)), None)
    if listed is None or whole is None:
        return None, 0.0
    multiprocessors, gigabytes, parts = whole
    own = min(max(round(_MEMORY_SLICES * int(slice_["gigabytes"]) / gigabytes), 1), _MEMORY_SLICES)
    share = own / _MEMORY_SLICES
    if device.sm_count:
        compute = min(device.sm_count / multiprocessors, 1.0)
        of_compute = f"{device.sm_count} of {multiprocessors} multiprocessors"
    else:
        compute = min(int(slice_["parts"]) / parts, 1.0)
        of_compute = f"{slice_['parts']} of {parts} parts of the multiprocessors"
    rates = {name: rate * compute for name, rate in listed.flops_per_s.items()}
    bandwidth = None if listed.bytes_per_s is None else listed.bytes_per_s * share
    source = f"{listed.source}, of which the slice has {of_compute} and {own} of {_MEMORY_SLICES} slices of memory"
    return Peaks(bandwidth, rates, source), share


def _listed(name: str) -> Peaks | None:
    return next((peaks for names, peaks in _CHIPS if re.search(names, name, re.IGNORECASE)), None)


#: A GeForce card, whose number begins with that of its generation.
_CARD: Final = re.compile(r"RTX (?P<generation>\d)\d{3}(?: Ti| SUPER| D)*")


def _known() -> Iterator[str]:
    """The names of known GPUs, in few words: of GeForce cards of a generation, the first and the last number."""
    names = dict.fromkeys(re.sub(r"\\b|\(.*|\.\*.*", "", re.sub(r"\[(\d)\d+\]", r"\1", names)) for names, _ in _CHIPS)
    for _, group in groupby(names, lambda name: card["generation"] if (card := _CARD.fullmatch(name)) else name):
        first, *others = group
        yield f"{' '.join(first.split()[:2])} to {others[-1].split()[1]}" if others else first


def with_gpu(trace: Trace, name: str) -> Trace:
    """The trace with this name for GPUs that the profile does not name, or whose data sheet is not known.

    A name gives the rates of its data sheet, or the measured ones of a stored table, and nothing else: limits that the
    profile does not state, such as the number of multiprocessors, stay unknown. A note says whose name it took.

    Args:
        trace: the trace.
        name: of the GPU, as in its data sheet (`H100 PCIe`, `MI300X`).

    Raises:
        UsageError: no data sheet of that name is known.
    """
    chip = _listed(name)
    if chip is None:
        raise UsageError(f"--gpu {name!r}: no such GPU is known. Known are {', '.join(_known())}")
    maker = chip.source.split()[0]
    full_name = (
        name if re.search("NVIDIA|AMD", name, re.IGNORECASE) else f"{maker}{' Instinct' * (maker == 'AMD')} {name}"
    )
    capture = trace.capture
    used = {ordinal for name in WORK_TABLES for ordinal in getattr(trace, name)["device"].unique()}
    unlisted = {device.ordinal: device.name for device in capture.devices if _listed(device.name) is None}
    missing = sorted(used - {device.ordinal for device in capture.devices})
    if not missing and not unlisted:
        return trace
    others = sorted(set(unlisted.values()) - {UNNAMED, UNNAMED_AMD})
    why = f"No peaks are known of the {', '.join(others)}" if others else "The profile does not name its GPUs"
    text = f"{why}: roofs are those of {full_name}{' in its place' * bool(others)}, as was asked for."
    notes = (note for note in capture.notes if note.code != "no-device-info")
    renamed = (replace(device, name=full_name) if device.ordinal in unlisted else device for device in capture.devices)
    devices = (*renamed, *(Device(ordinal, full_name) for ordinal in missing))
    named = Note("gpu-as-named", NoteLevel.WARNING if others else NoteLevel.INFO, text)
    return replace(trace, capture=replace(capture, devices=devices, notes=(*notes, named)))


def _vector_rate(device: Device) -> float | None:
    """fp32 operations a second on the vector units: a multiply-add on every lane in every cycle."""
    lanes = _FP32_LANES.get(device.compute_capability) if device.compute_capability else None
    if lanes is None or device.sm_count is None or device.clock_hz is None:
        return None
    return 2.0 * lanes * device.sm_count * device.clock_hz
