#!/usr/bin/python3
"""One LoRA training step of a Llama-shaped model in PyTorch on the CPU, as JSON on standard output.

objective: supervised, or preference: DPO on pairs whose prompt is as long as both answers, each answer behind a copy
of its prompt, as TRL lays them out; the log-probabilities of the reference are known before. `length` counts the tokens of
prompt and both answers once.

base: bf16 or f32 (dense frozen weights), or nf4 (4-bit codes and scales, decoded to bfloat16 before
each product, forward and backward, as bitsandbytes does).
"""
import argparse
import json
import resource
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# The quantiles of a normal distribution that NF4 codes (Dettmers et al., arXiv:2305.14314).
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]


class Nf4Weight:
    def __init__(self, rows, cols):
        self.shape = (rows, cols)
        self.bytes = torch.randint(0, 256, (rows * cols // 2,), dtype=torch.uint8)
        self.scales = torch.full((rows * cols // 64, 1), 0.02, dtype=torch.bfloat16)
        code = torch.tensor(NF4)
        pairs = torch.stack([code.repeat_interleave(16), code.repeat(16)], 1)
        # Both values of a byte are fetched as one 32-bit word.
        self.pairs = pairs.to(torch.bfloat16).contiguous().view(torch.int32).flatten()

    def decode(self):
        words = torch.index_select(self.pairs, 0, self.bytes.int())
        return (words.view(torch.bfloat16).view(-1, 64) * self.scales).view(self.shape)


class Product(torch.autograd.Function):
    """y = x W^T and dx = dy W, with W decoded again in both."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return F.linear(x, weight.decode())

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.weight.decode(), None


class Linear(torch.nn.Module):
    def __init__(self, cols, rows, options):
        super().__init__()
        self.nf4 = options.base == "nf4"
        dtype = torch.float32 if options.base == "f32" else torch.bfloat16
        if self.nf4:
            self.weight = Nf4Weight(rows, cols)
        else:
            self.register_buffer("weight", torch.empty(rows, cols, dtype=dtype).uniform_(-0.03, 0.03))
        self.a = torch.nn.Parameter(torch.empty(options.rank, cols, dtype=dtype).uniform_(-0.02, 0.02))
        self.b = torch.nn.Parameter(torch.zeros(rows, options.rank, dtype=dtype))

    def forward(self, x):
        y = Product.apply(x, self.weight) if self.nf4 else F.linear(x, self.weight)
        return y + F.linear(F.linear(x, self.a), self.b) * 2


def rms_norm(x):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


class Layer(torch.nn.Module):
    def __init__(self, options, cos, sin, mask):
        super().__init__()
        o, kv = options, options.hidden // options.heads * options.kv_heads
        self.o, self.cos, self.sin, self.mask = o, cos, sin, mask
        self.q_proj = Linear(o.hidden, o.hidden, o)
        self.k_proj = Linear(o.hidden, kv, o)
        self.v_proj = Linear(o.hidden, kv, o)
        self.o_proj = Linear(o.hidden, o.hidden, o)
        self.gate_proj = Linear(o.hidden, o.intermediate, o)
        self.up_proj = Linear(o.hidden, o.intermediate, o)
        self.down_proj = Linear(o.intermediate, o.hidden, o)

    def rope(self, x):
        half = x.shape[-1] // 2
        return x * self.cos + torch.cat([-x[..., half:], x[..., :half]], -1) * self.sin

    def forward(self, x):
        o, (batch, length, _) = self.o, x.shape
        dim = o.hidden // o.heads
        heads = lambda t, count: t.view(batch, length, count, dim).transpose(1, 2)
        norm = rms_norm(x)
        q = self.rope(heads(self.q_proj(norm), o.heads))
        k = self.rope(heads(self.k_proj(norm), o.kv_heads))
        v = heads(self.v_proj(norm), o.kv_heads)
        k = k.repeat_interleave(o.heads // o.kv_heads, 1)
        v = v.repeat_interleave(o.heads // o.kv_heads, 1)
        p = torch.softmax((q @ k.transpose(2, 3) * dim**-0.5 + self.mask).float(), -1).to(x.dtype)
        x = x + self.o_proj((p @ v).transpose(1, 2).reshape(batch, length, o.hidden))
        norm = rms_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(norm)) * self.up_proj(norm))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", choices=["bf16", "f32", "nf4"], default="bf16")
    parser.add_argument("--objective", choices=["supervised", "preference"], default="supervised")
    parser.add_argument("--checkpoint", type=int, default=1)
    for name, value in dict(hidden=2048, intermediate=5632, layers=22, heads=32, kv_heads=4,
                            vocab=32000, rank=16, length=512, batch=1, steps=2, threads=2).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    dtype = torch.float32 if o.base == "f32" else torch.bfloat16
    dim = o.hidden // o.heads
    is_pair = o.objective == "preference"
    prompt = o.length // 2
    sequence = prompt + o.length // 4 if is_pair else o.length
    frequency = 10000 ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(torch.arange(sequence).float(), frequency).repeat(1, 2)
    mask = torch.full((sequence, sequence), float("-inf")).triu(1).to(dtype)
    layers = [Layer(o, angle.cos().to(dtype), angle.sin().to(dtype), mask) for _ in range(o.layers)]
    embed = torch.empty(o.vocab, o.hidden, dtype=dtype).uniform_(-0.03, 0.03)
    head = torch.empty(o.vocab, o.hidden, dtype=dtype).uniform_(-0.03, 0.03)
    parameters = [p for layer in layers for p in layer.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    ids = torch.randint(0, o.vocab, (o.batch * (2 if is_pair else 1), sequence))
    if is_pair:
        ids[o.batch:, :prompt] = ids[:o.batch, :prompt]

    def loss_of(x):
        if not is_pair:
            logits = F.linear(x, head).view(-1, o.vocab).float()
            return F.cross_entropy(logits[:-1], ids.flatten()[1:])
        logits = F.linear(x[:, prompt - 1:-1], head).float()
        logp = -F.cross_entropy(logits.transpose(1, 2), ids[:, prompt:], reduction="none").sum(1)
        return -F.logsigmoid(0.1 * (logp[:o.batch] - logp[o.batch:])).mean()

    def step():
        x = embed[ids].detach().requires_grad_()
        for layer in layers:
            x = checkpoint(layer, x) if o.checkpoint else layer(x)
        loss = loss_of(rms_norm(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    loss = step()
    best = float("inf")
    for _ in range(o.steps):
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": best, "tokens_per_second": o.batch * o.length / best,
                      "peak_bytes": peak, "loss": loss}))


if __name__ == "__main__":
    main()
