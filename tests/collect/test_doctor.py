"""The doctor on recorded machines: the tools that it finds, what it advises, and what it concludes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.collect.machines import (
    ALL_CAPABILITIES,
    CONTAINER_CAPABILITIES,
    H200,
    LINUX,
    NCU,
    NO_CAPABILITIES,
    NSYS,
    PERFMON_ONLY,
    WSL,
    Machine,
    gpu_machine,
    laptop,
    torch_answer,
)
from warplens.collect.doctor import STATUSES, Check, examine_machine, missing
from warplens.collect.machine import Output, Tool, find_tool, missing_libraries, needed_tool, parse_version
from warplens.errors import UsageError


def check(machine: Machine, name: str) -> Check:
    (found,) = (item for item in examine_machine(machine).checks if item.name == name)
    return found


def test_a_gpu_server_can_record_with_everything():
    diagnosis = examine_machine(gpu_machine())

    assert diagnosis.can == {"gpu": True, "torch": True, "nsys": True, "ncu": True}
    assert {item.status for item in diagnosis.checks} == {"ok"}
    assert missing(diagnosis, "gpu,nsys,ncu,torch") == []
    assert "collect nsys, collect ncu, collect torch" in diagnosis.works


def test_a_laptop_learns_what_works_all_the_same():
    diagnosis = examine_machine(laptop())

    assert not any(diagnosis.can.values())
    assert missing(diagnosis, "nsys, ncu") == ["nsys", "ncu"]
    assert "Reading, reporting on, comparing and scrubbing profiles works here" in diagnosis.works


def test_every_problem_has_a_fix():
    broken = gpu_machine(gpus="NVIDIA H200, 570.1, 9.0, 143771, 90000, Enabled\n", apps="100\n", names=[])
    broken.files["/proc/driver/nvidia/params"] = "RmProfilingAdminOnly: 1\n"
    broken.free = 1 << 30
    for machine in (laptop(), broken, Machine()):
        for item in examine_machine(machine).checks:
            assert item.status in STATUSES
            assert (item.fix is not None) or item.status in ("ok", "unknown")


def test_a_requirement_that_nobody_knows_is_refused():
    with pytest.raises(UsageError, match="--require takes gpu, torch, nsys, ncu"):
        missing(examine_machine(laptop()), "cuda")


@pytest.mark.parametrize(
    ("restricted", "capabilities", "driver", "status"),
    [
        ("0", NO_CAPABILITIES, "570.1", "ok"),
        ("1", NO_CAPABILITIES, "570.1", "problem"),
        ("1", ALL_CAPABILITIES, "570.1", "ok"),
        ("1", CONTAINER_CAPABILITIES, "570.1", "problem"),
        ("1", PERFMON_ONLY, "570.1", "ok"),
        ("1", PERFMON_ONLY, "550.1", "problem"),
    ],
)
def test_who_may_read_counters(restricted, capabilities, driver, status):
    machine = gpu_machine(gpus=f"NVIDIA H200, {driver}, 9.0, 143771, 1, Disabled\n")
    machine.files["/proc/driver/nvidia/params"] = f"RmProfilingAdminOnly: {restricted}\n"
    machine.files["/proc/self/status"] = f"Name:\tpython\n{capabilities}"

    found = check(machine, "counters")

    assert found.status == status
    assert examine_machine(machine).can["ncu"] == (status == "ok")
    assert examine_machine(machine).can["nsys"]
    if status == "problem":
        assert "ERR_NVGPUCTRPERM" in found.found
        assert "NVreg_RestrictProfilingToAdminUsers=0" in (found.fix or "")


def test_nvidia_smi_of_wsl2_is_found_off_the_search_path():
    machine = gpu_machine()
    machine.programs["/usr/lib/wsl/lib/nvidia-smi --query-gpu"] = machine.programs.pop("nvidia-smi --query-gpu")

    assert check(machine, "gpu").status == "ok"


def test_the_python_of_the_users_programs_is_asked():
    machine = laptop()
    machine.programs["/envs/mine/bin/python"] = torch_answer(available=False, cuda=None, names=[], arch=[])

    diagnosis = examine_machine(machine, python="/envs/mine/bin/python")

    assert diagnosis.can["torch"]
    assert "work on the CPU" in diagnosis.works


def test_nothing_of_the_environment_is_shown():
    machine = gpu_machine()
    machine.variables = {"CUDA_HOME": "/home/someone/cuda", "USER": "someone"}
    machine.files["/proc/version"] = LINUX + "built by someone@host\n"

    assert "someone" not in repr(examine_machine(machine))


def changed(machine: Machine, programs: dict[str, str | Output] | None = None, **files: str) -> Machine:
    """A machine some of whose programs answer otherwise and some of whose files hold something else."""
    machine.programs |= programs or {}
    machine.files |= {PLACES[name]: text for name, text in files.items()}
    return machine


PLACES = {
    "kernel": "/proc/version",
    "driver": "/proc/driver/nvidia/params",
    "process": "/proc/self/status",
    "cgroup": "/proc/1/cgroup",
    "docker": "/.dockerenv",
    "perf": "/proc/sys/kernel/perf_event_paranoid",
}
ADMIN_ONLY = "RmProfilingAdminOnly: 1\n"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124\n"
NO_LIBRARY = "Traceback\nImportError: /home/someone/lib/libcudart.so: cannot open shared object file\n"
NSYS_ROOT = "/opt/nvidia/nsight-systems/2025.3.2"
IMPORTER = {f"{NSYS_ROOT}/host-linux-x64/QdstrmImporter": "", "ldd": "\tlibssh.so => not found\n"}
BLACKWELL = "NVIDIA B200, 570.1, 10.0, 183359, 1, Disabled\n"
TWO_MODELS = "NVIDIA T400, 570.1, 7.5, 2048, 1, Disabled\n" + H200
BUSY = ("NVIDIA A100, 570.1, 8.0, 81920, 40960, Enabled\n", "40000\n500\n")

#: The machine, the check that notices it, its status, and what it says of what it found and of the fix.
NOTICED = {
    "a driver that does not talk to its kernel module":
        (changed(gpu_machine(), {"nvidia-smi --query-gpu": Output(18, MISMATCH)}),
         "gpu", "problem", "Driver/library version mismatch", "reboot"),
    "a container without GPUs is told how to get them":
        (changed(laptop(), docker=""), "gpu", "problem", "", "--gpus all"),
    "root in a container is told that this is not enough":
        (changed(gpu_machine(), driver=ADMIN_ONLY, process=CONTAINER_CAPABILITIES,
                 cgroup="12:pids:/kubepods/burstable/pod1\n"),
         "counters", "problem", "root inside a container is not enough", "--cap-add=SYS_ADMIN"),
    "on WSL 2 kernels may be missing": (changed(gpu_machine(), kernel=WSL), "wsl", "warning", "no kernels", ""),
    "on WSL 2 Windows decides about counters":
        (changed(gpu_machine(), kernel=WSL), "counters", "unknown", "", "Windows"),
    "paranoia of perf costs samples": (changed(gpu_machine(), perf="3\n"), "perf", "warning", "", ""),
    "the usual paranoia of perf costs none": (changed(gpu_machine(), perf="2\n"), "perf", "ok", "", ""),
    "a CPU build of PyTorch beside a GPU":
        (gpu_machine(cuda=None, available=False, names=[]), "torch", "warning", "", "install a CUDA build"),
    "a PyTorch that the driver is too old for":
        (gpu_machine(available=False, names=[]), "torch", "warning", "", "driver may be too old for CUDA 12.8"),
    "an import that fails":
        (changed(gpu_machine(), {"/usr/bin/python": Output(1, NO_LIBRARY)}), "torch", "problem", "ImportError", ""),
    "an import that takes for ever is given up":
        (changed(gpu_machine(), {"/usr/bin/python": Output(None, "")}), "torch", "problem", "took more than", ""),
    "a hidden GPU": (gpu_machine(gpus=H200 * 2), "visible", "warning", "PyTorch sees 1 of 2 GPUs", ""),
    "a different order of GPUs":
        (gpu_machine(gpus=TWO_MODELS, names=["NVIDIA H200", "NVIDIA T400"]), "visible", "warning",
         "cuda:0 is NVIDIA H200 for PyTorch, but NVIDIA T400 for nvidia-smi", "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    "a PyTorch without kernels for a new GPU":
        (gpu_machine(gpus=BLACKWELL, names=["NVIDIA B200"], arch=["sm_80", "sm_90"]),
         "architecture", "problem", "", ""),
    "MIG": (gpu_machine(*BUSY), "mig", "warning", "", ""),
    "other programs": (gpu_machine(*BUSY), "processes", "warning", "2 other programs", ""),
    "full memory": (gpu_machine(*BUSY), "memory", "warning", "40.0 GiB", ""),
    "a GPU before Volta has no counters of Nsight Compute":
        (gpu_machine(gpus="Tesla P100, 535.1, 6.0, 16384, 1, [N/A]\n"), "gpu", "warning", "", "Volta"),
    "several GPUs of one model are counted":
        (gpu_machine(gpus=H200 * 4, names=["NVIDIA H200"] * 4), "gpu", "ok",
         "4 × NVIDIA H200 (compute capability 9.0, 140 GiB)", ""),
    "an nsys that makes no reports":
        (changed(gpu_machine(), IMPORTER), "nsys", "problem", "lacks libssh.so", ".qdstrm"),
    "an nsys that is too old":
        (changed(gpu_machine(), {f"{NSYS_ROOT}/bin/nsys": NSYS["2021.1"]}), "nsys", "problem", "", ""),
    "an ncu that is too old":
        (changed(gpu_machine(), {"/usr/local/cuda/bin/ncu": NCU["2020.3"]}), "ncu", "problem", "", ""),
    "little disk space": (replace(gpu_machine(), free=2 << 30), "disk", "warning", "", ""),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "name", "status", "found", "fix"), NOTICED.values(), ids=NOTICED)
def test_what_stands_in_the_way_is_noticed(machine, name, status, found, fix):
    diagnosis = examine_machine(machine)
    (item,) = (each for each in diagnosis.checks if each.name == name)
    assert (item.status, found in item.found, fix in (item.fix or "")) == (status, True, True), item
    assert "someone" not in repr(diagnosis)
    if name in ("nsys", "ncu"):
        assert not diagnosis.can[name]
    if name in ("wsl", "perf"):
        assert diagnosis.can["ncu"]
        assert diagnosis.can["nsys"]


def test_a_pytorch_with_kernels_for_a_new_gpu_is_not_mentioned():
    machine = gpu_machine(gpus=BLACKWELL, names=["NVIDIA B200"], arch=["sm_90", "sm_100", "sm_120"])
    assert "architecture" not in {item.name for item in examine_machine(machine).checks}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (NSYS["2023.4"], (2023, 4, 4, 54)),
        (NSYS["2025.3"], (2025, 3, 2, 367)),
        (NSYS["2021.1"], (2021, 1, 3, 14)),
        (NCU["2024.1"], (2024, 1, 1, 0)),
        (NCU["2025.3"], (2025, 3, 0, 0)),
        (NCU["2020.3"], (2020, 3, 1, 0)),
        ("command not found", None),
    ],
)
def test_the_version_is_read_from_what_the_tool_prints(text, version):
    assert parse_version(text) == version


def test_the_search_path_comes_first():
    machine = Machine(
        programs={"/tools/nsys": NSYS["2023.4"], "/usr/local/cuda/bin/nsys": NSYS["2025.3"]},
        on_path={"nsys": "/tools/nsys"},
    )

    tool = find_tool("nsys", machine)

    assert (tool.path, tool.on_path, tool.version[:2]) == ("/tools/nsys", True, (2023, 4))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("nsys", "/opt/nvidia/nsight-systems/2025.3.2/bin/nsys"),
        ("nsys", "/opt/nvidia/nsight-systems/2025.3.2/target-linux-x64/nsys"),
        ("nsys", "/opt/nvidia/nsight-compute/2025.3.0/host/target-linux-x64/nsys"),
        ("nsys", "/usr/local/cuda-12.8/bin/nsys"),
        ("nsys", "/usr/local/cuda-12.8/nsight-systems-2024.6.2/bin/nsys"),
        ("ncu", "/opt/nvidia/nsight-compute/2025.3.0/ncu"),
        ("ncu", "/usr/local/cuda/bin/ncu"),
        ("ncu", "/usr/local/cuda/nsight-compute-2025.3.0/ncu"),
    ],
)
def test_tools_outside_the_search_path_are_found(name, place):
    tool = find_tool(name, Machine(programs={place: (NSYS if name == "nsys" else NCU)["2025.3"]}))

    assert (tool.path, tool.on_path) == (place, False)


def test_cuda_home_is_looked_into():
    machine = Machine(programs={"/software/cuda/bin/ncu": NCU["2024.1"]}, variables={"CUDA_HOME": "/software/cuda"})

    tool = find_tool("ncu", machine)

    assert tool.title == "Nsight Compute 2024.1.1.0"


def test_variables_name_the_tool_to_use():
    places = {"/a/nsys": NSYS["2023.4"], "/b/ncu": NCU["2024.1"], "/usr/local/cuda/bin/nsys": NSYS["2025.3"]}
    machine = Machine(programs=dict(places), variables={"NSYS": "/a/nsys", "NCU": "/b/ncu"})

    nsys, ncu = find_tool("nsys", machine), find_tool("ncu", machine)

    assert (nsys.path, ncu.path) == ("/a/nsys", "/b/ncu")
    wrong = Machine(programs=dict(places), variables={"NSYS": "/b/ncu"})
    with pytest.raises(UsageError, match=r"\$NSYS names a program that does not answer as Nsight Systems"):
        needed_tool("nsys", wrong)


def test_libraries_that_the_importer_lacks_are_named():
    root = "/opt/nvidia/nsight-systems/2025.3.2"
    tool = Tool("nsys", f"{root}/bin/nsys", (2025, 3, 2))
    importer = f"{root}/host-linux-x64/QdstrmImporter"
    lacking = "\tlibssh.so => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\tlibxcb.so.1 => not found\n" * 2

    assert missing_libraries(tool, Machine(programs={importer: "", f"ldd {importer}": lacking})) == [
        "libssh.so",
        "libxcb.so.1",
    ]
    assert missing_libraries(tool, Machine(programs={importer: "", f"ldd {importer}": "\tstatically linked\n"})) == []
    assert missing_libraries(tool, Machine()) == []


def test_of_several_installed_versions_the_newest_is_used():
    places = [f"/opt/nvidia/nsight-systems/{version}/bin/nsys" for version in ("2023.4.4", "2025.3.2", "2024.10.1")]

    tool = find_tool("nsys", Machine(programs=dict.fromkeys(places, NSYS["2025.3"])))

    assert tool.path == places[1]


def test_a_program_of_the_same_name_is_no_profiler():
    machine = Machine(programs={"/bin/ncu": "node check updates, version 2024.1\n"}, on_path={"ncu": "/bin/ncu"})

    assert find_tool("ncu", machine) is None


def test_a_missing_tool_is_an_error_that_says_how_to_get_it():
    with pytest.raises(UsageError, match=r"nsys .* was not found .* install the package nsight-systems-cli"):
        needed_tool("nsys", Machine())


def test_the_tool_that_the_user_names_is_the_only_candidate():
    machine = Machine(programs={"/opt/nvidia/nsight-compute/2025.3.0/ncu": NCU["2025.3"]})

    with pytest.raises(UsageError, match="does not answer as Nsight Compute"):
        needed_tool("ncu", machine, "/somewhere/ncu")
