#!/usr/bin/env python3
"""Asks the questions of the QLoRA paper of your model and data, and draws the answers.

    paper_tables.sh [--model MODEL] [--dataset TRAIN] [--heldout HELDOUT] [--task FILE...] [--decisions TRAIN HELDOUT]
                    [--seeds 3] [--steps 200] [--config RUN.yaml] [--work DIR]

NF4 against FP4 and int4, with and without double quantization, and against 16 bits; LoRA on attention or on all linears;
ranks of 8 to 64. For each setting and seed an adapter is trained on TRAIN, and one on the decisions. Measured are the
perplexity of HELDOUT, the first figure of each task, and accuracy, ECE and Brier of the held-out decisions, before
training and after it: the mean over the seeds and their sample standard deviation. Writes tables.md and a picture of each
table into DIR; what DIR has from an earlier call is taken. Without options the small model and data of examples/.
"""
import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

# How the base is held: options of the program. int4 is a GGUF file of Q4_0, blocks of 32 with a scale of 16 bits.
BASES = {
    "16 bits": ["--load-in-4bit", "false"],
    "NF4, double quantization": ["--bnb-4bit-quant-type", "nf4", "--bnb-4bit-use-double-quant", "true"],
    "NF4": ["--bnb-4bit-quant-type", "nf4", "--bnb-4bit-use-double-quant", "false"],
    "FP4, double quantization": ["--bnb-4bit-quant-type", "fp4", "--bnb-4bit-use-double-quant", "true"],
    "FP4": ["--bnb-4bit-quant-type", "fp4", "--bnb-4bit-use-double-quant", "false"],
    "int4 (Q4_0)": ["--load-in-4bit", "false"],
}
USUAL = "NF4, double quantization"

# The settings of each table: name, base, where LoRA is, rank.
TABLES = {
    "How the base is held": [(base, base, "all-linear", 16) for base in BASES],
    "Where LoRA is": [("attention", USUAL, "attention", 16), ("all linears", USUAL, "all-linear", 16),
                      ("attention, 16 bits", "16 bits", "attention", 16),
                      ("all linears, 16 bits", "16 bits", "all-linear", 16)],
    "Rank": [(f"r = {rank}", USUAL, "all-linear", rank) for rank in (8, 16, 32, 64)],
}


class Measurement:
    def __init__(self, arguments):
        self.arguments = arguments
        self.work = pathlib.Path(arguments.work)
        self.work.mkdir(parents=True, exist_ok=True)
        # What is in the folder was made with these.
        asked = {name: str(getattr(arguments, name)) for name in ("model", "dataset", "decisions", "steps", "config")}
        record = self.work / "arguments.json"
        if record.exists() and json.loads(record.read_text()) != asked:
            sys.exit(f"{self.work}: holds adapters of {record.read_text()}; name another folder with --work")
        record.write_text(json.dumps(asked))

    def run(self, *args):
        """Runs the program and returns its standard output."""
        command = [str(self.arguments.qlora), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def base(self, name):
        """Returns the model, and the options with which it is held."""
        if not name.startswith("int4"):
            return self.arguments.model, BASES[name]
        file = self.work / "base-q4_0.gguf"
        if not file.exists():
            self.run("export", self.arguments.model, file, "--outtype", "q4_0")
        return file, BASES[name]

    def adapter(self, kind, data, setting, seed):
        _, base, modules, rank = setting
        model, held = self.base(base)
        words = [kind, base, modules, f"r{rank}", f"seed{seed}"]
        folder = self.work / "-".join(words).lower().replace(" ", "-").replace(",", "")
        if not (folder / "adapter_model.safetensors").exists():
            # The cosine's rate is that of the run; a setting differs from the others by itself alone.
            config = ["--config", self.arguments.config] if self.arguments.config else []
            targets = ATTENTION if modules == "attention" else [modules]
            shutil.rmtree(folder, ignore_errors=True)  # of a call that was ended
            self.run("train", "--model", model, "--dataset", data, "--output-dir", folder, "--seed", seed, "--lora-r", rank,
                     "--lora-alpha", 2 * rank, "--lora-target-modules", *targets, "--max-steps", self.arguments.steps,
                     *held, *config)
        return folder

    def measured(self, setting, seed=None):
        """The figures of a setting: name to value, of the base where there is no seed."""
        arguments = self.arguments
        model, held = self.base(setting[1])

        def with_adapter(kind, data):
            return held if seed is None else held + ["--adapter", self.adapter(kind, data, setting, seed)]

        figures = {}
        options = with_adapter("texts", arguments.dataset)
        loss = json.loads(self.run("eval", model, arguments.heldout, "--json", *options))["loss"]
        figures["perplexity"] = math.exp(loss)
        for task in arguments.task:
            results = json.loads(self.run("eval", model, "--task", task, "--json", *options))["results"]
            for name, result in results.items():
                key, value = next((key, value) for key, value in result.items() if key != "n")
                figures[f"{name} {key}"] = value
        if arguments.decisions:
            options = with_adapter("decisions", arguments.decisions[0])
            found = json.loads(self.run("eval", model, arguments.decisions[1], "--json", *options))
            for key in ("accuracy", "ece", "brier"):
                figures[f"decisions: {key}"] = found["decision"]["all"][key]
        return figures


def shown(values):
    spread = f" ±{statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def draw(title, rows, figures, file):
    """One small picture a figure, side by side: the mean and the spread of each setting."""
    _, axes = plt.subplots(1, len(figures), figsize=(2.6 * len(figures) + 2, 0.4 * len(rows) + 1.3), squeeze=False,
                           sharey=True)
    for axis, figure in zip(axes[0], figures):
        values = [[found[figure] for found in after] for _, _, after in rows]
        axis.errorbar([statistics.mean(each) for each in values], range(len(rows)),
                      xerr=[statistics.stdev(each) if len(each) > 1 else 0 for each in values], fmt="o", capsize=3)
        axis.set_title(figure, fontsize=9)
        axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axis.margins(y=0.2)
        axis.grid(axis="x", alpha=0.3)
    axes[0][0].invert_yaxis()
    plt.suptitle(title, fontsize=10)
    plt.tight_layout()
    plt.savefig(file, metadata={"Date": None})
    plt.close()


def write_tables(work, measure):
    text = []
    known = {}  # a setting stands in several tables
    for title, settings in TABLES.items():
        rows = []
        for setting in settings:
            if setting[1:] not in known:
                print(f"{title}: {setting[0]}", file=sys.stderr)
                seeds = range(1, measure.arguments.seeds + 1)
                known[setting[1:]] = (measure.measured(setting), [measure.measured(setting, seed) for seed in seeds])
            rows.append((setting[0], *known[setting[1:]]))
        figures = list(rows[0][1])
        text += [f"## {title}", "", "| | " + " | ".join(figures) + " |", "|---" * (len(figures) + 1) + "|"]
        for name, before, after in rows:
            cells = [f"{before[figure]:.4f} -> {shown([found[figure] for found in after])}" for figure in figures]
            text.append(f"| {name} | " + " | ".join(cells) + " |")
        file = title.lower().replace(" ", "-") + ".svg"
        draw(title, rows, figures, work / file)
        text += ["", f"![{title}]({file})", ""]
    (work / "tables.md").write_text("\n".join(text))
    print("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=ROOT / "examples/base-1m")
    parser.add_argument("--dataset", default=ROOT / "examples/tales/train.jsonl")
    parser.add_argument("--heldout", default=ROOT / "examples/tales/heldout.jsonl")
    parser.add_argument("--task", nargs="*", default=[ROOT / "examples/tasks/endings.yaml"])
    parser.add_argument("--decisions", nargs=2, metavar=("TRAIN", "HELDOUT"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--config", help="options of train, as YAML")
    parser.add_argument("--work", default="build/paper-tables", help="folder for files [%(default)s]")
    parser.add_argument("--qlora", default=ROOT / "build/release/bin/qlora", help="program")
    arguments = parser.parse_args()
    measure = Measurement(arguments)
    write_tables(measure.work, measure)


if __name__ == "__main__":
    main()
