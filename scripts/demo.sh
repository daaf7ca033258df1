#!/usr/bin/env bash
# The whole main job on the model and data in examples/: quantize, evaluate, train, compare, export.
#   scripts/demo.sh [OUTPUT_DIR]          default: build/demo
# The same commands on another model:
#   MODEL=DIR TRAIN=FILE HELDOUT=FILE PROMPT=TEXT scripts/demo.sh
# With another program than that of the release build:
#   QLORA=FILE scripts/demo.sh
source "$(dirname "$0")/dependencies.sh"
qlora=${QLORA:-build/release/bin/qlora}
if [ -z "${QLORA:-}" ]; then
  need_to_build
  echo "Building qlora, which takes some minutes the first time ..."
  build release qlora >/dev/null
  took "build"
fi
out=${1:-build/demo}
model=${MODEL:-examples/base-1m}
train=${TRAIN:-examples/tales/train.jsonl}
heldout=${HELDOUT:-examples/tales/heldout.jsonl}

if [ -e "$out" ] && [ ! -e "$out/base-nf4" ] && [ -n "$(ls -A "$out")" ]; then
  echo "$out holds something else than an earlier demo; choose another directory" >&2
  exit 2
fi
rm -rf "$out"
mkdir -p "$out"
# Runs a command and shows what it says of its progress only when it fails.
quietly() {
  "$@" 2>"$out/messages" || { cat "$out/messages" >&2; exit 1; }
  rm -f "$out/messages"
}
say() { printf '\n== %s\n' "$*"; }
# The prompt to show: the first held-out one, unless PROMPT is given.
prompt=${PROMPT:-$(sed -n '1s/.*"prompt": *"\([^"]*\)".*/\1/p' "$heldout")}
prompt=${prompt:-Once upon a time}
generate() {
  quietly "$qlora" generate --model "$1" --prompt "$(printf '%b' "$prompt")" --max-new-tokens 100 \
    "${@:2}"
}
loss() {
  quietly "$qlora" eval --model "$1" --dataset "$heldout" --max-length 256 "${@:2}" --json
}
figures() {
  sed -n 's/.*"loss": *\([0-9.]*\).*"perplexity": *\([0-9.]*\).*/\1 \2/p' |
    { read -r loss perplexity; LC_ALL=C printf 'loss %.4f, perplexity %.2f\n' "$loss" "$perplexity"; }
}

say "1. Quantize $model to 4 bits (NF4, double quantization)"
"$qlora" quantize --model "$model" --output-dir "$out/base-nf4"

say "2. Before training, on held-out lines"
before=$(loss "$out/base-nf4" | tr -d '\n' | figures)
echo "$before"
text_before=$(generate "$out/base-nf4")

say "3. Train a LoRA adapter on $train"
"$qlora" train --model "$out/base-nf4" --dataset "$train" --eval-dataset "$heldout" \
  --output-dir "$out/adapter" --lora-r 16 --lora-alpha 32 --learning-rate 3e-3 --max-steps 150 \
  --per-device-train-batch-size 8 --gradient-accumulation-steps 1 --max-length 256 \
  --logging-steps 25 --over-long truncate

say "4. After training, on the same held-out lines"
after=$(loss "$out/base-nf4" --adapter "$out/adapter" | tr -d '\n' | figures)
echo "$after"
text_after=$(generate "$out/base-nf4" --adapter "$out/adapter")

say "5. Export for llama.cpp"
"$qlora" export --model "$out/base-nf4" --adapter "$out/adapter" --format gguf --outtype f16 \
  --output "$out/merged.gguf" --verify
"$qlora" export --model "$out/base-nf4" --adapter "$out/adapter" --format gguf-adapter \
  --output "$out/adapter.gguf" --verify

took "demo"
say "Summary"
cat <<SUMMARY
The base model read "$prompt" and went on:
$(sed 's/^/    /' <<<"$text_before")
With the adapter it goes on:
$(sed 's/^/    /' <<<"$text_after")

Held-out lines (never trained on; a lower loss is better, a perplexity of 1 would be perfect)
    before: $before
    after:  $after

What was made:
    $out/base-nf4       the base in 4 bits, a bitsandbytes checkpoint
    $out/adapter        the LoRA adapter, for PEFT and for --adapter
    $out/merged.gguf    base and adapter in one file, for llama.cpp
    $out/adapter.gguf   the adapter alone, for llama.cpp --lora
SUMMARY
