#!/usr/bin/env bash
# Records one small report for each way in which Nsight Compute takes a result (captures/README.md): ranges, graphs and
# their nodes, NVTX, clusters, sparse products, the full set, replays of the application. Needs nvcc and ncu.
#
#   captures/capture_counter_modes.sh OUT
#
# Leaves counter_modes.tar.xz in OUT: of each report the .ncu-rep, its log, and ncu's own raw CSV of it, the reference for
# a reader. A way that this ncu cannot go leaves its log alone. Environment: NVCC, NCU (the commands), ARCHITECTURE (sm_90).
set -euo pipefail
out=$(realpath -m "${1:?usage: capture_counter_modes.sh OUT}")
here=$(realpath "$(dirname "$0")")
ncu=$(command -v "${NCU:-ncu}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$out" "$folder/counter_modes"
cd "$folder"
"${NVCC:-nvcc}" -O3 -std=c++17 -arch="${ARCHITECTURE:-sm_90}" -o counter_modes/counter_modes "$here/counter_modes.cu"
cd counter_modes

# record NAME MODE [NCU OPTION …]: MODE is what the program runs. A report keeps the environment of what it watches: let
# there be nothing in it.
record() {
  local name=$1 mode=$2 begin=$SECONDS && shift 2
  if env -i PATH=/usr/bin:/bin HOME="$folder" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" "$ncu" --clock-control none \
    --import-source no --force-overwrite --export "$name" "$@" ./counter_modes "$mode" >"$name.log" 2>&1 &&
    [[ -f $name.ncu-rep ]]; then
    "$ncu" --import "$name.ncu-rep" --page raw --csv --print-units base >"$name.raw.csv" 2>>"$name.log" || true
    echo "$name ($((SECONDS - begin)) s): $(stat -c %s "$name.ncu-rep") bytes"
  else
    echo "$name: not recorded" && tail -n 5 "$name.log"
  fi
}

light=(--section SpeedOfLight --section MemoryWorkloadAnalysis)
launch=(--section SpeedOfLight --section LaunchStats --section Occupancy)
tensor=(--section SpeedOfLight_HierarchicalSingleRooflineChart --section SpeedOfLight_HierarchicalTensorRooflineChart)

record ranges ranges --replay-mode range "${light[@]}"
record app_ranges ranges --replay-mode app-range "${light[@]}"
record nvtx_ranges kernels --replay-mode range --nvtx --nvtx-include step/ "${light[@]}"
record graph graph --graph-profiling graph "${light[@]}"
record graph_nodes graph --graph-profiling node "${launch[@]}"
record nvtx kernels --nvtx --nvtx-include step/elementwise/ "${launch[@]}"
record clusters kernels --kernel-name clustered_sum --launch-count 1 "${launch[@]}"
record products kernels --kernel-name 'regex:products' --launch-count 2 "${launch[@]}" "${tensor[@]}"
record application kernels --replay-mode application --cache-control none --kernel-name scale --launch-count 1 "${launch[@]}"
record full kernels --set full --kernel-name add --launch-count 1

rm -f counter_modes
cd ..
tar -cJf "$out/counter_modes.tar.xz" counter_modes
ls -l "$out/counter_modes.tar.xz"
