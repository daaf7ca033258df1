#!/usr/bin/env bash
# The comparisons with real peers: llama.cpp, Hugging Face tokenizers, Jinja engines, readers of Parquet, clients of servers.
#   tests/interop/run.sh PROGRAM
set -euo pipefail
cd "$(dirname "$0")/../.."
qlora=$1
shared=${QLORA_SHARED:-../shared}
# Where there is AMX, this llama.cpp computes NaN from Q8_0 weights with rows of few blocks. Without this library it takes
# that of the next best instruction set.
rm -f tests/interop/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64/libggml-cpu-sapphirerapids.so
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Exit status 77 means skipped; the script has said why.
run() {
  echo "-- $*"
  local status=0
  node "$@" || status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ]
}

for model in tests/golden/*-tiny; do
  run tests/interop/gguf_test.mjs --qlora "$qlora" --model $model --adapter $model/adapter \
    --text examples/tales.txt
done
if [ -d examples/base-1m ]; then
  run tests/interop/gguf_test.mjs --qlora "$qlora" --model examples/base-1m --text examples/tales.txt
  stories=$scratch/stories.txt
  /usr/bin/python3 examples/make_corpus.py --stories 12 --stream heldout >"$stories"
  run tests/interop/gguf_types.mjs --qlora "$qlora" --model examples/base-1m --text "$stories" \
    --train examples/tales/train.jsonl --experts tests/golden/qwen3moe-tiny
fi
if [ -d "$shared/models/stories260K-hf" ]; then
  run tests/interop/gguf_test.mjs --qlora "$qlora" --model "$shared/models/stories260K-hf" \
    --adapter "$shared/models/stories260K-lora-r4" --text "$shared/data/sampled-stories.txt" --tokens 2000
  # Families without a model in the tree, with the tokenizer of the small model.
  for name in granite/dense granite/hybrid-nope ministral3/wrapped olmo2/plain olmo3/yarn hunyuan/dense \
    ernie4_5/dense seed_oss/dense glm4/dense qwen3_5 qwen3_5_moe qwen3_next lfm2 lfm2_moe gemma4/e2b \
    gemma4/31b gemma4/26b-a4b gpt_oss/bf16; do
    # Rounding changes which of a few experts with random weights are chosen.
    rounded=yes
    if [ $name = qwen3_5_moe ]; then rounded=no; fi
    mkdir -p "$scratch/$name"
    cp "$shared/golden/families/$name"/*.{json,safetensors} "$shared"/models/stories260K-hf/tokenizer* \
      "$scratch/$name"
    adapter=$shared/golden/families/$name/adapter
    if [[ $name == gpt_oss/* ]]; then
      adapter=${adapter}_all
      # llama.cpp rounds the range of YaRN whatever the key says.
      chmod u+w "$scratch/$name/config.json"
      sed -i 's/"truncate": false/"truncate": true/' "$scratch/$name/config.json"
    fi
    # llama.cpp takes gelu from a table in 16 bits, by which a token may choose another expert.
    tolerance=1e-3
    [ "$name" != gemma4/26b-a4b ] || tolerance=2e-3
    run tests/interop/gguf_test.mjs --qlora "$qlora" --model "$scratch/$name" \
      --adapter "$adapter" --text examples/tales.txt --tokens 240 --rounded $rounded \
      --tolerance $tolerance
  done
  # Adapters of experts and router too, on tokens before the first whose router is at a tie of the table.
  name=gemma4/26b-a4b
  run tests/interop/gguf_test.mjs --qlora "$qlora" --model "$scratch/$name" \
    --adapter "$shared/golden/families/$name/adapter_all" --text examples/tales.txt --tokens 120 --rounded no \
    --tolerance 2e-3
else
  echo "SKIPPED: no $shared: the real small model and newer families are not compared"
fi
# Checkpoints that are made of GGUF files have tokenizers that Hugging Face reads as we do.
for name in gemma3-tiny llama3-tiny phi3-tiny qwen2-tiny; do
  "$qlora" export "tests/golden/$name" "$scratch/$name.gguf" --no-verify
  "$qlora" export "$scratch/$name.gguf" "$scratch/of-gguf/$name" --format hf --no-verify
done
run tests/interop/tokenizer_diff.mjs --qlora "$qlora" --strings 1000 "$scratch"/of-gguf/*
run tests/interop/prompt_test.mjs --qlora "$qlora" --model tests/golden/llama-tiny
run tests/interop/tokenizer_diff.mjs --qlora "$qlora"
run tests/interop/gguf_tokens.mjs --qlora "$qlora"
run tests/interop/parquet_diff.mjs --qlora "$qlora"
run tests/interop/chat_diff.mjs --renderer "$(dirname "$qlora")/data_tests"
run tests/interop/tokenizer_bench.mjs --bench "$(dirname "$qlora")/qlora-bench"
/usr/bin/python3 tests/docs/run_documents.py docs/performance.md --bin "$(dirname "$qlora")"

status=0
echo "-- tests/interop/tensorboard_test.py"
/usr/bin/python3 tests/interop/tensorboard_test.py --qlora "$qlora" --model tests/golden/llama-tiny \
  --dataset tests/golden/train-20/data.jsonl || status=$?
[ $status -eq 0 ] || [ $status -eq 77 ]
run tests/interop/report_test.mjs --qlora "$qlora"
run tests/interop/serve_page_test.mjs --qlora "$qlora"
run tests/interop/serve_jobs_test.mjs --qlora "$qlora"
tests/interop/serve_rig.sh "$qlora"
