#!/usr/bin/env python3
"""What products in 8 bits change on a model: the losses after training, gradients, log-probabilities, outliers.

usage: int8_quality.py QLORA MODEL TRAIN HELDOUT FOLDER [STEPS]

Trains QLORA's MODEL (a folder of Hugging Face) on records TRAIN with three seeds and compute_dtype float32, int8 and
int8 with int8_backward, then prints, beside float32 on the same weights (NF4, where no other format is named):

- the held-out loss, each mean of three seeds with its difference in percent
- the cosine of the gradient of each tensor of a trained adapter: the smallest and the median
- the loss of Q8_0, and the difference of the log-probability of each held-out token: its root mean square and the largest
- the same of Q8_0 with one channel behind each norm made larger, and the columns of the weights that read it
  smaller (in 4 bits, codes of these columns would be 0), and of NF4 with one weight of a down_proj as large as its row
- the error of products 4096 wide, with channels and weights far above the others, in percent of the product without them

Needs numpy and the module qlora_cpp. Runs in FOLDER, which must not exist.
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys

import numpy as np

import qlora_cpp

KINDS = {"float32": ["--compute_dtype", "float32"], "bfloat16": ["--compute_dtype", "bfloat16"],
         "int8": ["--compute_dtype", "int8"],
         "int8 and dx": ["--compute_dtype", "int8", "--int8_backward", "true"]}
TRAINED = ("float32", "int8", "int8 and dx")
SEEDS = (1, 2, 3)
CHANNEL = 5


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, at in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in at["data_offsets"])
        raw = np.frombuffer(data[begin:end], {"F32": np.float32, "BF16": np.uint16, "F16": np.float16}[at["dtype"]])
        if at["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = raw.astype(np.float32).reshape(at["shape"])
    return tensors


def write_tensors(path, tensors):
    head, parts, at = {}, [], 0
    for name, values in tensors.items():
        part = values.astype("<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


class Quality:
    def __init__(self, qlora, model, train, heldout, folder, steps):
        self.qlora, self.model, self.train, self.heldout = qlora, pathlib.Path(model), train, heldout
        self.folder, self.steps = pathlib.Path(folder), steps
        self.folder.mkdir(parents=True)

    def run(self, *words):
        done = subprocess.run([self.qlora, *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return done.stdout

    def trained(self, name, kind, *options):
        out = self.folder / name
        self.run("train", "--model", self.model, "--dataset", self.train, "--max-length", 256, "--lora-r", 8,
                 "--load-in-4bit", "true", "--output-dir", out, *KINDS[kind], *options)
        return out

    def evaluated(self, kind, model=None, adapter=None):
        words = ["eval", model or self.model, self.heldout, "--max-length", 256, "--json", "--per_token", "true",
                 *KINDS[kind][:2], *([] if str(model).endswith(".gguf") else ["--load-in-4bit", "true"])]
        found = json.loads(self.run(*words, *(["--adapter", adapter] if adapter else [])))
        return found["loss"], np.array(found["logprobs"])

    def losses(self):
        means = {}
        print(f"held-out loss after {self.steps} steps, seeds {SEEDS}")
        for kind in TRAINED:
            found = []
            for seed in SEEDS:
                out = self.trained(f"{kind}-{seed}".replace(" ", "-"), kind, "--seed", seed, "--max_steps", self.steps,
                                   "--learning-rate", 5e-3)
                # Read in float32: what was learned, apart from how it is read.
                found.append((self.evaluated(kind, adapter=out)[0], self.evaluated("float32", adapter=out)[0]))
            means[kind] = np.mean(found, 0)
            own, exact = 100 * (means[kind] / means["float32"] - 1)
            print(f"  {kind:12} {means[kind][0]:.4f} ({own:+.2f} %), read in float32 {means[kind][1]:.4f} ({exact:+.2f} %)")

    # The step of SGD with a rate of 1 is the gradient.
    def gradients(self):
        start = self.folder / "float32-1"
        before = read_tensors(start / "adapter_model.safetensors")
        found = {}
        for kind in KINDS:
            out = self.trained("step-" + kind.replace(" ", "-"), kind, "--adapter", start, "--max_steps", 1, "--optim",
                               "sgd", "--learning-rate", 1, "--warmup_ratio", 0, "--max_grad_norm", 0,
                               "--lr_scheduler_type", "constant", "--weight_decay", 0)
            after = read_tensors(out / "adapter_model.safetensors")
            found[kind] = {name: (before[name] - after[name]).ravel().astype(np.float64) for name in before}
        print("cosine of the gradient of each tensor with that of float32: smallest, median")
        for kind in list(KINDS)[1:]:
            cosines = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in
                       ((found["float32"][name], found[kind][name]) for name in before)]
            print(f"  {kind:12} {min(cosines):.5f} {np.median(cosines):.5f}")

    # Writes the model with every tensor changed by change(name, values).
    def changed(self, name, change):
        model = self.folder / name
        shutil.copytree(self.model, model)
        tensors = read_tensors(self.model / "model.safetensors")
        for tensor, values in tensors.items():
            change(tensor, values)
        write_tensors(model / "model.safetensors", tensors)
        return model

    def compared(self, name, model):
        exact, expected = self.evaluated("float32", model)
        print(f"  {name}: float32 {exact:.4f}")
        for kind in ("bfloat16", "int8"):
            loss, found = self.evaluated(kind, model)
            off = found - expected
            print(f"    {kind:10} {loss:.4f} ({100 * (loss / exact - 1):+.2f} %) {np.sqrt(np.mean(off ** 2)):.4f} "
                  f"{np.abs(off).max():.3f}")

    def outliers(self):
        print("loss, its difference in percent, and that of log-probabilities: root mean square, largest")
        for factor in (1, 4, 16):
            def larger_channel(name, values):
                if name.endswith("layernorm.weight"):
                    values[CHANNEL] *= factor
                elif name.split(".")[-2] in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
                    values[:, CHANNEL] /= factor

            model = self.changed(f"channel-{factor}", larger_channel)
            blocks = self.folder / f"channel-{factor}.gguf"
            self.run("export", model, blocks, "--outtype", "q8_0")
            self.compared(f"channel x {factor}", blocks)

        def larger_weight(name, values):
            if name.endswith("layers.1.mlp.down_proj.weight"):
                values[7, CHANNEL] = np.abs(values[7]).sum()

        self.compared("one large weight", self.changed("weight", larger_weight))


def products():
    print("error of products 4096 wide in percent of the product without outliers: bfloat16, int8")
    random = np.random.default_rng(1)
    for name, channels, factor, weights in (
            ("gaussian", 0, 1, 0), ("4 channels x 50", 4, 50, 0), ("1 channel x 1000", 1, 1000, 0),
            ("a weight of 100 sigma in each row", 0, 1, 1)):
        x = random.standard_normal((64, 4096)).astype(np.float32)
        w = random.standard_normal((256, 4096)).astype(np.float32) * np.float32(0.02)
        x[:, :channels] *= factor
        w[:, 7:7 + weights] = 2
        errors = []
        for dtype in ("bfloat16", "int8"):
            layer = qlora_cpp.QLoraLinear.from_weight(w, r=1, compute_dtype=dtype)
            exact = layer.dequantize_weight().astype(np.float64)
            others = exact.copy()
            others[:, :channels] = 0
            others[:, 7:7 + weights] = 0
            off = layer(x) - x.astype(np.float64) @ exact.T
            errors.append(100 * np.linalg.norm(off) / np.linalg.norm(x @ others.T))
        print(f"  {name:34} {errors[0]:.2f} {errors[1]:.2f}")


def main():
    if len(sys.argv) not in (6, 7):
        sys.exit(__doc__)
    products()
    quality = Quality(*sys.argv[1:6], int((sys.argv + ["120"])[6]))
    quality.outliers()
    quality.losses()
    quality.gradients()


main()
