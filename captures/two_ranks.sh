#!/usr/bin/env bash
# Runs the programs of captures/two_ranks_more.py, or of another MODULE, on two GPUs: timings and torch.profiler's traces
# of each, then nsys of each. Needs two GPUs, nsys, and a python3 with torch, transformers and timm; stops by itself
# within BUDGET seconds.
#
#   captures/two_ranks.sh OUT [PROGRAM …]      (default: all that `MODULE list` names)
#
# Leaves two_ranks.log, timings.jsonl, torch_N.tar and nsys_N.tar (members compressed with xz, up to 14 MB an archive) in
# OUT, each as it comes. Environment: MODULE (the script beside this one, two_ranks_more.py), NSYS, PYTHON (the commands),
# BUDGET (seconds, 470), RANGE_END (of nsys; not "stop" at cudaProfilerStop, after which nsys notes that events might be
# missing), MOST (archives of each sort, 3).
set -uo pipefail # not -e: a run that fails must not cost the others
out=$(realpath -m "${1:?usage: two_ranks.sh OUT [PROGRAM …]}") && shift
programs=("$@")
export out module=${MODULE:-two_ranks_more.py} python=${PYTHON:-python3} nsys=${NSYS:-nsys} most=${MOST:-3} budget=${BUDGET:-470}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export work
mkdir -p "$out"
rm -f "$out"/timings.jsonl "$out"/torch_[0-9].tar "$out"/nsys_[0-9].tar
cd "$(dirname "$0")" || exit
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 # multicast can put GPUs that others share out of service
((${#programs[@]})) || mapfile -t programs < <("$python" "$module" list | "$python" -c 'import json, sys; print(*json.load(sys.stdin), sep="\n")')
((${#programs[@]})) || { echo "$module lists no programs" && exit 1; }

# packed SORT FILE: compresses the file, and puts it into the first archive of that sort with room
packed() {
  nice "$python" -c 'import lzma, sys; from pathlib import Path; p = Path(sys.argv[1]); Path(f"{p}.xz").write_bytes(lzma.compress(p.read_bytes(), preset=6))' "$2" || return
  (
    flock 9
    length=$(stat -c %s "$2.xz")
    for ((n = 0; n < most; n++)); do
      archive=$out/$1_$n.tar
      if [[ ! -e $archive ]] || (($(stat -c %s "$archive") + length < 14000000)); then
        ((length < 14000000)) && tar -C "$(dirname "$2")" -rf "$archive" "$(basename "$2").xz" && rm -f "$2" "$2.xz" && exit
      fi
    done
    echo "no room for $(basename "$2").xz ($length bytes)"
  ) 9>"$work/lock"
}

exported() {
  timeout 60 "$nsys" export --type=sqlite --force-overwrite=true --output="$work/$1.sqlite" "$work/$1.nsys-rep" >/dev/null
  packed nsys "$work/$1.sqlite"
}

# left MOST KEPT: seconds that a run may take, 0 if it is too late for one
left() {
  local seconds=$((budget - SECONDS - $2))
  ((seconds > $1)) && seconds=$1
  ((seconds < 15)) && seconds=0
  echo "$seconds"
}

{
  port=29511
  for program in "${programs[@]}"; do
    begin=$SECONDS limit=$(left 70 20) port=$((port + 1))
    ((limit)) || { echo "time $program: no time left" && continue; }
    MASTER_PORT=$port timeout -k 5 "$limit" "$python" "$module" time "$program" "$work" ||
      echo "time $program failed: $?"
    [[ -e $work/$program.json ]] && cat "$work/$program.json" >>"$out/timings.jsonl" && echo >>"$out/timings.jsonl"
    echo "time $program: $((SECONDS - begin)) s, $SECONDS s together"
  done
  for trace in "$work"/*.pt.trace.json; do # only now: compressing would disturb the timings
    [[ -e $trace ]] && packed torch "$trace" &
  done
  for program in "${programs[@]}"; do
    begin=$SECONDS limit=$(left 70 20) port=$((port + 1))
    ((limit)) || { echo "nsys $program: no time left" && continue; }
    MASTER_PORT=$port timeout -k 5 "$limit" "$nsys" profile --trace=cuda,nvtx --sample=none --cpuctxsw=none \
      --force-overwrite=true --capture-range=cudaProfilerApi --capture-range-end="${RANGE_END:-none}" \
      --output="$work/$program" "$python" "$module" nsys "$program" "$work" || echo "nsys $program failed: $?"
    [[ -e $work/$program.nsys-rep ]] && exported "$program" &
    echo "nsys $program: $((SECONDS - begin)) s, $SECONDS s together"
  done
  wait
  ls -l "$out"
  echo "together: $SECONDS s"
} 2>&1 | tee "$out/two_ranks.log"
