"""NF4Tensor by the names of torchao (torchao.dtypes.nf4tensor).

    weight = to_nf4(tensor, block_size=64, scaler_block_size=256)
    restored = weight.get_original_weight()
    y = linear_nf4(x, weight)

Codes, scales, table and rounding are torchao's, in the dtype of the tensor. Arrays are those of
PyTorch or numpy, and parts and results of the kind that came in; numpy has no bfloat16, which is a
qlora_cpp.Tensor there. NF4Tensor is a class of its own, no torch.Tensor. Any size is taken: blocks
and groups of them may be short at the end. Values that are not finite are refused, where torchao
makes the whole tensor NaN.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _arrays, _core
from ._errors import Error

__all__ = ["NF4Tensor", "SubclassTensorArgs", "linear_nf4", "to_nf4"]


@dataclass(frozen=True)
class SubclassTensorArgs:
    """What a tensor was before it was quantized."""

    original_shape: tuple
    original_strides: tuple
    storage_offset: int
    dtype: Any
    device: Any
    requires_grad: bool


def _strides(shape):
    return tuple(math.prod(shape[d + 1:]) for d in range(len(shape)))


def _quantize(input_tensor, block_size, scaler_block_size):
    """The tensor as the core reads it, and what the core makes of it."""
    values = _arrays.weights("input_tensor", input_tensor)
    if _arrays.dtype_name(values.dtype) == "float64":
        values = _arrays.float32("input_tensor", values)
    return values, _core.to_nf4(values, _arrays.count("block_size", block_size),
                                _arrays.count("scaler_block_size", scaler_block_size))


def _scaler_parts(values, tensor):
    """Codes, factors and mean of the scales, the last two in the dtype of the values."""
    mean = np.float32(tensor.scaler_mean)
    if _arrays.is_torch(values):
        mean = values.new_tensor(float(mean))
    elif _arrays.dtype_name(values.dtype) == "float16":
        mean = np.float16(mean)
    return (_arrays.like(tensor.quantized_scalers, values),
            _arrays.like(_arrays.cast(tensor.quantization_factor, values.dtype), values), mean)


def _flat(name, value):
    if len(value.shape) != 1:
        raise Error(f"{name}: expected a flattened tensor, found {len(value.shape)} dimensions")
    return value


class NF4Tensor:
    """A tensor in 4 bits with double-quantized scales.

    block_size, n_blocks, scaler_block_size: values that share a scale, scales, scales that share a
        factor.
    quantized_scalers: int8 (n_blocks), round((scale - scaler_mean) * factor).
    quantization_factor: (n_blocks / scaler_block_size), in dtype. scaler_mean: a number, in dtype.
    quantized_data: uint8 (numel / 2), two codes a byte, the first one in the high nibble.
    nf4: the 16 levels, in dtype.
    shape, dtype, device, requires_grad: those of the tensor that was quantized.
    """

    def __init__(self, tensor_meta, block_size, n_blocks, scaler_block_size, quantized_scalers,
                 quantization_factor, scaler_mean, quantized_data, nf4):
        """Raises TypeError: no SubclassTensorArgs, no arrays. Error (a ValueError): sizes or dtypes
        that do not fit together."""
        if not isinstance(tensor_meta, SubclassTensorArgs):
            raise TypeError("tensor_meta: expected SubclassTensorArgs, found "
                            f"{type(tensor_meta).__name__}")
        self.shape = tuple(_arrays.count("original_shape", n) for n in tensor_meta.original_shape)
        self.dtype = tensor_meta.dtype
        self.device = tensor_meta.device
        self.requires_grad = tensor_meta.requires_grad
        self._meta = tensor_meta
        self.block_size = _arrays.count("block_size", block_size)
        self.n_blocks = _arrays.count("n_blocks", n_blocks)
        self.scaler_block_size = _arrays.count("scaler_block_size", scaler_block_size)
        self.quantized_scalers = quantized_scalers
        self.quantization_factor = quantization_factor
        self.scaler_mean = scaler_mean
        self.quantized_data = quantized_data
        self.nf4 = nf4
        if self.n_blocks != -(-self.numel() // self.block_size):
            raise Error(f"n_blocks: {self.numel()} values in blocks of {self.block_size} do not "
                        f"make {self.n_blocks}")
        self._decoder()

    @classmethod
    def from_tensor(cls, input_tensor, block_size, scaler_block_size):
        """Quantizes a tensor of at most two dimensions. Raises TypeError, Error: as to_nf4."""
        values, tensor = _quantize(input_tensor, block_size, scaler_block_size)
        shape = tuple(values.shape)
        if not 1 <= len(shape) <= 2:
            raise Error(f"input_tensor: expected at most 2 dimensions, found {len(shape)}")
        scalers, factor, mean = _scaler_parts(values, tensor)
        meta = SubclassTensorArgs(
            getattr(input_tensor, "shape", shape), _strides(shape), 0, values.dtype,
            getattr(values, "device", "cpu"), bool(getattr(input_tensor, "requires_grad", False)))
        return cls(meta, tensor.block_size, tensor.n_blocks, tensor.scaler_block_size, scalers,
                   factor, mean, _arrays.like(tensor.quantized_data, values),
                   nf4=_arrays.like(_arrays.cast(tensor.nf4, values.dtype), values))

    @staticmethod
    def double_quantize_scalers(input_tensor, block_size, scaler_block_size):
        """(codes, factors, mean) of the scales of a flattened weight: int8 (blocks), one factor per
        scaler_block_size scales, and the mean of the scales."""
        values, tensor = _quantize(input_tensor, block_size, scaler_block_size)
        _flat("input_tensor", values)
        return _scaler_parts(values, tensor)

    def dequantize_scalers(self, input_tensor, quantization_factor, scaler_block_size):
        """The scales, in dtype, of codes and factors of double_quantize_scalers and the scaler_mean
        of this tensor."""
        codes = _flat("input_tensor", _arrays.array("input_tensor", input_tensor))
        if _arrays.dtype_name(codes.dtype) != "int8":
            raise TypeError(f"input_tensor: expected int8, found {_arrays.dtype_name(codes.dtype)}")
        scalers = _core.dequantize_scalers(
            codes, _arrays.floats("quantization_factor", quantization_factor),
            float(self.scaler_mean), _arrays.count("scaler_block_size", scaler_block_size))
        return _arrays.like(_arrays.cast(scalers, self.dtype), input_tensor)

    @staticmethod
    def convert_to_norm_float_weight(input_tensor, n_blocks, block_size, nf4):
        """uint8 (numel / 2): the packed codes of a weight by the largest magnitude of each block
        and the ascending table nf4 of 16 levels."""
        values = _arrays.weights("input_tensor", input_tensor)
        n_blocks = _arrays.count("n_blocks", n_blocks)
        block_size = _arrays.count("block_size", block_size)
        size = math.prod(values.shape)
        if n_blocks != -(-size // block_size):
            raise Error(f"n_blocks: {size} values in blocks of {block_size} do not make {n_blocks}")
        table = _arrays.float32("nf4", nf4)
        if table.shape != (16,):
            raise Error(f"nf4: expected 16 levels, found {table.shape}")
        own = _core.to_nf4(_arrays.cast(np.zeros(1, np.float32), values.dtype)).nf4
        if np.array_equal(table, own):
            packed = _core.convert_to_norm_float_weight(values, block_size)
        else:
            flat = _arrays.float32("input_tensor", values).reshape(-1)
            absmax = _core.quantize_nf4(flat, block_size)[1]
            scaled = flat / np.repeat(np.where(absmax > 0, absmax, 1), block_size)[:size]
            packed = _arrays.pack(_core.quantize_tensor_nearest(scaled, table))
        return _arrays.like(packed, input_tensor)

    def get_original_weight(self):
        """The decoded tensor, in its shape and dtype."""
        return _arrays.like(self._decoder().dequantize(self.dtype), self.quantized_data)

    @staticmethod
    def quantize_tensor_nearest(value, nf4):
        """int64 indices, in the shape of value, of the nearest levels of the ascending table nf4;
        the lower one on a tie. Compared in float32, whatever the dtype."""
        nearest = _core.quantize_tensor_nearest(_arrays.floats("value", value),
                                                _arrays.floats("nf4", nf4))
        return _arrays.like(nearest.astype(np.int64), value)

    @staticmethod
    def dequantize(value, nf4):
        """nf4[value]: the level of each code, in the dtype of the table."""
        table = _arrays.floats("nf4", nf4)
        codes = _arrays.to_numpy(_arrays.array("value", value))
        if codes.dtype.kind not in "iu":
            raise TypeError(f"value: expected integers, found {codes.dtype}")
        return _arrays.like(_arrays.cast(_arrays.to_numpy(table)[codes], table.dtype), nf4)

    def to(self, dtype):
        """The decoded tensor in another dtype: a plain array, no longer an NF4Tensor."""
        return _arrays.like(self._decoder().dequantize(dtype), self.quantized_data)

    def size(self, dim=None):
        """The shape, or one of its sizes."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim=None):
        """The strides that the tensor had, in values."""
        strides = tuple(self._meta.original_strides)
        return strides if dim is None else strides[dim]

    def dim(self):
        """Number of dimensions."""
        return len(self.shape)

    def numel(self):
        """Number of values."""
        return math.prod(self.shape)

    def __repr__(self):
        return f"NF4Tensor({self.shape}, {self.block_size})"

    def _decoder(self):
        """The qlora_cpp.NF4Tensor over the arrays as they are now."""
        factor = _arrays.floats("quantization_factor", self.quantization_factor)
        return _core.NF4Tensor.from_arrays(
            _arrays.array("quantized_data", self.quantized_data),
            _arrays.array("quantized_scalers", self.quantized_scalers), self.shape,
            block_size=self.block_size, nested_scalers=factor, offset=float(self.scaler_mean),
            scaler_block_size=self.scaler_block_size, nf4=_arrays.floats("nf4", self.nf4))


def to_nf4(tensor, block_size=64, scaler_block_size=256):
    """An NF4Tensor of a tensor of at most two dimensions and any float type.

    block_size: values that share a scale. scaler_block_size: scales that share a factor.
    Raises TypeError: no array of floats. Error (a ValueError): more dimensions, sizes below 1, NaN
    or Inf.
    """
    return NF4Tensor.from_tensor(tensor, block_size, scaler_block_size)


@functools.lru_cache(maxsize=None)
def _differentiable():
    """The linear for PyTorch's autograd: a gradient for the input, none for the weight."""
    import torch

    class LinearNF4(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer):
            ctx.layer = layer
            return _arrays.like(layer(x.detach().contiguous()), x)

        @staticmethod
        def backward(ctx, dy):
            dy = dy.contiguous()
            unused = dy.new_zeros((*dy.shape[:-1], ctx.layer.in_features))
            return _arrays.like(ctx.layer.backward(unused, dy), dy), None

    return LinearNF4


def linear_nf4(input, weight):
    """y (..., out) = input W^T for input (..., in) and an NF4Tensor W (out, in), in the dtype of
    input, summed in float32. The 4-bit weight is read as it is.

    A tensor of PyTorch that requires a gradient gets one.
    Raises TypeError: no array of floats, no NF4Tensor. Error (a ValueError): other shapes.
    """
    if not isinstance(weight, NF4Tensor):
        raise TypeError(f"weight: expected an NF4Tensor, found {type(weight).__name__}")
    values = _arrays.floats("input", input)
    if weight.dim() != 2 or len(values.shape) == 0 or values.shape[-1] != weight.shape[1]:
        raise Error(f"input: expected (..., in) for a weight (out, in), found "
                    f"{tuple(values.shape)} for {tuple(weight.shape)}")
    # B of a new layer is zero: the adapter adds nothing.
    layer = _core.QLoraLinear.from_quantized(weight._decoder(), r=1)
    if _arrays.is_torch(input):
        half = _arrays.dtype_name(input.dtype) == "bfloat16"
        return _differentiable().apply(input if half else input.float(), layer).to(input.dtype)
    if _arrays.dtype_name(values.dtype) == "bfloat16":
        return layer(values)
    return _arrays.cast(layer(_arrays.float32("input", values)), values.dtype)
