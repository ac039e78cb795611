"""The doctor on recorded machines: the tools that it finds, what it advises, and what it concludes."""

from __future__ import annotations

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
from warplens.collect.doctor import STATUSES, Check, Diagnosis, examine_machine, missing
from warplens.collect.machine import Output, Tool, find_tool, missing_libraries, needed_tool, parse_version
from warplens.errors import UsageError


def check(machine: Machine, name: str) -> Check:
    (found,) = (item for item in examine_machine(machine).checks if item.name == name)
    return found


def names(diagnosis: Diagnosis) -> set[str]:
    return {item.name for item in diagnosis.checks}


def test_a_gpu_server_can_record_with_everything() -> None:
    diagnosis = examine_machine(gpu_machine())

    assert diagnosis.can == {"gpu": True, "torch": True, "nsys": True, "ncu": True}
    assert {item.status for item in diagnosis.checks} == {"ok"}
    assert missing(diagnosis, "gpu,nsys,ncu,torch") == []
    assert "collect nsys, collect ncu, collect torch" in diagnosis.works


def test_a_laptop_learns_what_works_all_the_same() -> None:
    diagnosis = examine_machine(laptop())

    assert not any(diagnosis.can.values())
    assert missing(diagnosis, "nsys, ncu") == ["nsys", "ncu"]
    assert "Reading, reporting on, comparing and scrubbing profiles works here" in diagnosis.works


def test_every_problem_has_a_fix() -> None:
    broken = gpu_machine(gpus="NVIDIA H200, 570.1, 9.0, 143771, 90000, Enabled\n", apps="100\n", names=[])
    broken.files["/proc/driver/nvidia/params"] = "RmProfilingAdminOnly: 1\n"
    broken.free = 1 << 30
    for machine in (laptop(), broken, Machine()):
        for item in examine_machine(machine).checks:
            assert item.status in STATUSES
            assert (item.fix is not None) or item.status in ("ok", "unknown")


def test_a_requirement_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="--require takes gpu, torch, nsys, ncu"):
        missing(examine_machine(laptop()), "cuda")


def test_a_driver_that_does_not_talk_to_its_kernel_module_is_a_problem() -> None:
    machine = gpu_machine()
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124\n"
    machine.programs["nvidia-smi --query-gpu"] = Output(18, said)

    found = check(machine, "gpu")

    assert found.status == "problem"
    assert "Driver/library version mismatch" in found.found
    assert "reboot" in (found.fix or "")


def test_a_container_without_gpus_is_told_how_to_get_them() -> None:
    machine = laptop()
    machine.files["/.dockerenv"] = ""

    assert "--gpus all" in (check(machine, "gpu").fix or "")


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
def test_who_may_read_counters(restricted: str, capabilities: str, driver: str, status: str) -> None:
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


def test_root_in_a_container_is_told_that_this_is_not_enough() -> None:
    machine = gpu_machine()
    machine.files |= {
        "/proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n",
        "/proc/self/status": CONTAINER_CAPABILITIES,
        "/proc/1/cgroup": "12:pids:/kubepods/burstable/pod1\n",
    }

    found = check(machine, "counters")

    assert "root inside a container is not enough" in found.found
    assert "--cap-add=SYS_ADMIN" in (found.fix or "")
    assert "container" in names(examine_machine(machine))


def test_on_wsl2_kernels_may_be_missing_and_windows_decides_about_counters() -> None:
    machine = gpu_machine()
    machine.files["/proc/version"] = WSL

    assert "no kernels" in check(machine, "wsl").found
    assert check(machine, "counters").status == "unknown"
    assert "Windows" in (check(machine, "counters").fix or "")
    assert examine_machine(machine).can["ncu"]


def test_nvidia_smi_of_wsl2_is_found_off_the_search_path() -> None:
    machine = gpu_machine()
    machine.programs["/usr/lib/wsl/lib/nvidia-smi --query-gpu"] = machine.programs.pop("nvidia-smi --query-gpu")

    assert check(machine, "gpu").status == "ok"


@pytest.mark.parametrize(("level", "status"), [("-1", "ok"), ("2", "ok"), ("3", "warning"), ("4", "warning")])
def test_paranoia_of_perf_only_costs_samples(level: str, status: str) -> None:
    machine = gpu_machine()
    machine.files["/proc/sys/kernel/perf_event_paranoid"] = f"{level}\n"

    assert check(machine, "perf").status == status
    assert examine_machine(machine).can["nsys"]


def test_a_cpu_build_of_pytorch_beside_a_gpu_is_noticed() -> None:
    found = check(gpu_machine(cuda=None, available=False, names=[]), "torch")

    assert found.status == "warning"
    assert "install a CUDA build" in (found.fix or "")


def test_a_pytorch_that_the_driver_is_too_old_for_is_noticed() -> None:
    assert "driver may be too old for CUDA 12.8" in (check(gpu_machine(available=False, names=[]), "torch").fix or "")


def test_an_import_error_is_told_without_the_folders_in_it() -> None:
    machine = gpu_machine()
    said = "Traceback\nImportError: /home/someone/lib/libcudart.so: cannot open shared object file\n"
    machine.programs["/usr/bin/python"] = Output(1, said)

    found = check(machine, "torch")

    assert found.status == "problem"
    assert "ImportError" in found.found
    assert "someone" not in f"{found.found}{found.fix}"


def test_an_import_that_takes_for_ever_is_given_up() -> None:
    machine = gpu_machine()
    machine.programs["/usr/bin/python"] = Output(None, "")

    assert "took more than" in check(machine, "torch").found


def test_a_hidden_gpu_is_noticed() -> None:
    assert check(gpu_machine(gpus=H200 * 2), "visible").found == "PyTorch sees 1 of 2 GPUs"


def test_a_different_order_of_gpus_is_noticed() -> None:
    gpus = "NVIDIA T400, 570.1, 7.5, 2048, 1, Disabled\nNVIDIA H200, 570.1, 9.0, 143771, 1, Disabled\n"

    found = check(gpu_machine(gpus=gpus, names=["NVIDIA H200", "NVIDIA T400"]), "visible")

    assert found.found == "cuda:0 is NVIDIA H200 for PyTorch, but NVIDIA T400 for nvidia-smi"
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in (found.fix or "")


def test_a_pytorch_without_kernels_for_a_new_gpu_is_noticed() -> None:
    blackwell = "NVIDIA B200, 570.1, 10.0, 183359, 1, Disabled\n"

    assert check(
        gpu_machine(gpus=blackwell, names=["NVIDIA B200"], arch=["sm_80", "sm_90"]), "architecture"
    ).status == ("problem")
    diagnosis = examine_machine(gpu_machine(gpus=blackwell, names=["NVIDIA B200"], arch=["sm_90", "sm_100", "sm_120"]))
    assert "architecture" not in names(diagnosis)


def test_mig_other_programs_and_full_memory_are_noticed() -> None:
    machine = gpu_machine(gpus="NVIDIA A100, 570.1, 8.0, 81920, 40960, Enabled\n", apps="40000\n500\n")

    assert check(machine, "mig").status == "warning"
    assert check(machine, "processes").found.startswith("2 other programs")
    assert (check(machine, "memory").status, check(machine, "memory").found[:8]) == ("warning", "40.0 GiB")


def test_a_gpu_before_volta_has_no_counters_of_nsight_compute() -> None:
    assert "Volta" in (check(gpu_machine(gpus="Tesla P100, 535.1, 6.0, 16384, 1, [N/A]\n"), "gpu").fix or "")


def test_several_gpus_of_one_model_are_counted() -> None:
    found = check(gpu_machine(gpus=H200 * 4, names=["NVIDIA H200"] * 4), "gpu").found

    assert found.startswith("4 × NVIDIA H200 (compute capability 9.0, 140 GiB)")


@pytest.mark.parametrize(("name", "old"), [("nsys", NSYS["2021.1"]), ("ncu", NCU["2020.3"])])
def test_tools_that_are_too_old_are_a_problem(name: str, old: str) -> None:
    machine = gpu_machine()
    machine.on_path[name] = f"/old/{name}"
    machine.programs[f"/old/{name}"] = old

    assert check(machine, name).status == "problem"
    assert not examine_machine(machine).can[name]


def test_an_nsys_that_makes_no_reports_is_a_problem() -> None:
    root = "/opt/nvidia/nsight-systems/2025.3.2"
    machine = gpu_machine()
    machine.programs[f"{root}/host-linux-x64/QdstrmImporter"] = ""
    machine.programs["ldd"] = "\tlibssh.so => not found\n"

    found = check(machine, "nsys")

    assert found.status == "problem"
    assert "lacks libssh.so" in found.found
    assert ".qdstrm" in str(found.fix)


def test_little_disk_space_is_noticed() -> None:
    machine = gpu_machine()
    machine.free = 2 << 30

    assert check(machine, "disk").status == "warning"


def test_the_python_of_the_users_programs_is_asked() -> None:
    machine = laptop()
    machine.programs["/envs/mine/bin/python"] = torch_answer(available=False, cuda=None, names=[], arch=[])

    diagnosis = examine_machine(machine, python="/envs/mine/bin/python")

    assert diagnosis.can["torch"]
    assert "work on the CPU" in diagnosis.works


def test_nothing_of_the_environment_is_shown() -> None:
    machine = gpu_machine()
    machine.variables = {"CUDA_HOME": "/home/someone/cuda", "USER": "someone"}
    machine.files["/proc/version"] = LINUX + "built by someone@host\n"

    assert "someone" not in repr(examine_machine(machine))


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
def test_the_version_is_read_from_what_the_tool_prints(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


def test_the_search_path_comes_first() -> None:
    machine = Machine(
        programs={"/tools/nsys": NSYS["2023.4"], "/usr/local/cuda/bin/nsys": NSYS["2025.3"]},
        on_path={"nsys": "/tools/nsys"},
    )

    tool = find_tool("nsys", machine)

    assert tool is not None
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
def test_tools_outside_the_search_path_are_found(name: str, place: str) -> None:
    tool = find_tool(name, Machine(programs={place: (NSYS if name == "nsys" else NCU)["2025.3"]}))

    assert tool is not None
    assert (tool.path, tool.on_path) == (place, False)


def test_cuda_home_is_looked_into() -> None:
    machine = Machine(programs={"/software/cuda/bin/ncu": NCU["2024.1"]}, variables={"CUDA_HOME": "/software/cuda"})

    tool = find_tool("ncu", machine)

    assert tool is not None
    assert tool.title == "Nsight Compute 2024.1.1.0"


def test_variables_name_the_tool_to_use() -> None:
    places = {"/a/nsys": NSYS["2023.4"], "/b/ncu": NCU["2024.1"], "/usr/local/cuda/bin/nsys": NSYS["2025.3"]}
    machine = Machine(programs=dict(places), variables={"NSYS": "/a/nsys", "NCU": "/b/ncu"})

    nsys, ncu = find_tool("nsys", machine), find_tool("ncu", machine)

    assert nsys is not None
    assert ncu is not None
    assert (nsys.path, ncu.path) == ("/a/nsys", "/b/ncu")
    wrong = Machine(programs=dict(places), variables={"NSYS": "/b/ncu"})
    with pytest.raises(UsageError, match=r"\$NSYS names a program that does not answer as Nsight Systems"):
        needed_tool("nsys", wrong)


def test_libraries_that_the_importer_lacks_are_named() -> None:
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


def test_of_several_installed_versions_the_newest_is_used() -> None:
    places = [f"/opt/nvidia/nsight-systems/{version}/bin/nsys" for version in ("2023.4.4", "2025.3.2", "2024.10.1")]

    tool = find_tool("nsys", Machine(programs=dict.fromkeys(places, NSYS["2025.3"])))

    assert tool is not None
    assert tool.path == places[1]


def test_a_program_of_the_same_name_is_no_profiler() -> None:
    machine = Machine(programs={"/bin/ncu": "node check updates, version 2024.1\n"}, on_path={"ncu": "/bin/ncu"})

    assert find_tool("ncu", machine) is None


def test_a_missing_tool_is_an_error_that_says_how_to_get_it() -> None:
    with pytest.raises(UsageError, match=r"nsys .* was not found .* install the package nsight-systems-cli"):
        needed_tool("nsys", Machine())


def test_the_tool_that_the_user_names_is_the_only_candidate() -> None:
    machine = Machine(programs={"/opt/nvidia/nsight-compute/2025.3.0/ncu": NCU["2025.3"]})

    with pytest.raises(UsageError, match="does not answer as Nsight Compute"):
        needed_tool("ncu", machine, "/somewhere/ncu")
