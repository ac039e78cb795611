"""`warplens study`: the experiments of the literature as plans that run by themselves, and their reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warplens.cli.edge import answering
from warplens.cli.messages import note, one_line, progress
from warplens.cli.options import RunOrReport
from warplens.cli.reporting import checked_folder
from warplens.errors import UsageError
from warplens.study.asked import PROCESSES, one_process
from warplens.study.cellrun import Conduct, measure_cells, preview
from warplens.study.studies import MEASUREMENTS, STUDIES, StudyAsked

if TYPE_CHECKING:
    from warplens.profile.measurements import Measurements

__all__ = ["study"]


def study(
    name: Annotated[str, typer.Argument(metavar="|".join(STUDIES), show_default=False, help="Which study.")],
    part: Annotated[
        RunOrReport | None,
        typer.Argument(metavar="[run|report]", show_default=False, help="Only measure, or only report; else both."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            show_default=False,
            help="Folder for measurements, ledger and report; study-NAME by default.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few cells of tiny size on the CPU, to try it on any machine with PyTorch.")
    ] = False,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=VALUE,…",
            show_default=False,
            help="Other values of a setting, or one more setting. May be repeated.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, show_default=False, help="token-reduction: turns of each cell at a point."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="As PyTorch names it; the GPU if there is one."),
    ] = None,
    processes: Annotated[
        str,
        typer.Option(
            metavar="|".join(PROCESSES), help="A process for each point, or one for all, which starts sooner."
        ),
    ] = PROCESSES[0],
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, show_default=False, help="Most time for a point.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an interrupted run has done.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Measure once more what has failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be measured; measure nothing.")] = False,
    profiles: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="token-reduction: also tell the findings, with profiles named method=topk,batch=1.sqlite, and so on.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="With --profiles: a policy to be judged in the findings."
        ),
    ] = None,
) -> None:
    """Run a study of token reduction, the language model or attention to its end, and report on it.

    A run that was interrupted goes on when the same command is given again. Measuring needs PyTorch, reporting does
    not.
    """
    if name not in STUDIES:
        raise UsageError(f"{name!r} is no study; known are {', '.join(STUDIES)}")
    if (profiles or policy) and name != "token-reduction":
        raise UsageError(f"--profiles and --policy are for the findings of token-reduction, not for {name}")
    if policy and not profiles:
        raise UsageError("--policy is judged in the findings, which need --profiles")
    folder = output or Path(f"study-{name}")
    if part is not RunOrReport.REPORT:
        run = STUDIES[name].run(StudyAsked(tuple(axis or ()), rounds, device, quick))
        conduct = Conduct(one_process(processes), timeout, fresh, retry)
        if dry_run:
            _print(preview(run, folder / MEASUREMENTS, conduct))
            return
        checked_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        measure_cells(run, folder / MEASUREMENTS, conduct, note)
    if part is RunOrReport.RUN:
        _print([str(folder / MEASUREMENTS)])
        return
    _report(folder, profiles, policy)


def _report(folder: Path, profiles: Path | None, policy: Path | None) -> None:
    from warplens.readers.measurements import read_measurements  # noqa: PLC0415  measuring alone does without

    measurements = read_measurements(folder / MEASUREMENTS)
    with progress("drawing"):
        answer, written = _write(measurements, folder)
        if profiles is not None:
            written += _write_findings(measurements, folder, profiles, policy)
    _print([answer])
    for path in written:
        note(one_line(path))


def _write(measurements: Measurements, folder: Path) -> tuple[str, list[Path]]:
    from warplens.report.jsonout import envelope  # noqa: PLC0415
    from warplens.report.measured import doubts_of  # noqa: PLC0415
    from warplens.report.study import study_data, study_document  # noqa: PLC0415
    from warplens.report.write import write_document  # noqa: PLC0415

    document = study_document(measurements)
    written = write_document(document, folder)
    data: dict[str, Any] = study_data(measurements)
    path = folder / "report.json"
    path.write_bytes(envelope("study", measurements.source, data, doubts_of(measurements)) + b"\n")
    return document.lead, [*written, path]


def _write_findings(measurements: Measurements, folder: Path, profiles: Path, policy: Path | None) -> list[Path]:
    from warplens.cli.findings import TITLE, own_evidence  # noqa: PLC0415  most reports are without profiles
    from warplens.report.findings import findings_document  # noqa: PLC0415
    from warplens.report.write import write_document  # noqa: PLC0415

    document = findings_document(own_evidence(measurements, profiles, policy), TITLE)
    return write_document(document, folder, name="findings_report")


def _print(lines: list[str]) -> None:
    with answering() as stdout:
        stdout.write("".join(f"{one_line(line)}\n" for line in lines))
