"""Arguments and results of the modules that carry the names of other libraries.

They take numpy arrays, PyTorch tensors, qlora_cpp.Tensor and whatever else has __dlpack__, in any
memory order, and give back arrays of the kind that came in.
"""

import operator
import sys

import numpy as np

from . import _core
from ._errors import Error

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_MOST = 2 ** 48  # more than any size in memory, and far from the end of 64 bits


def _torch():
    """PyTorch, if somebody has imported it; without that, no tensor of it exists."""
    return sys.modules.get("torch")


def is_torch(value):
    return _torch() is not None and isinstance(value, _torch().Tensor)


def dtype_name(dtype):
    """ "float32" of "float32", numpy.float32, numpy.dtype("float32") and torch.float32."""
    if isinstance(dtype, type):
        return dtype.__name__
    return str(dtype).split(".")[-1]


def array(name, value):
    """The value with consecutive elements, which is copied where they are not."""
    if is_torch(value):
        return value.detach().contiguous()
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: expected an array without a mask, found a masked array; pass "
                        "x.filled(0) or x.data")
    if isinstance(value, np.ndarray):
        return np.require(value, value.dtype.newbyteorder("="), "C")
    if not hasattr(value, "__dlpack__"):
        raise TypeError(f"{name}: expected an array, found {type(value).__name__}")
    return value if isinstance(value, _core.Tensor) else np.from_dlpack(value)


def floats(name, value):
    """The same, of a float type."""
    value = array(name, value)
    if dtype_name(value.dtype) not in _FLOATS:
        raise TypeError(f"{name}: expected values of a float type, found {dtype_name(value.dtype)}")
    return value


def weights(name, value):
    """The same, with something to quantize."""
    value = floats(name, value)
    if 0 in value.shape:
        raise Error(f"{name}: expected values, found shape {tuple(value.shape)}")
    return value


def to_numpy(value):
    """What array() gave as a numpy array; bfloat16 as float32."""
    if isinstance(value, _core.Tensor):
        return value.float()
    if is_torch(value):
        return (value.float() if dtype_name(value.dtype) == "bfloat16" else value).numpy()
    return value


def float32(name, value):
    return to_numpy(floats(name, value)).astype(np.float32, copy=False)


def codes(name, value, most):
    """Whole numbers from 0 to most as uint8."""
    value = to_numpy(array(name, value))
    if value.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, found {value.dtype}")
    if value.size and not 0 <= value.min() <= value.max() <= most:
        raise Error(f"{name}: expected 0 to {most}, found {value.min()} to {value.max()}")
    return value.astype(np.uint8)


def cast(values, dtype):
    """A numpy array in another float type; bfloat16 as a qlora_cpp.Tensor."""
    name = dtype_name(dtype)
    if name == "bfloat16":
        return _core.Tensor(values)
    if name not in _FLOATS:
        raise Error(f"dtype: expected float32, bfloat16 or float16, found {name}")
    return values.astype(name, copy=False)


def like(result, given):
    """The result as a tensor of PyTorch where `given` is one, without a copy."""
    if not is_torch(given):
        return result
    if isinstance(result, np.ndarray) and not result.flags.writeable:
        result = result.copy()
    return _torch().from_dlpack(result)


def count(name, value, least=1):
    """A whole number."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, found {type(value).__name__}") from None
    if number < least:
        raise Error(f"{name}: expected at least {least}, found {number}")
    if number > _MOST:
        raise Error(f"{name}: expected at most 2^48, found {number}")
    return number


def number(name, value):
    """A finite number."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}: expected a number, found {type(value).__name__}")
    value = float(value)
    if not np.isfinite(value):
        raise Error(f"{name}: expected a finite number, found {value}")
    return value


def positive(name, value):
    """A finite number above 0."""
    value = number(name, value)
    if value <= 0:
        raise Error(f"{name}: expected a number above 0, found {value:g}")
    return value


def matrix(name, value):
    """Values to quantize with two dimensions."""
    value = weights(name, value)
    if len(value.shape) != 2:
        raise Error(f"{name}: expected a matrix, found {len(value.shape)} dimensions")
    return value


def unpack(packed, size):
    """uint8 codes, one a byte, of packed ones, the first of which are in the high nibbles."""
    return np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:size]


def pack(values):
    """The inverse; a last nibble without a code is 0."""
    even = np.append(values, np.uint8(0)) if values.size % 2 else values
    return even[0::2] << 4 | even[1::2]
