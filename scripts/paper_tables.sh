#!/usr/bin/env bash
# The questions of the QLoRA paper, asked of your model and data: scripts/paper_tables.py, with what it needs.
source "$(dirname "$0")/dependencies.sh"
need python3-matplotlib
exec /usr/bin/python3 scripts/paper_tables.py "$@"
