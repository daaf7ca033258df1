"""Readers and writers of the files around a model, for the golden-file scripts.

safetensors (F32, F64, BF16, I32, U8), a Hugging Face model directory and a PEFT LoRA adapter
directory. Only what the scripts need; numpy and Debian's python3-torch, nothing else.
"""

import json
import os

import numpy as np
import torch

_NUMPY = {"F64": np.float64, "F32": np.float32, "I32": np.int32, "U8": np.uint8}
_TORCH = {torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.uint8: "U8",
          torch.bfloat16: "BF16"}
_SIZE = {"F64": 8, "F32": 4, "I32": 4, "BF16": 2, "U8": 1}


def read_safetensors(path):
    """Returns {name: tensor}; BF16 stays torch.bfloat16."""
    with open(path, "rb") as f:
        blob = f.read()
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:8 + size])
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        data = blob[8 + size + begin:8 + size + end]
        if info["dtype"] == "BF16":
            tensor = torch.from_numpy(np.frombuffer(data, np.int16).copy()).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(np.frombuffer(data, _NUMPY[info["dtype"]]).copy())
        tensors[name] = tensor.reshape(info["shape"])
    return tensors


def write_safetensors(path, tensors):
    """Writes {name: tensor}, widest dtype first, then by name, as the reference writer does."""
    items = []
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        dtype = _TORCH[tensor.dtype]
        raw = tensor.view(torch.int16) if dtype == "BF16" else tensor
        items.append((-_SIZE[dtype], name, dtype, list(tensor.shape), raw.numpy().tobytes()))
    items.sort()
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for _, name, dtype, shape, data in items:
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for item in items:
            f.write(item[4])


def write_json(path, value):
    with open(path, "w") as f:
        f.write(json.dumps(value, indent=2) + "\n")


def read_model(directory):
    """Returns (config, {name: float64 tensor}) of a directory with one model.safetensors."""
    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    tensors = read_safetensors(os.path.join(directory, "model.safetensors"))
    return config, {name: tensor.double() for name, tensor in tensors.items()}


_PREFIX = "base_model.model."


def peft_name(module, letter):
    """PEFT's tensor name of lora_A or lora_B of a module path (model.layers.0.mlp.up_proj)."""
    return f"{_PREFIX}{module}.lora_{letter}.weight"


def write_adapter(directory, adapter, rank, alpha, base_name):
    """adapter: {module path: (A [r,in], B [out,r])}; stored as F32."""
    os.makedirs(directory, exist_ok=True)
    tensors = {}
    for module, (a, b) in adapter.items():
        tensors[peft_name(module, "A")] = a.detach().float()
        tensors[peft_name(module, "B")] = b.detach().float()
    write_safetensors(os.path.join(directory, "adapter_model.safetensors"), tensors)
    config = {
        "alpha_pattern": {}, "base_model_name_or_path": base_name, "bias": "none",
        "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True,
        "layers_pattern": None, "layers_to_transform": None, "lora_alpha": alpha,
        "lora_dropout": 0.0, "modules_to_save": None, "peft_type": "LORA", "r": rank,
        "rank_pattern": {}, "revision": None,
        "target_modules": sorted({module.split(".")[-1] for module in adapter}),
        "task_type": "CAUSAL_LM", "use_dora": False, "use_rslora": False,
    }
    write_json(os.path.join(directory, "adapter_config.json"), config)


def read_adapter(directory):
    """Returns ({module path: (A, B)} in float64, scale = lora_alpha / r)."""
    with open(os.path.join(directory, "adapter_config.json")) as f:
        config = json.load(f)
    if config.get("use_rslora") or config.get("use_dora"):
        raise ValueError(f"{directory}: rsLoRA and DoRA adapters are not read here")
    tensors = read_safetensors(os.path.join(directory, "adapter_model.safetensors"))
    suffix = ".lora_A.weight"
    modules = [n[len(_PREFIX):-len(suffix)] for n in tensors if n.endswith(suffix)]
    adapter = {m: (tensors[peft_name(m, "A")].double(), tensors[peft_name(m, "B")].double())
               for m in modules}
    return adapter, config["lora_alpha"] / config["r"]
