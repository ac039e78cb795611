"""The cases: every command, kind of document and format, over files that come with Warplens.

To add one, write it here and run `python -m tests.golden.update --only ID`. Cases name files only by their names, so
that they may move.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Final

from tests.golden.running import Case

_FORMATS: Final = ("table", "json", "csv", "md")

#: Recordings by what they have that others lack.
_CAPTURES: Final = {
    "topk": "deit224_bs1_topk0.1.sqlite.xz",  # launch-bound inference
    "train": "lm_small_ctx128_train.sqlite.xz",  # phases, backward pass on a thread of its own
    "copies": "copies_and_syncs.sqlite.xz",  # copies of every kind, waits, memory events
    "aborted": "lm_large_ctx1024_train.sqlite.xz",  # ran out of memory
    "graph": "deit224_bs1_graph_whole.sqlite.xz",  # no kernels
    "torch": "train_small_batch__baseline.json.xz",  # operators, shapes, backward pass
    "torch-vit": "vit_bs1__baseline.json.xz",
}

#: What can be asked of one profile, and what may make a row.
_TABLES: Final = {
    "budget": (),
    "headroom": (),
    "steps": (),
    "phases": ("phase", "step"),
    "kernels": (
        *("name", "full_name", "category", "library", "precision", "tensor_cores", "device", "stream", "process"),
    ),
    "ranges": ("tree", "name", "full_name"),
    "operators": ("name", "shapes", "tree", "module", "python"),
    "launches": ("name", "full_name", "api", "device", "process", "thread", "api,thread"),
    "flops": ("name", "shapes", "family", "phase", "precision", "device"),
    "memory": ("memory", "operator", "step", "event"),
    "copies": ("memory", "direction"),
    "api": ("name", "kind", "process", "thread", "name,kind,thread"),
}

#: Planted causes, one of each kind.
_PLANTED: Final = (
    "boolean_mask__baseline", "copy_in_the_way__baseline", "empty_cache_each_step__baseline", "for_loop_adam__baseline",
    "fp32_products__baseline", "healthy_lm_training__baseline", "item_per_layer__baseline",
    "no_caching_allocator__baseline", "pageable_input__baseline", "sleeping_input__baseline",
    "tiny_elementwise__baseline", "written_out_norms__baseline",
)  # fmt: skip

#: The others; those of several ranks, whose traces are a file each, stand below.
_PLANTED_REST: Final = (
    "aborted_step__baseline", "cpu_preprocessing__baseline", "deep_mlp_bs1__baseline", "deep_mlp_bs1__cuda-graph",
    "elementwise_chain__baseline", "even_stall_and_syncs__baseline", "four_blocks__baseline", "fp32_products__tf32",
    "fp32_training__baseline", "garbage_collection__baseline", "healthy_flash_attention__baseline",
    "healthy_gemm_loop__baseline", "healthy_graph_inference__baseline", "healthy_input_pipeline__baseline",
    "healthy_short_context_training__baseline", "healthy_training_with_log__baseline", "healthy_vit_batch__baseline",
    "item_per_layer__no-sync", "launches_and_copy__baseline", "lm_decode_one_token__baseline",
    "lookalike_launch__baseline", "lookalike_stall__baseline", "pageable_input__pinned", "pageable_output__baseline",
    "sleeping_input__prefetch", "small_kernels_graph__baseline", "stall_and_syncs__baseline",
    "stream_ping_pong__baseline", "synchronize_per_layer__baseline", "tiny_elementwise__cuda-graph",
    "train_small_batch__baseline", "vit_bs1__baseline", "vit_bs1__cuda-graph", "written_out_adam_large__baseline",
)  # fmt: skip
_PLANTED_ALONE: Final = (
    "ddp_exposed.sqlite", "ddp_exposed_rank0.json", "ddp_exposed_rank1.json", "ddp_straggler-gpu.sqlite",
    "ddp_straggler-gpu_rank0.json", "ddp_straggler-gpu_rank1.json", "vit_graph_whole__baseline.sqlite",
)  # fmt: skip

#: What adds least to the other cases for the time that it takes.
_SLOW: Final = (
    "answer/ranks-json", "answer/two-files", "report/counters", "report/grid", "study/findings",
    "report/grid-markdown", "report/counters-markdown", "counters/planted-csv", "counters/planted-md", "counters/trace",
    "tables/[aflmopr]*-graph-json",
    "bench/show-token_reduction_methods-*", "compare/measurements-csv", "compare/measurements-md",
    "compare/repeats-json", "compare/torch", "compare/traces-options-json", "counters/*-csv-export",
    "counters/chart-svg", "counters/compared-csv", "counters/compared-md", "counters/launches-csv",
    "counters/launches-md", "counters/metric", "counters/roofline-csv", "counters/roofline-md", "demo/*",
    "diagnose/*__baseline-table", "diagnose/aborted-[cm]*", "diagnose/graph-[cm]*", "diagnose/torch-vit-[cmt]*",
    "diagnose/train--window*", "groupings/*-all-table", "groupings/*-by-*-table", "groupings/*-by-*-train-json",
    "groupings/*-first-json", "groupings/*-quiet", "groupings/*-range-json", "planted-tables/*-sqlite",
    "planted-tables/memory-*", "planted/*", "report/aborted-*", "report/copies-html", "report/counters-alone",
    "report/grid-named", "report/several", "report/train-documents", "study/attention", "study/token-reduction",
    "sweep/options", "sweep/policy-fit", "sweep/profiles", "sweep/token-reduction-csv", "sweep/token-reduction-md",
    "tables/*-aborted-json", "tables/*-torch-csv", "tables/*-torch-vit-json",
)  # fmt: skip


def _case(name: str, line: str, place: Mapping[str, str | None] | None = None) -> Case:
    slow = any(fnmatch(name, pattern) for pattern in _SLOW)
    return Case(name, tuple(shlex.split(line)), place or {}, slow)


def _tables() -> Iterator[Case]:
    for label, file in _CAPTURES.items():
        for command in _TABLES:
            yield _case(f"tables/{command}-{label}-json", f"{command} {file} -f json")
    for command in _TABLES:
        for form in ("table", "csv", "md"):
            labels = ("train", "torch") if form == "table" else ("torch",)
            for label in labels:
                yield _case(f"tables/{command}-{label}-{form}", f"{command} {_CAPTURES[label]} -f {form}")
    for command in ("copies", "memory"):
        for form in ("table", "csv", "md"):
            yield _case(f"tables/{command}-copies-{form}", f"{command} {_CAPTURES['copies']} -f {form}")


def _groupings() -> Iterator[Case]:
    """Every value of `--by`, and the options that choose a part."""
    for command, keys in _TABLES.items():
        for key in keys:
            for label in ("train", "torch") if command not in ("copies", "memory") else ("copies", "torch"):
                name = f"groupings/{command}-by-{key}-{label}"
                yield _case(f"{name}-json", f"{command} {_CAPTURES[label]} --by {key} -f json")
            yield _case(f"{name}-table", f"{command} {_CAPTURES['torch']} --by {key} -n 5")
    for command in _TABLES:
        for part, option in (("all", "--window all"), ("span", "--window 100ms:"), ("range", "--range forward_pass")):
            line = f"{command} {_CAPTURES['train']} {option}"
            yield _case(f"groupings/{command}-{part}-json", f"{line} -f json")
        yield _case(f"groupings/{command}-all-table", f"{command} {_CAPTURES['torch']} --window all")
        yield _case(f"groupings/{command}-first-json", f"{command} {_CAPTURES['train']} --limit 2 -f json")
        yield _case(f"groupings/{command}-quiet", f"{command} {_CAPTURES['graph']} --quiet --limit 3")
    yield _case("groupings/ranges-operators-json", f"ranges {_CAPTURES['torch']} --operators -f json -n 200")
    yield _case("groupings/kernels-everything", f"kernels {_CAPTURES['topk']} --limit 0")


def _diagnoses() -> Iterator[Case]:
    for label, file in _CAPTURES.items():
        for form in _FORMATS:
            yield _case(f"diagnose/{label}-{form}", f"diagnose {file} -f {form}")
    for option in ("--window all", "--window 100ms:", "--range forward_pass"):
        yield _case(f"diagnose/train{option.replace(' ', '')}", f"diagnose {_CAPTURES['train']} {option} -f json")
    counters = f"diagnose {_CAPTURES['topk']} --counters planted_h200.ncu-rep.xz"
    yield _case("diagnose/counters-json", f"{counters} -f json")
    yield _case("diagnose/counters-table", counters)
    for name in _PLANTED:
        yield _case(f"diagnose/{name}-nsys", f"diagnose {name}.sqlite.xz -f json")
        yield _case(f"diagnose/{name}-torch", f"diagnose {name}.json.xz -f json")
        yield _case(f"diagnose/{name}-table", f"diagnose {name}.sqlite.xz")
    rest = [f"{name}.{kind}" for name in _PLANTED_REST for kind in ("sqlite", "json")]
    for file in (*rest, *_PLANTED_ALONE):
        yield _case(f"planted/{file}", f"diagnose {file}.xz -f json")


def _planted_tables() -> Iterator[Case]:
    for name in _PLANTED[::2]:
        for kind in ("sqlite", "json"):
            for command in ("kernels", "operators", "flops", "memory"):
                yield _case(f"planted-tables/{command}-{name}-{kind}", f"{command} {name}.{kind}.xz -f json")


def _reports() -> Iterator[Case]:
    for label, file in _CAPTURES.items():
        yield _case(f"report/{label}-json", f"report {file} -f json")
    for name in _PLANTED[1::3]:
        yield _case(f"report/{name}-json", f"report {name}.json.xz -f json")
    for label in ("train", "torch"):
        yield _case(f"report/{label}-documents", f"report {_CAPTURES[label]} -o out")
    for label in ("topk", "copies", "aborted", "graph"):
        yield _case(f"report/{label}-html", f"report {_CAPTURES[label]} -o out -f html")
    yield _case("report/all-json", f"report {_CAPTURES['train']} -f json --window all")
    yield _case("report/range-json", f"report {_CAPTURES['train']} -f json --range forward_pass")
    several = f"{_CAPTURES['topk']} {_CAPTURES['torch-vit']} small.sqlite.xz"
    yield _case("report/several", f"report {several} -o out -f md,html")
    yield _case("report/several-json", f"report {several} -f json")
    yield _case("report/partly-unreadable", "report text.sqlite small.sqlite.xz -f json")
    with_counters = f"report {_CAPTURES['topk']} planted_h200.ncu-rep.xz -o out"
    yield _case("report/counters", f"{with_counters} -f html,json")
    yield _case("report/counters-markdown", f"{with_counters} -f md")
    yield _case("report/counters-alone", "report full.ncu-rep.xz graph_nodes.ncu-rep.xz -o out")
    names = [
        f"lm_{size}_ctx{context}_{mode}.sqlite.xz"
        for size, context, mode in (
            ("small", 128, "forward"), ("small", 128, "train"), ("small", 512, "train"), ("medium", 128, "forward"),
            ("large", 1024, "train"),
        )
    ]  # fmt: skip
    folder = {f"profiles/{name}": name for name in names}
    yield _case("report/grid", "report profiles -o out -f html,json --timings lm_timings.csv --batch 4", folder)
    yield _case("report/grid-markdown", "report profiles -o out -f md --timings lm_timings.csv --batch 4", folder)
    cells = " ".join(f"--cell {file}={cell}" for file, cell in (("a", "one,128"), ("b", "one,512,forward")))
    placed = {"a.sqlite": "lm_small_ctx128_forward.sqlite.xz", "b.sqlite": "small.sqlite.xz"}
    cells = cells.replace("a=", "a.sqlite=").replace("b=", "b.sqlite=")
    yield _case("report/grid-named", f"report a.sqlite b.sqlite {cells} -o out -f md,json", placed)
    yield _case("demo/all", "demo -o out -f html,md,json")


def _answers() -> Iterator[Case]:
    """`warplens PATH…` and what it makes of the paths; each writes its page as well."""
    planted = "ddp_straggler-gpu"
    ranks = {f"run/{planted}_rank{rank}.json.xz": f"{planted}_rank{rank}.json.xz" for rank in range(2)}
    for name, paths, place in (
        ("file", _CAPTURES["topk"], None),
        ("file-of-two-gpus", f"{planted}.sqlite.xz", None),
        ("two-files", f"deit224_bs1_baseline.sqlite.xz {_CAPTURES['topk']}", None),
        ("ranks", "run", ranks),
        ("counters", f"{_CAPTURES['topk']} planted_h200.ncu-rep.xz", None),
        ("no-profile", "foreign.txt", None),
    ):
        yield _case(f"answer/{name}", f"answer {paths} -o out", place)
    yield _case("answer/ranks-json", "answer run -f json", ranks)


def _comparisons() -> Iterator[Case]:
    sides = "deit224_bs1_baseline.sqlite.xz deit224_bs1_topk0.1.sqlite.xz"
    for form in _FORMATS:
        yield _case(f"compare/traces-{form}", f"compare {sides} -f {form}")
    yield _case("compare/traces-documents", f"compare {sides} -o out")
    options = "--margin 5% --level 99% --window all --flops 35.1e9,11.1e9 --limit 3"
    yield _case("compare/traces-options", f"compare {sides} {options}")
    yield _case("compare/traces-options-json", f"compare {sides} {options} -f json")
    large = "deit448_bs8_baseline.sqlite.xz deit448_bs8_topk0.1.sqlite.xz"
    yield _case("compare/gate-passed", f"compare {large} --fail-on 5% -n 5")
    yield _case(
        "compare/gate-failed", "compare deit448_bs8_topk0.1.sqlite.xz deit448_bs8_baseline.sqlite.xz --fail-on 5%"
    )
    counters = "--counters-baseline graph_nodes.ncu-rep.xz --counters-variant nvtx.ncu-rep.xz"
    yield _case("compare/traces-with-counters", f"compare {sides} {counters} -n 3")
    yield _case("compare/formats", "compare vit_bs1__baseline.json.xz vit_bs1__cuda-graph.sqlite.xz -f json")
    yield _case("compare/torch", "compare item_per_layer__baseline.json.xz item_per_layer__no-sync.json.xz")
    yield _case("compare/graph", "compare deit224_bs1_baseline.sqlite.xz deit224_bs1_graph_whole.sqlite.xz -f json")
    repeats = {
        "before/1.sqlite.xz": "vit_bs1__baseline.sqlite.xz", "before/2.json.xz": "vit_bs1__baseline.json.xz",
        "after/1.sqlite.xz": "vit_bs1__cuda-graph.sqlite.xz", "after/2.json.xz": "vit_bs1__cuda-graph.json.xz",
    }  # fmt: skip
    yield _case("compare/repeats", "compare before after", repeats)
    yield _case("compare/repeats-json", "compare before after -f json", repeats)
    measured = "token_reduction.json.xz token_reduction.json.xz"
    where = "--baseline-where method=none,attention=explicit --variant-where method=topk"
    for form in _FORMATS:
        yield _case(f"compare/measurements-{form}", f"compare {measured} {where} -f {form}")
    yield _case("compare/measurements-documents", f"compare {measured} {where} -o out")
    yield _case("compare/measurements-gate", f"compare {measured} {where} --fail-on 5%")
    yield _case("compare/lm-measurements", "compare lm_grid.json.xz lm_grid.json.xz -n 4")
    for form in _FORMATS:
        yield _case(f"compare/counters-{form}", f"compare graph_nodes.ncu-rep.xz nvtx.ncu-rep.xz -f {form}")
    yield _case("compare/counters-documents", "compare graph_nodes.ncu-rep.xz nvtx.ncu-rep.xz -o out")


def _counters() -> Iterator[Case]:
    planted = "planted_h200.ncu-rep.xz"
    for form in _FORMATS:
        yield _case(f"counters/planted-{form}", f"counters {planted} -f {form}")
        yield _case(f"counters/launches-{form}", f"counters {planted} --by launch -f {form} --limit 40")
        yield _case(f"counters/roofline-{form}", f"roofline {planted} -f {form}")
    for name in ("full", "products", "nvtx", "ranges", "app_ranges", "graph", "clusters"):
        yield _case(f"counters/{name}", f"counters {name}.ncu-rep.xz -f json")
        yield _case(f"counters/{name}-csv-export", f"counters {name}.raw.csv.xz -f json")
        yield _case(f"counters/{name}-roofline", f"roofline {name}.ncu-rep.xz -f json")
    yield _case("counters/full-table", "counters full.ncu-rep.xz")
    yield _case("counters/metric", f"counters {planted} -m launch__registers_per_thread -m gpu__time_duration.sum")
    yield _case("counters/trace", f"counters {planted} --trace {_CAPTURES['topk']} --ncu-version 2025.3")
    yield _case("counters/trace-json", f"counters {planted} --trace {_CAPTURES['topk']} --window all -f json")
    three = "graph_nodes.ncu-rep.xz nvtx.ncu-rep.xz application.ncu-rep.xz"
    for form in _FORMATS:
        yield _case(f"counters/compared-{form}", f"counters {three} --compare -f {form}")
    yield _case("counters/ceilings", f"roofline {planted} --ceiling dram=4.2T --ceiling fp32=60T")
    for kind in ("html", "svg"):
        yield _case(f"counters/chart-{kind}", f"roofline {planted} -o roofline.{kind}")


def _ranks() -> Iterator[Case]:
    small = {f"run/rank{rank}.json.gz": f"rank{rank}.json.gz" for rank in range(3)}
    for form in _FORMATS:
        yield _case(f"ranks/small-{form}", f"ranks run --workers 1 -f {form}", small)
        yield _case(f"ranks/small-all-{form}", f"ranks run --workers 1 --window all -f {form}", small)
    yield _case("ranks/small-documents", "ranks run --workers 1 -o out", small)
    for name in ("ddp_exposed", "ddp_straggler-gpu"):
        files = f"{name}_rank0.json.xz {name}_rank1.json.xz"
        yield _case(f"ranks/{name}", f"ranks {files} --workers 1 -f json")
        yield _case(f"ranks/{name}-table", f"ranks {files} --workers 1 --limit 5")
        yield _case(f"ranks/{name}-nsys", f"ranks {name}.sqlite.xz --workers 1 -f json")
    yield _case("ranks/partly-unreadable", "ranks run torn_trace.json --workers 1", small)
    doubled = {**small, "run/other0.json.gz": "rank0.json.gz"}
    yield _case("ranks/doubled", "ranks run --workers 1", doubled)


def _sweeps() -> Iterator[Case]:
    for form in _FORMATS:
        yield _case(f"sweep/token-reduction-{form}", f"sweep report token_reduction.json.xz -f {form}")
        yield _case(f"sweep/published-{form}", f"sweep report published.csv -f {form}")
    yield _case("sweep/token-reduction-documents", "sweep report token_reduction.json.xz -o out")
    yield _case("sweep/published-documents", "sweep report published.csv -o out")
    yield _case("sweep/options", "sweep report token_reduction.json.xz --level 0.99 --margin 0.05 -f json")
    yield _case("sweep/lm-grid", "sweep report lm_grid.json.xz --baseline mode=forward --variant mode=train -f json")
    yield _case("sweep/lm-grid-large", "sweep report lm_grid_large.json.xz -f json")
    yield _case("sweep/policy-fit", "sweep report token_reduction_policy_fit.json.xz -f json")
    profiles = {
        f"profiles/input_size={size},batch={batch},execution=eager,{cell}": f"deit{size}_bs{batch}_{name}.sqlite.xz"
        for size, batch in ((224, 1), (448, 8))
        for name, cell in (
            ("baseline", "method=none,attention=explicit.sqlite.xz"), ("topk0.1", "method=topk.sqlite.xz"),
        )
    }  # fmt: skip
    yield _case("sweep/profiles", "sweep report token_reduction.json.xz --profiles profiles -f json", profiles)
    sides = "--baseline method=none --variant method=topk"
    yield _case("sweep/dry-run", f"sweep run token-reduction --axis batch=1,2 {sides} --dry-run -o out.json")
    for name in ("token_reduction", "token_reduction_methods", "lm_grid", "lm_executions", "attention"):
        for form in ("table", "json"):
            yield _case(f"bench/show-{name}-{form}", f"bench show {name}.json.xz -f {form}")
    for form in ("csv", "md"):
        yield _case(f"bench/show-token_reduction-{form}", f"bench show token_reduction.json.xz -f {form}")
    yield _case("bench/show-documents", "bench show lm_grid.json.xz --report out")


def _studies() -> Iterator[Case]:
    for study, file in (
        ("token-reduction", "token_reduction"), ("lm-grid", "lm_grid"), ("attention", "attention"),
    ):  # fmt: skip
        stored = {"study/measurements.json": f"{file}.json.xz"}
        yield _case(f"study/{study}", f"study {study} report -o study", stored)
        yield _case(f"study/{study}-dry-run", f"study {study} --dry-run -o out")
    profiles = {
        f"profiles/input_size=224,batch=1,{side}.sqlite.xz": f"deit224_bs1_{name}.sqlite.xz"
        for name, side in (("baseline", "method=none"), ("topk0.1", "method=topk,keep=0.1"))
    }
    findings = {**profiles, "study/measurements.json": "token_reduction.json.xz", "policy.json": "token_reduction.json"}
    yield _case(
        "study/findings", "study token-reduction report -o study --profiles profiles --policy policy.json", findings
    )


def _policies() -> Iterator[Case]:
    sides = "--baseline method=none,attention=explicit --variant method=topk"
    policy = {"policy.json": "token_reduction.json"}
    for form in _FORMATS:
        yield _case(f"policy/fit-{form}", f"policy fit token_reduction.json.xz {sides} -f {form}")
        yield _case(f"policy/show-{form}", f"policy show policy.json -f {form}", policy)
        check = "policy check policy.json token_reduction_policy_check.json.xz --fail-on 2%"
        yield _case(f"policy/check-{form}", f"{check} -f {form}", policy)
    yield _case("policy/fit-file", f"policy fit token_reduction.json.xz {sides} --margin 5% -o fitted.json")
    fallback = "--fallback method=topk"
    yield _case("policy/fit-fallback", f"policy fit token_reduction_policy_fit.json.xz {sides} {fallback} -f json")
    yield _case("policy/check-gate", f"policy check policy.json token_reduction.json.xz {sides} --fail-on 0%", policy)


def _handed_on() -> Iterator[Case]:
    for form in ("csv", "parquet", "perfetto"):
        for label in ("copies", "torch"):
            yield _case(f"export/{label}-{form}", f"export {_CAPTURES[label]} --to {form} -o exported")
    yield _case("export/small-csv", "export small.sqlite.xz --to csv")
    yield _case("export/counters", "export planted_h200.ncu-rep.xz --to csv -o exported")
    yield _case("scrub/nsys", "scrub small.sqlite copy.sqlite", {"small.sqlite": "small.sqlite.xz"})
    yield _case("scrub/nsys-again", f"scrub {_CAPTURES['copies']} copy.sqlite")
    yield _case("scrub/torch", "scrub four_blocks__baseline.json.xz copy.json.gz")
    yield _case("scrub/rank", "scrub rank0.json.gz copy.json")
    yield _case("scrub/counters", "scrub nvtx.ncu-rep.xz copy.ncu-rep")
    yield _case("scrub/counters-csv", "scrub nvtx.raw.csv.xz copy.csv")
    yield _case("scrub/timings", "scrub lm_timings.csv copy.csv")
    yield _case("scrub/timings-refused", "scrub deit_timings.csv copy.csv")


def _helps() -> Iterator[Case]:
    yield _case("help/warplens", "--help")
    yield _case("help/nothing", "")
    yield _case("help/version", "--version")
    for command in (
        *(
            "answer",
            "demo",
            "report",
            "diagnose",
            "compare",
            *_TABLES,
            "counters",
            "roofline",
            "ranks",
            "bench",
            "sweep",
            "study",
        ),
        *("policy", "collect", "doctor", "export", "scrub", "cache"),
    ):
        yield _case(f"help/{command}", f"{command} --help")
    for line in ("bench lm", "bench token-reduction", "bench attention", "bench show", "sweep run", "sweep report"):
        yield _case(f"help/{line.replace(' ', '-')}", f"{line} --help")


def _errors() -> Iterator[Case]:
    lines = {
        "no-such-command": "kernel small.sqlite.xz",
        "no-such-option": "kernels small.sqlite.xz --sort time",
        "no-file-named": "kernels",
        "missing-file": "kernels nothing.sqlite",
        "a-text-as-export": "kernels text.sqlite",
        "a-text-as-text": "kernels foreign.txt",
        "a-torn-trace": "kernels torn_trace.json",
        "torn-measurements": "sweep report torn.json",
        "debug": "steps text.sqlite --quiet",
        "no-such-window": "kernels small.sqlite.xz --window soon",
        "empty-window": "kernels small.sqlite.xz --window 2ms:1ms",
        "window-outside": "kernels small.sqlite.xz --window 100s:200s",
        "no-such-range": "kernels small.sqlite.xz --range backward",
        "no-ranges-at-all": "report small.sqlite.xz plain.sqlite.xz -f json --range step",
        "no-such-key": "kernels small.sqlite.xz --by colour",
        "doubled-key": "launches small.sqlite.xz --by api,api",
        "no-such-format": "kernels small.sqlite.xz -f xml",
        "negative-limit": "kernels small.sqlite.xz -n -1",
        "counters-as-trace": "kernels nvtx.ncu-rep.xz",
        "trace-as-counters": "counters small.sqlite.xz",
        "measurements-as-trace": "diagnose token_reduction.json.xz",
        "report-without-files": "report",
        "report-empty-folder": "report empty",
        "report-to-a-file": "report small.sqlite.xz -o foreign.txt",
        "report-no-such-format": "report small.sqlite.xz -f pdf",
        "report-no-grid": "report small.sqlite.xz --batch 4 -o out",
        "report-bad-cell": "report small.sqlite.xz --cell small -o out",
        "compare-kinds": "compare token_reduction.json.xz small.sqlite.xz",
        "compare-kinds-of-counters": "compare small.sqlite.xz nvtx.ncu-rep.xz",
        "compare-workloads": "compare token_reduction.json.xz lm_grid.json.xz",
        "compare-percentage": "compare small.sqlite.xz small.sqlite.xz --fail-on 0.05",
        "compare-level": "compare small.sqlite.xz small.sqlite.xz --level 5%",
        "compare-where": "compare token_reduction.json.xz token_reduction.json.xz --baseline-where method=nothing",
        "compare-where-of-traces": "compare small.sqlite.xz small.sqlite.xz --baseline-where method=none",
        "compare-one-counters": "compare small.sqlite.xz small.sqlite.xz --counters-baseline nvtx.ncu-rep.xz",
        "counters-pair": "counters nvtx.ncu-rep.xz application.ncu-rep.xz --compare --pair one",
        "roofline-suffix": "roofline nvtx.ncu-rep.xz -o chart.pdf",
        "roofline-ceiling": "roofline nvtx.ncu-rep.xz --ceiling dram",
        "ranks-nothing": "ranks torn_trace.json --workers 1",
        "ranks-one-of-none": "ranks nothing --workers 1",
        "sweep-no-sides": "sweep report token_reduction_methods.json.xz",
        "sweep-level": "sweep report token_reduction.json.xz --level 5",
        "sweep-setting": "sweep report token_reduction.json.xz --baseline kind=a",
        "sweep-wrong-half": "sweep report token_reduction.json.xz --rounds 3",
        "sweep-no-file": "sweep report",
        "study-unknown": "study nothing",
        "study-axis": "study lm-grid --axis width=3",
        "study-rounds": "study lm-grid --rounds 3",
        "study-no-measurements": "study lm-grid report -o out",
        "study-policy-alone": "study token-reduction report -o out --policy policy.json",
        "policy-check-alone": "policy check token_reduction.json",
        "policy-option": "policy show token_reduction.json -o x.json",
        "policy-of-measurements": "policy show token_reduction.json.xz",
        "policy-fallback": "policy fit token_reduction.json.xz --baseline method=none,attention=explicit"
        " --variant method=topk --fallback tome",
        "bench-unknown": "bench nothing",
        "bench-show-nothing": "bench show",
        "bench-option": "bench lm --keep 0.5",
        "export-target": "export small.sqlite.xz --to excel",
        "export-onto-itself": "export small.sqlite.xz --to perfetto -o small.sqlite.xz",
        "export-counters": "export nvtx.ncu-rep.xz --to perfetto -o out",
        "export-folder": "export small.sqlite.xz --to perfetto -o absent/out",
        "scrub-onto-a-file": "scrub small.sqlite.xz foreign.txt",
        "scrub-torn": "scrub torn_trace.json copy.json",
        "collect-nothing": "collect nsys",
        "collect-unknown": "collect perf -- true",
        "doctor-unknown": "doctor --require rocm",
    }
    for name, line in lines.items():
        yield _case(f"errors/{name}", line, {"empty": None} if "empty" in line.split() else None)


def _python() -> Iterator[Case]:
    yield Case("python/names", ())


CASES: Final = tuple(
    case
    for group in (
        _tables, _groupings, _diagnoses, _planted_tables, _reports, _answers, _comparisons, _counters, _ranks, _sweeps,
        _studies, _policies, _handed_on, _helps, _errors, _python,
    )
    for case in group()
)  # fmt: skip
