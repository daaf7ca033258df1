"""Arrays whose memory does not show their values: of another byte order, or with a mask.

Every argument of every call that takes arrays is given both kinds: it is refused by its name, or
computes what the plain array computes.
"""

import numpy as np
import pytest

import qlora_cpp as q
from qlora_cpp import kizzasi, nabla, torchao


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


W = normal(24, 64)
PACKED, ABSMAX = q.quantize_nf4(W, 64)
TENSOR = q.quantize(W)
CODES, FACTOR, MEAN = q.double_quantize_scalers(normal(512, seed=1), 256)


def layer():
    made = q.QLoraLinear.from_weight(W, r=3, lora_alpha=6)
    made.lora_b = normal(24, 3, seed=1)
    return made


def set_a(a):
    made = layer()
    made.set_lora_a(a)
    return made.lora_a


def assign_b(b):
    made = layer()
    made.lora_b = b
    return made.lora_b


def with_out(out):
    out = out.copy()
    return layer().forward(normal(5, 64), out=out)


CALLS = {
    "quantize": (lambda w: q.quantize(w).dequantize(), {"w": W}),
    "quantize_nf4": (lambda w: q.quantize_nf4(w, 64)[0], {"w": W}),
    "dequantize_nf4": (lambda packed, absmax: q.dequantize_nf4(packed, absmax, W.size, 64),
                       {"packed": PACKED, "absmax": ABSMAX}),
    "Tensor": (lambda values: q.Tensor(values).float(), {"values": W}),
    "from_arrays": (
        lambda quantized_data, scalers: q.NF4Tensor.from_arrays(
            quantized_data=quantized_data, scalers=scalers, shape=W.shape).dequantize(),
        {"quantized_data": PACKED, "scalers": ABSMAX}),
    "double_quantize_scalers": (lambda s: q.double_quantize_scalers(s, 256)[0],
                                {"s": normal(512, seed=1)}),
    "dequantize_scalers": (lambda codes, factor: q.dequantize_scalers(codes, factor, MEAN, 256),
                           {"codes": CODES, "factor": FACTOR}),
    "from_weight": (lambda w, bias: q.QLoraLinear.from_weight(w, r=3, bias=bias)(normal(5, 64)),
                    {"w": W, "bias": normal(24)}),
    "forward": (lambda x: layer()(x), {"x": normal(5, 64)}),
    "forward out": (with_out, {"out": np.zeros((5, 24), np.float32)}),
    "backward": (lambda x, dy: layer().backward(x, dy),
                 {"x": normal(5, 64), "dy": normal(5, 24)}),
    "set_lora_a": (set_a, {"a": normal(3, 64)}),
    "lora_b": (assign_b, {"b": normal(24, 3)}),
    "qlora_linear": (lambda x, a, b: q.qlora_linear(x, TENSOR, a, b, 6),
                     {"x": normal(5, 64), "a": normal(3, 64), "b": normal(24, 3)}),
    "quantize_tensor_nearest": (lambda x, codebook: q.quantize_tensor_nearest(x, codebook),
                                {"x": normal(40), "codebook": np.sort(normal(16))}),
    "NF4Tensor.dequantize": (lambda value, nf4: q.NF4Tensor.dequantize(value, nf4),
                             {"value": np.arange(16, dtype=np.int32), "nf4": normal(16)}),
    "torchao.to_nf4": (lambda w: np.asarray(torchao.to_nf4(w, 64, 2).get_original_weight()),
                       {"w": normal(64, 64)}),
}


def big_endian(value):
    return value.astype(value.dtype.newbyteorder(">"))


def masked(value):
    mask = np.zeros(value.shape, bool)
    mask.flat[0] = True
    return np.ma.MaskedArray(value, mask)


def plain(result):
    return np.asarray(result)


@pytest.mark.parametrize("kind", [big_endian, masked])
@pytest.mark.parametrize("name", CALLS)
def test_every_argument_is_swapped_or_refused(name, kind):
    call, arguments = CALLS[name]
    expected = plain(call(**arguments))
    for argument, value in arguments.items():
        given = {**arguments, argument: kind(value)}
        if kind is big_endian and value.dtype.itemsize == 1:
            continue  # it has no byte order
        try:
            result = call(**given)
        except (q.Error, TypeError) as error:
            word = "byte order" if kind is big_endian else "mask"
            assert word in str(error), (argument, str(error))
            assert ":" in str(error), argument
        else:
            assert kind is big_endian, f"{argument}: the mask is lost"
            np.testing.assert_array_equal(plain(result), expected)


def test_what_looks_like_another_order_is_not():
    np.testing.assert_array_equal(q.quantize(W.astype("<f4")).dequantize(),
                                  q.quantize(W).dequantize())
    with pytest.raises(q.Error, match="found dtype >f4; pass x.astype.'float32'."):
        q.quantize(big_endian(W))
    with pytest.raises(q.Error, match="byte order"):
        q.quantize(np.frombuffer(big_endian(W).tobytes(), ">f4").reshape(W.shape))
    for unmasked in (np.ma.MaskedArray(W), np.ma.masked_invalid(W)):
        with pytest.raises(q.Error, match="w: expected an array without a mask"):
            q.quantize(unmasked)


def test_the_modules_of_other_libraries_take_any_order():
    for module in (kizzasi, nabla):
        assert module  # their entries convert by _arrays.array, which this tests for all
    from qlora_cpp import _arrays
    np.testing.assert_array_equal(_arrays.array("x", big_endian(W)), W)
    assert _arrays.array("x", big_endian(W)).dtype.isnative
    with pytest.raises(TypeError, match="x: expected an array without a mask"):
        _arrays.array("x", masked(W))
