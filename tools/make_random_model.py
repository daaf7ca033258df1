#!/usr/bin/env python3
"""Writes a Llama-shaped Hugging Face checkpoint with random weights, shard by shard.

For measurements of memory and speed at sizes that nobody wants to download. The tokenizer comes
from another checkpoint; ids beyond it are never used. Memory: about one block of values.

    tools/make_random_model.py OUTPUT --tokenizer examples/base-1m --shape llama-2-7b
"""
import argparse
import json
import os
import shutil
import struct

import numpy as np

SHAPES = {
    # hidden, intermediate, layers, heads, kv_heads
    "tiny": (64, 128, 2, 4, 2),
    "tinyllama-1.1b": (2048, 5632, 22, 32, 4),
    "llama-2-7b": (4096, 11008, 32, 32, 32),
    "llama-2-13b": (5120, 13824, 40, 40, 40),
}
VOCAB = 32000
SHARD_BYTES = 4 << 30


def tensors(hidden, intermediate, layers, heads, kv_heads):
    """(name, shape) in the order of the file."""
    kv = hidden // heads * kv_heads
    yield "model.embed_tokens.weight", (VOCAB, hidden)
    for i in range(layers):
        layer = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", (hidden, hidden)),
                            ("self_attn.k_proj", (kv, hidden)),
                            ("self_attn.v_proj", (kv, hidden)),
                            ("self_attn.o_proj", (hidden, hidden)),
                            ("mlp.gate_proj", (intermediate, hidden)),
                            ("mlp.up_proj", (intermediate, hidden)),
                            ("mlp.down_proj", (hidden, intermediate)),
                            ("input_layernorm", (hidden,)),
                            ("post_attention_layernorm", (hidden,))):
            yield f"{layer}{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (VOCAB, hidden)


def write_tensor(file, shape, values):
    if len(shape) == 1:
        file.write(np.full(shape, 0x3F80, np.uint16).tobytes())  # 1.0
        return
    left = shape[0] * shape[1]
    while left > 0:
        part = values[: min(left, len(values))]
        file.write(part.tobytes())
        left -= len(part)


def write_shard(path, shard, values):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shard:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shard:
            write_tensor(file, shape, values)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--tokenizer", required=True, help="checkpoint to copy the tokenizer from")
    parser.add_argument("--shape", choices=SHAPES, default="tinyllama-1.1b")
    options = parser.parse_args()
    hidden, intermediate, layers, heads, kv_heads = SHAPES[options.shape]
    os.makedirs(options.output)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if os.path.exists(os.path.join(options.tokenizer, name)):
            shutil.copy(os.path.join(options.tokenizer, name), options.output)

    rng = np.random.default_rng(1)
    normal = rng.standard_normal((1 << 24) - 64, np.float32) * 0.02
    values = (normal.view(np.uint32) >> 16).astype(np.uint16)
    shards, size = [[]], 0
    for name, shape in tensors(hidden, intermediate, layers, heads, kv_heads):
        if size > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += 2 * int(np.prod(shape))
    index = {"metadata": {}, "weight_map": {}}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(os.path.join(options.output, file), shard, values)
        index["weight_map"].update({name: file for name, _ in shard})
    with open(os.path.join(options.output, "model.safetensors.index.json"), "w") as file:
        json.dump(index, file, indent=1)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": VOCAB,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1,
        "eos_token_id": 2,
    }
    with open(os.path.join(options.output, "config.json"), "w") as file:
        json.dump(config, file, indent=1)


if __name__ == "__main__":
    main()
