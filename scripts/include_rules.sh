#!/usr/bin/env bash
# Checks that a folder includes only folders of floors below it, or itself. Prints every include that
# breaks the rule; exit code 1 when there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

# folder: the folders that it may include, besides itself and the public headers.
declare -A below=(
  [base]=""
  [unicode]="base"
  [options]="base"
  [quant]="base"
  [io]="quant base"
  [jinja]="unicode base"
  [tokenizer]="unicode io quant base"
  [pull]="io base"
  [parquet]="unicode io base"
  [data]="tokenizer jinja parquet unicode options io base"
  [backend]="quant base"
  [linear]="backend io quant base"
  [model]="backend data tokenizer jinja unicode options io quant base"
  [train]="model backend data tokenizer jinja unicode options io quant base"
  [convert]="model backend data tokenizer jinja unicode options io quant base"
)

broken=0
for folder in "${!below[@]}"; do
  allowed="$folder ${below[$folder]}"
  while IFS=: read -r file line include; do
    other=${include#*\"}
    other=${other%%/*}
    [ "$other" = qlora ] && continue
    case " $allowed " in
      *" $other "*) ;;
      *)
        echo "$file:$line: src/$folder may not include $other/"
        broken=1
        ;;
    esac
  done < <(grep -rnE '^#include "[a-z0-9]+/' --include=*.h --include=*.cc "src/$folder")
done
for file in $(grep -rlE '^#include "' --include=*.h --include=*.cc python/src examples); do
  if grep -nE '^#include "(unicode|options|quant|io|parquet|pull|jinja|tokenizer|data|backend|linear|model|train|convert)/' "$file"; then
    echo "$file: programs outside of cli/ and bench/ include public headers only"
    broken=1
  fi
done
exit $broken
