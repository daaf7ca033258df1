"""4-bit NormalFloat (NF4) and QLoRA layers on numpy arrays and PyTorch tensors.

    import numpy, qlora_cpp
    q = qlora_cpp.quantize(numpy.random.randn(4096, 4096).astype("float32"))
    w = q.dequantize()                                  # float32, the shape of the input
    layer = qlora_cpp.QLoraLinear.from_quantized(q, r=16, lora_alpha=32)
    y = layer(numpy.ones((8, 4096), "float32"))

Arrays go in and out without copies: numpy arrays as they are, PyTorch tensors through DLPack
(torch.from_dlpack for results). bfloat16, which numpy lacks, comes as a Tensor.
"""

from ._core import (
    FP4_CODEBOOK,
    NF4_CODEBOOK,
    NF4_MAX_ERROR,
    Context,
    Error,
    NF4Tensor,
    QLoraLinear,
    Tensor,
    __version__,
    bits_per_weight,
    convert_to_norm_float_weight,
    dequantize_nf4,
    dequantize_scalers,
    double_quantize_scalers,
    qlora_linear,
    quantize,
    quantize_nf4,
    quantize_tensor_nearest,
    to_nf4,
)
from ._memory import memory_table

__all__ = [
    "FP4_CODEBOOK",
    "NF4_CODEBOOK",
    "NF4_MAX_ERROR",
    "Context",
    "Error",
    "NF4Tensor",
    "QLoraLinear",
    "Tensor",
    "bits_per_weight",
    "convert_to_norm_float_weight",
    "dequantize_nf4",
    "dequantize_scalers",
    "double_quantize_scalers",
    "memory_table",
    "qlora_linear",
    "quantize",
    "quantize_nf4",
    "quantize_tensor_nearest",
    "to_nf4",
]
