#!/usr/bin/env bash
# Records the counters of the planted kernels (captures/README.md) on this machine's GPU. Needs nvcc, ncu, and a python3
# with torch.
#
#   captures/capture_counters.sh OUT
#
# Leaves planted_h200.ncu-rep, its log, and the times of the kernels without a profiler in OUT. Environment: NVCC, NCU,
# PYTHON (the commands), ARCHITECTURE (sm_90).
set -euo pipefail
out=$(realpath -m "${1:?usage: capture_counters.sh OUT}")
here=$(realpath "$(dirname "$0")")
python=$(command -v "${PYTHON:-python3}")
ncu=$(command -v "${NCU:-ncu}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$out"
cd "$folder"
"${NVCC:-nvcc}" -O3 -std=c++17 -arch="${ARCHITECTURE:-sm_90}" -o planted_kernels "$here/planted_kernels.cu"
cp "$here"/{common,planted_gemm}.py .

{ ./planted_kernels --times && "$python" planted_gemm.py --times; } | tee "$out/planted_h200.txt"

# A report keeps the environment and the command line of what it watches: let there be nothing in them. The two programs
# go into one report. The detailed set has all that the analyses ask for but these sections.
env -i PATH="$(dirname "$python"):/usr/bin:/bin" HOME="$folder" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" \
  "$ncu" --target-processes all --profile-from-start off --clock-control none --import-source no --set detailed \
  --section MemoryWorkloadAnalysis_Tables --section SchedulerStats --section WarpStateStats --section InstructionStats \
  --section SpeedOfLight_HierarchicalSingleRooflineChart --section SpeedOfLight_HierarchicalTensorRooflineChart \
  --force-overwrite --export planted_h200 sh -c './planted_kernels && python3 planted_gemm.py' \
  >"$out/planted_h200.log" 2>&1 || { tail -n 20 "$out/planted_h200.log" && exit 1; }
cp planted_h200.ncu-rep "$out"
