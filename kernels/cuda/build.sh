#!/usr/bin/env bash
# Makes scan.ptx, which is committed: whoever builds or runs Peregrine needs no CUDA.
#
#   kernels/cuda/build.sh           makes it anew
#   kernels/cuda/build.sh --check   fails if the committed one isn't what the sources give, if the main kernel spills or takes
#                                   more than 128 registers on one of the architectures below, or if a multiplication takes
#                                   more than 160 instructions or a row more than 3,100 clocks of a multiprocessor on sm_90
#   kernels/cuda/build.sh --counts  prints registers, spills and counts
set -euo pipefail
cd "$(dirname "$0")"
export LC_ALL=C
bin=$(./toolkit.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
architectures="80 89 90 120"

# The oldest architecture that is aimed at; drivers translate for newer ones. Without the lines that name the compiler's build,
# and in the oldest version of the language that has everything used here: a driver refuses a newer one than its own.
ptx() {
  "$bin/nvcc" -std=c++17 -O3 -ptx -arch=compute_80 -o "$work/new.ptx" scan.cu
  sed -e '/^\/\//d' -e 's/^\.version .*/.version 7.0/' "$work/new.ptx" >"$1"
  "$bin/ptxas" -arch=sm_80 -o "$work/new.cubin" "$1"
}

counts() {
  printf '%-6s %-18s %9s %13s %11s\n' arch kernel registers "spilled bytes" stack
  for architecture in $architectures; do
    "$bin/nvcc" -std=c++17 -O3 -arch="sm_$architecture" --cubin -Xptxas -v -o "$work/scan.cubin" scan.cu 2>&1 |
      awk -v arch="sm_$architecture" '
        /Compiling entry function/ { match($0, /peregrine_[a-z]+/); kernel = substr($0, RSTART, RLENGTH); own = 0 }
        /Function properties for/ { own = ($NF == kernel); others = !own }
        /bytes stack frame/ { if (own) { stack = $1; spilled = $5 + $9 } else if ($5 + $9 > 0) { elsewhere[kernel] += $5 + $9 } }
        /Used [0-9]+ registers/ {
          match($0, /Used [0-9]+/)
          printf "%-6s %-18s %9d %13d %11d\n", arch, kernel, substr($0, RSTART + 5, RLENGTH - 5), spilled, stack
        }
        END { for (kernel in elsewhere) printf "%-6s %-18s %9s %13d   in functions it calls\n", arch, kernel, "", elsewhere[kernel] }'
  done
  echo
  printf '%-6s %-8s %13s %10s %16s\n' arch what instructions "wide IMAD" "clocks per warp"
  for architecture in $architectures; do
    "$bin/nvcc" -std=c++17 -O3 -arch="sm_$architecture" --cubin -o "$work/counts.cubin" counts.cu
    "$bin/cuobjdump" -sass "$work/counts.cubin" | awk -v arch="sm_$architecture" '
      # Products of 32 bits to 64: a quarter of a multiprocessor takes one every 4 clocks for a warp, all else every second.
      function finish() {
        if (name == "") return
        total[name] = all; products[name] = wide
        printf "%-6s %-8s %13d %10d %16.1f\n", arch, name, all, wide, wide * 4
      }
      /Function : count_/ { finish(); name = $NF; sub(/count_/, "", name); all = 0; wide = 0 }
      /^ *\/\*[0-9a-f]+\*\/ / {
        op = $2 ~ /^@/ ? $3 : $2
        if (op ~ /^(LD|ST|NOP|BRA|EXIT|ULD|S2|MOV\.?$)/) next
        all++
        if (op ~ /IMAD\.WIDE/) wide++
      }
      END {
        finish()
        # A row: 125.4 doublings and 46.6 additions of the ladder, 19 of the comb, about 100 multiplications besides (the
        # table, two shares of an inversion, denominators, one label). Four quarters work at once on 32 rows each.
        row = 125.4 * products["double"] + 65.6 * products["add"] + 100 * products["mul"]
        printf "%-6s a row: %d wide products, %.0f clocks of a multiprocessor\n", arch, row, row * 4 / (4 * 32)
      }'
  done
}

case ${1:-} in
  "") ptx "$work/scan.ptx" && cp "$work/scan.ptx" scan.ptx ;;
  --counts) counts ;;
  --check)
    ptx "$work/scan.ptx"
    cmp "$work/scan.ptx" scan.ptx || { echo "scan.ptx isn't what the sources give: run kernels/cuda/build.sh" >&2; exit 1; }
    counts | tee "$work/counts"
    awk '
      /peregrine_ladder/ && NF == 5 { seen++; if ($3 > 128 || $4 > 0) { print "too many registers, or spills: " $0; bad = 1 } }
      /in functions it calls/ { print "spills: " $0; bad = 1 }
      $1 == "sm_90" && $2 == "mul" { seen++; if ($3 > 160) { print "a multiplication takes too long: " $0; bad = 1 } }
      $1 == "sm_90" && $2 == "a" { seen++; if ($7 > 3100) { print "a row takes too long: " $0; bad = 1 } }
      END { if (seen != 6) { print "the counts are not what they were"; bad = 1 } exit bad }' "$work/counts" >&2
    ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
