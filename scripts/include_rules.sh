#!/usr/bin/env bash
# Checks that every folder includes only the folders that it may, as docs/architecture.md says, and
# that no index is cast, and who names forms of weights. Prints every line that breaks a rule; exit code 1 when there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

# folder: the folders that it may include, besides itself and the public headers. Verbs compute
# through include/qlora, so that cli/ has no use for model, export, linear, quant and the parsers.
declare -A below=(
  [include]=""
  [src/base]=""
  [src/machine]="base"
  [src/dist]="machine base"
  [src/unicode]="base"
  [src/quant]="machine base"
  [src/ggml]="base"
  [src/io]="ggml quant base"
  [src/gguf]="io ggml base"
  [src/hub]="io base"
  [src/jinja]="io unicode base"
  [src/tokenizer]="gguf unicode io base"
  [src/pull]="hub io base"
  [src/parquet]="unicode io base"
  [src/records]="parquet tokenizer unicode hub io base"
  [src/prompt]="records tokenizer jinja io base"
  [src/decision]="prompt records parquet tokenizer jinja unicode io base"
  [src/preference]="prompt records parquet tokenizer jinja unicode io base"
  [src/data]="decision preference prompt records tokenizer unicode io base"
  [src/backend]="ggml quant machine base"
  [src/linear]="backend io quant base"
  [src/config]="backend tokenizer gguf io base"
  [src/model]="config backend prompt tokenizer gguf io quant base"
  [src/adapter]="model config backend gguf io quant base"
  [src/pass]="adapter model config backend base"
  [src/objective]="dist machine decision preference pass adapter model config backend base"
  [src/inference]="preference objective dist machine pass adapter model config backend data decision prompt records tokenizer gguf hub io base"
  [src/task]="decision records jinja unicode io base"
  [src/step]="objective dist pass adapter model config backend data quant base"
  [src/checkpoint]="objective dist step adapter model config data tokenizer io base"
  [src/log]="objective checkpoint step io base"
  [src/plan]="preference objective records dist machine log checkpoint step inference pass adapter model config backend data decision prompt tokenizer hub io base"
  [src/train]="preference objective dist machine plan log checkpoint step inference pass adapter model config data decision tokenizer io base"
  [src/convert]="preference inference pass adapter model config backend data decision records prompt tokenizer gguf hub io quant base"
  [src/export]="convert inference pass adapter model config backend data decision prompt tokenizer gguf hub io quant base"
  [src/serve]="plan log checkpoint decision preference inference pass adapter model config backend prompt jinja tokenizer gguf unicode hub io base"
  [src/foreign]="data preference records unicode io base"
  [cli]="dist foreign plan log checkpoint data prompt records pull serve tokenizer unicode hub io base chat command migrate report tasks terminal training verbs"
  [bench]="objective ggml plan step inference pass adapter model config backend tokenizer hub io quant machine base command terminal"
  [python/src]="dist foreign base"
  [examples]=""
)

broken=0
while IFS=: read -r file line include; do
  path=${include#*\"}
  IFS=/ read -r top next _ <<<"$file"
  folder=$top/$next
  [ -v "below[$folder]" ] || folder=$top
  allowed=" ${folder#*/} ${below[$folder]} "
  [[ $allowed == *" ${path%%/*} "* ]] || { echo "$file:$line: $folder may not include $path"; broken=1; }
  [[ $path != backend/cpu/* || $file == src/backend/cpu/* ]] || { echo "$file:$line: kernels are for src/backend/cpu"; broken=1; }
done < <(grep -rnoE '^#include "[a-z0-9_]+/[^"]+' include src cli bench python/src examples | grep -v '"qlora/')
if grep -rnE '(\[|\.at\()static_cast<std::(size_t|int64_t)>' src cli python/src; then
  echo "an index needs no cast (CONTRIBUTING.md)"
  broken=1
fi
for folder in src/*/; do
  grep -qE "^.{12}${folder%/} " docs/architecture.md || { echo "docs/architecture.md lacks ${folder%/} in its list of floors"; broken=1; }
done
# The form of a weight is a matter of backends, and a block format is named in few places: a new one
# touches no others (CONTRIBUTING.md, "Add a weight format").
if grep -rnE 'WeightForm::|\.form\(\)' src cli python/src | grep -v '^src/backend/'; then
  echo "only src/backend asks for the form of a weight"
  broken=1
fi
places='^src/(ggml/(block_format|encode|decode)|io/mxfp4|backend/cpu/(gemm/(block_scales|f32_blocks-inl)|x86/bf16_block_values-inl)|(config|model|adapter|export/gguf)/(gguf_|export_gguf))'
if grep -rnE 'BlockFormat::k(Q|IQ|TQ|MX|NV)' src cli python/src |
  grep -vE "$places|BlockFormat format = BlockFormat::kQ8_0"; then
  echo "a block format is named outside of the places that know it"
  broken=1
fi
# Without HWY_ATTR a function has no instruction set; for aarch64, Highway's are then not inlined, which is an error.
for file in $(grep -rl HWY_NAMESPACE src cli bench python/src --include=*.cc | xargs -r grep -L foreach_target); do
  grep -q HWY_ATTR "$file" || { echo "$file: functions with vectors need HWY_ATTR"; broken=1; }
done
exit $broken
