#!/usr/bin/env bash
# Everything for a machine with a graphics card, in one call: builds, says what is there, compares every row with the
# reference, times one key with the change label, and writes a report.
#
#   benches/gpu.sh [--backends cuda,wgpu] [--rows "1000000 10000000 100000000"] [--out report.md]
#
# Without Rust it takes the program that PEREGRINE names, or `peregrine` from the path. No CUDA toolkit is needed. 100 million
# rows take 9 GiB of the machine's memory and 9 GiB of each card's (with less, rows are brought for every scan).
set -euo pipefail

backends="" rows="1000000 10000000 100000000" out=gpu-report.md
while [ $# -gt 0 ]; do
  case "$1" in
    --backends) backends=$2; shift 2 ;;
    --rows) rows=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

program=${PEREGRINE:-}
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "$program" ] && command -v cargo >/dev/null && [ -f "$root/Cargo.toml" ]; then
  (cd "$root" && cargo build --release --locked --quiet)
  program=${CARGO_TARGET_DIR:-$root/target}/release/peregrine
fi
program=${program:-peregrine}
command -v "$program" >/dev/null || { echo "no program: install Rust, or set PEREGRINE to the program" >&2; exit 1; }
# Not what a settings file says.
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export HOME=$home

devices=$("$program" devices)
printf '%s\n\n' "$devices"
if [ -z "$backends" ]; then
  grep -q '^cuda  *usable' <<<"$devices" && backends=cuda
  grep '^wgpu  *usable:' <<<"$devices" >/dev/null && backends=${backends:+$backends,}wgpu
fi
if [ -z "$backends" ]; then
  echo "no card is usable here, see above; name a backend to try it all the same: --backends wgpu" >&2
  exit 1
fi

{
  echo "# Peregrine on graphics cards"
  echo
  echo "$("$program" --version), $(uname -sm), $(date -u +%Y-%m-%d)"
  printf '\n```\n%s\n```\n' "$devices"
  if command -v nvidia-smi >/dev/null; then
    printf '\n```\n%s\n```\n' "$(nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv)"
  fi
} >"$out"

for count in $rows; do
  for how in "" --stream; do
    title="$count rows, $([ -z "$how" ] && echo "resident on the card" || echo "brought for every scan")"
    echo "== $title"
    # shellcheck disable=SC2086
    text=$("$program" bench --backend "$backends" --rows "$count" $how) || { printf '%s\n' "$text"; echo "it failed: $title" >&2; exit 1; }
    printf '%s\n\n' "$text"
    printf '\n## %s\n\n```\n%s\n```\n' "$title" "$text" >>"$out"
  done
done
echo "report: $out"
