#!/usr/bin/env bash
# Compares Peregrine with electrs and ElectrumX on one machine, one node and one chain: the first load and the refresh of a
# wallet of 3,000 used addresses on a regtest chain of a million transactions, warm and cold.
# Usage: tools/bench-peers.sh [DIR]     DIR keeps the chain and the indexes between runs (default: a cache folder)
#
# Needs, and says so where it lacks them:
#   a Bitcoin Core 31 or later in BITCOIND (both peers ask for it); for ElectrumX compiled as tools/build-bitcoind.sh does
#   electrs in ELECTRS        cargo install electrs --version 0.12.0 --locked
#   ElectrumX in ELECTRUMX    pip install e-x==2.0.0 plyvel; the file electrumx_server
# ROUNDS, TRANSACTIONS and COLD_ROUNDS change how much is done.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/peregrine
dir=${1:-$cache/bench-peers}
bitcoind=${BITCOIND:-$cache/bitcoind-31.99/bitcoind}
electrs=${ELECTRS:-$cache/peers/bin/electrs}
electrumx=${ELECTRUMX:-$cache/peers/ex/bin/electrumx_server}
for program in "$bitcoind" "$electrs" "$electrumx"; do
  [ -x "$program" ] || { echo "missing: $program (see the head of $0)" >&2; exit 1; }
done
mkdir -p "$dir/node"
rpc=18743 peregrine_port=18751 electrs_port=18752 electrumx_port=18753
cookie=$dir/node/regtest/.cookie wallet=$dir/wallet.txt

[ "${BENCH_PEERS_RESTART:-}" != "" ] || cargo build --release --locked --quiet -p peregrine -p peregrine-benches
load=${CARGO_TARGET_DIR:-target}/release/electrum-load
peregrine=${CARGO_TARGET_DIR:-target}/release/peregrine

stop_all() {
  for name in peregrine electrs electrumx; do stop "$name"; done
  if [ -f "$dir/node.pid" ]; then kill "$(cat "$dir/node.pid")" 2>/dev/null || true; fi
}
stop() {
  if [ -f "$dir/$1.pid" ]; then
    kill "$(cat "$dir/$1.pid")" 2>/dev/null || true
    for _ in $(seq 200); do kill -0 "$(cat "$dir/$1.pid")" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$(cat "$dir/$1.pid")" 2>/dev/null || true
    rm -f "$dir/$1.pid"
  fi
}
start() {
  case $1 in
    peregrine)
      "$peregrine" serve --network regtest --datadir "$dir/peregrine" --node http://127.0.0.1:$rpc --cookie "$cookie" \
        --electrum 127.0.0.1:$peregrine_port --electrum-tls off >"$dir/peregrine.log" 2>&1 & ;;
    electrs)
      "$electrs" --network regtest --db-dir "$dir/electrs" --daemon-dir "$dir/node" --daemon-rpc-addr 127.0.0.1:$rpc \
        --electrum-rpc-addr 127.0.0.1:$electrs_port --monitoring-addr 127.0.0.1:18754 --cookie-file "$cookie" \
        >"$dir/electrs.log" 2>&1 & ;;
    electrumx)
      mkdir -p "$dir/electrumx"
      # Without limits, and with all the batching that it allows.
      env COIN=Bitcoin NET=regtest DB_DIRECTORY="$dir/electrumx" DB_ENGINE=leveldb ALLOW_ROOT=1 \
        DAEMON_URL="http://$(cat "$cookie")@127.0.0.1:$rpc/" SERVICES=tcp://127.0.0.1:$electrumx_port PEER_DISCOVERY=off \
        COST_SOFT_LIMIT=0 COST_HARD_LIMIT=0 MAX_SEND=100000000 MAX_RECV=100000000 INITIAL_CONCURRENT=100 \
        REQUEST_TIMEOUT=600 CACHE_MB=1200 "$electrumx" >"$dir/electrumx.log" 2>&1 & ;;
  esac
  echo $! >"$dir/$1.pid"
}
# Called by the load generator before each cold measurement.
if [ "${BENCH_PEERS_RESTART:-}" != "" ]; then
  stop "$2"
  sync
  echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || echo "the caches of the system stay warm: that needs root" >&2
  start "$2"
  exit 0
fi
trap stop_all EXIT

"$bitcoind" -regtest -datadir="$dir/node" -rpcport=$rpc -server -rest -txindex=1 -txospenderindex=1 -listen=0 -connect=0 \
  -printtoconsole=0 -dbcache=1000 -rpcthreads=8 -rpcworkqueue=256 &
echo $! >"$dir/node.pid"
until [ -f "$cookie" ]; do sleep 0.2; done
sleep 2
if [ ! -f "$wallet" ]; then
  "$load" chain --node http://127.0.0.1:$rpc --cookie "$cookie" --wallet "$wallet" --transactions "${TRANSACTIONS:-1000000}"
fi
height=$(curl -s --user "$(cat "$cookie")" --data '{"method":"getblockcount","params":[]}' http://127.0.0.1:$rpc/ | sed 's/[^0-9]*\([0-9]*\).*/\1/')
for name in peregrine electrs electrumx; do
  begun=$(date +%s)
  port=${name}_port
  start "$name"
  "$load" wait --server 127.0.0.1:${!port} --height "$height"
  echo "$name has height $height after $(($(date +%s) - begun)) s"
done
servers=(--server peregrine=127.0.0.1:$peregrine_port --server electrs=127.0.0.1:$electrs_port --server electrumx=127.0.0.1:$electrumx_port)
echo
echo "== warm"
"$load" run "${servers[@]}" --wallet "$wallet" --rounds "${ROUNDS:-5}"
echo
echo "== cold: each server restarted, caches of the system dropped, before each measurement"
restart=$(mktemp)
printf '#!/bin/sh\nBENCH_PEERS_RESTART=1 exec %q %q "$1"\n' "$PWD/tools/bench-peers.sh" "$dir" >"$restart"
chmod +x "$restart"
"$load" run "${servers[@]}" --wallet "$wallet" --rounds "${COLD_ROUNDS:-2}" --cold "$restart" --height "$height"
rm -f "$restart"
