#!/usr/bin/env python3
"""Trains the base model of the demo, a Llama of 1.3 M parameters, on the stories of make_corpus.py.

    python3 examples/make_base.py --out examples/base-1m --work build/base-1m

Needs python3-torch. A run that was stopped continues from --work when the same command is given
again. The matrix products of training run in bfloat16: with Debian's default BLAS, PyTorch is about
30 times slower in float32.
"""

import argparse
import json
import math
import pathlib
import struct
import time

import torch
import torch.nn.functional as F
from torch import nn

import make_corpus
from bpe import BOS, EOS, SPECIAL_TOKENS, Tokenizer

SEED = 1
WINDOW = 256  # tokens
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 384,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 1024,
}
D = CONFIG["hidden_size"]
H = CONFIG["num_attention_heads"]
G = CONFIG["num_key_value_heads"]
K = CONFIG["head_dim"]
INNER = CONFIG["intermediate_size"]


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + CONFIG["rms_norm_eps"]) * self.weight


def rotate(x, cos, sin):
    """RoPE, half-split: element i of a head turns with element i + K/2. x: (B, heads, T, K)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(D, H * K, bias=False)
        self.k_proj = nn.Linear(D, G * K, bias=False)
        self.v_proj = nn.Linear(D, G * K, bias=False)
        self.o_proj = nn.Linear(H * K, D, bias=False)

    def forward(self, x, cos, sin, mask):
        B, T, _ = x.shape
        q = rotate(self.q_proj(x).view(B, T, H, K).transpose(1, 2), cos, sin)  # (B, H, T, K)
        k = rotate(self.k_proj(x).view(B, T, G, K).transpose(1, 2), cos, sin)  # (B, G, T, K)
        v = self.v_proj(x).view(B, T, G, K).transpose(1, 2)
        k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
        scores = q / math.sqrt(K) @ k.transpose(-1, -2)  # (B, H, T, T)
        with torch.autocast("cpu", enabled=False):  # autocast would widen the softmax to float32
            weights = torch.softmax(scores + mask.to(scores.dtype), -1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(B, T, H * K))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(D, INNER, bias=False)
        self.up_proj = nn.Linear(D, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, D, bias=False)

    def forward(self, x):
        gate = self.gate_proj(x)
        return self.down_proj(gate * torch.sigmoid(gate) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = RMSNorm()
        self.self_attn = Attention()
        self.post_attention_layernorm = RMSNorm()
        self.mlp = MLP()

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """state_dict() has the tensor names of Hugging Face; the head is the embedding."""

    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(CONFIG["vocab_size"], D)
        self.model.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.model.norm = RMSNorm()
        for name, p in self.named_parameters():
            if p.dim() == 2:
                # What is added to the residual stream starts smaller, the more layers add to it.
                into_stream = "o_proj" in name or "down_proj" in name
                scale = (2 * CONFIG["num_hidden_layers"]) ** -0.5 if into_stream else 1.0
                nn.init.normal_(p, std=CONFIG["initializer_range"] * scale)

    def forward(self, ids):
        """ids (B, T) -> logits (B, T, V)."""
        T = ids.shape[1]
        turns = CONFIG["rope_theta"] ** (-torch.arange(0, K, 2) / K)
        angles = (torch.arange(T)[:, None] * turns).repeat(1, 2)  # (T, K)
        mask = torch.full((T, T), float("-inf")).triu(1)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, angles.cos(), angles.sin(), mask)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


def bfloat16():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def encode_document(tokenizer, text):
    return [BOS, *tokenizer.encode(text), EOS]


class Windows:
    """The training data: story after story, packed into windows that begin with <s>.

    The rest of a story that does not fit is dropped: there are always new ones.
    """

    def __init__(self, tokenizer, next_story=0):
        self.tokenizer = tokenizer
        self.rules = make_corpus.read_grammar("stories.txt")
        self.next_story = next_story

    def batch(self, count):
        """(count, WINDOW + 1) ids."""
        rows = []
        for _ in range(count):
            row = []
            while len(row) < WINDOW + 1:
                text = make_corpus.story(self.rules, f"story/train/{self.next_story}")
                row += encode_document(self.tokenizer, text)
                self.next_story += 1
            rows.append(row[: WINDOW + 1])
        return torch.tensor(rows)


def cross_entropy(logits, ids):
    """Sum over all tokens but the first of each row. logits (B, T, V), ids (B, T)."""
    predictions, targets = logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()
    return F.cross_entropy(predictions, targets, reduction="sum")


@torch.no_grad()
def heldout_loss(model, documents):
    """Mean loss in nats per token over whole documents, each read alone."""
    total = 0.0
    for document in documents:
        ids = torch.tensor([document])
        total += cross_entropy(model(ids), ids).item()
    return total / sum(len(document) - 1 for document in documents)


@torch.no_grad()
def generate(model, tokenizer, prompt, temperature=0.8, limit=250):
    """`prompt` and its continuation up to </s>; temperature 0 takes the likeliest token."""
    ids = [BOS, *tokenizer.encode(prompt)]
    while len(ids) < limit:
        logits = model(torch.tensor([ids]))[0, -1].float()
        if temperature == 0:
            next_id = int(logits.argmax())
        else:
            next_id = int(torch.multinomial(torch.softmax(logits / temperature, -1), 1))
        if next_id == EOS:
            break
        ids.append(next_id)
    return tokenizer.decode(ids)


def learning_rate(step, args):
    """Linear warm-up over 100 steps, then half a cosine to a hundredth of the peak."""
    if step < 100:
        return args.lr * (step + 1) / 100
    progress = (step - 100) / max(1, args.steps - 100)
    return args.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def write_safetensors(path, tensors):
    """Writes bfloat16 tensors as safetensors: u64 length of the header, JSON header, all bytes."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, tensor in sorted(tensors.items()):
        bits = tensor.detach().to(torch.bfloat16).contiguous().view(torch.int16)
        blobs.append(bits.numpy().astype("<i2").tobytes())
        end = offset + len(blobs[-1])
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_model(folder, model, tokenizer):
    """The folder as Hugging Face has it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder / "tokenizer.json")
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {str(i): {"content": t, **flags, "special": True} for i, t in enumerate(SPECIAL_TOKENS)}
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": added,
            **named,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONFIG["max_position_embeddings"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    write_json(folder / "special_tokens_map.json", named)
    write_json(folder / "config.json", CONFIG)
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": 0},
    )
    write_safetensors(folder / "model.safetensors", model.state_dict())


def train(args, model, tokenizer, documents):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    state_path = args.work / "state.pt"
    first, next_story = 0, 0
    if state_path.exists():
        state = torch.load(state_path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, next_story = state["step"], state["next_story"]
        print(f"continue at step {first}", flush=True)
    windows = Windows(tokenizer, next_story)
    start, recent = time.time(), []
    for step in range(first, args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        ids = windows.batch(args.batch)
        with bfloat16():
            loss = cross_entropy(model(ids), ids) / (ids.shape[0] * WINDOW)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = recent[-99:] + [loss.item()]
        done = step + 1
        if done % 50 == 0:
            rate = (done - first) * args.batch * WINDOW / (time.time() - start)
            mean = sum(recent) / len(recent)
            print(f"step {done}  loss {mean:.4f}  {rate:.0f} tokens/s", flush=True)
        if done % 250 == 0 or done == args.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state.update(step=done, next_story=windows.next_story)
            torch.save(state, args.work / "state.tmp")
            (args.work / "state.tmp").replace(state_path)
            write_model(args.work / "latest", model, tokenizer)
            with bfloat16():
                loss = heldout_loss(model, documents)
            print(f"step {done}  held-out loss {loss:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the finished model")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="training state")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=8, help="windows a step")
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(SEED)
    tokenizer_path = args.work / "tokenizer.json"
    if not tokenizer_path.exists():
        texts = make_corpus.stories("train", 20000)
        Tokenizer.train(texts, CONFIG["vocab_size"]).save(tokenizer_path)
    tokenizer = Tokenizer.load(tokenizer_path)
    heldout = make_corpus.stories("heldout", 200)
    documents = [encode_document(tokenizer, text) for text in heldout]
    model = Llama()
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)

    train(args, model, tokenizer, documents)
    print(f"held-out loss in float32: {heldout_loss(model, documents):.5f}")
    write_model(args.out, model, tokenizer)
    for prompt in ["", "Once there was a brave fox", "Tell a story about Mia and a red kite."]:
        with bfloat16():
            print("---", generate(model, tokenizer, prompt), sep="\n")


if __name__ == "__main__":
    main()
