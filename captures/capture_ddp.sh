#!/usr/bin/env bash
# Records data-parallel training on two GPUs (captures/ddp_straggler.py): each run with torch.profiler, a trace a rank, and
# with nsys, both ranks in one report. Needs two GPUs, nsys, and a python3 with torch; a minute and a half.
#
#   captures/capture_ddp.sh OUT [RUN …]      runs for nsys: healthy straggler-gpu straggler-host exposed (default: all)
#
# Leaves ddp_records.jsonl, ddp_torch.tar, ddp_nsys.tar (members compressed with xz) and ddp.log in OUT. Environment: NSYS,
# PYTHON (the commands), SLOW_MS (of the straggler).
set -uo pipefail # not -e: a run that fails must not cost the others
out=$(realpath -m "${1:?usage: capture_ddp.sh OUT [RUN …]}") && shift
runs=("$@") && ((${#runs[@]})) || runs=(straggler-gpu exposed healthy straggler-host)
python=${PYTHON:-python3} nsys=${NSYS:-nsys}
program=(ddp_straggler.py --slow-ms "${SLOW_MS:-12}" --records "$out/ddp_records.jsonl")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/nsys"
rm -f "$out/ddp_records.jsonl"
cd "$(dirname "$0")" || exit
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# bundle NAME FILE … : compresses beside each other, into one archive
bundle() {
  local archive=$out/$1.tar && shift
  [[ -e ${1:-} ]] || { echo "nothing for $archive" && return; }
  printf '%s\0' "$@" | xargs -0 -n 1 -P 16 "$python" -c \
    'import lzma, sys; from pathlib import Path; p = Path(sys.argv[1]); Path(f"{p}.xz").write_bytes(lzma.compress(p.read_bytes(), preset=6))'
  tar -C "$(dirname "$1")" -cf "$archive" $(for file in "$@"; do echo "$(basename "$file").xz"; done)
  ls -l "$archive"
}

{
  timeout 120 "$python" "${program[@]}" --torch "$work/torch"
  echo "torch: $SECONDS s"
  bundle ddp_torch "$work"/torch/*.json
  for run in "${runs[@]}"; do
    # Not "stop" at cudaProfilerStop: nsys would then note that events might be missing.
    timeout 60 "$nsys" profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --force-overwrite=true \
      --capture-range=cudaProfilerApi --capture-range-end=none --output="$work/nsys/ddp_$run" \
      "$python" "${program[@]}" --runs "$run" || echo "$run failed"
    echo "nsys $run: $SECONDS s"
  done
  for report in "$work"/nsys/*.nsys-rep; do
    [[ -e $report ]] || continue
    "$nsys" export --type=sqlite --force-overwrite=true --output="${report%.nsys-rep}.sqlite" "$report" >/dev/null &
  done
  wait
  bundle ddp_nsys "$work"/nsys/*.sqlite
  echo "together: $SECONDS s"
} 2>&1 | tee "$out/ddp.log"
