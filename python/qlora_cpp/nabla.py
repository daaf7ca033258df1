"""NF4 by the names of Nabla (nabla.nn.finetune): W is (in, out), y = x W.

    qweight = quantize_nf4(weight, block_size=64)
    y = qlora_linear(x, qweight, {"A": a, "B": b}, alpha=16.0)

Arrays are those of numpy or PyTorch, and results of the kind that came in. Codes and scales are
Nabla's, from its table of four decimals. Other than there, values that are not finite are refused,
and nothing differentiates through qlora_linear: gradients of an adapter come from
qlora_cpp.QLoraLinear.backward.
"""

import math

import numpy as np

from . import _arrays, _core
from ._errors import Error

__all__ = ["NF4_CODEBOOK", "dequantize_nf4", "qlora_linear", "quantize_nf4"]

# The levels of NF4, rounded to four decimals.
NF4_CODEBOOK = np.array([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                         0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0], np.float32)
NF4_CODEBOOK.setflags(write=False)
_ZERO = 7  # the code of 0.0


def quantize_nf4(weight, block_size=64):
    """Quantizes a matrix of any float type (computed in float32) to a dict:

    indices: uint8 (padded_numel), one code a byte; zeros fill the last block.
    scales: float32 (padded_numel / block_size), the largest magnitude of each block; 1 for zeros.
    original_shape, original_numel, padded_numel, block_size: a tuple and ints.
    Raises TypeError: no array of floats. Error (a ValueError): another number of dimensions, a
    block_size below 1, NaN or Inf.
    """
    values = np.ascontiguousarray(_arrays.float32("weight", _arrays.matrix("weight", weight)))
    block_size = _arrays.count("block_size", block_size)
    tensor = _core.quantize(values, block_size=block_size, scale_type="float32", rule="torchao",
                            name="weight")
    scales = tensor.quantized_scalers
    indices = np.full((scales.size, block_size), _ZERO, np.uint8)
    indices.reshape(-1)[:values.size] = _arrays.unpack(tensor.quantized_data, values.size)
    # The rule gives zeros the code of -1, for which no scale would do.
    indices[scales == 0] = _ZERO
    scales[scales == 0] = 1
    return {
        "indices": _arrays.like(indices.reshape(-1), weight),
        "scales": _arrays.like(scales, weight),
        "original_shape": tuple(int(size) for size in values.shape),
        "original_numel": int(values.size),
        "padded_numel": int(indices.size),
        "block_size": block_size,
    }


def _tensor(qweight):
    """The NF4Tensor that a dict of quantize_nf4 describes."""
    if not hasattr(qweight, "keys"):
        raise TypeError(
            f"qweight: expected the dict of quantize_nf4, found {type(qweight).__name__}")
    indices = _arrays.codes("indices", qweight["indices"], NF4_CODEBOOK.size - 1).reshape(-1)
    scales = _arrays.float32("scales", qweight["scales"]).reshape(-1)
    shape = [_arrays.count("original_shape", size) for size in qweight["original_shape"]]
    numel = _arrays.count("original_numel", qweight["original_numel"])
    padded = _arrays.count("padded_numel", qweight["padded_numel"])
    block_size = _arrays.count("block_size", qweight["block_size"])
    if math.prod(shape) != numel or padded != indices.size or padded != scales.size * block_size:
        raise Error(f"qweight: {indices.size} indices and {scales.size} scales do not make "
                    f"{padded} values in blocks of {block_size}, {numel} of them of shape "
                    f"{tuple(shape)}")
    return _core.NF4Tensor.from_arrays(
        _arrays.pack(indices[:numel]), scales[:-(-numel // block_size)], shape,
        block_size=block_size, nf4=NF4_CODEBOOK)


def dequantize_nf4(qweight, *, dtype="float32"):
    """The matrix of a dict of quantize_nf4: level * scale in float32, rounded once to dtype.

    dtype: float32, bfloat16 or float16, as a name or a dtype of numpy or PyTorch. bfloat16 is a
    qlora_cpp.Tensor where the dict has numpy arrays.
    Raises KeyError: a key is missing. TypeError, Error: values that do not fit together.
    """
    return _arrays.like(_tensor(qweight).dequantize(dtype), qweight["indices"])


def qlora_linear(x, qweight, adapter, *, alpha=1.0, compute_dtype="float32"):
    """y (..., out) = x W + alpha / r (x A) B.

    x: (..., in) of any float type. qweight: W (in, out) from quantize_nf4, which is read in 4 bits.
    adapter: a dict of A (in, r) and B (r, out).
    compute_dtype: of y, and of the operands of the products, which are summed in float32; float16
    is computed in float32 and rounded once.
    Raises KeyError: a key is missing. TypeError, Error: other types or shapes.
    """
    weight = _tensor(qweight)
    if len(weight.shape) != 2:
        raise Error(f"qweight: expected a matrix, found shape {weight.shape}")
    if not hasattr(adapter, "keys"):
        raise TypeError(f"adapter: expected a dict of A and B, found {type(adapter).__name__}")
    inputs, outputs = weight.shape
    a = _arrays.float32("A", adapter["A"])
    b = _arrays.float32("B", adapter["B"])
    if (a.ndim != 2 or b.ndim != 2 or a.shape[0] != inputs or b.shape[1] != outputs
            or a.shape[1] != b.shape[0]):
        raise Error(f"adapter: expected A ({inputs}, r) and B (r, {outputs}), found {a.shape} and "
                    f"{b.shape}")
    values = _arrays.float32("x", x)
    if values.ndim == 0 or values.shape[-1] != inputs:
        raise Error(f"x: expected (..., {inputs}), found {values.shape}")
    alpha = _arrays.number("alpha", alpha)
    dtype = _arrays.dtype_name(compute_dtype)
    if dtype not in ("float32", "bfloat16", "float16"):
        raise Error(f"compute_dtype: expected float32, bfloat16 or float16, found {dtype}")
    half = dtype == "bfloat16"
    # A layer has y = x W^T; the gradient of its input, dx = dy W + s (dy B) A, is Nabla's y.
    layer = _core.QLoraLinear.from_quantized(
        weight, r=a.shape[1], lora_alpha=abs(alpha) or 1.0,
        compute_dtype="bfloat16" if half else "float32")
    layer.lora_a = b
    layer.lora_b = np.ascontiguousarray(a * np.float32(np.sign(alpha)))
    unused = np.zeros(values.shape[:-1] + (outputs,), np.float32)
    y = layer.backward(_core.Tensor(unused) if half else unused,
                       _core.Tensor(values) if half else values)
    return _arrays.like(y if half else _arrays.cast(y, dtype), x)
