#!/usr/bin/python3
"""The same LoRA training step in qlora and in PyTorch, in turn (A B A B), and the ratios.

    bench/peers/step.py [--bench build/release/bin/qlora-bench] [--layers 22] [--length 512] [--batch 1]

PyTorch with dense bfloat16 weights, decoded 4-bit weights and dense float32 weights, with
checkpointing and without, compared with qlora at the same recomputation. Needs Debian's
python3-torch.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULTS = dict(layers=22, length=512, batch=1, steps=2, rounds=2)


def run(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit(f"{command[0]}: there is no such program; build the bench, or give --bench")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with status {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def measure_qlora(o, dtype, checkpoint):
    rows = run([o.bench, "step", "--json", "--steps", str(o.steps),
                "--num_hidden_layers", str(o.layers), "--max_length", str(o.length),
                "--per_device_train_batch_size", str(o.batch), "--compute_dtype", dtype,
                "--objectives", o.objective,
                *(["--int8_backward", o.int8_backward] if dtype == "int8" else []),
                "--recompute", "layer" if checkpoint else "none"])["results"]
    return {"tokens_per_second": rows[0]["value"], "peak_bytes": rows[-1]["value"] * 1e9}


def measure_torch(o, base, checkpoint):
    return run(["/usr/bin/python3", os.path.join(HERE, "torch_step.py"), "--base", base,
                "--checkpoint", str(int(checkpoint)), "--layers", str(o.layers),
                "--length", str(o.length), "--batch", str(o.batch), "--steps", str(o.steps),
                "--objective", o.objective])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default="build/release/bin/qlora-bench")
    parser.add_argument("--bases", default="bf16,nf4,f32")
    parser.add_argument("--objective", choices=["supervised", "preference"], default="supervised",
                        help="preference: DPO on pairs of as many tokens, each prompt counted once")
    parser.add_argument("--compute_dtype", default="auto", help="of qlora, beside 16-bit bases")
    parser.add_argument("--int8_backward", choices=["true", "false"], default="false",
                        help="of qlora, with --compute_dtype int8")
    for name, value in DEFAULTS.items():
        parser.add_argument("--" + name, type=int, default=value)
    o = parser.parse_args()
    print(f"{o.objective}, layers {o.layers}, {o.batch} x {o.length} tokens, rank 16 on all linears")
    print(f"{'PyTorch base':<14}{'checkpointing':<15}{'PyTorch':>16}{'qlora':>16}{'speed':>8}"
          f"{'memory':>20}{'ratio':>8}")
    for base in o.bases.split(","):
        for checkpoint in (True, False):
            best = {}
            for _ in range(o.rounds):
                for name, result in (
                        ("torch", measure_torch(o, base, checkpoint)),
                        ("qlora", measure_qlora(o, "float32" if base == "f32" else o.compute_dtype,
                                                checkpoint))):
                    if result["tokens_per_second"] > best.get(name, result)["tokens_per_second"] \
                            or name not in best:
                        best[name] = result
            torch, qlora = best["torch"], best["qlora"]
            print(f"{base:<14}{'on' if checkpoint else 'off':<15}"
                  f"{torch['tokens_per_second']:>10.1f} tok/s{qlora['tokens_per_second']:>10.1f} tok/s"
                  f"{qlora['tokens_per_second'] / torch['tokens_per_second']:>7.2f}x"
                  f"{qlora['peak_bytes'] / 1e9:>8.2f} of {torch['peak_bytes'] / 1e9:.2f} GB"
                  f"{qlora['peak_bytes'] / torch['peak_bytes']:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
