#!/usr/bin/env bash
# Everything that must hold before a change lands: formatting, lints, documentation, and all tests, among them those
# against a real Bitcoin Core (built once, see build-bitcoind.sh). Prints at the end how many of those ran.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "formatting"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

step "aarch64"
if rustup target list --installed 2>/dev/null | grep -q aarch64-unknown-linux-gnu; then
  cargo check -p peregrine-kernels --target aarch64-unknown-linux-gnu --locked --quiet
else
  echo "SKIPPED: the aarch64 target isn't installed (rustup target add aarch64-unknown-linux-gnu)"
fi

step "instruction counts of the kernels"
kernels/opcounts.sh

step "PTX, registers and instruction counts of the CUDA kernels"
if kernels/cuda/toolkit.sh --offline >/dev/null 2>&1; then
  kernels/cuda/build.sh --check
else
  echo "SKIPPED: the CUDA compiler isn't there (kernels/cuda/toolkit.sh fetches it)"
fi

step "SIMD backends, emulated where this processor lacks them"
tools/test-simd.sh

step "a real Bitcoin Core"
PEREGRINE_BITCOIND=$(tools/build-bitcoind.sh)
export PEREGRINE_BITCOIND
version=$("$PEREGRINE_BITCOIND" -version | head -n 1)
echo "$version"

step "tests"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --workspace --locked 2>&1 | tee "$log"

node_tests=$(grep -cE '^test ([a-z0-9_]+::)*node_[a-z0-9_]+ \.\.\. ok$' "$log" || true)
skipped=$(grep -c '^SKIPPED' "$log" || true)
step "all tests passed; $node_tests node tests ran against $version; $skipped checks were skipped (see SKIPPED above)"
if [ "$node_tests" -eq 0 ]; then
  echo "no node test ran, which can't be right" >&2
  exit 1
fi
