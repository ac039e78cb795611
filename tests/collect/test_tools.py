"""Profilers are found where they hide, and their versions are read."""

from __future__ import annotations

import pytest

from tests.collect.machines import NCU, NSYS, Machine
from warplens.collect.machine import Tool, find_tool, missing_libraries, needed_tool, parse_version
from warplens.errors import UsageError


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
