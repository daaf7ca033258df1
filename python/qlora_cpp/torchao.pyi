from dataclasses import dataclass
from typing import Any, Optional

from . import DType, Floats, Result

@dataclass(frozen=True)
class SubclassTensorArgs:
    original_shape: tuple[int, ...]
    original_strides: tuple[int, ...]
    storage_offset: int
    dtype: DType
    device: Any
    requires_grad: bool

class NF4Tensor:
    shape: tuple[int, ...]
    dtype: DType
    device: Any
    requires_grad: bool
    block_size: int
    n_blocks: int
    scaler_block_size: int
    quantized_scalers: Any
    quantization_factor: Floats
    scaler_mean: Any
    quantized_data: Any
    nf4: Floats
    def __init__(
        self, tensor_meta: SubclassTensorArgs, block_size: int, n_blocks: int,
        scaler_block_size: int, quantized_scalers: Any, quantization_factor: Floats,
        scaler_mean: Any, quantized_data: Any, nf4: Floats) -> None: ...
    @classmethod
    def from_tensor(
        cls, input_tensor: Floats, block_size: int, scaler_block_size: int) -> NF4Tensor: ...
    @staticmethod
    def double_quantize_scalers(
        input_tensor: Floats, block_size: int,
        scaler_block_size: int) -> tuple[Any, Result, Any]: ...
    def dequantize_scalers(
        self, input_tensor: Any, quantization_factor: Floats,
        scaler_block_size: int) -> Result: ...
    @staticmethod
    def convert_to_norm_float_weight(
        input_tensor: Floats, n_blocks: int, block_size: int, nf4: Floats) -> Any: ...
    def get_original_weight(self) -> Result: ...
    @staticmethod
    def quantize_tensor_nearest(value: Floats, nf4: Floats) -> Any: ...
    @staticmethod
    def dequantize(value: Any, nf4: Floats) -> Result: ...
    def to(self, dtype: DType) -> Result: ...
    def size(self, dim: Optional[int] = None) -> Any: ...
    def stride(self, dim: Optional[int] = None) -> Any: ...
    def dim(self) -> int: ...
    def numel(self) -> int: ...

def to_nf4(tensor: Floats, block_size: int = 64, scaler_block_size: int = 256) -> NF4Tensor: ...
def linear_nf4(input: Floats, weight: NF4Tensor) -> Result: ...
