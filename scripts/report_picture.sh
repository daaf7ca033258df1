#!/usr/bin/env bash
# Makes docs/images/report.png anew: the run of docs/chat-data.md, its page, and a picture of the page
# in headless Chromium. Trains for a minute or two.
#   scripts/report_picture.sh [FILE]      default: docs/images/report.png
# Of another run that has ended, such as one with a longer training:
#   RUN=DIR scripts/report_picture.sh FILE
source "$(dirname "$0")/dependencies.sh"
picture=$(realpath -m "${1:-docs/images/report.png}")
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
  echo "no Chromium; install the package chromium" >&2
  exit 2
}
need_to_build
build release qlora >/dev/null
qlora=$root/build/release/bin/qlora
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

run=${RUN:+$(realpath "$RUN")}
if [ -z "$run" ]; then
  # The data and the command of the document, so that its figures and the picture are of one run.
  ln -s "$root/examples" "$scratch/examples"
  cd "$scratch"
  python3 - "$root/docs/chat-data.md" <<'PYTHON' >commands.sh
import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
chats = re.search(r"<!-- file: chats\.py -->\n```python\n(.*?)```", text, re.S).group(1)
open("chats.py", "w", encoding="utf-8").write(chats)
print("python3 chats.py")
print(re.search(r"^\$ (qlora train (?:.*\\\n)*.*)$", text, re.M).group(1))
PYTHON
  PATH=$(dirname "$qlora"):$PATH bash -eu commands.sh
  run=$scratch/sailor
fi
"$qlora" report "$run" --out "$scratch/page.html"
# A window of two screens of a laptop; the page is a file and needs no network.
"$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --force-color-profile=srgb \
  --user-data-dir="$scratch/browser" --window-size=1100,900 --virtual-time-budget=4000 \
  --screenshot="$picture" "file://$scratch/page.html" 2>"$scratch/messages" || {
  cat "$scratch/messages" >&2
  exit 1
}
echo "$picture"
