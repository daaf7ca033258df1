#!/usr/bin/env bash
# Compares the results of two builds of the program byte by byte, job by job.
#   scripts/same_bits.sh BASE_COMMIT            builds that commit and the working tree
#   scripts/same_bits.sh --programs OLD NEW     builds nothing
# Exit code 1: a job differs that docs/changed-bits.txt does not name. Each line of that file is
# "JOB REASON", JOB a regular expression such as gguf/.* . QLORA_TARGET=avx2 compares those kernels.
set -euo pipefail
declare -A program
if [ $# -eq 3 ] && [ "$1" = --programs ]; then
  realpath -e -- "$2" "$3" >/dev/null
  program=([old]=$(realpath "$2") [new]=$(realpath "$3"))
elif [ $# -ne 1 ] || [[ $1 = -* ]]; then
  sed -n '3,4s/^# *//p' "$0" >&2
  exit 2
fi
# shellcheck source=scripts/dependencies.sh
source "$(dirname "$0")/dependencies.sh"

golden=tests/golden
tales=examples/tales
families=$(cd $golden && echo *-tiny)
tiny="--model $golden/llama-tiny"
short="train --config short.yaml" # with the options below, unless the job overrides them
short_yaml="{model: $golden/llama-tiny, max_length: 128, over_long: truncate, packing: true,
  dataset: [$golden/train-20/data.jsonl, $tales/heldout.jsonl], compute_dtype: float32,
  eval_dataset: [$golden/train-20/data.jsonl], learning_rate: 0.01, max_steps: 6, save_steps: 3,
  gradient_accumulation_steps: 1}"

# each "VALUE..." ROW: prints the row once for each value, which replaces %.
each() { for value in $1; do echo "${2//%/$value}"; done; }

# NAME VERB OPTIONS of each job. Its result is stored under its name, where later jobs read it.
job_table() {
  cat <<TABLE
recipe/plain      $short
recipe/resume     $short --resume-from-checkpoint recipe/plain/checkpoint-3
recipe/continue   $short --adapter recipe/plain
recipe/padded     $short --no-packing --per-device-train-batch-size 4
recipe/window     $short --gradient-accumulation-steps 4
recipe/dense      $short --no-load-in-4bit
recipe/fp4        $short --bnb-4bit-quant-type fp4
recipe/single     $short --no-bnb-4bit-use-double-quant
recipe/dropout    $short --lora-dropout 0.1
recipe/rslora     $short --use-rslora
recipe/loraplus   $short --loraplus-lr-ratio 4
recipe/dora       $short --use-dora
recipe/dora-dense $short --use-dora --lora-dropout 0.1 --no-load-in-4bit
recipe/neftune    $short --neftune-noise-alpha 5
recipe/modules    $short --modules-to-save lm_head,embed_tokens --embedding-learning-rate 1e-3
recipe/tied       $short --modules-to-save lm_head,embed_tokens --model $golden/llama3-tiny
recipe/patterns   $short --rank-pattern down_proj=2 --alpha-pattern up_proj=1 --layers-to-transform 0
recipe/paper      $short --preset qlora-paper
recipe/decay      $short --weight-decay 0.1 --max-grad-norm 0.1 --lr-scheduler-type inverse_sqrt
$(each "loftq pissa olora" "recipe/% $short --init-lora-weights %"
  each "adamw_8bit paged_adamw paged_adamw_8bit lion lion_8bit sgd" "optim/% $short --optim %"
  each "none attention mlp layer" "recompute/% $short --recompute %"
  each "none attention mlp layer" "recompute-dora/% $short --recompute % --use-dora"
  each "none attention mlp layer" "recompute-moe/% $short --recompute % --model $golden/mixtral-tiny"
  each "f32 f16 bf16 q8_0" "export/% export $tiny --adapter recipe/plain --outtype %"
  for type in float32 bfloat16 int8; do
    each "$families" "$type/% $short --model $golden/% --compute-dtype $type"
    each "$families" "$type/%-text generate --model $golden/% --adapter $type/% --compute-dtype $type"
    each "$families" "$type/%-gguf export --model $golden/% --adapter $type/%"
  done)
export/adapter    export $tiny --adapter recipe/plain --format gguf-adapter
export/hf         export $tiny --adapter recipe/plain --format hf
export/original   export $tiny --adapter recipe/plain --format hf --merge-base original
quantize/weighed  quantize $tiny --calibration-data examples/tales.txt --calibration-tokens 512
quantize/cuda     quantize $tiny --bnb-rule cuda
quantize/back     quantize --model quantize/cuda --dequantize
demo/quantized    quantize --model examples/base-1m
demo/trained      train --model demo/quantized --dataset $tales/train.jsonl \
  --eval-dataset $tales/heldout.jsonl --lora-r 16 --lora-alpha 32 --learning-rate 3e-3 \
  --max-steps 150 --per-device-train-batch-size 8 --gradient-accumulation-steps 1 \
  --max-length 256 --logging-steps 25 --over-long truncate --save-steps 150
demo/eval         eval --model demo/quantized --adapter demo/trained \
  --dataset $tales/heldout.jsonl --max-length 256 --per-token
demo/greedy       generate --model demo/quantized --adapter demo/trained
demo/sampled      generate --model demo/quantized --adapter demo/trained --top-k 20
demo/gguf         export --model demo/quantized --adapter demo/trained
TABLE
}

# run PROGRAM NAME VERB OPTIONS...: runs a job in the current folder; fails when the program does.
run() {
  local name=$2 command=("$1" "${@:3}" --threads 2)
  mkdir -p "$(dirname "$name")"
  case $3 in
    export) command+=(--output "$name") ;;
    train | quantize) command+=(--output-dir "$name") ;;
    eval) command+=(--json) ;;
    generate) command+=(--prompt Once --max-new-tokens 100) ;;
  esac
  "${command[@]}" >"$name.out" 2>"$name.messages" </dev/null || return 1
  case $3 in
    train) figures "$name"/*_log.jsonl >"$name/figures" ;;
    eval) figures "$name.out" >"$name" ;;
    generate) mv "$name.out" "$name" ;;
  esac
}

# The values in logs that are neither clocks nor memory.
figures() { grep -hoE '"(eval_)?(loss|grad_norm|token_accuracy)":[^,}]*|"logprobs":[^]]*' "$@"; }

# compare NAME: prints how old/NAME and new/NAME differ, apart from logs and from what is recorded
# of options, base and prompts.
compare() {
  local files different
  files=$(for side in old new; do
    (cd $side && find "$1" -type f ! -name '*.jsonl' ! -name 'train*.json' ! -name run_info.json \
      ! -name qlora_base.json ! -name chat_template.jinja)
  done | sort -u)
  [ -n "$files" ] || { echo "no result" && return; }
  different=$(while read -r file; do
    cmp -s "old/$file" "new/$file" || same_tensors {old,new}/"$file" || echo "$file"
  done <<<"$files")
  [ -n "$different" ] || return 0
  echo -n "$(wc -l <<<"$different") of $(wc -l <<<"$files") files"
  echo "$(largest_difference "$1"); the first is ${different%%$'\n'*}"
}

# same_tensors OLD NEW: true for GGUF files with the same descriptions and data of tensors, whatever
# their metadata say of chat templates.
same_tensors() {
  cmp -s -n 4 "$1" <(printf GGUF) && [ -f "$2" ] && python3 - "$1" "$2" 2>/dev/null <<'PYTHON'
import struct, sys
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
def tensors(path):  # the bytes behind the metadata
    data = open(path, "rb").read()
    def number(code, at):
        return struct.unpack_from(code, data, at)[0]
    def end_of(kind, at):
        if kind == 8:
            return at + 8 + number("<Q", at)
        if kind != 9:
            return at + SIZES[kind]
        item, count, at = number("<I", at), number("<Q", at + 4), at + 12
        for _ in range(count):
            at = end_of(item, at)
        return at
    count, keys, at = number("<Q", 8), number("<Q", 16), 24
    for _ in range(keys):
        at = end_of(8, at)
        at = end_of(number("<I", at), at + 4)
    infos = at
    for _ in range(count):
        at = end_of(8, at)
        at += 4 + 8 * number("<I", at) + 12
    return data[infos:at] + data[at + -at % 32:]
old, new = map(tensors, sys.argv[1:])
sys.exit(old != new)
PYTHON
}

# largest_difference NAME: compares the float32 tensors in the adapter or model that a job wrote.
largest_difference() {
  python3 - {old,new}/"$1"/*model.safetensors 2>/dev/null <<'PYTHON' || true
import array, json, sys
def tensors(path):
    data = open(path, "rb").read()
    start = 8 + int.from_bytes(data[:8], "little")
    return {name: array.array("f", data[start + t["data_offsets"][0]:start + t["data_offsets"][1]])
            for name, t in json.loads(data[8:start]).items() if t.get("dtype") == "F32"}
old, new = map(tensors, sys.argv[1:])
difference = max(abs(a - b) for name in old for a, b in zip(old[name], new[name]))
print(f", max abs difference {difference:.2g}", end="")
PYTHON
}

if [ $# -eq 1 ]; then
  commit=$(git rev-parse --verify "$1^{commit}")
  base=$PWD/build/same-bits/base
  [ -e "$base" ] || git worktree add --quiet --force --detach "$base" "$commit"
  git -C "$base" checkout --quiet --detach "$commit"
  need_to_build
  (
    cd "$base"
    # What an older commit builds beside the program may need what is not installed.
    for option in QLORA_DEVELOPER QLORA_CUDA; do
      ! grep -q "option($option " CMakeLists.txt || configure_options+=("-D$option=OFF")
    done
    build release qlora >&2
  )
  build release qlora >&2
  program=([old]=$base/build/release/bin/qlora [new]=$PWD/build/release/bin/qlora)
fi

folder=$(mktemp -d)
table=$(job_table)
for side in old new; do
  mkdir "$folder/$side"
  ln -s "$PWD/examples" "$PWD/tests" "$folder/$side"
  echo "$short_yaml" >"$folder/$side/short.yaml"
done
expected=$PWD/docs/changed-bits.txt
[ -f "$expected" ] || expected=/dev/null
cd "$folder"
same=0 different=0 unexpected=0
while read -r name options; do
  read -ra options <<<"$options"
  difference=
  for side in old new; do
    (cd $side && run "${program[$side]}" "$name" "${options[@]}") ||
      difference+="$side failed: $(tail "$side/$name.messages" | grep -m 1 error || echo crashed) "
  done
  difference=${difference:-$(compare "$name")}
  if [ -z "$difference" ]; then
    echo "$name: same"
    same=$((same + 1))
    continue
  fi
  reason=$(awk -v job="$name" 'job ~ "^" $1 "$" { print substr($0, length($1) + 2); exit }' "$expected")
  echo "$name: DIFFERENT${reason:+, as expected ($reason)}: $difference"
  different=$((different + 1))
  [ -n "$reason" ] || unexpected=$((unexpected + 1))
done <<<"$table"
echo "$same same, $different different"
if [ $different -gt 0 ]; then echo "The results are in $folder"; else rm -r "$folder"; fi
[ $unexpected -eq 0 ]
