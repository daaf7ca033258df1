#!/usr/bin/env python3
"""Runs the tests and benchmarks of the CUDA backend on the GPU of this machine and writes a receipt:
what ran, on which device and commit, with which results. scripts/gpu_check.sh builds the programs.

  gpu_receipt.py --bin DIR --out DIR   run, at most 8 minutes, and write OUT/DATE-DEVICE.json
  gpu_receipt.py --warn                exit 77 and say why when docs/gpu has no receipt of these kernels
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECEIPTS = ROOT / "docs" / "gpu"
LIMIT = 480  # seconds of the whole run
SKIPPED = 77  # as CTest knows it
# Cases that compute-sanitizer finishes in seconds.
SMALL = "*OpTest.RmsNorm*:*OpTest.Rope*:*OpTest.Linear/*:*OpTest.AttentionBackward/*:CudaQuantize.*"

SHAPES = {
    "Llama-3-8B": "--hidden_size 4096 --intermediate_size 14336 --num_hidden_layers 32 "
                  "--num_attention_heads 32 --num_key_value_heads 8 --vocab_size 128256",
    "Llama-3.2-1B": "--hidden_size 2048 --intermediate_size 8192 --num_hidden_layers 16 "
                    "--num_attention_heads 32 --num_key_value_heads 8 --vocab_size 128256",
}
STEP = "step --device cuda --lora_r 16 --batch_size 4 --max_length 2048 --steps 5 --recompute "
# (shape, command, kernels of attention); the tests run those of cuDNN and own ones.
BENCHMARKS = [
    ("Llama-3-8B", STEP + "none", "cudnn"),
    ("Llama-3-8B", STEP + "none", "own"),
    ("Llama-3-8B", STEP + "layer", "cudnn"),
    ("Llama-3-8B", "decode --device cuda --prompt_tokens 512 --new_tokens 128", "own"),
    ("Llama-3.2-1B", STEP + "none", "cudnn"),
]


def kernels():
    """A hash of the sources of the CUDA backend."""
    folder = ROOT / "src" / "backend" / "cuda"
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".cu", ".cc", ".h")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def run(command, seconds, **options):
    """(exit status or None at the time limit, output)"""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=max(1, seconds), **options)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as stopped:
        text = stopped.stdout or b""  # bytes, also of a process in text mode
        return None, text if isinstance(text, str) else text.decode(errors="replace")
    except OSError as error:
        return None, str(error)


class Check:
    def __init__(self, programs, out):
        self.programs = programs
        self.out = out
        self.begin = time.monotonic()
        self.receipt = {}

    def left(self):
        return LIMIT - (time.monotonic() - self.begin)

    def describe(self):
        status, text = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                            "--format=csv,noheader"], 30)
        if status != 0:
            sys.exit("expected an NVIDIA GPU, nvidia-smi says: " + text.strip())
        name, driver, memory = [word.strip() for word in text.splitlines()[0].split(",")]
        version = run([self.programs / "qlora", "version"], 30)[1].strip()
        doctor = json.loads(run([self.programs / "qlora", "doctor", "--json"], 60)[1])
        self.receipt.update(
            date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            version=version, kernels=kernels(), device=name, driver=driver, memory=memory,
            attention=doctor["cuda"].get("attention", ""))

    def tests(self):
        report = self.out / "tests.json"
        status, text = run([self.programs / "cuda_device_tests", "--gtest_brief=1",
                            "--gtest_output=json:%s" % report], min(240, self.left()))
        (self.out / "tests.log").write_text(text)
        found = {"exit": status, "passed": 0, "failed": [], "skipped": [], "speeds": {}}
        if report.exists():
            for suite in json.loads(report.read_text())["testsuites"]:
                for case in suite["testsuite"]:
                    name = suite["name"] + "." + case["name"]
                    found["speeds"].update({key: float(value) for key, value in case.items()
                                            if key.endswith("_per_second")})
                    if case.get("failures"):
                        found["failed"].append(name)
                    elif case.get("result") == "SKIPPED":
                        found["skipped"].append(name)
                    else:
                        found["passed"] += 1
        self.receipt["tests"] = found

    def sanitizer(self):
        found = self.receipt["compute-sanitizer"] = {}
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        for check in ("memcheck", "racecheck"):
            status, text = run([tool, "--tool", check, "--error-exitcode", "9",
                                self.programs / "cuda_device_tests", "--gtest_brief=1",
                                "--gtest_filter=" + SMALL], min(60, self.left() - 180))
            (self.out / (check + ".log")).write_text(text)
            summary = re.findall(r"^=+ +((?:ERROR|RACECHECK) SUMMARY.*|Error:.*)$", text, re.M)
            found[check] = {"exit": status, "summary": summary[-1] if summary else text[-200:]}

    def benchmarks(self):
        self.receipt["benchmarks"] = []
        for shape, options, attention in BENCHMARKS:
            command = ["bench"] + options.split() + SHAPES[shape].split() + ["--json"]
            status, text = run([self.programs / "qlora"] + command, min(90, self.left()),
                               env={**os.environ, "QLORA_CUDA_ATTENTION": attention})
            entry = {"shape": shape, "command": "qlora " + " ".join(command),
                     "attention": attention, "exit": status}
            try:
                entry["results"] = json.loads(text[text.index("{"):])["results"]
            except (ValueError, KeyError):
                entry["output"] = text[-2000:]
            self.receipt["benchmarks"].append(entry)

    def peers(self):
        """The same step in PyTorch, where it can be imported, and Triton, and time is left."""
        imports = run([sys.executable, "-c", "import torch, triton"], min(60, self.left()))
        if imports[0] != 0 or self.left() < 120:
            return
        report = self.out / "peers.json"
        report.unlink(missing_ok=True)
        status, text = run(
            [sys.executable, ROOT / "bench" / "peers" / "step.py", "--device", "cuda", "--shape",
             "Llama-3.2-1B", "--rounds", "1", "--contenders", "qlora,triton,bitsandbytes,peft",
             "--qlora", self.programs / "qlora", "--seconds", str(round(self.left() - 30)),
             "--json", report], self.left() - 10)
        (self.out / "peers.log").write_text(text)
        self.receipt["peers"] = (json.loads(report.read_text()) if report.exists()
                                 else {"exit": status, "output": text[-2000:]})
        print(text)

    def write(self):
        self.receipt["seconds"] = round(time.monotonic() - self.begin)
        device = re.sub(r"[^A-Za-z0-9]+", "-", self.receipt["device"]).strip("-")
        path = self.out / ("%s-%s.json" % (self.receipt["date"][:19].replace(":", ""), device))
        path.write_text(json.dumps(self.receipt, indent=1) + "\n")
        return path


def warn():
    """Receipts are named by date, so the last name is the newest."""
    receipts = sorted(RECEIPTS.glob("*.json"))
    if not receipts:
        print("CUDA is not verified on a GPU: docs/gpu has no receipt (scripts/gpu_check.sh)")
        return SKIPPED
    newest = json.loads(receipts[-1].read_text())
    if newest["kernels"] != kernels():
        print("CUDA kernels changed after the newest receipt, %s: run scripts/gpu_check.sh on a GPU"
              % receipts[-1].name)
        return SKIPPED
    print("verified on %s, %s" % (newest["device"], newest["date"]))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, help="folder of qlora and cuda_device_tests")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the receipt and the logs")
    parser.add_argument("--warn", action="store_true")
    args = parser.parse_args()
    if args.warn:
        return warn()
    args.out.mkdir(parents=True, exist_ok=True)
    check = Check(args.bin.resolve(), args.out)
    check.describe()
    check.tests()
    check.sanitizer()
    check.benchmarks()
    check.peers()
    path = check.write()
    failed = check.receipt["tests"]["failed"]
    print("%s: %d tests passed, %d failed%s" % (path, check.receipt["tests"]["passed"], len(failed),
                                               "".join("\n  " + name for name in failed)))
    for name, value in check.receipt["tests"]["speeds"].items():
        print("%s %.1f" % (name.replace("_", " "), value))
    for entry in check.receipt["benchmarks"]:
        print(entry["command"], "(attention: %s)" % entry["attention"])
        for row in entry.get("results", []):
            print("  %-40s %12.1f %-12s %6.2f of %s" % (row["op"], row["value"], row["unit"],
                                                        row["ratio"], row["limit_kind"] or "-"))
        if "output" in entry:
            print("  " + entry["output"][-500:])
    return 1 if failed or check.receipt["tests"]["exit"] != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
