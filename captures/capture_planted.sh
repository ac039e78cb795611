#!/usr/bin/env bash
# Times and records every case of the planted-cause suite (captures/README.md) on this machine's GPU. Needs nsys, and a
# python3 with torch and numpy; five minutes.
#
#   captures/capture_planted.sh OUT [OPTION …]      options: see `python3 -m planted.drive --help`
#
# Leaves planted_timings.json, manifest.json, nsys_*.tar and torch_*.tar in OUT. Environment: NSYS, PYTHON (the commands).
set -euo pipefail
out=$(realpath -m "${1:?usage: capture_planted.sh OUT [OPTION …]}") && shift
cd "$(dirname "$0")"
exec "${PYTHON:-python3}" -m planted.drive "$out" "$@"
