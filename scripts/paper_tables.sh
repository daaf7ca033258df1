#!/usr/bin/env bash
# The questions of the QLoRA paper, asked of your model and data: scripts/paper_tables.py, with what it needs.
#   scripts/paper_tables.sh [--model MODEL] [--dataset TRAIN] [--heldout HELDOUT] [--task FILE...]
#                           [--decisions TRAIN HELDOUT] [--seeds 3] [--steps 200] [--config RUN.yaml] [--work DIR]
source "$(dirname "$0")/dependencies.sh"
need python3-matplotlib
exec /usr/bin/python3 scripts/paper_tables.py "$@"
