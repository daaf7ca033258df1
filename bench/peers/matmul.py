#!/usr/bin/python3
"""llama.cpp's own products with 4-bit weights beside `qlora-bench nf4-matmul`, in turn (A B A B).

    bench/peers/matmul.py [--shapes 4096x4096] [--rows 1,16,512] [--rounds 3] [--busy] [--json]

y = x W^T with M rows of activations: ggml with float32 activations, rounded to 8 bits, and weights
in its interleaved layout (CPU_REPACK); qlora with NF4, prepacked as it generates where the machine
has kernels for that, and the compute type that it chooses. Prints
GFLOP/s, GB/s of weights, read once a product, and the ratio qlora / ggml; the best timing counts.
Below 128 rows the weights come from memory: copies of them, 256 MiB in all, are used in turn.

--busy measures each side again while another process of the same priority spins on one of as many
cores as there are threads, and prints the share of the throughput that is kept. Each round then
times once, and the median counts: the best would tell only how lucky the scheduler was.
Two threads can keep 75 %; 50 % is waiting for the slower one, or the kernel leaving that core to
the other process for a while.

ggml comes from the npm package node-llama-cpp: `npm install --ignore-scripts` in tests/interop, or
a folder with libggml*.so in --ggml.
"""
import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time

import ggml_matmul

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIBRARIES = "tests/interop/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64"
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)  # code, 8-bit scale of 64 values, scale of 256 scales


@contextlib.contextmanager
def busy_core():
    """Another process spins on one core; it also ends when this one is no longer its parent."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}:\n  for _ in range(10**5): pass"
    process = subprocess.Popen([sys.executable, "-c", loop])
    try:
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.wait()


def measure_qlora(o, shape, repetitions):
    command = [o.bench, "nf4-matmul", "--json", "--shapes", shape, "--rows", o.rows,
               "--threads", str(o.threads), "--repetitions", str(repetitions)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with status {done.returncode}:\n{done.stderr}")
    results = json.loads(done.stdout)["results"]
    seconds = {op: [row["seconds"] for row in results if row["op"] == op]
               for op in ("nf4 y = x W^T", "nf4 y = x W^T, prepacked")}
    return seconds["nf4 y = x W^T, prepacked"] or seconds["nf4 y = x W^T"]


def measure_shape(o, ggml, shape):
    """For each number of rows one result of each of ggml's types, in order, and then of qlora."""
    N, K = (int(size) for size in shape.split("x"))
    rows = [int(M) for M in o.rows.split(",")]
    few_rows = min(rows) < ggml_matmul.MANY_ROWS
    weights = [ggml_matmul.Weights(ggml, name, N, K, few_rows) for name in o.types.split(",")]
    products = [[w.product(M) for M in rows] for w in weights]
    repetitions = 1 if o.busy else o.repetitions
    quiet, busy = [], []  # seconds[round][program][rows]
    for _ in range(o.rounds):
        for seconds in (quiet, busy)[:1 + o.busy]:
            with busy_core() if seconds is busy else contextlib.nullcontext():
                seconds.append([[min([run() for _ in range(1 + repetitions)][1:]) for run in runs]
                                for runs in products] + [measure_qlora(o, shape, repetitions)])
    for w in weights:
        w.free()
    results = []
    count = statistics.median if o.busy else min
    for i, M in enumerate(rows):
        for p, name in enumerate([w.name for w in weights] + ["nf4"]):
            best = count(programs[p][i] for programs in quiet)
            weight_bytes = N * K / 8 * (NF4_BITS if name == "nf4" else ggml_matmul.BITS)
            row = {"shape": f"{M}x{shape}", "program": "qlora" if name == "nf4" else "ggml",
                   "type": name, "seconds": best, "gflops_per_second": 2e-9 * M * N * K / best,
                   "weight_gigabytes_per_second": 1e-9 * weight_bytes / best}
            if o.busy:
                row["busy_seconds"] = count(programs[p][i] for programs in busy)
                row["share_kept"] = best / row["busy_seconds"]
            results.append(row)
    return results


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(shapes="2048x2048,8192x2048,2048x8192,4096x4096,5632x2048",
                            rows="1,4,16,128,512", types="iq4_nl,q4_0",
                            bench=os.path.join(ROOT, "build/release/bin/qlora-bench"),
                            ggml=os.path.join(ROOT, LIBRARIES)).items():
        parser.add_argument("--" + name, default=value)
    for name, value in dict(threads=2, rounds=3, repetitions=5).items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args()
    unknown = set(o.types.split(",")) - set(ggml_matmul.TYPES)
    if unknown:
        parser.error(f"--types: expected {' or '.join(ggml_matmul.TYPES)}, found '{min(unknown)}'")
    for shape in o.shapes.split(","):
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", shape) or int(shape.split("x")[1]) % 32:
            parser.error(f"--shapes: expected NxK, K a multiple of 32, found '{shape}'")
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", o.rows):
        parser.error(f"--rows: expected numbers of rows, found '{o.rows}'")
    if min(o.threads, o.rounds, o.repetitions) < 1:
        parser.error("--threads, --rounds and --repetitions: expected at least 1")
    if not os.path.isfile(o.bench) or not os.access(o.bench, os.X_OK):
        sys.exit(f"{o.bench}: no such program; build it, or name it with --bench")
    return o


def figures(row):
    text = f"{row['gflops_per_second']:>10.1f}{row['weight_gigabytes_per_second']:>7.1f}"
    return text + (f"{row['share_kept']:>7.0%}" if "share_kept" in row else "")


def main():
    o = parse_options()
    if o.busy:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:o.threads])
    ggml = ggml_matmul.Ggml(o.ggml, o.threads)
    names = [f"ggml {name}" for name in o.types.split(",")] + ["qlora nf4"]
    if not o.json:
        print(f"ggml {ggml.version().decode()}, {ggml.kernels}; {o.threads} threads\n"
              "GFLOP/s, GB/s of weights" + (", share kept with one core taken" if o.busy else ""))
        print(f"{'M x N x K':<14}" + "".join(f"{n:>{24 if o.busy else 17}}" for n in names)
              + "".join(f"{'qlora / ' + n.split()[1]:>16}" for n in names[:-1]), flush=True)
    results = []
    for shape in o.shapes.split(","):
        measured = measure_shape(o, ggml, shape)
        results += measured
        for at in range(0, 0 if o.json else len(measured), len(names)):
            *peers, own = measured[at:at + len(names)]
            print(f"{own['shape']:<14}" + "".join(figures(row) for row in [*peers, own])
                  + "".join(f"{row['seconds'] / own['seconds']:>15.2f}x" for row in peers),
                  flush=True)
    if o.json:
        print(json.dumps({"ggml": ggml.version().decode(), "kernels": ggml.kernels,
                          "threads": o.threads, "results": results}, indent=2))


if __name__ == "__main__":
    main()
