#!/usr/bin/env python3
"""Measures how much of a fine-tuning each type of GGUF file keeps: of the change of the weights, as export reports it,
and of the gain, the loss on held-out data before training less the loss after it.

    kept_gain.py MODEL TRAIN HELDOUT [--config RUN.yaml] [--work DIR] [--types q8_0,q4_k_m]

Trains three adapters, on the 16-bit weights, on NF4 and on a Q4_K_M file of MODEL, merges each into what it was trained
on and into the 16-bit weights, and evaluates every file; then the adapter apart, beside files of the same weights.
Prints a table for a document, in percents. Adapters that are in DIR from an earlier call are taken.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPES = ("f16,q8_0,q6_k,q5_k_m,q5_k_s,q5_0,q4_k_m,q4_k_s,q4_0,iq4_nl,iq4_xs,q3_k_l,q3_k_m,q3_k_s,q2_k")
BASE_TYPE = "q4_k_m"  # of the GGUF file that is trained on
APART = ("f16", "q8_0", BASE_TYPE)  # of the files beside which the adapter is evaluated


class Measurement:
    def __init__(self, arguments):
        self.qlora = str(arguments.qlora)
        self.model = arguments.model
        self.train = arguments.train
        self.heldout = arguments.heldout
        self.work = pathlib.Path(arguments.work)
        self.config = ["--config", arguments.config] if arguments.config else []
        self.tokens = None
        self.work.mkdir(parents=True, exist_ok=True)

    def run(self, *args):
        """Runs the program and returns its standard output."""
        done = subprocess.run([self.qlora, *map(str, args)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"qlora {' '.join(map(str, args))}\nfailed with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def loss(self, model, *args):
        found = json.loads(self.run("eval", model, self.heldout, "--compute-dtype", "float32", "--json", *args))
        if self.tokens not in (None, found["tokens"]):
            sys.exit(f"{model}: evaluated {found['tokens']} tokens, the others {self.tokens}; "
                     "choose data that needs no prompt layout of an adapter")
        self.tokens = found["tokens"]
        return found["loss"]

    def export(self, source, name, outtype, *args):
        """Returns the file and the share of the change that it keeps, 1 where that is not counted."""
        file = self.work / f"{name}.gguf"
        report = self.run("export", source, file, "--format", "gguf", "--outtype", outtype, "--no-verify", "--force",
                          "--overwrite", "--json", *args)
        return file, json.loads(report).get("kept_change", 1.0)

    def adapter(self, base, name, in_4bit):
        folder = self.work / name
        if not (folder / "adapter_model.safetensors").exists():
            self.run("train", "--model", base, "--dataset", self.train, "--output_dir", folder,
                     "--load_in_4bit", in_4bit, *self.config)
        return folder


def measure(work, types):
    """Returns rows of texts, the first of them the head."""
    blocks, _ = work.export(work.model, f"base-{BASE_TYPE}", BASE_TYPE)
    # Trained on a file or folder with --load-in-4bit; merged into a file or folder with --merge-base.
    cases = [("16 bits", (work.model, "false"), (work.model, "original")),
             ("NF4", (work.model, "true"), (work.model, "nf4")),
             ("NF4, merged into 16 bits", (work.model, "true"), (work.model, "original")),
             (BASE_TYPE.upper(), (blocks, "false"), (blocks, "auto")),
             (f"{BASE_TYPE.upper()}, merged into 16 bits", (blocks, "false"), (work.model, "original"))]
    table = {name: [f"`{name}`"] for name in types}
    apart = {name: [f"`{name}` and the adapter"] for name in APART}
    head = ["`--outtype`"]
    for name, (base, in_4bit), (source, form) in cases:
        trained_on = name.split(",")[0].lower().replace(" ", "-")
        adapter = work.adapter(base, f"adapter-{trained_on}", in_4bit)
        before = work.loss(base, "--load-in-4bit", in_4bit)
        gain = before - work.loss(base, "--adapter", adapter, "--load-in-4bit", in_4bit)

        def share(file, *args):
            return f"{100 * (before - work.loss(file, '--load-in-4bit', 'false', *args)) / gain:.0f}"

        head += [f"{name}: change", f"gain of {gain:.3f}"]
        for outtype in types:
            file, kept = work.export(source, "merged", outtype, "--adapter", adapter, "--merge-base", form)
            table[outtype] += [f"{100 * kept:.0f}", share(file)]
        for outtype in APART:
            found = ""
            if source != blocks:
                file, _ = work.export(source, "base", outtype, "--merge-base", form)
                found = share(file, "--adapter", adapter)
            elif outtype == BASE_TYPE:
                found = share(blocks, "--adapter", adapter)
            apart[outtype] += ["", found]
    return [head, *table.values(), *apart.values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("heldout")
    parser.add_argument("--config", help="options of train, as YAML")
    parser.add_argument("--work", default="build/kept-gain", help="folder for files [build/kept-gain]")
    parser.add_argument("--qlora", default=ROOT / "build/release/bin/qlora", help="program")
    parser.add_argument("--types", default=TYPES, help="types of files [%(default)s]")
    arguments = parser.parse_args()
    rows = measure(Measurement(arguments), arguments.types.split(","))
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows[1:]:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
