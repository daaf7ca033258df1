#!/usr/bin/python3
"""Writes tests/golden/: small models, adapters, and what PyTorch computes from them in float64.

    /usr/bin/python3 tools/make_goldens.py [--out tests/golden] [NAME ...]

NAME is nf4, llama-tiny, train-20 (needs llama-tiny), adamw, or a model of tools/torch_families.py;
all of them by default. Needs Debian's python3-torch. Seeds are fixed; another processor may change
the last bits of the results.
tests/golden/README.md describes the files.
"""

import argparse
import functools
import json
import os

import numpy as np
import torch

import torch_nf4
from torch_decoder import linear_modules, linear_shapes, read_spec
from torch_families import FAMILY_MODELS
from torch_formats import (peft_name, read_adapter, read_model, read_safetensors, write_adapter,
                           write_json, write_safetensors)
from torch_train import gradients, train


def normal(random, *shape, std=1.0):
    """float32 tensor of normal numbers."""
    return torch.from_numpy((random.standard_normal(shape) * std).astype(np.float32))


def random_weights(spec, random, dtype, biases=()):
    """Weights under their Hugging Face names, shaped so that every operation matters.

    Linears keep the variance of their input; norm weights lie around 1 (around 0 where the family
    adds 1); linears whose name is in biases get a bias.
    """
    around = 0.0 if spec.norm_plus_one else 1.0

    def norm_weight(size):
        return around + normal(random, size, std=0.2)

    d = spec.hidden
    weights = {"model.embed_tokens.weight": normal(random, spec.vocab, d, std=0.5)}
    for i in range(spec.layers):
        at = f"model.layers.{i}."
        for name, (rows, columns) in linear_shapes(spec).items():
            weights[f"{at}{name}.weight"] = normal(random, rows, columns, std=columns**-0.5)
            if name.split(".")[-1] in biases:
                weights[f"{at}{name}.bias"] = normal(random, rows, std=0.3)
        if spec.experts:
            weights[f"{at}{spec.experts[0]}.gate.weight"] = normal(
                random, spec.num_experts, d, std=2 * d**-0.5)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if spec.four_norms:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in norms:
            weights[f"{at}{name}.weight"] = norm_weight(d)
        if spec.qk_norm:
            for name in ("q_norm", "k_norm"):
                weights[f"{at}self_attn.{name}.weight"] = norm_weight(spec.head_dim)
    weights["model.norm.weight"] = norm_weight(d)
    if not spec.tied:
        weights["lm_head.weight"] = normal(random, spec.vocab, d, std=0.6 * d**-0.5)
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def random_adapter(spec, random, rank):
    """LoRA pairs on every linear of the blocks; B is not zero, so that every gradient is not."""
    shapes = linear_shapes(spec)
    adapter = {}
    for module in linear_modules(spec):
        rows, columns = shapes[module.split(".", 3)[3]]
        adapter[module] = (normal(random, rank, columns, std=0.3 * columns**-0.5),
                           normal(random, rows, rank, std=0.05))
    return adapter


def write_tokenizer(directory, vocab):
    """A sentencepiece-style tokenizer.json without merges, so that a directory is a complete model.

    <unk> <s> </s>, 256 byte pieces (llama.cpp wants all of them), the space mark, letters from 'a'.
    """
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["\u2581"] + [chr(ord("a") + i) for i in range(vocab - len(pieces) - 1)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    pair = [bos, text, bos, {"Sequence": {"id": "B", "type_id": 0}}]
    write_json(os.path.join(directory, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": pieces[i], **flags} for i in range(3)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [bos, text], "pair": pair,
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>",
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                  "byte_fallback": True, "vocab": {piece: i for i, piece in enumerate(pieces)},
                  "merges": []},
    })
    write_json(os.path.join(directory, "tokenizer_config.json"), {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>",
        "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizerFast"})


def random_batch(random, vocab, lengths):
    """List of (ids, labels) of the given lengths; about a quarter of the labels is -100."""
    batch = []
    for length in lengths:
        ids = random.randint(3, vocab, length).tolist()
        ignored = random.random_sample(length) < 0.25
        batch.append((ids, [-100 if ignore else i for i, ignore in zip(ids, ignored)]))
    return batch


def batch_tensors(batch):
    """The batch as packed: ids and labels one after the other, and where each sequence begins."""
    ends = np.cumsum([0] + [len(ids) for ids, _ in batch])
    return {"input_ids": torch.tensor(sum((ids for ids, _ in batch), []), dtype=torch.int32),
            "labels": torch.tensor(sum((labels for _, labels in batch), []), dtype=torch.int32),
            "cu_seqlens": torch.tensor(ends.tolist(), dtype=torch.int32)}


def result_tensors(prefix, spec, weights, adapter, scale, batch):
    """Logits, loss and LoRA gradients under prefix; also the loss of the base alone."""
    logits, loss, _, grads = gradients(spec, weights, adapter, scale, batch)
    zero = {m: (a, torch.zeros_like(b)) for m, (a, b) in adapter.items()}
    base_loss = gradients(spec, weights, zero, scale, batch)[1]
    tensors = {f"{prefix}.logits": logits.float(),
               f"{prefix}.loss": torch.tensor([loss], dtype=torch.float32),
               f"{prefix}.base_loss": torch.tensor([base_loss], dtype=torch.float32)}
    for module, pair in grads.items():
        for letter, gradient in zip("AB", pair):
            tensors[f"{prefix}.grad.{peft_name(module, letter)}"] = gradient.float()
    return tensors


def write_model(directory, config, dtype, seed, rank, alpha, biases=()):
    """A random model with its adapter, as Hugging Face and PEFT lay them out."""
    os.makedirs(directory, exist_ok=True)
    random, spec = np.random.RandomState(seed), read_spec(config)
    write_json(os.path.join(directory, "config.json"), config)
    write_tokenizer(directory, spec.vocab)
    write_safetensors(os.path.join(directory, "model.safetensors"),
                      random_weights(spec, random, dtype, biases))
    write_adapter(os.path.join(directory, "adapter"), random_adapter(spec, random, rank), rank,
                  alpha, os.path.basename(directory))
    return random


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 64,
    "initializer_range": 0.02, "intermediate_size": 96, "max_position_embeddings": 128,
    "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
    "transformers_version": "4.44.0", "use_cache": True, "vocab_size": 288,
}


def nf4_base(spec, weights):
    """weights with the linears of the blocks dequantized from the float32 rule's NF4 (float64)."""
    dequantized = {f"{m}.weight": torch_nf4.dequantize(torch_nf4.quantize(weights[f"{m}.weight"]))
                   for m in linear_modules(spec)}
    return {**weights, **{name: tensor.double() for name, tensor in dequantized.items()}}


def make_llama_tiny(out):
    directory = os.path.join(out, "llama-tiny")
    random = write_model(directory, LLAMA, torch.float32, seed=1, rank=4, alpha=8)
    config, weights = read_model(directory)
    adapter, scale = read_adapter(os.path.join(directory, "adapter"))
    spec = read_spec(config)
    packed = {}
    for module in linear_modules(spec):
        parts = torch_nf4.quantize(weights[f"{module}.weight"])
        packed.update({f"{module}.weight{suffix}": tensor for suffix, tensor in parts.items()})
    write_safetensors(os.path.join(directory, "nf4.safetensors"), packed)
    batch = random_batch(random, spec.vocab, [7, 19, 12])
    write_safetensors(os.path.join(directory, "golden.safetensors"), {
        **batch_tensors(batch),
        **result_tensors("dense", spec, weights, adapter, scale, batch),
        **result_tensors("nf4", spec, nf4_base(spec, weights), adapter, scale, batch)})


RECIPE = {
    "max_steps": 20, "warmup_steps": 3, "learning_rate": 2e-3, "lr_scheduler_type": "linear",
    "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.01,
    "max_grad_norm": 0.5, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
    "shuffle": False,
}


def training_lines(random, vocab, count):
    """Lines to learn: ids that climb by a fixed stride. Every third line has no labels of its own;
    in the others the first part, as a prompt would, and single places after it carry -100."""
    lines = []
    for k in range(count):
        length, start, stride = random.randint(5, 25), random.randint(0, 99), random.randint(1, 4)
        ids = [3 + (start + stride * i) % (vocab - 3) for i in range(length)]
        if k % 3 == 0:
            lines.append({"input_ids": ids})
            continue
        prompt = random.randint(1, length // 2 + 1)
        ignored = [i < prompt or random.random_sample() < 0.1 for i in range(length - 1)] + [False]
        lines.append({"input_ids": ids, "labels": [-100 if x else i for i, x in zip(ids, ignored)]})
    return lines


def make_train_20(out):
    model, directory = os.path.join(out, "llama-tiny"), os.path.join(out, "train-20")
    os.makedirs(directory, exist_ok=True)
    config, weights = read_model(model)
    adapter, scale = read_adapter(os.path.join(model, "adapter"))
    with open(os.path.join(model, "adapter", "adapter_config.json")) as f:
        lora = json.load(f)
    spec = read_spec(config)
    lines = training_lines(np.random.RandomState(2), spec.vocab, 40)
    write_lines(os.path.join(directory, "data.jsonl"), lines)
    write_json(os.path.join(directory, "recipe.json"), RECIPE)
    pairs = [(line["input_ids"], line.get("labels", line["input_ids"])) for line in lines]
    for name, base in (("dense", weights), ("nf4", nf4_base(spec, weights))):
        trained, log = train(spec, base, adapter, scale, pairs, RECIPE)
        write_lines(os.path.join(directory, f"log-{name}.jsonl"), log)
        write_adapter(os.path.join(directory, f"adapter-{name}"), trained, lora["r"],
                      lora["lora_alpha"], "llama-tiny")


def write_lines(path, rows):
    with open(path, "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def make_nf4(out):
    """The quantizer alone: tails at both levels, a zero block, ties, blocks of unequal size."""
    os.makedirs(os.path.join(out, "nf4"), exist_ok=True)
    random = np.random.RandomState(3)
    weight = normal(random, 131, 131, std=0.05)
    flat = weight.view(-1)
    flat[64:128] = 0.0
    middles = torch.from_numpy((torch_nf4.NF4[1:] + torch_nf4.NF4[:-1]) / np.float32(2))
    ties = torch.cat([torch.ones(1), middles, middles.new_tensor(
        np.nextafter(middles.numpy(), np.float32(2))), middles.new_tensor(
            np.nextafter(middles.numpy(), np.float32(-2)))])
    flat[128:128 + len(ties)] = ties
    for block in range(3, flat.numel() // 64):
        flat[64 * block:64 * block + 64] *= 10.0**random.uniform(-1, 1)
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        source = weight.to(dtype)
        parts = torch_nf4.quantize(source, name)
        by_product = torch_nf4.quantize(source, name, divide_tail=False)
        if not all(torch.equal(parts[suffix], by_product[suffix]) for suffix in parts):
            raise AssertionError("the two rules for a partial block give different codes")
        write_safetensors(os.path.join(out, "nf4", f"{name}.safetensors"), {
            "source": source, "dequantized": torch_nf4.dequantize(parts),
            **{f"weight{suffix}": tensor for suffix, tensor in parts.items()}})


def make_adamw(out):
    """torch.optim.AdamW alone, ten steps in float64."""
    random = np.random.RandomState(4)
    parameter = normal(random, 3, 4).double()
    settings = {"learning_rate": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW([parameter], lr=settings["learning_rate"],
                                  betas=settings["betas"], eps=settings["eps"],
                                  weight_decay=settings["weight_decay"])
    scales = 10.0**random.uniform(-4, 2, (3, 4))
    golden = {**settings, "shape": [3, 4], "initial": parameter.flatten().tolist(), "steps": []}
    for step in range(10):
        gradient = (random.standard_normal((3, 4)) * scales).astype(np.float32)
        gradient[0, 0] = 0.0
        gradient[0, 1] = 0.0 if step != 4 else gradient[0, 1]
        parameter.grad = torch.from_numpy(gradient).double()
        optimizer.step()
        state = optimizer.state[parameter]
        values = {"gradient": parameter.grad, "parameter": parameter, "m": state["exp_avg"],
                  "v": state["exp_avg_sq"]}
        golden["steps"].append({name: t.flatten().tolist() for name, t in values.items()})
    write_json(os.path.join(out, "adamw.json"), golden)


def make_family(name, out):
    directory = os.path.join(out, name)
    config, biases = FAMILY_MODELS[name]
    seed = 100 + list(FAMILY_MODELS).index(name)
    random = write_model(directory, config, torch.bfloat16, seed, rank=2, alpha=3, biases=biases)
    config, weights = read_model(directory)
    adapter, scale = read_adapter(os.path.join(directory, "adapter"))
    spec = read_spec(config)
    batch = random_batch(random, spec.vocab, [5, 22, 11])
    write_safetensors(os.path.join(directory, "golden.safetensors"), {
        **batch_tensors(batch), **result_tensors("dense", spec, weights, adapter, scale, batch)})


MAKERS = {"nf4": make_nf4, "llama-tiny": make_llama_tiny, "train-20": make_train_20,
          "adamw": make_adamw,
          **{name: functools.partial(make_family, name) for name in FAMILY_MODELS}}


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description="Write the golden files from PyTorch.")
    parser.add_argument("--out", default=os.path.join(root, "tests", "golden"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MAKERS))
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(MAKERS)
    if unknown:
        parser.error(f"unknown name {sorted(unknown)}; known: {', '.join(MAKERS)}")
    torch.set_num_threads(1)
    for name, make in MAKERS.items():
        if not arguments.names or name in arguments.names:
            make(arguments.out)
            print(f"wrote {os.path.join(arguments.out, name)}")


if __name__ == "__main__":
    main()
