#!/usr/bin/env python3
"""Perplexity of a model's 4-bit base by block size and way to pick the scales, as a Markdown table.

    tools/search_perplexity.py MODEL CALIBRATION_TEXT HELDOUT_TEXT [--qlora build/release/bin/qlora]

Each row: block size, 16 bits, absmax, --scale-search, --calibration-data; in float32 arithmetic,
with double quantization. Files: whatever `qlora eval` reads.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model")
parser.add_argument("calibration")
parser.add_argument("heldout")
parser.add_argument("--qlora", default="build/release/bin/qlora")
args = parser.parse_args()


def run(*arguments):
    out = subprocess.run([args.qlora, *arguments, "--json"], check=True, capture_output=True)
    return json.loads(out.stdout)


def perplexity(model, *options):
    return run("eval", model, args.heldout, "--compute-dtype", "float32", *options)["perplexity"]


print("| block | 16 bits | absmax | `--scale-search` | `--calibration-data` |")
print("|---|---|---|---|---|")
dense = f"{perplexity(args.model, '--load-in-4bit', 'false'):.4f}"
for block_size in (32, 64, 128, 256):
    cells = [str(block_size), dense]
    for options in ([], ["--scale-search"], ["--calibration-data", args.calibration]):
        with tempfile.TemporaryDirectory() as folder:
            quantized = str(pathlib.Path(folder) / "nf4")
            run("quantize", args.model, quantized, "--bnb-4bit-blocksize", str(block_size),
                *options)
            cells.append(f"{perplexity(quantized):.4f}")
    print("| " + " | ".join(cells) + " |", flush=True)
    dense = ""
