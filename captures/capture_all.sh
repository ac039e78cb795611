#!/usr/bin/env bash
# Records every profile of captures/README.md on this machine's GPU. Needs nsys, and a python3 with torch.
#
#   captures/capture_all.sh OUT [PART …]      parts: timings paradox graphs copies lm aborted (default: all)
#
# Leaves one .nsys-rep, one .sqlite and one .log a profile in OUT, and the host timings as CSV. Environment: NSYS (the
# command), SIZES and CONTEXTS (the language-model grid), MEMORY_LIMIT_GB (of the aborted step).
set -euo pipefail
out=$(realpath -m "${1:?usage: capture_all.sh OUT [PART …]}") && shift
parts=("$@") && ((${#parts[@]})) || parts=(timings paradox graphs copies lm aborted)
nsys=${NSYS:-nsys}
read -ra sizes <<<"${SIZES:-small medium}"
read -ra contexts <<<"${CONTEXTS:-128 256 512 1024}"
cd "$(dirname "$0")"
mkdir -p "$out"

# record NAME [NSYS OPTION …] -- PROGRAM …
record() {
  local name=$1 options=() begin=$SECONDS && shift
  while [[ $1 != -- ]]; do options+=("$1") && shift; done
  shift
  "$nsys" profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --force-overwrite=true "${options[@]}" \
    --output="$out/$name" python3 "$@" >"$out/$name.log" 2>&1 || { tail -n 20 "$out/$name.log" && return 1; }
  echo "$name ($((SECONDS - begin)) s): $(grep median "$out/$name.log")"
}

# From cudaProfilerStart on: no model set-up, no first steps that load kernels. Not "stop" at cudaProfilerStop: nsys would
# then note that events might be missing.
scoped=(--capture-range=cudaProfilerApi --capture-range-end=none)

timings() { # without a profiler: the truth that the profiles are compared with
  rm -f "$out"/{lm,deit}_timings.csv
  local vit=(python3 vit_topk.py --warmup 20 --steps 50 --timings "$out/deit_timings.csv")
  "${vit[@]}" --input-size 224 --batch 1
  "${vit[@]}" --input-size 224 --batch 1 --keep 0.1
  "${vit[@]}" --input-size 224 --batch 1 --cuda-graph
  "${vit[@]}" --input-size 224 --batch 1 --keep 0.1 --cuda-graph
  "${vit[@]}" --input-size 448 --batch 8
  "${vit[@]}" --input-size 448 --batch 8 --keep 0.1
  local lm=(python3 transformer_lm.py --mode forward train --timings "$out/lm_timings.csv")
  "${lm[@]}" --size small medium large --context 128 256 512 1024 --warmup 5 --steps 10
  "${lm[@]}" --size xl 2.7B --context 128 256 512 1024 --warmup 3 --steps 5
}

paradox() { # the whole run, start-up included: finding the workload in it is part of the exercise
  record deit224_bs1_baseline -- vit_topk.py --input-size 224 --batch 1
  record deit224_bs1_topk0.1 -- vit_topk.py --input-size 224 --batch 1 --keep 0.1
  record deit448_bs8_baseline -- vit_topk.py --input-size 448 --batch 8
  record deit448_bs8_topk0.1 -- vit_topk.py --input-size 448 --batch 8 --keep 0.1
}

graphs() { # the pass of deit224_bs1_baseline, replayed; traced as one interval, and node by node
  record deit224_bs1_graph_whole "${scoped[@]}" --cuda-graph-trace=graph -- vit_topk.py --cuda-graph
  record deit224_bs1_graph_nodes "${scoped[@]}" --cuda-graph-trace=node -- vit_topk.py --cuda-graph
}

copies() {
  record copies_and_syncs --cuda-memory-usage=true -- copies_and_syncs.py
}

lm() {
  for size in "${sizes[@]}"; do
    for context in "${contexts[@]}"; do
      local cell=(transformer_lm.py --size "$size" --context "$context" --sync step --warmup 4)
      record "lm_${size}_ctx${context}_forward" "${scoped[@]}" -- "${cell[@]}" --mode forward --recorded-warmup 1 --steps 3
      # Records of training are large: only those of the small model hold a warm-up step.
      local recorded_warmup=0
      [[ $size == small ]] && recorded_warmup=1
      record "lm_${size}_ctx${context}_train" "${scoped[@]}" -- "${cell[@]}" --mode train \
        --recorded-warmup $recorded_warmup --steps 2
    done
  done
}

aborted() { # The first training step fits. The second finds the optimizer's moments in memory; its backward pass does not.
  local cell=(transformer_lm.py --size large --context 1024 --sync step)
  record lm_large_ctx1024_forward "${scoped[@]}" -- "${cell[@]}" --mode forward --warmup 4 --recorded-warmup 1 --steps 3
  # From 60.0 to 60.8 GB it is the backward pass that fails (torch 2.11), below the forward pass, above nothing.
  record lm_large_ctx1024_train "${scoped[@]}" --cuda-memory-usage=true -- "${cell[@]}" --mode train \
    --warmup 1 --recorded-warmup 0 --steps 1 --memory-limit-gb "${MEMORY_LIMIT_GB:-60.43}"
}

for part in "${parts[@]}"; do "$part"; done

# Exports last, and beside each other: they would disturb the profiles.
for profile in "$out"/*.nsys-rep; do
  [[ -e $profile ]] || continue
  "$nsys" export --type sqlite --force-overwrite=true --output="${profile%.nsys-rep}.sqlite" "$profile" >/dev/null &
done
wait
