#!/usr/bin/env bash
# Builds a Bochs that is several times faster than Debian's, for emulate.sh, which prefers it once it is there.
#
#   tools/build-bochs.sh
#
# Debian compiles Bochs with its debugger, which rules out the optimizations that chain decoded instructions.
# This takes the source that Debian publishes for Bochs 3.0 (pinned by its hash), compiles it with them, and leaves
# the one binary in ${XDG_CACHE_HOME:-~/.cache}/peregrine/emulator. It takes about three minutes of processor time and
# needs g++, make, curl and xz (as root, what is missing is installed). JOBS=N sets the number of compilers.
set -euo pipefail

readonly SOURCE=bochs_3.0+dfsg.orig.tar.xz
readonly SHA256=78f6c73d4a6472d5130a87ab9dc306d02c7c71ed8e25b3a8ef642e2a7acd282b
readonly PLACES=(
  https://deb.debian.org/debian/pool/main/b/bochs
  http://deb.debian.org/debian/pool/main/b/bochs
)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/peregrine/emulator

fail() {
  echo "build-bochs: $*" >&2
  exit 1
}

if [[ -x $cache/bochs ]]; then
  echo "build-bochs: $cache/bochs is there already" >&2
  exit 0
fi

missing=()
for tool in g++ make curl xz; do
  command -v "$tool" >/dev/null || missing+=("${tool/#xz/xz-utils}")
done
if ((${#missing[@]})); then
  ((EUID == 0)) || fail "missing: ${missing[*]} (apt-get install them, or run this as root)"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/build"
cd "$work/build"
fetched=
for place in "${PLACES[@]}"; do
  if curl -sSfL --retry 3 -m 120 -o ../source "$place/$SOURCE" && sha256sum --quiet -c - <<<"$SHA256  ../source"; then
    fetched=yes
    break
  fi
done
[[ $fetched ]] || fail "could not fetch $SOURCE"
tar -xJf ../source --strip-components=1

# Only a processor, memory, a CD drive and serial lines are used: no display, no sound, no network, no plugins.
options=(
  --with-nogui --disable-plugins --disable-docbook --disable-debugger --disable-show-ips
  --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-all-optimizations
)
if ! { ./configure "${options[@]}" CFLAGS=-O3 CXXFLAGS="-O3 -fomit-frame-pointer" && make -j"${JOBS:-$(nproc)}" bochs; } \
  >../log 2>&1; then
  tail -n 30 ../log >&2
  fail "the build failed"
fi
strip bochs
mkdir -p "$cache"
mv bochs "$cache/bochs.new.$$"
mv "$cache/bochs.new.$$" "$cache/bochs"
echo "build-bochs: $cache/bochs" >&2
