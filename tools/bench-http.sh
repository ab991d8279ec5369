#!/usr/bin/env bash
# Measures the HTTP interfaces of Peregrine on a regtest chain with blocks as dense as the main chain's (735 rows each): requests
# per second by class and number of connections, from a process of its own.
# Usage: tools/bench-http.sh [DIR]     DIR keeps the chain and the index between runs (default: a cache folder)
#
# BLOCKS (288), SECONDS_EACH (5) and CONNECTIONS (1,16,64,256) change how much is done. Needs curl and xxd.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/peregrine
dir=${1:-$cache/bench-http}
bitcoind=${BITCOIND:-$(tools/build-bitcoind.sh)}
blocks=${BLOCKS:-288} rpc=18843 web=127.0.0.1:18851
cookie=$dir/node/regtest/.cookie
mkdir -p "$dir/node"

cargo build --release --locked --quiet -p peregrine -p peregrine-benches
target=${CARGO_TARGET_DIR:-target}/release
work=$(mktemp -d)
stop() {
  kill "$(cat "$work/serve.pid" 2>/dev/null)" "$(cat "$work/node.pid" 2>/dev/null)" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT

"$bitcoind" -regtest -datadir="$dir/node" -rpcport=$rpc -server -rest -txindex=0 -listen=0 -connect=0 -printtoconsole=0 \
  -rpcthreads=8 -rpcworkqueue=256 &
echo $! >"$work/node.pid"
until [ -f "$cookie" ]; do sleep 0.2; done
sleep 2
height() { curl -s --user "$(cat "$cookie")" --data '{"method":"getblockcount","params":[]}' http://127.0.0.1:$rpc/ | sed 's/[^0-9]*\([0-9]*\).*/\1/'; }
if [ "$(height)" -lt 10 ]; then
  "$target/electrum-load" silent-chain --node http://127.0.0.1:$rpc --cookie "$cookie" --blocks "$blocks"
fi
"$target/peregrine" serve --network regtest --datadir "$dir/peregrine" --node http://127.0.0.1:$rpc --cookie "$cookie" \
  --electrum off --electrum-tls off --esplora $web --native $web --http-cache 512 >"$work/serve.log" 2>&1 &
echo $! >"$work/serve.pid"
tip=$(height)
until curl -sf "http://$web/v1/silent/info" 2>/dev/null | grep -q "\"ready\":true" &&
  [ "$(curl -sf "http://$web/blocks/tip/height")" = "$tip" ]; do sleep 0.5; done

# A hundred of each, of the last blocks.
first=$((tip - 99))
for h in $(seq $first "$tip"); do
  hash=$(curl -sf "http://$web/block-height/$h")
  echo "/v1/silent/tweaks/$h" >>"$work/tweaks"
  echo "/v1/silent/tweaks/$h?outputs=true" >>"$work/rows"
  echo "/block/$hash" >>"$work/blocks"
  echo "/block/$hash/header" >>"$work/headers"
  echo "/block/$hash/txs" >>"$work/txs"
  curl -sf "http://$web/block/$hash/txs" >"$work/page"
  grep -o '"txid":"[0-9a-f]\{64\}","version"' "$work/page" | sed 's/"txid":"\(.*\)","version"/\/tx\/\1/' | sed -n 3p >>"$work/transactions"
  script=$(grep -o '"scriptpubkey":"5120[0-9a-f]*"' "$work/page" | sed -n 5p | cut -d'"' -f4)
  hashed=$(printf '%s' "$script" | xxd -r -p | sha256sum | cut -d' ' -f1)
  echo "/scripthash/$hashed/txs" >>"$work/histories"
  echo "/scripthash/$hashed" >>"$work/sums"
done
echo "/v1/silent/tweaks/$first-$tip" >"$work/ranges"
echo "/blocks/tip/height" >"$work/tip"

for class in tip headers blocks transactions txs histories sums tweaks rows ranges; do
  "$target/http-load" --server $web --paths "$work/$class" --name "$class" --seconds "${SECONDS_EACH:-5}" \
    --connections "${CONNECTIONS:-1,16,64,256}"
done
