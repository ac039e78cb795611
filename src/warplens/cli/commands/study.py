"""`warplens study` and `policy`: run whole experiments and report on them, and fit policies to their results."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from warplens.cli.answer import Answer, Part, checked_file, checked_folder, emit, print_lines
from warplens.cli.options import Format, FormatOption, argument, flag, given_share, option, share_option
from warplens.cli.process import GATE_FAILED, complain, note, progress
from warplens.errors import UsageError
from warplens.readers.measurements import read_measurements
from warplens.readers.published import read_sweep
from warplens.studies.policies.files import document_of, read_policy, write_policy
from warplens.studies.runner.engine import RunOptions, measure, preview
from warplens.studies.runner.studies import INDEX, MEASUREMENTS, PROFILES, STUDIES, Collection, StudyOptions
from warplens.studies.runner.workloadsweep import PROCESSES, one_process
from warplens.studies.sweeps.reading import side_of, sweep_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.profile.measurements import Measurements
    from warplens.report.document import Table
    from warplens.studies.policies.choosing import Policy
    from warplens.studies.policies.regret import Regret
    from warplens.studies.reports.evidence import Evidence
    from warplens.studies.sweeps.sweep import Sweep


def study(
    name: Annotated[str, argument("|".join(STUDIES), "Which study.")],
    part: Annotated[
        Literal["run", "report"] | None, argument("[run|report]", "Only measure, or only report; else both.")
    ] = None,
    output: Annotated[
        Path | None,
        option("DIR", "Folder for measurements, ledger and report; study-NAME by default.", "--output", "-o"),
    ] = None,
    quick: Annotated[
        bool, flag("--quick", "Few cells of tiny size on the CPU, to try it on any machine with PyTorch.")
    ] = False,
    axis: Annotated[
        list[str] | None,
        option("NAME=VALUE,…", "Other values of a setting, or one more setting. May be repeated."),
    ] = None,
    rounds: Annotated[int | None, option("N", "token-reduction: turns of each cell at a point.", min=1)] = None,
    device: Annotated[str | None, option("NAME", "As PyTorch names it; the GPU if there is one.")] = None,
    processes: Annotated[
        str,
        option(
            "|".join(PROCESSES), "A process for each point, or one for all, which starts sooner.", show_default=True
        ),
    ] = PROCESSES[0],
    timeout: Annotated[float | None, option("S", "Time limit per point.", min=0)] = None,
    fresh: Annotated[bool, flag("--fresh", "Discard what an interrupted run has done.")] = False,
    retry: Annotated[bool, flag("--retry", "Repeat what failed.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Print what would be measured without measuring.")] = False,
    profiles: Annotated[
        Path | None,
        option(
            "DIR",
            "token-reduction: also tell the findings, with profiles named method=topk,batch=1.sqlite, and so on.",
        ),
    ] = None,
    policy: Annotated[
        Path | None, option("FILE", "With --profiles or --collect: a policy to be judged in the findings.")
    ] = None,
    collect: Annotated[
        bool, flag("--collect", "token-reduction: after the times also record timelines (nsys) and counters (ncu).")
    ] = False,
    launches: Annotated[
        int | None,
        option(
            "N",
            "With --collect: ncu profiles the first N launches, 0 for all; else one of each kernel and size.",
            min=0,
        ),
    ] = None,
    nsys: Annotated[str | None, option("PROGRAM", "With --collect: the nsys to use; else it is looked for.")] = None,
    ncu: Annotated[str | None, option("PROGRAM", "With --collect: the ncu to use; else it is looked for.")] = None,
) -> None:
    """Run a whole study of token reduction, the language model or attention, and report on it.

    An interrupted run continues when the same command is given again. Measuring needs PyTorch, reporting does
    not.
    """
    if name not in STUDIES:
        raise UsageError(f"{name!r} is not a study; known are {', '.join(STUDIES)}")
    if (profiles or policy or collect) and name != "token-reduction":
        raise UsageError(f"--profiles, --policy and --collect are for the findings of token-reduction, not for {name}")
    if policy and not (profiles or collect):
        raise UsageError("--policy is judged in the findings, which need --profiles or --collect")
    if collect and (profiles or part == "report"):
        raise UsageError("--collect records profiles; to report on those that are there, give --profiles")
    if not collect and (launches is not None or nsys or ncu):
        raise UsageError("--launches, --nsys and --ncu say how to --collect")
    folder = output or Path(f"study-{name}")
    failed: list[str] = []
    if part != "report":
        run = STUDIES[name].run(StudyOptions(tuple(axis or ()), rounds, device, quick))
        run_options = RunOptions(one_process(processes), timeout, fresh, retry)
        collection = Collection(folder / PROFILES, nsys, ncu, launches, fresh, note)
        if dry_run:
            print_lines(preview(run, folder / MEASUREMENTS, run_options))
            print_lines(collection.commands(run) if collect else ())
            return
        checked_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        measure(run, folder / MEASUREMENTS, run_options, note)
        if collect:
            failed = collection.record(run)
            profiles = folder / PROFILES if (folder / PROFILES / INDEX).is_file() else None
    if part == "run":
        print_lines([str(folder / MEASUREMENTS)])
    else:
        _report(folder, profiles, policy)
    if failed:
        complain(f"not recorded: {', '.join(failed)}")
        raise typer.Exit(GATE_FAILED)


def _report(folder: Path, profiles: Path | None, policy: Path | None) -> None:
    """Writes the report of a study into its folder, and that of its findings if there are profiles."""
    from warplens.report.jsonout import envelope
    from warplens.report.measured import doubts_of
    from warplens.report.write import write_document
    from warplens.studies.reports.document import study_data, study_document

    measurements = read_measurements(folder / MEASUREMENTS)

    def data() -> bytes:
        return envelope("study", measurements.source, study_data(measurements), doubts_of(measurements)) + b"\n"

    with progress("drawing"):
        document = study_document(measurements)
        written = write_document(document, folder, ("html", "md", "json"), data=data)
        if profiles is not None:
            from warplens.cli.commands.report import TITLE
            from warplens.studies.reports.findings import findings_document

            findings = findings_document(_evidence(measurements, profiles, policy), TITLE)
            written += write_document(findings, folder, name="findings_report")
    print_lines([document.lead])
    for path in written:
        note(path)


def _evidence(measurements: Measurements, profiles: Path, policy: Path | None) -> Evidence:
    """The evidence of a study, with a folder of profiles and counter reports named after their cells."""
    from warplens.cli.commands.sweep import COUNTERS, listed_profiles
    from warplens.readers import read, read_counters
    from warplens.studies.reports.evidence import study_evidence

    traces, counters = [], []
    for path, settings in listed_profiles(profiles):
        if COUNTERS.search(path.name):
            counters.append((settings, read_counters(path)))
        else:
            traces.append((settings, read(path)))
    chosen = read_policy(policy) if policy is not None else None
    return study_evidence(measurements, traces, counters=counters, policy=chosen)


#: Actions on a policy.
PolicyAction: TypeAlias = Literal["fit", "show", "check"]


def policy(
    doing: Annotated[PolicyAction, argument("fit|show|check", "Fit a policy, show one, or check one against a sweep.")],
    file: Annotated[Path, argument("FILE", "fit: the sweep. show, check: the policy.")],
    against: Annotated[
        Path | None, argument("[SWEEP]", "check: other measurements, best of points left out of the fit.")
    ] = None,
    output: Annotated[Path | None, option("FILE", "fit: the policy file to write.", "--output", "-o")] = None,
    baseline: Annotated[
        str | None, option("NAME=VALUE,…", "fit, check: settings of the baseline, if the file has none.")
    ] = None,
    variant: Annotated[
        list[str] | None,
        option("NAME=VALUE,…", "fit, check: settings of a variant. May be repeated, to choose from several."),
    ] = None,
    margin: Annotated[
        str,
        share_option("fit: a variant must be faster than the baseline by more than this."),
    ] = "1%",
    fallback: Annotated[
        str | None, option("SIDE", "fit: what runs outside the range; by default the baseline.")
    ] = None,
    fail_on: Annotated[
        str | None,
        share_option("check: exit with 1 if a choice is slower than the best side by more than this."),
    ] = None,
    form: FormatOption = "table",
) -> None:
    """Fit, show and check policies: which variant to run for which shape.

    `fit` takes a sweep and writes a small file; warplens.AdaptiveModule chooses by it at run time. `check` says what
    its choices would have cost where other measurements have both sides.
    """
    _check_arguments(
        doing,
        against,
        {
            "--output": output,
            "--baseline": baseline,
            "--variant": variant,
            "--fallback": fallback,
            "--fail-on": fail_on,
        },
    )
    limit = None if fail_on is None else given_share(fail_on)
    if doing == "check":
        assert against is not None
        _check(file, against, baseline, variant, limit, form)
        return
    if doing == "fit":
        from warplens.studies.policies.fitting import fit_policy

        if output is not None:
            checked_file(output, (file,))
        fitted = fit_policy(_sweeps(file, baseline, variant), margin=given_share(margin), fallback=fallback)
        if output is not None:
            write_policy(fitted, output)
            note(f"{output.name}: written")
    else:
        fitted = read_policy(file)
    from warplens.studies.policies.document import points_table, policy_facts, policy_rows

    data = {"policy": document_of(fitted), "rows": policy_rows(fitted)}
    _emit(fitted.source, list(policy_facts(fitted)), points_table(fitted), data, form)


#: The actions of the options that not all of them have.
_ACTIONS: Final = {
    "--output": ("fit",),
    "--baseline": ("fit", "check"),
    "--variant": ("fit", "check"),
    "--fallback": ("fit",),
    "--fail-on": ("check",),
}


def _check_arguments(doing: PolicyAction, against: Path | None, options: Mapping[str, object]) -> None:
    if doing == "check" and against is None:
        raise UsageError("check needs measurements beside the policy: warplens policy check policy.json SWEEP")
    if doing != "check" and against is not None:
        raise UsageError(f"{doing} takes one file, and no second one ({against.name})")
    for name, value in options.items():
        if value is not None and doing not in _ACTIONS[name]:
            raise UsageError(f"{name} is not an option of policy {doing}")


def _sweeps(file: Path, baseline: str | None, variant: Sequence[str] | None) -> list[Sweep]:
    measurements = read_sweep(file)
    before = side_of(baseline) if baseline is not None else None
    sides: list[dict[str, str] | None] = [side_of(text) for text in variant or ()] or [None]
    return [sweep_of(measurements, before, side) for side in sides]


def _sweeps_of(policy: Policy, file: Path) -> list[Sweep]:
    """The sweeps of the policy's sides if the file has cells of all of them, else of the sides that the file names.

    Of settings that the policy's measurements share, cells with the same value are taken where the file has them.
    """
    measurements = read_sweep(file)
    values = measurements.cells.select(measurements.settings).to_dict(as_series=False)
    shared = {name: value for name, value in policy.shared.items() if value in values.get(name, ())}
    for common in (shared, {}):
        first, *others = ({**common, **side.settings} for side in policy.sides)
        with suppress(UsageError):
            return [sweep_of(measurements, first, other) for other in others]
    return [sweep_of(measurements)]


def _check(
    file: Path, against: Path, baseline: str | None, variant: Sequence[str] | None, limit: float | None, form: Format
) -> None:
    """Shows what the choices of a policy cost on other measurements; exits with an error beyond the limit."""
    from warplens.profile.measurements import device_name
    from warplens.studies.policies.document import check_table, regret_rows, regret_sentence
    from warplens.studies.policies.regret import regrets_on, summary

    policy = read_policy(file)
    sweeps = _sweeps_of(policy, against) if baseline is None and not variant else _sweeps(against, baseline, variant)
    device = device_name(sweeps[0].environment)
    if device is not None:
        policy = policy.on(device)  # the choices of a program on the machine of the measurements
    cells = regrets_on(policy, sweeps)
    if limit is not None and not cells:
        raise UsageError(f"{sweeps[0].source}: no point has two sides of the policy, so --fail-on has nothing to go by")
    axes = [axis.name for axis in policy.axes]
    overall = summary(cells)
    by_reason = {
        reason: summary(cell for cell in cells if cell.reason == reason)
        for reason in dict.fromkeys(cell.reason for cell in cells)
    }
    facts = [f"{file.name} (fitted to {policy.source}), checked against {sweeps[0].source}"]
    if policy.elsewhere:
        facts.append(
            f"fitted on {policy.environment['device']}, measured on {device}: the fallback runs there "
            '(elsewhere="policy" of AdaptiveModule uses the policy anyway)'
        )
    facts += [f"{reason}: {regret_sentence(regret, axes)}" for reason, regret in by_reason.items()]
    failed = limit is not None and (overall.not_run > 0 or overall.worst is None or overall.worst > limit)
    data = {"regret": _plain(overall), "by_reason": {reason: _plain(regret) for reason, regret in by_reason.items()}}
    data |= {"limit": limit, "failed": failed, "rows": regret_rows(cells, axes)}
    _emit(sweeps[0].source, facts, check_table(cells, axes), data, form)
    if failed:
        note(f"the policy is beyond the limit of {100 * (limit or 0):g} %: {regret_sentence(overall, axes)}")
        raise typer.Exit(GATE_FAILED)


def _plain(regret: Regret) -> dict[str, Any]:
    return {**asdict(regret), "where": list(regret.where) if regret.where is not None else None}


def _emit(source: str, facts: Sequence[str], table: Table, data: Mapping[str, Any], form: Format) -> None:
    emit(Answer("policy", source, [Part(head=facts, tables=[table])], table.rows, lambda: data), form)
