"""NF4 and the QLoRA layer by the names of qlora-rs.

    quantized = quantize_nf4(weights, 64)
    print(quantized.size_bytes())
    restored = dequantize_nf4(quantized)
    layer = QuantizedLinear.from_weight(weights, None, QLoraConfig.default())
    y = layer.forward(x)
    export_gguf([("model.layers.0.self_attn.q_proj.weight", quantized)], "model.gguf")

Three things are here what qlora-rs says of them, and not what it does. Double quantization makes
scales smaller; there the float32 scales are kept beside it. A layer trains: backward() gives
gradients, lora_weights and set_lora_weights the adapter; there training leaves every weight as it
was. export_gguf writes GGUF that readers take; there offsets and types of the file are wrong, and
NF4 has no type in GGUF. `qlora export` writes models that llama.cpp runs.
A device is accepted where theirs is, and has to be the CPU.
"""

import dataclasses
import os

import numpy as np

from . import _arrays, _core
from ._errors import Error

__all__ = ["LoraConfig", "QLoraConfig", "QuantizationConfig", "QuantizedLinear", "QuantizedTensor",
           "dequantize_nf4", "export_gguf", "quantize_nf4"]


@dataclasses.dataclass
class LoraConfig:
    """Of the adapter: rank r, alpha of the scaling alpha / r, and dropout of the input of A."""

    r: int = 64
    alpha: float = 16.0
    dropout: float = 0.05
    use_rslora: bool = False


@dataclasses.dataclass
class QuantizationConfig:
    """Of the frozen weight. compute_dtype: of the operands of products, "float32", "bfloat16" or
    "int8"."""

    block_size: int = 64
    double_quant: bool = True
    compute_dtype: str = "bfloat16"


@dataclasses.dataclass
class QLoraConfig:
    """What a layer is made with. target_modules: the linears of a model that are meant."""

    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)
    quantization: QuantizationConfig = dataclasses.field(default_factory=QuantizationConfig)
    target_modules: list = dataclasses.field(default_factory=lambda: [
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])

    @classmethod
    def default(cls):
        """r 64, alpha 16, dropout 0.05; blocks of 64, double quantization, bfloat16."""
        return cls()

    def scale(self):
        """alpha / r."""
        return self.lora.alpha / self.lora.r

    def is_target(self, module_name):
        """Whether a name holds one of target_modules."""
        return any(target in module_name for target in self.target_modules)


def _check_device(device):
    if device is not None and str(device).lower() != "cpu":
        raise Error(f"device: expected the CPU, found {device}")


class QuantizedTensor:
    """A tensor in 4 bits."""

    def __init__(self, tensor):
        if not isinstance(tensor, _core.NF4Tensor):
            raise TypeError("a tensor is made by quantize_nf4")
        self._tensor = tensor

    @property
    def tensor(self):
        """The qlora_cpp.NF4Tensor itself."""
        return self._tensor

    @property
    def data(self):
        """uint8 ((numel + 1) / 2): two codes a byte, the first one in the low nibble; a copy."""
        packed = self._tensor.quantized_data
        return packed << 4 | packed >> 4

    @property
    def scales(self):
        """float32 (blocks): the scale of each block; decoded where it is double-quantized."""
        return self._tensor.scalers

    @property
    def shape(self):
        """The shape before quantization."""
        return self._tensor.shape

    @property
    def block_size(self):
        """Values that share a scale."""
        return self._tensor.block_size

    @property
    def double_quant_enabled(self):
        """Whether scales are stored in 8 bits."""
        return self._tensor.quantization_factor is not None

    def numel(self):
        """Number of values."""
        return self._tensor.size

    def size_bytes(self):
        """Bytes of codes and scales."""
        return self._tensor.size_bytes

    def compression_ratio(self):
        """Bytes as float32 / size_bytes()."""
        return self._tensor.compression_ratio

    def __repr__(self):
        return f"QuantizedTensor({self.shape}, {self.block_size})"


def quantize_nf4(tensor, block_size=64):
    """Quantizes a tensor of any shape and float type, with a float32 scale per block.

    The last block may be short, where theirs is an error.
    Raises TypeError: no array of floats. Error (a ValueError): a block_size below 1, NaN or Inf.
    """
    return QuantizedTensor(_core.quantize(
        _arrays.weights("tensor", tensor), block_size=_arrays.count("block_size", block_size),
        scale_type="float32"))


def dequantize_nf4(quantized, device=None):
    """The decoded tensor, float32 in its shape. Raises TypeError: no QuantizedTensor."""
    if not isinstance(quantized, QuantizedTensor):
        raise TypeError(f"quantized: expected a QuantizedTensor, found {type(quantized).__name__}")
    _check_device(device)
    return quantized.tensor.dequantize()


class QuantizedLinear:
    """y = x W^T + alpha / r (x A^T) B^T + bias: W (out, in) in 4 bits, A (r, in), B (out, r).

    QuantizedLinear(in_features, out_features, config, device) has a weight of zeros.
    """

    def __init__(self, in_features, out_features, config=None, device=None):
        shape = (_arrays.count("out_features", out_features),
                 _arrays.count("in_features", in_features))
        self._make(np.zeros(shape, np.float32), None, config, device)

    # Rust's name of the constructor.
    @classmethod
    def new(cls, in_features, out_features, config=None, device=None):
        """The same as QuantizedLinear(in_features, out_features, config, device)."""
        return cls(in_features, out_features, config, device)

    @classmethod
    def from_weight(cls, weight, bias=None, config=None, device=None):
        """Quantizes weight (out, in) of any float type; bias: (out) or None; config: None for
        QLoraConfig.default(). A is random, B zero.

        Raises TypeError: other types. Error (a ValueError): another shape, a configuration out of
        range, NaN or Inf.
        """
        layer = cls.__new__(cls)
        layer._make(weight, bias, config, device)
        return layer

    def _make(self, weight, bias, config, device):
        config = QLoraConfig.default() if config is None else config
        if not isinstance(config, QLoraConfig):
            raise TypeError(f"config: expected a QLoraConfig, found {type(config).__name__}")
        lora, form = config.lora, config.quantization
        if not isinstance(lora, LoraConfig) or not isinstance(form, QuantizationConfig):
            raise TypeError("config: expected a LoraConfig and a QuantizationConfig, found "
                            f"{type(lora).__name__} and {type(form).__name__}")
        _check_device(device)
        if bias is not None:
            bias = _arrays.float32("bias", bias)
            if bias.ndim != 1:
                raise Error(f"bias: expected one dimension, found {bias.ndim}")
        self._config = config
        self._layer = _core.QLoraLinear.from_weight(
            _arrays.matrix("weight", weight), r=_arrays.count("r", lora.r),
            lora_alpha=_arrays.positive("alpha", lora.alpha),
            lora_dropout=_arrays.number("dropout", lora.dropout), use_rslora=bool(lora.use_rslora),
            compute_dtype=_arrays.dtype_name(form.compute_dtype),
            bias=bias, block_size=_arrays.count("block_size", form.block_size),
            scale_type="double_bnb" if form.double_quant else "float32")

    def forward(self, input, dropout_step=None):
        """y (..., out) of input (..., in) of any float type; bfloat16 is answered in bfloat16, the
        rest in float32. dropout_step: None drops nothing; a number draws its own mask."""
        return _arrays.like(self._layer(self._rows("input", input, self._layer.in_features),
                                        self._step(dropout_step)), input)

    __call__ = forward

    def backward(self, input, grad_output, dropout_step=None):
        """The gradient of input (..., in) for grad_output (..., out), and adds to those of A and B.

        input and dropout_step: those of forward."""
        x = self._rows("input", input, self._layer.in_features)
        dy = self._rows("grad_output", grad_output, self._layer.out_features)
        return _arrays.like(self._layer.backward(x, dy, self._step(dropout_step)), input)

    def lora_weights(self):
        """(A (r, in), B (out, r)): read-only views."""
        return self._layer.lora_a, self._layer.lora_b

    def set_lora_weights(self, lora_a, lora_b):
        """Copies values into A and B. Raises Error: other shapes, NaN or Inf."""
        self._layer.set_lora_a(_arrays.float32("lora_a", lora_a))
        self._layer.set_lora_b(_arrays.float32("lora_b", lora_b))

    def lora_gradients(self):
        """(dA (r, in), dB (out, r)): views, to which backward adds."""
        return self._layer.da, self._layer.db

    def zero_gradients(self):
        """Sets dA and dB to 0."""
        self._layer.zero_gradients()

    def num_trainable_parameters(self):
        """Values of A and B: r * (in + out)."""
        return self._layer.trainable_params

    def memory_bytes(self):
        """Bytes of the weight in 4 bits, of A, B and bias."""
        return self._layer.size_bytes

    def config(self):
        """The QLoraConfig of the layer."""
        return self._config

    def quantized_weight(self):
        """The weight as a QuantizedTensor; export_gguf takes it."""
        return QuantizedTensor(self._layer.weight)

    @property
    def layer(self):
        """The qlora_cpp.QLoraLinear itself, for merging and files."""
        return self._layer

    @staticmethod
    def _rows(name, value, features):
        """Rows of a number of features in a type that layers take."""
        values = _arrays.floats(name, value)
        if len(values.shape) == 0 or values.shape[-1] != features:
            raise Error(f"{name}: expected (..., {features}), found {tuple(values.shape)}")
        half = _arrays.dtype_name(values.dtype) == "bfloat16"
        return values if half else _arrays.float32(name, values)

    @staticmethod
    def _step(dropout_step):
        return None if dropout_step is None else _arrays.count("dropout_step", dropout_step, 0)


def export_gguf(tensors, path, outtype="f16"):
    """Writes pairs (name, QuantizedTensor) to one GGUF file as decoded matrices of outtype: "f32",
    "f16", "bf16" or "q8_0". GGUF has no type for NF4. A file at path is replaced.

    Raises TypeError: no pairs of that kind, no path. Error (a ValueError): a name of more than 63
    bytes or twice, values beyond outtype. RunError: the file cannot be written.
    """
    named = []
    if isinstance(tensors, (str, bytes)) or not hasattr(tensors, "__iter__"):
        raise TypeError("tensors: expected pairs (name, quantized), found "
                        f"{type(tensors).__name__}")
    for pair in tensors:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError("tensors: expected pairs (name, quantized)")
        name, quantized = pair
        if not isinstance(name, str) or not isinstance(quantized, QuantizedTensor):
            raise TypeError("tensors: expected pairs of str and QuantizedTensor, found "
                            f"{type(name).__name__} and {type(quantized).__name__}")
        named.append((name, quantized.tensor))
    if not isinstance(outtype, str):
        raise TypeError(f"outtype: expected a str, found {type(outtype).__name__}")
    _core.export_gguf(named, os.fspath(path), outtype)
