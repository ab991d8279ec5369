#!/usr/bin/env bash
# Builds the Bitcoin Core that the node tests run against, and prints the path of its bitcoind.
#
#   tools/build-bitcoind.sh            builds once into ${XDG_CACHE_HOME:-~/.cache}/peregrine/bitcoind-30.99,
#                                      which is where the tests look; afterwards it only prints the path
#   tools/build-bitcoind.sh FOLDER     the same into another folder (then set PEREGRINE_BITCOIND=FOLDER/bitcoind)
#
# The source is the one that the crate libbitcoinkernel-sys carries, so that cargo's registry is all that is needed:
# Core 30.99 with REST (spent outputs included) and ZMQ, without wallet and GUI. It takes about 17 minutes of one core.
# On Debian and Ubuntu, root gets missing packages installed; everybody else is told which ones.
set -euo pipefail

crate_version=0.2.0
packages="cmake ninja-build g++ libboost-dev libevent-dev libzmq3-dev pkgconf"
target=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/peregrine/bitcoind-30.99}

say() { echo "build-bitcoind: $*" >&2; }
die() { say "$*"; exit 1; }
works() { [ -x "$target/bitcoind" ] && "$target/bitcoind" -version >/dev/null 2>&1; }

# Shows the end of a log only when the command failed.
quietly() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "failed: $*"; }
}

have_tools() {
  local tool
  for tool in cmake ninja g++ pkg-config; do command -v "$tool" >/dev/null || return 1; done
  pkg-config --exists libevent libzmq || return 1
  echo '#include <boost/version.hpp>' | g++ -E -x c++ - >/dev/null 2>&1
}

if works; then echo "$target/bitcoind"; exit 0; fi
command -v cargo >/dev/null || die "cargo is missing"

# Two builds at once would only take turns on the processor; the second waits and finds the result of the first.
parent=$(dirname "$target")
mkdir -p "$parent"
parent=$(cd "$parent" && pwd)
target=$parent/$(basename "$target")
if command -v flock >/dev/null; then
  exec 9>"$parent/.build-bitcoind.lock"
  flock 9
  if works; then echo "$target/bitcoind"; exit 0; fi
fi

if ! have_tools; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $packages"
    apt-get update -qq >&2
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >&2
  else
    die "needs (names as on Debian): $packages"
  fi
fi

# Everything happens beside the target, so that the last steps are renames: an interrupted build leaves nothing behind
# that looks finished.
work=$(mktemp -d "$parent/.building.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "fetching the source"
mkdir -p "$work/fetch/src"
: >"$work/fetch/src/lib.rs"
cat >"$work/fetch/Cargo.toml" <<TOML
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"

[dependencies]
libbitcoinkernel-sys = "=$crate_version"

[workspace]
TOML
quietly "$work/fetch.log" cargo vendor --manifest-path "$work/fetch/Cargo.toml" "$work/vendor"
source="$work/vendor/libbitcoinkernel-sys/bitcoin"
[ -f "$source/src/rest.cpp" ] || die "the crate doesn't carry the source that was expected"

# The crate leaves out src/ipc, of which init.cpp needs one exception type.
if [ ! -f "$source/src/ipc/exception.h" ]; then
  mkdir -p "$work/extra/ipc"
  cat >"$work/extra/ipc/exception.h" <<CPP
#pragma once
#include <stdexcept>
namespace ipc {
struct Exception : std::runtime_error { using std::runtime_error::runtime_error; };
}
CPP
fi

say "building, this takes a while"
quietly "$work/configure.log" cmake -G Ninja -S "$source" -B "$work/build" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DAPPEND_CPPFLAGS="-I$work/extra" \
  -DWITH_ZMQ=ON -DENABLE_WALLET=OFF -DENABLE_IPC=OFF -DENABLE_EXTERNAL_SIGNER=OFF -DWITH_EMBEDDED_ASMAP=OFF \
  -DBUILD_TESTS=OFF -DBUILD_BENCH=OFF -DBUILD_GUI=OFF -DBUILD_BITCOIN_BIN=OFF -DINSTALL_MAN=OFF -DWITH_CCACHE=OFF
quietly "$work/build.log" ninja -C "$work/build" bitcoind bitcoin-cli

cd "$work/build/bin"
strip bitcoind bitcoin-cli 2>/dev/null || true
./bitcoind -version >/dev/null || die "the bitcoind that was built doesn't run"
mkdir -p "$target"
# bitcoind comes last, because it is what tells that the build is complete.
mv -f bitcoin-cli "$target/"
mv -f bitcoind "$target/"
echo "$target/bitcoind"
