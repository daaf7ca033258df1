"""torchao's NF4 arithmetic, written down again from its definition in PyTorch operations.

Every step happens in the dtype of the weight, as torchao does it. Where torchao's result depends on
the platform (blocks of equal scales divide by zero) the tests do not look.
"""

import torch

TABLE = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
         0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0)


def absmax(weight, block_size):
    """(numel / block_size): the largest magnitude of each block."""
    return weight.reshape(-1, block_size).abs().amax(dim=1)


def codes(weight, block_size):
    """uint8 (numel): index of the nearest of TABLE, the first of equals; by division by absmax."""
    table = torch.tensor(TABLE, dtype=weight.dtype)
    scaled = weight.reshape(-1, block_size) / absmax(weight, block_size).unsqueeze(1)
    distance = (scaled.reshape(-1, 1) - table).abs()
    least = distance.amin(dim=1, keepdim=True)
    # torch.argmin does not promise which of several least elements it names.
    return torch.stack([torch.nonzero(row)[0, 0] for row in distance == least]).to(torch.uint8)


def pack(codes_of_values):
    """Two codes a byte, the first in the high nibble."""
    return codes_of_values[0::2] * 16 + codes_of_values[1::2]


def quantize_scalers(scalers, group):
    """(int8 codes, factors, mean): c = s - mean; factor = 256 / (2 max|c|) per group."""
    mean = scalers.mean()
    groups = (scalers - mean).reshape(-1, group)
    factors = 256 / (2 * groups.abs().amax(dim=1))
    # Rounding a float16 in float32 is the same number; Debian's PyTorch has no other.
    rounded = torch.round((groups * factors.unsqueeze(1)).float()).clamp(-128, 127)
    return rounded.to(torch.int8).reshape(-1), factors, mean


def dequantize_scalers(scaler_codes, factors, mean, group):
    groups = scaler_codes.reshape(-1, group).to(factors.dtype) / factors.unsqueeze(1)
    return groups.reshape(-1) + mean


def dequantize(code, scalers, shape):
    table = torch.tensor(TABLE, dtype=scalers.dtype)
    values = table[code.long()].reshape(scalers.numel(), -1) * scalers.unsqueeze(1)
    return values.reshape(shape)
