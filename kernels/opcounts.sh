#!/bin/sh
# Counts the instructions of the multiplication kernels in a release build and fails where a kernel has more
# multiplications than it needs: compilers have been seen to turn 32-bit multiplications into 64-bit ones.
set -eu
cd "$(dirname "$0")/.."
cargo build --quiet --release -p peregrine-kernels --example speed
examples="${CARGO_TARGET_DIR:-target}/release/examples"
objdump -d --no-show-raw-insn -C "$examples/speed" | awk '
    /^[0-9a-f]+ <.*>:$/ {
        name = $0
        sub(/^[0-9a-f]+ </, "", name); sub(/>:$/, "", name)
        wanted = 0
        if (name ~ / as .*Mul32>::.*::kernel$/ || name ~ /::sample_/) {
            wanted = 1
            sub(/^<?peregrine_kernels::(arch|testing)::/, "", name)
            sub(/ as .*Mul32>/, "", name)
            order[++names] = name
        }
        next
    }
    wanted && NF > 1 {
        op = $2
        if (op ~ /^(int3|nop|vzeroupper|ret)/) next
        total[name]++
        if (op ~ /^vpmul(u|)dq$/ || op ~ /^vpmadd52/) products[name]++
        else if (op ~ /^(vmov|vpbroadcast)/) moves[name]++
        else if (op ~ /^vp/) vector[name]++
    }
    END {
        printf "%-32s %9s %9s %9s %9s\n", "kernel", "products", "other", "moves", "all"
        for (i = 1; i <= names; i++) {
            name = order[i]
            printf "%-32s %9d %9d %9d %9d\n", name, products[name], vector[name], moves[name], total[name]
            square = name ~ /sqr/
            limit = name ~ /sample_/ ? (square ? 42 : 62) : (square ? 58 : 94)
            if (products[name] > limit) { print "too many multiplications in " name; bad = 1 }
        }
        if (names < 14) { print "found only " names " kernels"; bad = 1 }
        exit bad
    }'
