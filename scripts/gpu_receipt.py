#!/usr/bin/env python3
"""Runs the tests and benchmarks of the CUDA backend on the GPU of this machine and writes a receipt:
what ran, on which device and commit, with which results. scripts/gpu_check.sh builds the programs.

  gpu_receipt.py --bin DIR --out DIR   run, at most 8 minutes, and write OUT/DATE-DEVICE.json
  gpu_receipt.py --warn                exit 77 and say why when docs/gpu has no receipt of these kernels

The receipt is written after every part, so that what was found is not lost when a later part is
stopped. The exit status is 1 when anything failed; what could not run (no compute-sanitizer, no
PyTorch, no time left) is named and is no failure.
"""
import argparse
import datetime
import glob
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
PARTS = ("tests", "sanitizer", "benchmarks", "peers")
SKIPPED = 77  # as CTest knows it
# Cases that compute-sanitizer finishes in seconds.
SMALL = "*OpTest.RmsNorm*:*OpTest.Rope*:*OpTest.Linear/*:*OpTest.AttentionBackward/*:CudaQuantize.*"

SHAPES = {
    "Llama-3-8B": "--hidden_size 4096 --intermediate_size 14336 --num_hidden_layers 32 "
                  "--num_attention_heads 32 --num_key_value_heads 8 --vocab_size 128256",
    "Llama-3.2-1B": "--hidden_size 2048 --intermediate_size 8192 --num_hidden_layers 16 "
                    "--num_attention_heads 32 --num_key_value_heads 8 --vocab_size 128256",
}
STEP = "step --device cuda --lora_r 16 --max_length 2048 --steps 5 "
# (shape, command, kernels of attention), the most important first. With "cudnn" a step that cuDNN
# does not run fails; the tests run cuDNN and own kernels.
BENCHMARKS = [
    ("Llama-3-8B", STEP + "--batch_size 4 --recompute none", "cudnn"),
    ("Llama-3-8B", STEP + "--batch_size 4 --recompute layer", "cudnn"),
    ("Llama-3-8B", STEP + "--batch_size 1 --recompute offload --optim adamw_8bit "
     "--max_memory 6.6GB", "own"),
    ("Llama-3-8B", "decode --device cuda --prompt_tokens 512 --new_tokens 128", "own"),
    ("Llama-3-8B", STEP + "--batch_size 4 --recompute none", "own"),
    ("Llama-3.2-1B", STEP + "--batch_size 4 --recompute none", "cudnn"),
]
MOST_FILTER_BYTES = 100_000
LIBRARIES = ("libcublasLt.so*", "libcudnn.so*", "libnvrtc.so*")


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


def pythons(given=()):
    """Interpreters that may have libraries of NVIDIA or PyTorch: those that are given, of an active
    environment and of the path."""
    found = [*given, sys.executable]
    for folder in [os.environ.get("VIRTUAL_ENV", "") + "/bin"] + os.get_exec_path():
        found += [os.path.join(folder, name) for name in ("python3", "python")]
    # By path and not by the file behind a link: that of an environment is a link to the system's.
    return [p for p in dict.fromkeys(found) if os.access(p, os.X_OK)]


def library_folders(python):
    """The folders below the packages of an interpreter that have libraries which qlora opens."""
    text = run([python, "-c", "import json, site, sysconfig; print(json.dumps(["
                "*sysconfig.get_paths().values(), *site.getsitepackages()]))"], 20)[1]
    try:
        packages = dict.fromkeys(json.loads(text.splitlines()[-1]))
    except (ValueError, IndexError):
        return []
    folders = []
    for package in packages:
        for pattern in ("nvidia/*/lib", "nvidia/*/*/lib"):
            folders += sorted(glob.glob(os.path.join(glob.escape(package), pattern)))
    return [f for f in folders if any(glob.glob(os.path.join(glob.escape(f), name))
                                      for name in LIBRARIES)]


def environment(folders):
    path = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(dict.fromkeys(path + folders))}


def in_one_filter(cases):
    """The first of the cases, as many as fit into one variable of the environment: Linux takes at
    most 128 KiB."""
    length = 0
    for index, case in enumerate(cases):
        length += len(case.encode()) + 1
        if length > MOST_FILTER_BYTES and index > 0:
            return cases[:index]
    return cases


class Check:
    def __init__(self, programs, out, limit, python=()):
        self.programs = programs
        self.out = out
        self.limit = limit
        self.pythons = pythons(python)
        self.begin = time.monotonic()
        self.receipt = {}
        self.failures = []
        self.not_run = []
        found = [folder for python in self.pythons for folder in library_folders(python)]
        # Last, for cuDNN, which opens the compiler of CUDA (nvrtc) by its name alone.
        found += [f for f in ("/usr/local/cuda/lib64",) if os.path.isdir(f)]
        self.folders = list(dict.fromkeys(found))
        self.env = environment(self.folders)

    def left(self):
        return self.limit - (time.monotonic() - self.begin)

    def fails(self, what):
        print("FAILED: " + what, flush=True)
        self.failures.append(what)

    def skips(self, what):
        print("not run: " + what, flush=True)
        self.not_run.append(what)

    def describe(self):
        status, text = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                            "--format=csv,noheader"], 30)
        if status != 0:
            sys.exit("expected an NVIDIA GPU, nvidia-smi says: " + text.strip())
        name, driver, memory = [word.strip() for word in text.splitlines()[0].split(",")]
        version = run([self.programs / "qlora", "version"], 30)[1].strip()
        text = run([self.programs / "qlora", "doctor", "--json"], 90, env=self.env)[1]
        try:
            doctor = json.loads(text)["cuda"]
        except ValueError:
            doctor = {"usable": False, "problem": text[-2000:]}
        self.receipt.update(
            date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            version=version, kernels=kernels(), device=name, driver=driver, memory=memory,
            products=doctor.get("products", ""), attention=doctor.get("attention", ""),
            library_folders=self.folders)
        for key in ("products", "attention"):
            print("%s: %s" % (key, self.receipt[key]))
        if not doctor["usable"]:
            self.fails("qlora doctor: " + doctor.get("problem", ""))

    # The cases of one process after another: what a crash or the time limit has left runs in the
    # next one. A kernel that fails makes all cases behind it fail, so those that failed run once
    # more, each alone.
    def tests(self):
        found = self.receipt["tests"] = {"passed": [], "skipped": [], "failed": [], "speeds": {}}
        end = self.left() - 30 if self.limit < 240 else self.left() - 240
        stop = time.monotonic() + max(60, end)
        log = open(self.out / "tests.log", "w", encoding="utf-8")
        cases = self.list_of_tests()
        waiting, tries = list(cases), 0
        while waiting and tries < 4 and time.monotonic() < stop:
            part = in_one_filter(waiting)
            done, unfinished = self.run_tests(part, stop - time.monotonic(), log, found)
            waiting = [c for c in waiting if c not in done and c != unfinished]
            if unfinished:
                tries += 1
                found["failed"].append({"case": unfinished, "why": "ended the program, or hung"})
            elif not done:
                break
        suspects = [case for case in found["failed"] if "why" not in case]
        for case in suspects[:20]:
            if time.monotonic() > stop:
                break
            one = {"passed": [], "skipped": [], "failed": [], "speeds": {}}
            self.run_tests([case["case"]], min(60, stop - time.monotonic()), log, one)
            case["alone"] = "passes" if one["passed"] else "fails"
        log.close()
        if not cases:
            self.fails("cuda_device_tests has no cases")
        for case in found["failed"]:
            self.fails("test " + ", ".join("%s" % text for text in case.values()))
        if waiting:
            found["not run"] = waiting
            self.fails("%d tests did not run" % len(waiting))

    def list_of_tests(self):
        text = run([self.programs / "cuda_device_tests", "--gtest_list_tests"], 60, env=self.env)[1]
        cases, suite = [], ""
        for line in text.splitlines():
            word = line.split("#")[0].rstrip()
            if word.endswith(".") and not line.startswith(" "):
                suite = word
            elif suite and word.startswith("  "):
                cases.append(suite + word.strip())
        return cases

    def run_tests(self, cases, seconds, log, found):
        """(cases that ended, the case that ended the program or was running at the time limit)"""
        report = self.out / "tests.json"
        report.unlink(missing_ok=True)
        env = {**self.env, "GTEST_FILTER": ":".join(cases)}
        text = run([self.programs / "cuda_device_tests", "--gtest_color=no",
                    "--gtest_output=json:%s" % report], seconds, env=env)[1]
        log.write(text)
        log.flush()
        done, running = set(), None
        for line in text.splitlines():
            match = re.match(r"\[ ([ A-Z]+) \] ([^ ,]+)( \(\d+ ms\))?$", line.rstrip())
            # The lists at the end repeat what was said before, without times.
            match = match or re.match(r"\[ ([ A-Z]+) \] ([^ ,]+)(, where .*\(\d+ ms\))$", line)
            if not match:
                continue
            word, case, ended = match.group(1).strip(), match.group(2), match.group(3)
            if word == "RUN":
                running = case
            elif ended:
                running = None
                done.add(case)
                if word == "FAILED":
                    found["failed"].append({"case": case})
                else:
                    found["skipped" if word == "SKIPPED" else "passed"].append(case)
        if report.exists():
            for suite in json.loads(report.read_text())["testsuites"]:
                for case in suite["testsuite"]:
                    found["speeds"].update({key: float(value) for key, value in case.items()
                                            if key.endswith("_per_second")})
            report.unlink()
        return done, running

    def sanitizer(self):
        found = self.receipt["compute-sanitizer"] = {}
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not os.access(tool, os.X_OK):
            return self.skips("compute-sanitizer: not found")
        for check in ("memcheck", "racecheck"):
            seconds = min(60, self.left() - 10)
            if seconds < 15:
                self.skips("compute-sanitizer %s: no time left" % check)
                continue
            status, text = run([tool, "--tool", check, "--error-exitcode", "9",
                                self.programs / "cuda_device_tests", "--gtest_brief=1",
                                "--gtest_filter=" + SMALL], seconds, env=self.env)
            (self.out / (check + ".log")).write_text(text)
            summary = re.findall(r"^=+ +((?:ERROR|RACECHECK) SUMMARY.*|Error:.*)$", text, re.M)
            said = summary[-1] if summary else text[-200:]
            # Some virtual machines give no access to what the tool needs.
            refused = "Device not supported" in text
            found[check] = {"exit": status, "summary": said}
            if status is not None:
                found[check]["passed"] = status == 0
            if refused:
                self.skips("compute-sanitizer %s: it does not support this device" % check)
            elif status is None:
                self.skips("compute-sanitizer %s: not done after %d s" % (check, seconds))
            elif status != 0:
                self.fails("compute-sanitizer %s: %s" % (check, said))

    def benchmarks(self):
        self.receipt["benchmarks"] = []
        for shape, options, attention in BENCHMARKS:
            command = ["bench"] + options.split() + SHAPES[shape].split() + ["--json"]
            entry = {"shape": shape, "command": "qlora " + " ".join(command),
                     "attention": attention}
            self.receipt["benchmarks"].append(entry)
            name = "%s (attention: %s)" % (entry["command"], attention)
            seconds = min(90, self.left() - 10)
            if seconds < 20:
                entry["skipped"] = "no time left"
                self.skips(name + ": no time left")
                continue
            status, text = run([self.programs / "qlora"] + command, seconds,
                               env={**self.env, "QLORA_CUDA_ATTENTION": attention})
            entry["exit"] = status
            try:
                entry["results"] = json.loads(text[text.index("{"):])["results"]
            except (ValueError, KeyError):
                entry["output"] = text[-2000:]
            if status != 0 or "results" not in entry:
                self.fails("%s: %s" % (name, entry.get("output", "")[-300:].strip() or
                                       "not done after %d s" % seconds))
                continue
            print(name)
            for row in entry["results"]:
                print("  %-40s %12.1f %-12s %6.2f of %s" % (
                    row["op"], row["value"], row["unit"], row["ratio"], row["limit_kind"] or "-"))
            self.write()

    def peers(self):
        """The same step in PyTorch, where an interpreter has it, and Triton, and time is left."""
        self.receipt["peers"] = []
        python = next((p for p in self.pythons
                       if run([p, "-c", "import torch, triton"], min(60, self.left()))[0] == 0), None)
        if python is None:
            return self.skips("peers: no interpreter has PyTorch and Triton")
        for shape, least in (("Llama-3-8B", 120), ("Llama-3.2-1B", 60)):
            if self.left() < least:
                self.skips("peers of %s: no time left" % shape)
                continue
            report = self.out / ("peers-%s.json" % shape)
            report.unlink(missing_ok=True)
            status, text = run(
                [sys.executable, ROOT / "bench" / "peers" / "step.py", "--device", "cuda", "--shape",
                 shape, "--rounds", "1", "--steps", "10", "--warmup_steps", "3", "--contenders",
                 "qlora,triton,bitsandbytes,peft", "--qlora", self.programs / "qlora", "--python",
                 python, "--seconds", str(round(self.left() - 20)), "--json", report],
                self.left() - 5, env=self.env)
            (self.out / ("peers-%s.log" % shape)).write_text(text)
            print(text, flush=True)
            if report.exists():
                entry = json.loads(report.read_text())
                report.unlink()
            else:
                entry = {"output": text[-2000:]}
            self.receipt["peers"].append({"shape": shape, "exit": status, **entry})
            if status != 0 or "output" in entry:
                self.fails("peers of %s: %s" % (shape, text[-300:].strip()))
            self.write()

    def write(self):
        self.receipt.update(seconds=round(time.monotonic() - self.begin), failures=self.failures,
                            not_run=self.not_run)
        device = re.sub(r"[^A-Za-z0-9]+", "-", self.receipt["device"]).strip("-")
        path = self.out / ("%s-%s.json" % (self.receipt["date"][:19].replace(":", ""), device))
        path.write_text(json.dumps(self.receipt, indent=1) + "\n")
        return path


def warn():
    """Receipts are named by date, so the last name is the newest."""
    receipts = [(path, json.loads(path.read_text())) for path in sorted(RECEIPTS.glob("*.json"))]
    receipts = [(path, receipt) for path, receipt in receipts if "tests" in receipt]
    if not receipts:
        print("CUDA is not verified on a GPU: docs/gpu has no receipt (scripts/gpu_check.sh)")
        return SKIPPED
    path, newest = receipts[-1]
    if newest["kernels"] != kernels():
        print("CUDA kernels changed after the newest receipt, %s: run scripts/gpu_check.sh on a GPU"
              % path.name)
        return SKIPPED
    if newest["failures"]:
        print("the newest receipt, %s, has failures: %s" % (path.name, newest["failures"][0]))
        return SKIPPED
    print("verified on %s, %s" % (newest["device"], newest["date"]))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, help="folder of qlora and cuda_device_tests")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the receipt and the logs")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of " + ", ".join(PARTS))
    parser.add_argument("--seconds", type=int, default=480, help="limit of the whole run")
    parser.add_argument("--python", action="append", default=[], metavar="FILE",
                        help="an interpreter with libraries of NVIDIA or PyTorch, before those of "
                             "VIRTUAL_ENV and PATH; may be given several times")
    parser.add_argument("--warn", action="store_true")
    args = parser.parse_args()
    if args.warn:
        return warn()
    parts = args.parts.split(",")
    if not set(parts) <= set(PARTS):
        sys.exit("--parts: expected some of %s, found %s" % (", ".join(PARTS), args.parts))
    args.out.mkdir(parents=True, exist_ok=True)
    check = Check(args.bin.resolve(), args.out, args.seconds, args.python)
    check.describe()
    path = check.write()
    for part in PARTS:
        if part in parts:
            getattr(check, part)()
            check.write()
    if "tests" in check.receipt:
        tests = check.receipt["tests"]
        print("%d tests passed, %d failed, %d skipped" % (
            len(tests["passed"]), len(tests["failed"]), len(tests["skipped"])))
        for name, value in tests["speeds"].items():
            print("%s %.1f" % (name.replace("_", " "), value))
    for what in check.not_run:
        print("not run: " + what)
    for what in check.failures:
        print("FAILED: " + what)
    print("%s: %d failures" % (path, len(check.failures)))
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
