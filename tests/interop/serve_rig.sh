#!/usr/bin/env bash
# The checks of servers in the shared folder: they ask `qlora serve` as the clients of OpenAI and Anthropic, as crowds and as
# attackers do. What each asks is told in the folder's README.
#   tests/interop/serve_rig.sh PROGRAM
set -euo pipefail
cd "$(dirname "$0")/../.."
qlora=$(realpath "$1")
shared=$(realpath -m "${QLORA_SHARED:-../shared}")
checks=$shared/checks/serve
export RIG_NODE_MODULES=$PWD/tests/interop/node_modules
if [ ! -d "$checks" ]; then
  echo "SKIPPED: no $checks: the checks of servers did not run"
  exit 0
fi
if [ ! -d "$RIG_NODE_MODULES/openai" ]; then
  echo "SKIPPED: npm package \"openai\" is not installed (npm install in tests/interop): the checks of servers did not run"
  exit 0
fi
scratch=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -9 $server; rm -rf "$scratch"' EXIT

# serve OPTIONS...: starts a server, and sets url once it listens. It computes in float32, whatever this processor is fast
# at: what is said is compared with the model's values.
serve() {
  : >"$scratch/server.log" # of the server before
  "$qlora" serve "$@" --compute_dtype float32 --port 0 2>"$scratch/server.log" &
  server=$!
  until url=$(grep -oP '^listening: \K\S+' "$scratch/server.log"); do
    kill -0 $server 2>/dev/null || { cat "$scratch/server.log"; exit 1; }
    sleep 0.1
  done
}
stop() {
  kill $server
  wait $server || true
  server=
}
# check SCRIPT OPTIONS...: asks the server. Prints the last line, and what is not well.
check() {
  echo "-- $1"
  local status=0
  node "$checks/$1" --url "$url" "${@:2}" >/dev/null 2>"$scratch/lines" || status=$?
  grep -E '^(FAILED|lacking)' "$scratch/lines" || true
  tail -n 1 "$scratch/lines"
  [ $status -eq 0 ] || [ -z "$server" ] || tail -n 20 "$scratch/server.log"
  return $status
}

# Models whose answers are known.
python3 "$checks/make_parrot.py" "$scratch/parrot" >/dev/null
python3 "$checks/make_talker.py" "$scratch/talker" >/dev/null
parrot=$scratch/parrot talker=$scratch/talker

# Bodies may be as large as those of security.mjs where a server may use so much memory.
serve "$parrot/base" --adapter "alpha=$parrot/alpha" --adapter "beta=$parrot/beta" --max_memory 16GB
names=(--base base --adapter alpha --adapter beta --parrot "$parrot/parrot.json")
check api.mjs "${names[@]}"
check concurrent.mjs "${names[@]}"
check security.mjs --base base
stop

serve "$talker/talker" --adapter "caller=$talker/caller" --api_key K
names=(--base talker --caller caller --talker "$talker/talker.json" --key K)
check responses.mjs "${names[@]}"
check messages.mjs "${names[@]}"
stop

decision=$shared/golden/decision
serve "$decision/gguf/tiny-qwen3-decision.gguf" --load_in_4bit false
check decisions.mjs --golden "$decision/gguf"
stop

serve "$shared/models/stories260K-hf" --adapter "lora=$shared/models/stories260K-lora-r4"
check concurrent.mjs --base stories260K-hf --adapter lora
stop

# This script starts the server by itself, twice on one port.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
try_jobs() {
  rm -rf "$scratch/runs"
  check jobs.mjs --key K --start "$qlora serve $decision/tiny-qwen3 --runs $scratch/runs --api_key K --port $port"
}
# The states of two jobs are asked for one after the other: both seem to run where one ends and the other begins between the
# two answers.
try_jobs || try_jobs
