#!/usr/bin/env bash
# Records tiny programs with Nsight Systems, each in another way. Needs nsys, nvcc, and a python3 with torch; a minute.
#
#   captures/capture_recording_modes.sh OUT        leaves OUT/NAME.nsys-rep and OUT/NAME.sqlite
set -uo pipefail
out=$(realpath -m "${1:?usage: capture_recording_modes.sh OUT}")
cd "$(dirname "$0")"
mkdir -p "$out"
nsys=${NSYS:-nsys}
program=$(mktemp -d)/recording_modes
nvcc -O2 -std=c++17 -o "$program" recording_modes.cu ${NVTX_INCLUDE:+-I "$NVTX_INCLUDE"} || exit 1

# record NAME [NSYS OPTION …] -- PROGRAM …
record() {
  local name=$1 options=() && shift
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  shift
  timeout 60 "$nsys" profile --sample=none --cpuctxsw=none --force-overwrite=true --capture-range=cudaProfilerApi \
    "${options[@]}" --output="$out/$name" "$@" >"$out/$name.log" 2>&1 || { echo "$name failed" && tail -n 5 "$out/$name.log"; }
}
until_end=(--trace=cuda,nvtx --capture-range-end=none)

record graph_nodes "${until_end[@]}" --cuda-graph-trace=node -- "$program" graph &
record graph_whole "${until_end[@]}" --cuda-graph-trace=graph -- "$program" graph &
record memory_usage "${until_end[@]}" --cuda-memory-usage=true -- "$program" memory &
record two_processes "${until_end[@]}" -- sh -c "$program graph & $program threads; wait" &
wait
record osrt --trace=cuda,nvtx,osrt --capture-range-end=none -- "$program" threads &
record nvtx_domains "${until_end[@]}" -- "$program" nvtx &
record memset_nothing "${until_end[@]}" -- "$program" memset &
record launches_queued --trace=cuda,nvtx --capture-range-end=stop -- "$program" queued &
record two_threads "${until_end[@]}" -- "$program" threads &
wait
record python_backtrace "${until_end[@]}" --python-backtrace=cuda -- python3 recording_modes.py &
record python_sampling "${until_end[@]}" --python-sampling=true --python-sampling-frequency=1000 -- python3 recording_modes.py &
record python_backtrace_cpu --trace=cuda,nvtx,python-gil --capture-range-end=none --cudabacktrace=all --python-backtrace=cuda \
  -- python3 recording_modes.py &
wait
for profile in "$out"/*.nsys-rep; do
  timeout 60 "$nsys" export --type sqlite --force-overwrite=true --output="${profile%.nsys-rep}.sqlite" "$profile" >/dev/null &
done
wait
