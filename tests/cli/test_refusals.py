"""What cannot be is refused in one line, with code 2, before anything is measured or written."""

from __future__ import annotations

import shlex
import shutil

import pytest

from warplens.cli.options import share_in

_MODES = "tests/readers/data/counter_modes"
_PAIR = "demo:deit224_bs1_baseline demo:deit224_bs1_topk0.1"
_MEASURED = "demo:token_reduction demo:token_reduction"
_SIDES = "--baseline method=none,attention=explicit --variant method=topk"

#: Command lines by what is said of them. `small.sqlite` and three reports of counters lie in the folder.
REFUSED = {
    "kernels": "Missing argument",
    "kernels a.sqlite b.sqlite": "unexpected extra argument",
    "kernels a.sqlite --frobnicate": "No such option: --frobnicate",
    "kernels a.sqlite --limit -1": "should be greater than or equal to 0",
    "kernels a.sqlite --by colour": "'colour'",
    "api a.sqlite --by name,colour": "'colour'",
    "api a.sqlite --by name,name": "twice",
    "kernels a.sqlite --window soon": "'soon'",
    "kernels a.sqlite --window 2s:1s": "2s:1s",
    "kernels small.sqlite --memory 1KB": "in slices",
    "ranges small.sqlite --window all --memory 1KB": "in slices",
    "diagnose small.sqlite --memory 1KB": "in slices",
    "report small.sqlite --format json --memory 1KB": "in slices",
    "nosuch": "No such command 'nosuch'",
    "nosuch.sqlite": "there is no such file",
    "demo:deit": "no such profile comes with Warplens; similar: demo:deit",
    "demo:token_reduction": "holds measurements",
    "demo:deit224_bs1_baseline --window 100s:200s": "lies outside the recorded time, which is 0.0",
    "diagnose small.sqlite --range nowhere": "'nowhere'",
    "kernels demo:deit224_bs1_baseline --range zzz": "there is no range 'zzz'; the profile has 'attention'",
    "diagnose small.sqlite --gpu Foo": "RTX 5090 to 5070, RTX 4090 to 4060, RTX 3090 to 3060, RTX 2080 to 2070, TITAN",
    "memory small.sqlite --range forward_pass": "memory in use belongs to no range",
    "diagnose small.sqlite --counters none.ncu-rep": "none.ncu-rep",
    f"diagnose {_PAIR}": "not the ranks of one run",
    "report small.sqlite -o x.html --format json": "x.html is to hold html, but --format says json",
    "-": "profiles are not read from standard input",
    f"compare {_PAIR} --fail-on 1_0%": "'1_0%'",
    "counters -": "profiles are not read from standard input",
    "headroom small.sqlite --with small.sqlite": "no shapes were recorded, from which the work of kernels",
    "counters absent.ncu-rep --window all": "--window, --ncu-version and --gpu are about a trace of the same program",
    "counters absent.ncu-rep --ncu-version x": "add --trace",
    "small.sqlite -o out --format json": "--format json writes no report: leave out --output and --open",
    "small.sqlite --open --format csv": "--format csv writes no report",
    f"compare {_PAIR} -o out --format json": "--output writes html, md and json, but --format says json",
    f"compare {_PAIR} -o x.md --format json": "--output writes md, but --format says json",
    "ranks small.sqlite -o out --format csv": "but --format says csv: give one of them",
    "sweep report demo:token_reduction -o out --format md": "but --format says md: give one of them",
    "roofline a.ncu-rep -o x.html --format json": "--output writes the chart alone, but --format says json",
    "report small.sqlite -o -": "reports are not written to standard output",
    "demo -o x.html": "x.html names one file, but several are written",
    "report small.sqlite -o out --format html,html": "html",
    "report small.sqlite -o x.pdf": "x.pdf: a file is written as .html, .md, .json: name such a file, or a folder",
    "report small.sqlite -o /proc/x": "/proc/x: nothing can be written there",
    "demo -o x.pdf": "x.pdf names one file, but several are written",
    "report small.sqlite -o out --window soon": "'soon'",
    "report small.sqlite -o out --cell other=small,512": "other",
    "report small.sqlite -o out --batch 0": "should be greater than or equal to 1",
    "report small.sqlite -o out --timings missing.csv": "missing.csv",
    f"compare {_PAIR} --window nonsense": "START:END",
    f"compare {_PAIR} --range nowhere": "deit224_bs1_baseline.sqlite.xz: ",
    f"compare {_PAIR} --flops 1e9": "write 35.1e9,11.1e9",
    f"compare {_PAIR} --fail-on abc": "'abc' is no limit",
    f"compare {_PAIR} --fail-on -5%": "'-5%' is no limit",
    f"compare {_PAIR} --fail-on 1e300%": "of at most 10000%",
    f"compare {_PAIR} --margin 100%": "write a percentage below 100%",
    f"compare {_PAIR} --level 99.99999999%": "write a percentage from 50% to 99.9999%",
    f"compare {_PAIR} --counters-baseline none.ncu-rep --counters-variant none.ncu-rep": "none.ncu-rep",
    f"compare {_PAIR} --range attention --window 3.4315s:3.43151s": "no GPU work of range 'attention' is in its window",
    f"compare {_MEASURED} --fail-on 5": "write a percentage, such as 5%",
    f"compare {_MEASURED} --window all": "--window and --range choose a part of a trace",
    f"compare {_MEASURED} --flops 2e9,1e9": "--flops tells what traces cannot",
    f"compare {_MEASURED} --counters-baseline x --counters-variant x": "stand beside traces",
    f"compare {_MEASURED} --baseline-where method": "no '='",
    f"compare {_MEASURED} --baseline-where method=nothing": "no cell has method=nothing",
    "compare nvtx.ncu-rep.xz nvtx.ncu-rep.xz --fail-on 5%": "gate on traces or measurements",
    "counters nvtx.ncu-rep.xz --compare": "--compare needs two reports or more",
    "counters nvtx.ncu-rep.xz graph_nodes.ncu-rep.xz --pair a=b": "add --compare",
    "counters nvtx.ncu-rep.xz graph_nodes.ncu-rep.xz --compare --pair a": "write BEFORE=AFTER",
    "counters nvtx.ncu-rep.xz graph_nodes.ncu-rep.xz --compare --pair a=scale": "there is no kernel 'a'",
    "counters nvtx.ncu-rep.xz graph_nodes.ncu-rep.xz --compare --trace small.sqlite": "ask for one at a time",
    "counters nvtx.ncu-rep.xz graph_nodes.ncu-rep.xz --compare --metric no__such": "no kernel has no__such in both",
    "counters nvtx.ncu-rep.xz --metric dram__bytes.sum.per_secnd": "was not collected",
    "export small.sqlite --to perfetto -o small.sqlite": "is read, and would be written over",
    "export small.sqlite --to perfetto -o -": "not written to standard output",
    "collect torch -o - -- python train.py": "not written to standard output",
    "sweep run -o - --baseline a --variant b": "not written to standard output",
    "bench lm -o -": "not written to standard output",
    f"policy fit demo:token_reduction {_SIDES} -o -": "not written to standard output",
    "roofline absent.ncu-rep --ceiling hbm=4T": "is not a roof",
    "roofline absent.ncu-rep --ceiling dram=fast": "is not a roof",
    "roofline absent.ncu-rep --ceiling dram=-1": "is not a roof",
    "roofline absent.ncu-rep --ceiling dram=4TFLOP/s": "is not a roof",
    "roofline absent.ncu-rep --ceiling fp32=60T --ceiling FP32=50T": "one roof twice",
    "--gpu H100 roofline absent.ncu-rep": "its roofs are the report's",
    "--gpu H100 counters nvtx.ncu-rep.xz": "add --trace",
    "roofline absent.ncu-rep -o roof.pdf": "a chart is written as .html, .png, .svg",
    "roofline absent.ncu-rep -o absent/roof.png": "there is no folder absent",
    "roofline demo:planted_h200 demo:planted_h200 -o roof.png": "the chart of one report",
    "sweep run": "needs --output FILE",
    "sweep run -o x.json": "needs --baseline and --variant",
    "sweep run -o /nowhere/x.json --baseline a --variant b": "folder that exists",
    "sweep run -o x.json --baseline a --variant b --rounds 3": "--rounds is for a workload",
    "sweep run lm -o x.json --baseline a --variant b --items n": "--items is for commands",
    "sweep run lm -o x.json --baseline a --variant b --processes 2": "point or all",
    "sweep run -o x.json --baseline a --variant b --level 0.9": "No such option: --level",
    "sweep run none -o x.json --baseline a=1 --variant a=2": "no workload 'none'",
    "sweep report x.json --axis n=1": "No such option: --axis",
    "sweep report x.json": "x.json",
    "sweep report x.json --level 95": "write a percentage below 100%",
    "sweep report x.json --margin some%": "write a percentage below 100%",
    "bench lm --interval 2": "write a percentage below 100%",
    "study lm-grid --processes many -o out": "point or all",
    "study lm-grid --collect -o out": "--collect are for the findings of token-reduction",
    "study token-reduction report --collect -o out": "to report on those that are there, give --profiles",
    "study token-reduction --launches 5 -o out": "say how to --collect",
    "study attention report -o . --profiles .": "token-reduction",
    "policy show demo:policies/token_reduction demo:policies/token_reduction": "takes one file",
    f"policy fit demo:token_reduction {_SIDES} --fail-on 2%": "--fail-on is not an option of policy fit",
    f"policy check demo:policies/token_reduction demo:token_reduction {_SIDES} --fail-on 2": "percentage",
    f"policy fit demo:token_reduction {_SIDES} --margin 200%": "percentage",
    "policy fit demo:token_reduction --baseline method --variant method=topk": "has no '='",
    f"policy fit demo:policies/token_reduction {_SIDES}": "token_reduction.json",
    "policy show nothing.json": "cannot be read",
    f"policy fit demo:token_reduction {_SIDES} --output no/such/folder/policy.json": "a folder that exists",
    "bench show x.json --size small": "No such option: --size",
    "bench lm x.json": "x.json",
    "bench lm --kernel flash": "No such option: --kernel",
    "bench lm --context many": "--context takes a number, not 'many'",
    "bench lm --context 128,128": "names something twice",
    "bench token-reduction --schedule 0.5,x": "numbers joined by +",
    "bench attention --causal maybe": "yes or no (true or false, 1 or 0)",
    "bench lm --range-name softmax": "WHAT=NAME",
    "bench lm --rounds 8 --flush-l2": "exclude one another",
    "bench lm --output /nowhere/x.json": "folder that exists",
}


@pytest.mark.parametrize("line", REFUSED)
def test_it_is_refused_in_one_line_and_nothing_is_written(line, warplens, export, tmp_path, monkeypatch, pytestconfig):
    monkeypatch.chdir(tmp_path)
    shutil.copy(export, tmp_path)
    for name in ("nvtx", "graph_nodes"):
        shutil.copy(pytestconfig.rootpath / _MODES / f"{name}.ncu-rep.xz", tmp_path)
    run = warplens(*shlex.split(line))

    said = [text for text in run.err.splitlines() if not text.startswith(("caution: ", "note: "))]
    assert (run.code, run.out, len(said)) == (2, "", 1)
    assert said[0].startswith("error: ")
    assert REFUSED[line] in said[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "graph_nodes.ncu-rep.xz", "nvtx.ncu-rep.xz", "small.sqlite",
    ]  # fmt: skip
    assert (tmp_path / "small.sqlite").read_bytes() == export.read_bytes()


@pytest.mark.parametrize(
    ("text", "share"),
    [("2%", 0.02), ("0.02", 0.02), ("0%", 0.0), ("0", 0.0), ("250%", 2.5), ("2", None), ("1", None), ("-0.02", None)],
)
def test_a_share_is_a_percentage_or_a_number_below_one(text: str, share: float | None) -> None:
    assert share_in(text) == share
