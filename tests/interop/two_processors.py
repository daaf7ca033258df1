#!/usr/bin/env python3
"""Two builds of qlora, for example for two processors, train the same and read what the other wrote.

    tests/interop/two_processors.py QLORA OTHER_QLORA

Both train twenty steps in float32 from the same start. Losses and norms of gradients agree to rounding.
Each then continues the run of the other from its tenth step, evaluates its adapter, and quantizes and
exports the model: what holds no result of arithmetic in float32 is the same, byte for byte.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
MODEL = GOLDEN / "llama-tiny"
DATA = GOLDEN / "train-20" / "data.jsonl"
# As the golden test of twenty steps has them: of sums of float32 in another order.
LOSS = 1e-5
NORM = 1e-4


def run(program, *arguments):
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{program} {' '.join(map(str, arguments))}\n{result.stderr}")
    return result.stdout


def train(program, output, *options):
    run(program, "train", "--config", GOLDEN / "train-20" / "recipe.json", "--model", MODEL, "--dataset", DATA,
        "--adapter", MODEL / "adapter", "--load-in-4bit", "--compute-dtype", "float32", "--save-steps", 10,
        "--output-dir", output, *options)
    return [json.loads(line) for line in (output / "train_log.jsonl").read_text().splitlines()]


def loss_of(program, adapter):
    out = run(program, "eval", "--model", MODEL, "--load-in-4bit", "--adapter", adapter, "--dataset", DATA,
              "--compute-dtype", "float32", "--json")
    return json.loads(out)["loss"]


def compare(what, found, expected, bound):
    error = abs(found - expected) / abs(expected)
    if error > bound:
        sys.exit(f"{what}: {found} and {expected} differ by {error:.1e}, more than {bound:.0e}")
    return error


def main():
    programs = [pathlib.Path(program).resolve() for program in sys.argv[1:]]
    if len(programs) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        folders = [pathlib.Path(folder) / name for name in ("first", "second")]
        logs = [train(program, out) for program, out in zip(programs, folders)]
        worst = max(max(compare(f"loss of step {a['step']}", a["loss"], b["loss"], LOSS),
                        compare(f"norm of step {a['step']}", a["grad_norm"], b["grad_norm"], NORM))
                    for a, b in zip(*logs))
        print(f"twenty steps: losses and norms differ by {worst:.1e} at most")

        worst = 0
        for program, other in ((programs[0], folders[1]), (programs[1], folders[0])):
            ends = [loss_of(each, other) for each in programs]
            worst = max(worst, compare("loss of an adapter", *ends, LOSS))
            log = train(program, other, "--resume-from-checkpoint", other / "checkpoint-10", "--max-steps", 20)
            worst = max(worst, compare("loss after the other's checkpoint", log[-1]["loss"], logs[0][-1]["loss"], LOSS))
        print(f"adapters and checkpoints of the other: losses differ by {worst:.1e} at most")

        written = []
        for program, out in zip(programs, folders):
            run(program, "quantize", "--model", MODEL, "--output-dir", out / "nf4")
            run(program, "export", "--model", MODEL, "--format", "gguf", "--outtype", "q4_k_m", "--output", out / "q4.gguf")
            written.append([(out / "nf4" / "model.safetensors").read_bytes(), (out / "q4.gguf").read_bytes()])
        if written[0] != written[1]:
            sys.exit("quantized models differ")
        print("NF4 checkpoint and GGUF file of Q4_K: the same bytes")


if __name__ == "__main__":
    main()
