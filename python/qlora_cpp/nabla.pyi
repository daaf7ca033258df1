from typing import Any, Mapping

from . import DType, Float32, Floats, Result

NF4_CODEBOOK: Float32

def quantize_nf4(weight: Floats, block_size: int = 64) -> dict[str, Any]: ...
def dequantize_nf4(qweight: Mapping[str, Any], *, dtype: DType = "float32") -> Result: ...
def qlora_linear(
    x: Floats, qweight: Mapping[str, Any], adapter: Mapping[str, Floats], *, alpha: float = 1.0,
    compute_dtype: DType = "float32") -> Result: ...
