"""Steps of the same training on a GPU, by qlora and by PyTorch with each of its contenders, each in
its own process and in turn (A B ... B A): what `step.py --device cuda` runs."""
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CONTENDERS = ["qlora", "triton", "bitsandbytes", "peft", "unsloth"]
SHAPES = {
    "Llama-3-8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                       num_attention_heads=32, num_key_value_heads=8, vocab_size=128256),
    "Llama-3.2-1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                         num_attention_heads=32, num_key_value_heads=8, vocab_size=128256),
}
# The most that the first loss and a later one may differ. Weights and tokens are the same (seeded_values.py); adapters
# begin at other random numbers, which do not change the first loss. Losses that differ by more are
# not of the same computation, and speeds are not compared. Chosen, not measured: bfloat16 has 8 bits,
# and the first loss, about ln(128256) = 11.8, is a mean over the rows, of whose errors most cancel;
# after one update the adapters, too, differ.
MOST_LOSS_DIFFERENCES = (0.01, 0.05)


def options_of(o):
    """What qlora and PyTorch are both given."""
    shape = {**SHAPES[o.shape], "lora_r": 16, "max_length": o.length, "batch_size": o.batch,
             "steps": o.steps, "warmup_steps": o.warmup_steps}
    if o.layers:
        shape["num_hidden_layers"] = o.layers
    return [word for name, value in shape.items() for word in ("--" + name, str(value))]


def command_of(o, contender, checkpoint):
    if contender == "qlora":
        return [o.qlora, "bench", "step", "--json", "--device", "cuda", "--recompute",
                "layer" if checkpoint else "none"] + options_of(o)
    more = ["--model_dir", o.model_dir] if o.model_dir else []
    return [o.python, os.path.join(HERE, "torch_cuda_step.py"), "--contender", contender,
            "--checkpoint", str(int(checkpoint))] + options_of(o) + more


def of_qlora(rows):
    """The result in the form of torch_cuda_step.py, of the rows of qlora bench."""
    value = {row["op"]: row["value"] for row in rows}
    losses = [row for row in rows if row["op"].startswith("loss of step ")]
    return {"tokens_per_second": value["step, median"],
            "peak_bytes": value["memory of the device"] * 1e9,
            "losses": [row["value"] for row in losses],
            "loss_step": int(losses[-1]["op"].split()[-1])}


def run(o, contender, checkpoint, seconds):
    """The result, or {"skipped": why}."""
    try:
        done = subprocess.run(command_of(o, contender, checkpoint), capture_output=True, text=True,
                              timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"skipped": "not done after %d s" % seconds}
    except OSError as error:
        return {"skipped": str(error)}
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        last = lines[-1] if lines else "status %d" % done.returncode
        error = next((line for line in lines if line.startswith("error: ")), last)
        return {"skipped": "failed: " + error}
    if contender == "qlora":
        return of_qlora(json.loads(done.stdout)["results"])
    return json.loads(done.stdout.splitlines()[-1])


def state_of_gpu():
    """Clocks, power and temperature, as the driver reports them."""
    query = "name,driver_version,clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu"
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr or "nvidia-smi: no output").strip().splitlines()[0]


def line_of(name, result, base):
    if "skipped" in result:
        return "  %-14s skipped: %s" % (name, result["skipped"])
    text = "  %-14s%10.1f tok/s%8.2f GB  loss %.3f, at step %d %.3f" % (
        name, result["tokens_per_second"], result["peak_bytes"] / 1e9, result["losses"][0],
        result["loss_step"], result["losses"][1])
    if name == "qlora" or "losses" not in base:
        return text
    if any(abs(a - b) > most for a, b, most in
           zip(result["losses"], base["losses"], MOST_LOSS_DIFFERENCES)):
        return text + "  not compared: other losses"
    return text + "  qlora: %.2fx the speed, %.2f of the memory" % (
        base["tokens_per_second"] / result["tokens_per_second"],
        base["peak_bytes"] / result["peak_bytes"])


def compare(o):
    begin = time.monotonic()
    contenders = o.contenders.split(",")
    unknown = [name for name in contenders if name not in CONTENDERS]
    if unknown:
        sys.exit("unknown contender %s; there are %s" % (unknown[0], ", ".join(CONTENDERS)))
    report = {"shape": o.shape, "options": " ".join(options_of(o)), "gpu": state_of_gpu(),
              "results": []}
    print("GPU: " + report["gpu"])
    print("equal for all: %s, all seven linears, no dropout, alpha 2 r, float32 adapters, bfloat16 "
          "products, AdamW at 1e-4 without decay, gradient norm clipped to 1" % report["options"])
    for checkpoint in (True, False):
        best = {}
        for turn in range(o.rounds):
            for name in contenders if turn % 2 == 0 else reversed(contenders):
                left = o.seconds - (time.monotonic() - begin)
                if left < 20:
                    result = {"skipped": "no time left"}
                elif o.dry_run:
                    result = {"skipped": " ".join(command_of(o, name, checkpoint))}
                elif "skipped" in best.get(name, {}):
                    continue
                else:
                    result = run(o, name, checkpoint, left)
                speed = result.get("tokens_per_second", 0)
                if name not in best or speed > best[name].get("tokens_per_second", 0):
                    best[name] = result
        print("checkpointing " + ("on" if checkpoint else "off"))
        for name in contenders:
            report["results"].append({"contender": name, "checkpointing": checkpoint, **best[name]})
            print(line_of(name, best[name], best.get("qlora", {})), flush=True)
    for name in contenders:
        for result in report["results"]:
            if result["contender"] == name and "settings" in result:
                print("settings of %s: %s" % (name, json.dumps(result["settings"])))
                break
    report["gpu after"] = state_of_gpu()
    print("GPU after: " + report["gpu after"])
    if o.json:
        with open(o.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
