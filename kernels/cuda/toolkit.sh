#!/usr/bin/env bash
# Prints where NVIDIA's compiler is, and fetches it first where it is missing: a pinned version, from pip, into a folder of its
# own under ${XDG_CACHE_HOME:-~/.cache}/peregrine. Neither building Peregrine nor running it needs this, only changing the
# kernels and checking their PTX.
#
#   kernels/cuda/toolkit.sh            fails where it can't be had
#   kernels/cuda/toolkit.sh --offline  fails where it isn't there yet
set -euo pipefail

version=13.5.37
dir=${XDG_CACHE_HOME:-$HOME/.cache}/peregrine/cuda-$version
bin=$dir/nvidia/cu13/bin
if [ ! -x "$bin/nvcc" ] || [ ! -e "$dir/nvidia/cu13/lib/libnvrtc.so.13" ]; then
  [ "${1:-}" != --offline ] || { echo "no CUDA compiler: kernels/cuda/toolkit.sh fetches it" >&2; exit 1; }
  partial=$dir.partial
  rm -rf "$partial"
  python3 -m pip install --quiet --no-input --disable-pip-version-check --only-binary :all: --target "$partial" \
    nvidia-cuda-nvcc==$version nvidia-nvvm==$version nvidia-cuda-crt==$version nvidia-cuda-runtime==$version \
    nvidia-cuda-cuobjdump==$version nvidia-cuda-nvdisasm==$version nvidia-cuda-nvrtc==$version >&2
  rm -rf "$dir"
  mv "$partial" "$dir"
fi
echo "$bin"
