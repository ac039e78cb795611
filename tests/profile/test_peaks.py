from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from warplens.errors import UsageError
from warplens.profile import Capture, Device, Note, NoteLevel, Trace
from warplens.profile.peaks import peaks_of, with_gpu
from warplens.profile.trace import TABLES, Recorder


@pytest.mark.parametrize(
    ("name", "gigabytes_per_s", "bf16"),
    [
        ("NVIDIA H200", 4800, 989.4e12),
        ("NVIDIA H100 80GB HBM3", 3350, 989.4e12),
        ("NVIDIA H100 PCIe", 2000, 756e12),
        ("NVIDIA H100 NVL", 3900, 835.5e12),
        ("NVIDIA GH200 480GB", 4000, 989.4e12),
        ("NVIDIA B200", 7700, 2250e12),
        ("NVIDIA GB200", 8000, 2500e12),
        ("NVIDIA A100-SXM4-80GB", 2039, 312e12),
        ("NVIDIA A100 80GB PCIe", 1935, 312e12),
        ("NVIDIA A100-PCIE-40GB", 1555, 312e12),
        ("NVIDIA A100-PG509-200", 1555, 312e12),
        ("Tesla V100-SXM2-16GB", 900, None),
        ("Tesla T4", 320, None),
        ("NVIDIA A10G", 600, 70e12),
        ("NVIDIA L40S", 864, 362e12),
        ("NVIDIA L4", 300, 121e12),
        ("NVIDIA GeForce RTX 4090", 1008, 165.2e12),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 672, 88.2e12),
        ("NVIDIA GeForce RTX 3080 Ti", 912, 68.2e12),
        ("NVIDIA GeForce RTX 2080 Ti", 616, None),
        ("NVIDIA GeForce RTX 5090", 1792, 209.5e12),
        ("NVIDIA H20", 4000, 148e12),
        ("NVIDIA A30", 933, 165e12),
        ("NVIDIA A40", 696, 149.7e12),
        ("Tesla P100-PCIE-16GB", 732, None),
        ("Tesla P100-PCIE-12GB", 549, None),
        ("Tesla V100S-PCIE-32GB", 1134, None),
        ("AMD Instinct MI210", 1638.4, 181e12),
        ("AMD Instinct MI300X VF", 5300, 1307.4e12),
        ("NVIDIA B300 SXM6 AC", 7700, 2250e12),
        ("NVIDIA GB300", 8000, 2500e12),
        ("NVIDIA H800", 3350, 989.4e12),
        ("NVIDIA H800 PCIe", 2000, 756e12),
        ("NVIDIA A800-SXM4-80GB", 2039, 312e12),
        ("NVIDIA A800 80GB PCIe", 1935, 312e12),
        ("NVIDIA L20", 864, 119.5e12),
        ("NVIDIA A2", 200, 18e12),
        ("NVIDIA RTX A5000", 768, 111.2e12),
        ("NVIDIA RTX 5000 Ada Generation", 576, 261.2e12),
        ("Quadro RTX 8000", 672, None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1597, 480e12),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1792, 504e12),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 1792, 440e12),
        ("NVIDIA H100 80GB HBM2e", 2000, 756e12),
        ("NVIDIA H100-40C", 2000, 756e12),
        ("Quadro GV100", 870, None),
    ],
)
def test_a_gpu_is_found_by_the_name_that_its_driver_gives(name, gigabytes_per_s, bf16):
    peaks = peaks_of(Device(ordinal=0, name=name))

    assert peaks.bytes_per_s == gigabytes_per_s * 1e9
    assert peaks.of("bf16", tensor_cores=True) == bf16
    assert "data sheet" in peaks.source or "architecture" in peaks.source or "brief" in peaks.source


def test_multiples_of_the_vector_rate_are_those_of_the_architecture():
    # Lanes and clock of an H200 SXM: 132 × 128 × 2 × 1.98 GHz; tensor cores multiply bf16 16 times as fast as that in
    # 4,096 FLOPs a cycle and multiprocessor at 1.83 GHz.
    peaks = peaks_of(Device(ordinal=0, name="NVIDIA H200"))

    assert peaks.of("fp32", tensor_cores=False) == pytest.approx(132 * 128 * 2 * 1.98e9, rel=0.01)
    assert peaks.of("bf16", tensor_cores=True) == pytest.approx(132 * 4096 * 1.83e9, rel=0.01)
    assert peaks.of("bf16", tensor_cores=True) == pytest.approx(2 * (peaks.of("tf32", tensor_cores=True) or 0))


def test_a_bandwidth_that_the_profile_states_is_taken():
    peaks = peaks_of(Device(ordinal=0, name="NVIDIA H200", memory_bandwidth_bytes_per_s=4_814_000_000_000))

    assert peaks.bytes_per_s == 4.814e12
    assert "stated in the profile" in peaks.source


#: TFLOP/s in fp16 with sums in fp32 and in fp16, of the architectures' white papers (dense).
@pytest.mark.parametrize(
    ("name", "in_fp32", "in_fp16"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", 53.8, 107.6),
        ("NVIDIA GeForce RTX 3090", 71, 142),
        ("NVIDIA GeForce RTX 4090", 165.2, 330.3),
        ("NVIDIA GeForce RTX 5080", 112.6, 225.1),
        ("NVIDIA GeForce RTX 5090", 209.5, 419),
        ("NVIDIA A100-SXM4-80GB", 312, 312),
        ("Tesla T4", 65, 65),
    ],
)
def test_cards_for_games_are_twice_as_fast_where_products_are_summed_in_fp16(name, in_fp32, in_fp16):
    peaks = peaks_of(Device(ordinal=0, name=name))

    # The papers' cards are the Founders Editions, whose boost clock differs by 6 % for the RTX 2080 Ti.
    found = [peaks.of("fp16", tensor_cores=True, half_sums=half) for half in (False, True)]
    assert found == pytest.approx([in_fp32 * 1e12, in_fp16 * 1e12], rel=0.06)
    assert peaks.of("fp16", tensor_cores=False, half_sums=True) == peaks.of("fp32", tensor_cores=False)


@pytest.mark.parametrize(
    ("name", "multiprocessors", "compute", "memory"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, 14 / 108, 1 / 8),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, 42 / 108, 4 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 14, 14 / 108, 1 / 8),
        ("NVIDIA H200 MIG 1g.18gb", 16, 16 / 132, 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", 16, 16 / 132, 4 / 8),
        ("NVIDIA A30 MIG 1g.6gb", 14, 14 / 56, 2 / 8),
        ("NVIDIA H200 MIG 7g.141gb", 132, 1, 1),
        ("NVIDIA H200 MIG 2g.35gb", None, 2 / 7, 2 / 8),
        ("NVIDIA GB200 MIG 1g.23gb", 18, 18 / 152, 1 / 8),
        ("NVIDIA GB300 MIG 3g.139gb", None, 3 / 7, 4 / 8),
        ("NVIDIA B300 SXM6 AC MIG 1g.34gb", 18, 18 / 148, 1 / 8),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", 46, 46 / 188, 1 / 4),
    ],
)
def test_a_slice_of_a_gpu_has_its_part_of_the_peaks(name, multiprocessors, compute, memory):
    whole = peaks_of(Device(ordinal=0, name=name.partition(" MIG")[0]))
    peaks = peaks_of(Device(ordinal=0, name=name, sm_count=multiprocessors))

    assert peaks.of("bf16", tensor_cores=True) == pytest.approx(compute * whole.of("bf16", tensor_cores=True))
    assert peaks.bytes_per_s == pytest.approx(memory * whole.bytes_per_s)
    assert "slices of memory" in peaks.source


def test_a_virtual_gpu_on_a_slice_has_the_part_of_the_slice():
    slice_, virtual = (peaks_of(Device(ordinal=0, name=name)) for name in ("NVIDIA A30 MIG 1g.6gb", "NVIDIA A30-1-6C"))

    assert virtual == slice_


def test_a_slice_of_a_gpu_of_unknown_size_has_no_peaks_but_those_of_its_own_attributes():
    device = Device(
        ordinal=0, name="NVIDIA RTX PRO 5000 Blackwell MIG 1g.24gb", compute_capability=(12, 0), sm_count=54,
        clock_hz=2_000_000_000, memory_bandwidth_bytes_per_s=1_344_000_000_000,
    )  # fmt: skip

    peaks = peaks_of(device)

    assert peaks.flops_per_s == {"fp32": 2 * 128 * 54 * 2e9}
    assert peaks.bytes_per_s is None


@pytest.mark.parametrize("stated", [4_814_000_000_000, 4_814_000_000_000 // 8])
def test_the_bandwidth_that_a_profile_states_of_a_slice_may_be_that_of_the_whole_gpu(stated):
    device = Device(ordinal=0, name="NVIDIA H200 MIG 1g.18gb", sm_count=16, memory_bandwidth_bytes_per_s=stated)

    assert peaks_of(device).bytes_per_s == 4.814e12 / 8


def test_an_unlisted_gpu_is_computed_from_its_attributes():
    ada = Device(ordinal=0, name="Quadro", compute_capability=(8, 9), sm_count=10, clock_hz=2_000_000_000)

    peaks = peaks_of(ada)

    assert peaks.of("fp32", tensor_cores=False) == 2 * 128 * 10 * 2e9
    assert (peaks.bytes_per_s, peaks.of("bf16", tensor_cores=True)) == (None, None)


def test_a_gpu_of_which_nothing_is_known_has_no_roofs():
    assert peaks_of(None) is None
    assert peaks_of(Device(ordinal=0, name="AMD Radeon Graphics")) is None
    assert peaks_of(Device(ordinal=0, name="NVIDIA GeForce RTX 4090 Laptop GPU")) is None


def test_narrow_formats_without_tensor_cores_are_computed_in_fp32():
    peaks = peaks_of(Device(ordinal=0, name="NVIDIA H200"))

    assert peaks.of("bf16", tensor_cores=False) == peaks.of("fp32", tensor_cores=False) == 67e12
    assert peaks.of("fp64", tensor_cores=True) == 67e12
    assert peaks.of("fp64", tensor_cores=False) == 34e12
    assert peaks.of(None, tensor_cores=None) is None


def _fills_on(*ordinals: int) -> Trace:
    zeros = TABLES["memsets"].empty().clear(len(ordinals)).fill_null(0)
    fills = zeros.with_columns(device=pl.Series(ordinals, dtype=zeros.schema["device"]))
    lacking = Note("no-device-info", NoteLevel.WARNING, "not described")
    return Trace(Capture("a.json", "kineto-json", Recorder("PyTorch profiler"), notes=(lacking,)), memsets=fills)


@pytest.mark.parametrize(
    ("named", "device"),
    [("H200", "NVIDIA H200"), ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"), ("MI300X", "AMD Instinct MI300X")],
)
def test_a_name_gives_a_gpu_that_is_not_described_its_data_sheet(named, device):
    found = with_gpu(_fills_on(0, 2), named).capture

    assert [(each.ordinal, each.name, each.sm_count) for each in found.devices] == [
        (0, device, None),
        (2, device, None),
    ]
    assert all(peaks_of(each) for each in found.devices)
    assert [note.code for note in found.notes] == ["gpu-as-named"]
    assert device in found.notes[0].text


def test_a_gpu_that_is_described_without_its_name_takes_the_name():
    trace = _fills_on(0)
    own = Device(ordinal=0, name="AMD GPU", sm_count=304)
    described = replace(trace, capture=replace(trace.capture, devices=(own,)))

    assert with_gpu(described, "MI300X").capture.devices == (replace(own, name="AMD Instinct MI300X"),)


def test_a_gpu_that_the_profile_describes_stays_what_it_is():
    trace = _fills_on(0)
    own = Device(ordinal=0, name="NVIDIA L4", sm_count=58)
    described = replace(trace, capture=replace(trace.capture, devices=(own,)))

    assert with_gpu(described, "H200") is described


def test_a_gpu_without_a_known_data_sheet_takes_that_of_another_one_and_says_so():
    trace = _fills_on(0)
    own = Device(ordinal=0, name="NVIDIA X900", compute_capability=(9, 0), sm_count=78)
    found = with_gpu(replace(trace, capture=replace(trace.capture, devices=(own,))), "H100 PCIe").capture

    assert found.devices == (replace(own, name="NVIDIA H100 PCIe"),)
    note = next(note for note in found.notes if note.code == "gpu-as-named")
    assert note.level is NoteLevel.WARNING
    assert "No peaks are known of the NVIDIA X900" in note.text
    assert "NVIDIA H100 PCIe in its place" in note.text


def test_matrix_units_of_amd_multiply_fp32_at_a_rate_of_their_own():
    peaks = peaks_of(Device(ordinal=0, name="AMD Instinct MI250X"))

    assert peaks.of("fp32", tensor_cores=True) == 47.85e12
    assert peaks.of("fp32", tensor_cores=False) == 23.95e12
    assert peaks_of(Device(ordinal=0, name="NVIDIA H200")).of("fp32", tensor_cores=True) == 67e12


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA RTX A1000",
        "NVIDIA RTX A1000 6GB Laptop GPU",
        "Quadro P1000",
        "Quadro GP100",
        "NVIDIA A100X",
        "NVIDIA A100-SXM-64GB",
        "GRID A100D-10C",
        "GRID V100DX-32Q",
        "Tesla V100-FHHL-16GB",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA H100 CNX",
        "NVIDIA H100XM-80C",
        "NVIDIA H800 NVL",
        "NVIDIA H20-3e",
        "NVIDIA H200-141C",
        "NVIDIA GB300 WS",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA RTX 5000 Ada Generation Embedded GPU",
    ],
)
def test_a_gpu_has_not_the_peaks_of_another_one_whose_name_is_in_its_own(name):
    assert peaks_of(Device(ordinal=0, name=name)) is None


def test_a_mobile_chip_has_not_the_peaks_of_the_card_of_that_name():
    for name in ("RTX 4080 Laptop GPU", "RTX 3070 Ti Laptop GPU", "RTX 2080 with Max-Q Design"):
        assert peaks_of(Device(ordinal=0, name=f"NVIDIA GeForce {name}")) is None


def test_the_4090_d_has_fewer_multiprocessors_than_the_4090():
    fewer, more = (peaks_of(Device(ordinal=0, name=f"NVIDIA GeForce RTX 4090{end}")) for end in (" D", ""))

    for precision in ("fp32", "bf16", "fp8"):
        assert fewer.of(precision, tensor_cores=None) == pytest.approx(
            more.of(precision, tensor_cores=None) * 114 / 128, rel=0.01
        )
    assert fewer.bytes_per_s == more.bytes_per_s


@pytest.mark.parametrize("capability", [(8, 7), (10, 3), (12, 1)])
def test_lanes_of_recent_chips_are_known(capability):
    device = Device(ordinal=0, name="new", compute_capability=capability, sm_count=10, clock_hz=2_000_000_000)

    assert peaks_of(device).of("fp32", tensor_cores=False) == 2 * 128 * 10 * 2e9


def test_multiples_of_a_graphics_card_are_those_of_its_architecture():
    # 68 multiprocessors of 64 lanes at 1.545 GHz; tensor cores add fp16 in fp32 at half of their rate.
    peaks = peaks_of(Device(ordinal=0, name="NVIDIA GeForce RTX 2080 Ti"))

    assert peaks.of("fp32", tensor_cores=False) == pytest.approx(68 * 64 * 2 * 1.545e9, rel=0.01)
    assert peaks.of("fp16", tensor_cores=True) == pytest.approx(53.8e12, rel=0.01)
    assert peaks.of("fp64", tensor_cores=False) == pytest.approx(0.42e12, rel=0.01)


def test_an_unknown_gpu_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match=r"'H9000'.*B200, GH200, H200 NVL.*RTX 4090.*MI300X"):
        with_gpu(_fills_on(0), "H9000")
