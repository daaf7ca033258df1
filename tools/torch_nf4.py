"""NF4 with double quantization as bitsandbytes' CPU path computes it, in numpy float32.

Blocks of 64 along the row-major weight; nested blocks of 256 block maxima. Nearest code by float32
midpoints, a tie goes to the lower code. The offset is the mean of the block maxima taken in float64
and rounded to float32. The code values are those of the QLoRA paper's reference implementation.
"""

import json

import numpy as np
import torch

BLOCK, NESTED_BLOCK = 64, 256

NF4 = np.array([
    0xbf800000, 0xbf3239b1, 0xbf066b30, 0xbeca32a0, 0xbe91a24d, 0xbe3d353f, 0xbdba7871, 0x00000000,
    0x3da2faff, 0x3e24cae3, 0x3e7c04dd, 0x3ead033a, 0x3ee1a4b8, 0x3f1007ab, 0x3f3913b3, 0x3f800000,
], np.uint32).view(np.float32)


def dynamic_map():
    """The signed dynamic map, float32 [256], ascending.

    For i = 0..6 the 2^i midpoints of 2^i + 1 even points from 0.1 to 1, times 10^(i-6), with both
    signs; then 0 and 1. The points are fused multiply-adds in float32; float64 holds them exactly
    before the one rounding.
    """
    f32 = np.float32
    values = [f32(0), f32(1)]
    for i in range(7):
        n = 2**i + 1
        step = (f32(1) - f32(0.1)) / f32(n - 1)
        points = [f32(float(step) * k + float(f32(0.1))) if k < n // 2
                  else f32(float(f32(1)) - float(step) * (n - 1 - k)) for k in range(n)]
        for a, b in zip(points, points[1:]):
            value = (a + b) / f32(2) * f32(10.0**(i - 6))
            values += [value, -value]
    return np.sort(np.array(values, f32))


def _nearest(x, code):
    """Index of the code nearest to x, float32; a value on a midpoint takes the lower index."""
    middles = (code[1:] + code[:-1]) / np.float32(2)
    return np.searchsorted(middles, x, side="left").astype(np.uint8)


def _normalise(x, block, divide_tail):
    """Returns (x / maximum of its block, clamped to [-1, 1]; the block maxima), float32.

    Multiplies by the reciprocal; the partial last block is divided if divide_tail is true.
    """
    count = -(-x.size // block)
    padded = np.zeros(count * block, np.float32)
    padded[:x.size] = x
    rows = padded.reshape(count, block)
    maxima = np.abs(rows).max(axis=1)
    floor = np.maximum(maxima, np.float32(1e-38))[:, None]
    scaled = rows * (np.float32(1) / floor)
    if divide_tail and x.size % block:
        scaled[-1] = rows[-1] / floor[-1]
    return np.clip(scaled, -1, 1).reshape(-1)[:x.size], maxima


def quantize(weight, dtype="float32", divide_tail=True):
    """weight: float32 [out, in] -> {suffix: tensor} as bitsandbytes stores it behind P.weight.

    The empty suffix holds the packed bytes [(out*in+1)/2, 1]; the element of even index is in the
    high nibble; an odd count is padded with code 7.
    """
    x = weight.float().numpy().reshape(-1)
    scaled, absmax = _normalise(x, BLOCK, divide_tail)
    codes = np.append(_nearest(scaled, NF4), np.full(x.size % 2, 7, np.uint8))
    offset = np.float32(absmax.mean(dtype=np.float64))
    nested_scaled, nested_absmax = _normalise(absmax - offset, NESTED_BLOCK, False)
    nested_map = dynamic_map()
    state = json.dumps({
        "quant_type": "nf4", "blocksize": BLOCK, "dtype": dtype, "shape": list(weight.shape),
        "nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": float(offset),
    })
    arrays = {
        "": (codes[0::2] << 4 | codes[1::2]).reshape(-1, 1),
        ".absmax": _nearest(nested_scaled, nested_map),
        ".quant_map": NF4,
        ".nested_absmax": nested_absmax,
        ".nested_quant_map": nested_map,
        ".quant_state.bitsandbytes__nf4": np.frombuffer(state.encode(), np.uint8),
    }
    return {suffix: torch.from_numpy(array.copy()) for suffix, array in arrays.items()}


def dequantize(parts):
    """The inverse of quantize: tensor of the state's dtype, [out, in]."""
    arrays = {suffix: tensor.numpy() for suffix, tensor in parts.items()}
    state = json.loads(arrays[".quant_state.bitsandbytes__nf4"].tobytes())
    nested = np.repeat(arrays[".nested_absmax"], state["nested_blocksize"])
    codes8 = arrays[".absmax"]
    absmax = arrays[".nested_quant_map"][codes8] * nested[:codes8.size]
    absmax = absmax + np.float32(state["nested_offset"])
    packed = arrays[""].reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)
    count = int(np.prod(state["shape"]))
    weight = arrays[".quant_map"][codes[:count]] * np.repeat(absmax, state["blocksize"])[:count]
    return torch.from_numpy(weight).reshape(state["shape"]).to(getattr(torch, state["dtype"]))
