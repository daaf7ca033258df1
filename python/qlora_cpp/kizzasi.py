"""The QLoRA layer by the names of kizzasi (kizzasi_model::lora).

    layer = QLoraLinear.from_weight(weight, rank=4, alpha=8.0, group_size=64)
    y = layer.forward(x)

Its numbers are methods, as there. Codes, scales and sizes are kizzasi's. There A and B cannot be
set and have no gradients, so that the adapter is always 0; here they can, and the layer trains.
"""

import copy

import numpy as np

from . import _arrays, _core
from ._errors import Error

__all__ = ["QLoraLinear"]


class QLoraLinear:
    """y = W x + alpha / rank B (A x), W (out, in) in 4 bits, A (rank, in), B (out, rank)."""

    def __init__(self, layer):
        if not isinstance(layer, _core.QLoraLinear):
            raise TypeError("a layer is made by QLoraLinear.from_weight")
        self._layer = layer
        # Stored, as kizzasi does, and counted in memory_saved_bytes().
        self._zero_point = np.zeros(layer.weight.n_blocks, np.float32)

    @classmethod
    def from_weight(cls, weight, rank, alpha, group_size):
        """Quantizes weight (out, in) of any float type in groups of group_size values along the
        rows; the last group may be short. A is random with a fixed seed, B zero.

        Raises TypeError: no array of floats, no number. Error (a ValueError): another number of
        dimensions, a rank below 1 or above min(out, in), alpha <= 0, a group_size below 1, NaN or
        Inf.
        """
        weight = _arrays.matrix("weight", weight)
        rank = _arrays.count("rank", rank)
        alpha = _arrays.positive("alpha", alpha)
        group_size = _arrays.count("group_size", group_size)
        if rank > min(weight.shape):
            raise Error(f"rank: expected at most {min(weight.shape)} for a weight of shape "
                        f"{tuple(weight.shape)}, found {rank}")
        return cls(_core.QLoraLinear.from_weight(
            weight, r=rank, lora_alpha=alpha, block_size=group_size, scale_type="float32"))

    def dequantize_weight(self):
        """W (out, in) as float32."""
        return self._layer.dequantize_weight()

    def forward(self, input):
        """y (..., out) of input (..., in), a vector or any batch of them, of any float type.

        bfloat16 is answered in bfloat16, the rest in float32. Raises Error: another last dimension.
        """
        values = _arrays.floats("input", input)
        if _arrays.dtype_name(values.dtype) != "bfloat16":
            values = _arrays.float32("input", values)
        if len(values.shape) == 0 or values.shape[-1] != self.in_features():
            raise Error(f"input: expected (..., {self.in_features()}), found {tuple(values.shape)}")
        return _arrays.like(self._layer(values), input)

    def memory_saved_bytes(self):
        """Bytes that codes, scales and zero points save against a float32 weight; at least 0."""
        return max(0, self._layer.memory_saved_bytes - self._zero_point.nbytes)

    def trainable_params(self):
        """Values of A and B: rank * (in + out)."""
        return self._layer.trainable_params

    def group_size(self):
        """Values that share a scale."""
        return self._layer.group_size

    def in_features(self):
        """Columns of W."""
        return self._layer.in_features

    def out_features(self):
        """Rows of W."""
        return self._layer.out_features

    def rank(self):
        """Rows of A."""
        return self._layer.r

    def alpha(self):
        """Numerator of the scaling alpha / rank."""
        return self._layer.lora_alpha

    def lora_a(self):
        """A (rank, in): a read-only view."""
        return self._layer.lora_a

    def lora_b(self):
        """B (out, rank): a read-only view."""
        return self._layer.lora_b

    def scale(self):
        """The scale of each group, its largest magnitude: float32 (groups). 0 for a group of zeros,
        where kizzasi has 1e-10; both decode to zeros."""
        return self._layer.weight.scalers

    def zero_point(self):
        """float32 (groups), all 0: NF4 has none."""
        return self._zero_point

    def clone(self):
        """The same layer with an adapter of its own; the frozen weight is shared."""
        return copy.copy(self)

    def __copy__(self):
        return type(self)(copy.copy(self._layer))

    def set_lora_a(self, a):
        """Copies a (rank, in) into A. Raises Error: another shape, NaN or Inf."""
        self._layer.set_lora_a(_arrays.float32("a", a))

    def set_lora_b(self, b):
        """Copies b (out, rank) into B. Raises Error: as set_lora_a."""
        self._layer.set_lora_b(_arrays.float32("b", b))

    @property
    def layer(self):
        """The qlora_cpp.QLoraLinear itself, for gradients, merging and files."""
        return self._layer
