#!/usr/bin/env bash
# Tests the vector backends of the kernels, each on a processor that has its instructions.
#
#   tools/test-simd.sh [--force-emulation]
#
# The test binary `simd` of peregrine-kernels runs once here, for all that this processor has, and once under emulate.sh
# for each of avx2, avx512 and ifma that it has not; with --force-emulation, for each of them as well. The emulated
# processor has nothing beyond the set in question, so that an instruction of a later set does not go unnoticed.
#
# What is emulated needs `emulate.sh --setup` once, and with the Bochs of build-bochs.sh about four minutes of processor
# time per set.
#
# Prints a line per set: where it ran, the tests that passed, and the rows that were compared with the reference.
# Fails if a test fails, or if a set was not detected or compared fewer than 2,000 rows.
#
# From the environment:
#   EMULATED_ROWS  rows per table under emulation, 100 if not given: an emulator is 70 times slower or more
#   EMULATED_TIME  seconds for each emulated run, 1800 if not given
#
# What the test binary is told: EXPECT_ISA, the backends that must be detected; PEREGRINE_SIMD_ONLY, those to test;
# PEREGRINE_SIMD_ROWS, the most rows per table. It prints `checked BACKEND N rows`.
set -euo pipefail

readonly SETS=(avx2 avx512 ifma)
readonly MINIMUM=2000
declare -A features=(
  [avx2]="avx2 bmi2 adx"
  [avx512]="avx2 bmi2 adx avx512f avx512vl avx512dq avx512bw"
  [ifma]="avx2 bmi2 adx avx512f avx512vl avx512dq avx512bw avx512ifma"
)
declare -A backends=([avx2]=avx2 [avx512]=avx512 [ifma]="ifma,ifma256")
declare -A summary
failures=0

case ${1-} in
  "") forced= ;;
  --force-emulation) forced=yes ;;
  --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
  *)
    echo "test-simd: unknown option $1 (see --help)" >&2
    exit 2
    ;;
esac
tools=$(cd "$(dirname "$0")" && pwd)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

here() {
  local feature
  for feature in ${features[$1]}; do
    grep -qw -m1 "flags.* $feature" /proc/cpuinfo || return
  done
}

# judge SET HOW STATUS: reads the log of a run.
judge() {
  local backend passed rows verdict=ok
  passed=$(sed -n 's/.*test result: ok\. \([0-9]*\) passed.*/\1/p' "$log")
  summary[$1]="$2, ${passed:-no} tests passed"
  [[ $3 == 0 && ${passed:-0} != 0 ]] || verdict="FAILED (status $3)"
  for backend in ${backends[$1]//,/ }; do
    rows=$(grep -ao "checked $backend [0-9]* rows" "$log" | awk '{ rows += $3 } END { print rows + 0 }' || true)
    summary[$1]+=", $backend $rows rows"
    if ((rows < MINIMUM)) && [[ $verdict == ok ]]; then
      verdict="FAILED (fewer than $MINIMUM rows)"
    fi
  done
  summary[$1]+=": $verdict"
  [[ $verdict == ok ]] || failures=$((failures + 1))
}

cd "$tools/.."
binary=$(cargo test --release -p peregrine-kernels --test simd --no-run --message-format json-render-diagnostics |
  sed -n 's/.*"name":"simd".*"executable":"\([^"]*\)".*/\1/p')
[[ -x $binary ]] || {
  echo "test-simd: cargo built no test binary" >&2
  exit 1
}

natively=()
emulated=()
for set in "${SETS[@]}"; do
  if [[ ! $forced ]] && here "$set"; then
    natively+=("$set")
  else
    emulated+=("$set")
  fi
done

if ((${#natively[@]})); then
  expected=$(for set in "${natively[@]}"; do echo "${backends[$set]}"; done | paste -sd ,)
  echo "== here: $expected"
  status=0
  start=$SECONDS
  EXPECT_ISA=$expected "$binary" --nocapture >"$log" || status=$?
  ((status == 0)) || cat "$log"
  for set in "${natively[@]}"; do
    judge "$set" "here in $((SECONDS - start)) s" "$status"
  done
fi
for set in ${emulated[@]+"${emulated[@]}"}; do
  echo "== emulated: ${backends[$set]}"
  status=0
  start=$SECONDS
  "$tools/emulate.sh" --cpu "$set" --timeout "${EMULATED_TIME:-1800}" --env "EXPECT_ISA=${backends[$set]}" \
    --env "PEREGRINE_SIMD_ONLY=${backends[$set]}" --env "PEREGRINE_SIMD_ROWS=${EMULATED_ROWS:-100}" \
    "$binary" --nocapture >"$log" || status=$?
  ((status == 0)) || cat "$log"
  judge "$set" "emulated in $((SECONDS - start)) s" "$status"
done

for set in "${SETS[@]}"; do
  echo "$set: ${summary[$set]}"
done
((failures == 0))
