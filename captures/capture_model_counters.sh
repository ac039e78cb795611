#!/usr/bin/env bash
# Records counters of one step of DeiT-B/16 with and without token reduction, at both sizes (data/counters). Needs ncu,
# and a python3 with torch. A step has some 200 launches of 35 passes each; what is not done after LIMIT seconds is left
# out, so that a report begins with the first launches of the step.
#
#   captures/capture_model_counters.sh OUT
set -euo pipefail
out=$(realpath -m "${1:?usage: capture_model_counters.sh OUT}")
python=$(command -v "${PYTHON:-python3}")
ncu=$(command -v "${NCU:-ncu}")
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
mkdir -p "$out"
cd "$(dirname "$0")"
metrics=
for way in mem_global_op_ld mem_global_op_st; do
  metrics+=,l1tex__t_requests_pipe_lsu_$way.sum,l1tex__t_sectors_pipe_lsu_$way.sum
  metrics+=,l1tex__average_t_sectors_per_request_pipe_lsu_$way.ratio,smsp__sass_average_data_bytes_per_sector_$way.ratio
done

# count NAME [OPTION …]
count() {
  local name=$1 && shift
  env -i PATH="$(dirname "$python"):/usr/bin:/bin" HOME="$home" LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" \
    timeout "${LIMIT:-110}" "$ncu" --target-processes all --profile-from-start off --clock-control none \
    --import-source no --nvtx --section SpeedOfLight --section LaunchStats --section Occupancy \
    --section MemoryWorkloadAnalysis --section MemoryWorkloadAnalysis_Tables --section WarpStateStats \
    --metrics "${metrics#,}" --force-overwrite --export "$out/$name" \
    python3 vit_topk.py "$@" --warmup 3 --recorded-warmup 0 --steps 1 >"$out/$name.log" 2>&1 || tail -n 1 "$out/$name.log"
}
count deit224_bs1_baseline --input-size 224 --batch 1
count deit224_bs1_topk0.1 --input-size 224 --batch 1 --keep 0.1
count deit448_bs8_baseline --input-size 448 --batch 8
count deit448_bs8_topk0.1 --input-size 448 --batch 8 --keep 0.1
