#!/usr/bin/env python3
"""Steps of LoRA training of a Llama-shaped model with random weights in PyTorch on a GPU, as JSON on
standard output: {"tokens_per_second", ...}, or {"skipped": why}.

Contenders: triton (weights of nf4_weight.py) and bitsandbytes (its weights), both in the plain
modules below; peft (transformers, peft and bitsandbytes); unsloth (needs --model_dir).
With --device cpu, triton runs without its kernel: a check of this program, not a measurement.
"""
import argparse
import contextlib
import json
import math
import os
import sys
import time

import seeded_values

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LEARNING_RATE = 1e-4
MAX_GRAD_NORM = 1.0
LOSS_STEP = 20  # whose loss is reported beside that of step 0


class Skipped(Exception):
    pass


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", choices=["triton", "bitsandbytes", "peft", "unsloth"],
                        default="triton")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--checkpoint", type=int, default=1, help="1: gradient checkpointing")
    parser.add_argument("--model_dir", default="", help="a model of the same shape, for unsloth")
    for name, value in dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                            num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                            lora_r=16, max_length=2048, batch_size=4, steps=20,
                            warmup_steps=5).items():
        parser.add_argument("--" + name, type=int, default=value)
    return parser.parse_args()


def random_weight(torch, o, rows, cols):
    """A weight of the model of qlora bench: uniform in [-1, 1) / sqrt(cols)."""
    if not hasattr(o, "weights"):
        o.weights = seeded_values.SeededWeights(torch, o.device)
    return o.weights.matrix(rows, cols)


def fastest_attention(torch, o):
    """(name, backend, with grouped heads): the fastest of those that run this shape."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    dim = o.hidden_size // o.num_attention_heads

    def tensor(heads):
        return torch.randn(o.batch_size, heads, o.max_length, dim, dtype=torch.bfloat16,
                           device="cuda", requires_grad=True)
    q = tensor(o.num_attention_heads)
    k, v = tensor(o.num_key_value_heads), tensor(o.num_key_value_heads)
    found = []
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
        for grouped in (True, False):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            try:
                with sdpa_kernel(getattr(SDPBackend, name)):
                    for repetition in range(6):
                        if repetition == 1:
                            begin.record()
                        attend(torch, q, k, v, grouped).sum().backward()
                    end.record()
                torch.cuda.synchronize()
            except (AttributeError, RuntimeError, TypeError):
                continue
            found.append((begin.elapsed_time(end), name, grouped))
    if not found:
        return "default", None, False
    _, name, grouped = min(found)
    return name, getattr(SDPBackend, name), grouped


def attend(torch, q, k, v, grouped):
    attention = torch.nn.functional.scaled_dot_product_attention
    if grouped:
        return attention(q, k, v, is_causal=True, enable_gqa=True)
    share = q.shape[1] // k.shape[1]
    return attention(q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1), is_causal=True)


def bitsandbytes_weight(dense):
    import bitsandbytes
    packed, state = bitsandbytes.functional.quantize_4bit(
        dense, blocksize=64, compress_statistics=True, quant_type="nf4")
    return lambda x: bitsandbytes.matmul_4bit(x, packed.t(), quant_state=state)


def plain_model(torch, o):
    """(loss, parameters, settings, context of the steps) of modules without a library."""
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint
    import nf4_weight
    if o.contender == "bitsandbytes":
        make_weight = bitsandbytes_weight
    else:
        if o.device == "cuda" and nf4_weight.triton is None:
            raise Skipped("triton cannot be imported")
        nf4_weight.check_kernel(o.device)
        make_weight = nf4_weight.Nf4Weight
    name, backend, grouped = ("default", None, False)
    if o.device == "cuda":
        name, backend, grouped = fastest_attention(torch, o)
    dim = o.hidden_size // o.num_attention_heads
    frequency = 10000 ** (-torch.arange(0, dim, 2, device=o.device).float() / dim)
    angle = torch.outer(torch.arange(o.max_length, device=o.device).float(), frequency).repeat(1, 2)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()

    class Linear(torch.nn.Module):
        def __init__(self, cols, rows):
            super().__init__()
            self.base = make_weight(random_weight(torch, o, rows, cols))
            a = torch.empty(o.lora_r, cols, device=o.device).uniform_(-1, 1) / math.sqrt(cols)
            self.a = torch.nn.Parameter(a)
            self.b = torch.nn.Parameter(torch.zeros(rows, o.lora_r, device=o.device))

        def forward(self, x):
            return self.base(x) + F.linear(F.linear(x, self.a), self.b) * 2  # alpha / r

    def norm(x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    def rotate(x):
        return x * cos + torch.cat([-x[..., dim // 2:], x[..., :dim // 2]], -1) * sin

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            hidden, wide, kv = o.hidden_size, o.intermediate_size, o.num_key_value_heads * dim
            shapes = [(hidden, hidden), (hidden, kv), (hidden, kv), (hidden, hidden),
                      (hidden, wide), (hidden, wide), (wide, hidden)]
            for target, (cols, rows) in zip(TARGETS, shapes):
                setattr(self, target, Linear(cols, rows))

        def forward(self, x):
            def heads(t):
                return t.view(o.batch_size, o.max_length, -1, dim).transpose(1, 2)
            n = norm(x)
            q, k = rotate(heads(self.q_proj(n))), rotate(heads(self.k_proj(n)))
            mixed = attend(torch, q, k, heads(self.v_proj(n)), grouped)
            x = x + self.o_proj(mixed.transpose(1, 2).reshape(x.shape))
            n = norm(x)
            return x + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))

    embed = random_weight(torch, o, o.vocab_size, o.hidden_size)
    head = random_weight(torch, o, o.vocab_size, o.hidden_size)
    layers = torch.nn.ModuleList(Layer() for _ in range(o.num_hidden_layers))
    ids = random_ids(torch, o)

    def loss():
        x = embed[ids]
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if o.checkpoint else layer(x)
        logits = F.linear(norm(x), head)[:, :-1].float()
        return F.cross_entropy(logits.reshape(-1, o.vocab_size), ids[:, 1:].reshape(-1))

    def context():
        if backend is None:
            return contextlib.nullcontext()
        from torch.nn.attention import sdpa_kernel
        return sdpa_kernel(backend)
    attention = name + (" with grouped heads" if grouped else "")
    return loss, list(layers.parameters()), {"attention": attention}, context


def random_ids(torch, o):
    """The tokens of qlora bench."""
    ids = [seeded_values.token(i, o.vocab_size) for i in range(o.batch_size * o.max_length)]
    return torch.tensor(ids, device=o.device).view(o.batch_size, o.max_length)


def peft_model(torch, o):
    """The usual recipe: a model of transformers, linears of bitsandbytes, adapters of peft."""
    import bitsandbytes
    import peft
    import transformers
    config = transformers.LlamaConfig(
        hidden_size=o.hidden_size, intermediate_size=o.intermediate_size,
        num_hidden_layers=o.num_hidden_layers, num_attention_heads=o.num_attention_heads,
        num_key_value_heads=o.num_key_value_heads, vocab_size=o.vocab_size, rms_norm_eps=1e-5,
        max_position_embeddings=o.max_length, tie_word_embeddings=False,
        use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        weight.data = random_weight(torch, o, *weight.shape)

    def quantized(linear):
        made = bitsandbytes.nn.Linear4bit(
            linear.in_features, linear.out_features, bias=False, compute_dtype=torch.bfloat16,
            compress_statistics=True, quant_type="nf4", device="meta")
        dense = random_weight(torch, o, linear.out_features, linear.in_features)
        made.weight = bitsandbytes.nn.Params4bit(dense.cpu(), requires_grad=False,
                                                 compress_statistics=True, quant_type="nf4")
        return made.to("cuda")
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name in TARGETS:
                if hasattr(block, name):
                    setattr(block, name, quantized(getattr(block, name)))
    model.is_loaded_in_4bit = True
    model = peft.prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=bool(o.checkpoint),
        gradient_checkpointing_kwargs={"use_reentrant": False})
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=o.lora_r, lora_alpha=2 * o.lora_r, lora_dropout=0.0, bias="none", target_modules=TARGETS,
        task_type="CAUSAL_LM"))
    settings = {"transformers": transformers.__version__, "peft": peft.__version__,
                "bitsandbytes": bitsandbytes.__version__}
    return of_library(torch, o, model, settings)


def unsloth_model(torch, o):
    if not o.model_dir:
        raise Skipped("unsloth loads a model: give --model_dir")
    import unsloth
    model, _ = unsloth.FastLanguageModel.from_pretrained(
        model_name=o.model_dir, max_seq_length=o.max_length, dtype=torch.bfloat16, load_in_4bit=True)
    shape = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    different = [name for name in shape if getattr(model.config, name) != getattr(o, name)]
    if different:
        raise Skipped("the model of --model_dir has a different " + ", ".join(different))
    model = unsloth.FastLanguageModel.get_peft_model(
        model, r=o.lora_r, lora_alpha=2 * o.lora_r, lora_dropout=0, bias="none",
        target_modules=TARGETS, use_gradient_checkpointing="unsloth" if o.checkpoint else False)
    settings = {"unsloth": unsloth.__version__, "weights": "those of --model_dir"}
    return of_library(torch, o, model, settings)


def of_library(torch, o, model, settings):
    model.train()
    ids = random_ids(torch, o)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return lambda: model(input_ids=ids, labels=ids).loss, parameters, settings, contextlib.nullcontext


def measure(torch, o, loss_of, parameters, context):
    on_gpu = o.device == "cuda"
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, fused=on_gpu)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def now():
        if not on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    losses, times = [], [now()]
    with context():
        for _ in range(o.warmup_steps + o.steps):
            with torch.autocast(o.device, dtype=torch.bfloat16):
                loss = loss_of()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            times.append(now())
    if on_gpu:
        torch.cuda.synchronize()
        seconds = [a.elapsed_time(b) / 1000 for a, b in zip(times, times[1:])]
    else:
        seconds = [b - a for a, b in zip(times, times[1:])]
    timed = sorted(seconds[o.warmup_steps:])
    at = min(LOSS_STEP, len(losses) - 1)
    result = {"seconds": {name: timed[min(len(timed) - 1, int(len(timed) * part))]
                          for name, part in (("p10", 0.1), ("median", 0.5), ("p90", 0.9))},
              "losses": [losses[0].item(), losses[at].item()], "loss_step": at}
    result["tokens_per_second"] = o.batch_size * o.max_length / result["seconds"]["median"]
    if on_gpu:
        free, total = torch.cuda.mem_get_info()
        result.update(peak_bytes=torch.cuda.max_memory_reserved(),
                      allocated_bytes=torch.cuda.max_memory_allocated(), device_bytes=total - free)
    return result


def run(o):
    try:
        if o.contender == "unsloth":
            import unsloth  # noqa: F401  it changes libraries that are imported after it
        import torch
    except ImportError as error:
        raise Skipped(str(error)) from error
    if o.device == "cuda" and not torch.cuda.is_available():
        raise Skipped("PyTorch finds no GPU")
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    make = {"peft": peft_model, "unsloth": unsloth_model}.get(o.contender, plain_model)
    try:
        loss, parameters, settings, context = make(torch, o)
        result = measure(torch, o, loss, parameters, context)
    except ImportError as error:
        raise Skipped(str(error)) from error
    except torch.cuda.OutOfMemoryError as error:
        raise Skipped("out of memory: " + str(error).splitlines()[0]) from error
    settings.update(torch=torch.__version__, optimizer="AdamW, fused", products="bfloat16 autocast",
                    adapters=str(parameters[0].dtype), tf32=True,
                    allocator=os.environ["PYTORCH_CUDA_ALLOC_CONF"])
    return {**result, "settings": settings}


def main():
    try:
        result = run(parse())
    except Skipped as why:
        result = {"skipped": str(why)}
    print(json.dumps(result), file=sys.stdout)


if __name__ == "__main__":
    main()
