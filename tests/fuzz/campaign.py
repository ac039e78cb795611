"""A campaign: many cases in processes of their own, a ledger of what was run and found, and small files that show it.

python -m tests.fuzz.campaign --seconds 3600            # as `make fuzz` does
python -m tests.fuzz.campaign --show 3:1402             # one case again, by campaign and number
python -m tests.fuzz.campaign --minimise 3:1402         # the smallest file found that ends the same way
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.judge import Case, Ended, ended, judged, label, remove_left
from tests.fuzz.seeds import Seed

#: A process that says nothing for so long is killed if it also took so much processor time (native code cannot be
#: interrupted from Python), or after ten times as long whatever it did: it waits for itself.
SILENT_SECONDS, SILENT_CPU_SECONDS = 60.0, 30.0
#: Cases after which a process is replaced by a fresh one, so that its memory tells something about the case at hand.
CASES_OF_A_PROCESS = {"command": 400, "reader": 5_000, "parser": 50_000, "rows": 50_000}
#: After so many cases the ledger says how many they are.
_CASES_OF_A_LINE = 1_000


@dataclass
class Ledger:
    """What was run and found, a line of JSON for each part of it as it comes in."""

    folder: Path
    tier: str = "command"
    cases: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[int]] = field(default_factory=dict)

    def add(self, campaign: int, number: int, result: Ended) -> None:
        """Counts a case, and stores the file of the first one of each defect."""
        self.cases += 1
        self.codes[str(result.code)] += 1
        self.formats[result.format] += 1
        if self.cases % _CASES_OF_A_LINE == 0:  # a campaign that is killed is known up to here
            self._write({"campaign": campaign, "tier": self.tier, "so far": self.cases, "codes": dict(self.codes),
                         "formats": dict(self.formats)})  # fmt: skip
        if not result.wrong:
            return
        self.found.setdefault(result.wrong, []).append(number)
        if len(self.found[result.wrong]) == 1:
            seed, content, command = Case(campaign, number, self.tier).made()
            place = self.folder / label(result.wrong)
            place.mkdir(parents=True, exist_ok=True)
            (place / "input").write_bytes(content)
            self._write({"wrong": result.wrong, "detail": result.detail, "tier": self.tier,
                         "case": f"{campaign}:{number}", "seed": seed.name,
                         "command": command, "at": place.name})  # fmt: skip

    def close(self, campaign: int, first: int, seconds: float) -> None:
        """The line that sums the campaign up."""
        counts = {wrong: len(numbers) for wrong, numbers in self.found.items()}
        self._write({"campaign": campaign, "tier": self.tier, "first": first, "cases": self.cases,
                     "seconds": round(seconds), "codes": dict(self.codes),
                     "formats": dict(self.formats), "found": counts})  # fmt: skip

    def _write(self, line: dict[str, object]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "ledger.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def run(
    campaign: int,
    first: int,
    *,
    seconds: float,
    cases: int,
    processes: int,
    folder: Path,
    nice: int = 0,
    tier: str = "command",
) -> Ledger:
    """Judges cases from `first` on until the time is over or so many are done."""
    ledger, lock, end = Ledger(folder, tier), threading.Lock(), time.monotonic() + seconds
    begun = time.monotonic()
    threads = [
        threading.Thread(target=_work, args=(campaign, first + lane, first + cases, processes, nice, end, ledger, lock))
        for lane in range(processes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close(campaign, first, time.monotonic() - begun)
    remove_left()
    return ledger


def _work(campaign: int, start: int, stop: int, step: int, nice: int, end: float, ledger: Ledger, lock: object) -> None:
    while start < stop and time.monotonic() < end:
        until = min(stop, start + step * CASES_OF_A_PROCESS[ledger.tier])
        words = [sys.executable, "-m", "tests.fuzz.judge", *map(str, (campaign, start, until, step, nice)), ledger.tier]
        ledger.folder.mkdir(parents=True, exist_ok=True)
        with (ledger.folder / f"process-{start % step}.log").open("wb") as log:
            environment = os.environ | {"FUZZ_RUN": str(os.getpid())}
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
        at, killed, waited, cpu = start, False, 0, 0.0
        while True:
            try:
                line = lines.get(timeout=SILENT_SECONDS)
            except queue.Empty:
                waited += 1
                if waited >= 10 or _cpu_seconds(process.pid) - cpu > SILENT_CPU_SECONDS:
                    killed = True
                    process.kill()
                continue
            waited = 0
            if line is None:
                break
            word, _, rest = line.partition(" ")
            if word == "begin":
                at, cpu = int(rest), _cpu_seconds(process.pid)
            else:
                number, *told = json.loads(rest)
                with lock:
                    ledger.add(campaign, number, Ended(*told))
                at = number + step
                if time.monotonic() > end:
                    process.kill()
                    process.wait()
                    return
        if process.wait() and at < until:
            code = process.returncode
            how = "hang" if killed else f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            tail = (ledger.folder / f"process-{start % step}.log").read_text("utf-8", "replace")[-1_500:]
            seed, _, command = Case(campaign, at, ledger.tier).made()
            with lock:
                ledger.add(campaign, at, Ended(None, f"{how}: {command.split()[0]}", tail, seed.format))
            at += step
        start = max(at, start + step) if at < until else until


def _cpu_seconds(process: int) -> float:
    """Processor time of a process so far; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def minimised(seed: Seed, content: bytes, command: str, tries: int = 400) -> bytes:
    """A file that is as small as so many tries make it and ends with the same defect."""
    wrong = ended(seed, content, command).wrong
    size = len(content) // 2
    while size and tries > 0:
        at = 0
        while at < len(content) and tries > 0:
            shorter = content[:at] + content[at + size :]
            tries -= 1
            if ended(seed, shorter, command).wrong == wrong:
                content = shorter
            else:
                at += size
        size //= 2
    return content


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--campaign", type=int, default=int(time.time()), help="seed of all cases; the time unless given"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--tier", choices=sorted(CASES_OF_A_PROCESS), default="command")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"))
    parser.add_argument("--show", metavar="CAMPAIGN:NUMBER")
    parser.add_argument("--minimise", metavar="CAMPAIGN:NUMBER")
    given = parser.parse_args()
    if case := given.show or given.minimise:
        campaign, number = map(int, case.split(":"))
        chosen = Case(campaign, number, given.tier)
        seed, content, command = chosen.made()
        print(seed.name, command, judged(chosen))
        target = given.folder / f"case-{chosen.campaign}-{chosen.number}"
        given.folder.mkdir(parents=True, exist_ok=True)
        target.write_bytes(minimised(seed, content, command) if given.minimise else content)
        print(target)
        return
    ledger = run(given.campaign, given.first, seconds=given.seconds, cases=given.cases, processes=given.processes,
                 folder=given.folder, nice=given.nice, tier=given.tier)  # fmt: skip
    print(f"campaign {given.campaign}: {ledger.cases:,} cases, exit codes {dict(ledger.codes)}")
    for wrong, numbers in sorted(ledger.found.items(), key=lambda item: -len(item[1])):
        print(f"{len(numbers):>7,}  {wrong}  (first: {given.campaign}:{numbers[0]})")
    sys.exit(bool(ledger.found))


if __name__ == "__main__":
    main()
