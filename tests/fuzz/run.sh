#!/bin/sh
# Looks for more with one fuzz target, FUZZ_SECONDS long (20): run.sh TARGET
# CORPUS FOUND. What ends the process lies in FOUND as crash-..., leak-... or
# timeout-..., and its name is printed.
set -eu
target=$1 corpus=$2 found=$3
mkdir -p "$found/inputs"
log=$found/log
bad=0
# longer inputs than any of the corpus lead nowhere new
"$target" -max_total_time="${FUZZ_SECONDS:-20}" -timeout=25 -max_len=8192 \
    -print_final_stats=1 -artifact_prefix="$found/" "$found/inputs" "$corpus" \
    >"$log" 2>&1 || bad=$?
n=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
echo "${target##*/}: ${n:-0} executions, exit code $bad"
[ "$bad" = 0 ] && exit 0
tail -n 60 "$log"
find "$found" -maxdepth 1 -type f ! -name log -print
exit 1
