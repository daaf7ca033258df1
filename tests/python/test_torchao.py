"""The calls of torchao, as its documents write them, and the values that those print."""

import copy

import numpy as np
import pytest

import qlora_cpp as q
from other_names import fnv1a64, normal, refused, uniform
from qlora_cpp import torchao


def test_torchao_s_golden_values():
    # 32,768 sums of twelve uniform numbers, minus 6.
    w = (uniform(12 * 32768, 7).reshape(-1, 12).sum(axis=1) - 6).astype(np.float32)
    t = torchao.to_nf4(w.reshape(128, 256), 64, 256)
    assert fnv1a64(t.quantized_data.tobytes()) == "b7df3314299480c1"
    assert fnv1a64(t.quantized_scalers.tobytes()) == "34078588fbe41550"
    assert list(t.quantized_scalers[:8]) == [11, 35, -11, 33, 9, -28, -55, -29]
    assert t.scaler_mean == np.float32(float.fromhex("0x1.463a9ap+1"))
    assert list(t.quantization_factor) == [float.fromhex("0x1.22b042p+6"),
                                           float.fromhex("0x1.f941p+6")]
    error = t.get_original_weight().reshape(-1) - w
    assert np.sqrt(np.mean(error.astype(float) ** 2)) == pytest.approx(0.0917897424874736, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torchao_s_tensor(dtype):
    w = normal(128, 256)
    given = q.Tensor(w) if dtype == "bfloat16" else w.astype(dtype)
    wide = given.float() if dtype == "bfloat16" else given
    t = torchao.to_nf4(given, block_size=64, scaler_block_size=256)
    assert (t.block_size, t.n_blocks, t.scaler_block_size) == (64, 512, 256)
    assert t.shape == t.size() == (128, 256) and t.size(1) == 256 and t.stride() == (256, 1)
    assert t.dim() == 2 and t.numel() == 32768 and not t.requires_grad and str(t.device) == "cpu"
    assert t.dtype == dtype and t.nf4.dtype == dtype and t.quantization_factor.dtype == dtype
    assert t.quantized_scalers.dtype == np.int8 and t.quantized_scalers.shape == (512,)
    assert t.quantized_data.dtype == np.uint8 and t.quantized_data.shape == (16384,)
    assert str(t) == "NF4Tensor((128, 256), 64)"
    own = q.to_nf4(given)
    restored = t.get_original_weight()
    assert restored.dtype == dtype and restored.shape == (128, 256)
    np.testing.assert_array_equal(t.to("float32"), own.dequantize())

    codes, factor, mean = torchao.NF4Tensor.double_quantize_scalers(
        wide.reshape(-1) if dtype != "bfloat16" else q.Tensor(wide.reshape(-1)), 64, 256)
    np.testing.assert_array_equal(codes, t.quantized_scalers)
    assert mean == t.scaler_mean and factor.dtype == dtype
    scalers = t.dequantize_scalers(codes, factor, 256)
    assert scalers.dtype == dtype
    np.testing.assert_array_equal(scalers.float() if dtype == "bfloat16" else scalers, own.scalers)
    np.testing.assert_array_equal(
        torchao.NF4Tensor.convert_to_norm_float_weight(given, 512, 64, t.nf4), t.quantized_data)

    meta = torchao.SubclassTensorArgs((128, 256), (256, 1), 0, t.dtype, "cpu", False)
    same = torchao.NF4Tensor(meta, 64, 512, 256, t.quantized_scalers, t.quantization_factor,
                             t.scaler_mean, t.quantized_data, nf4=t.nf4)
    np.testing.assert_array_equal(same.to("float32"), t.to("float32"))
    np.testing.assert_array_equal(copy.deepcopy(same).to("float32"), t.to("float32"))


def test_torchao_s_static_methods():
    table = torchao.to_nf4(normal(64)).nf4
    found = torchao.NF4Tensor.quantize_tensor_nearest(normal(3, 5), table)
    assert found.dtype == np.int64 and found.shape == (3, 5)
    np.testing.assert_array_equal(torchao.NF4Tensor.dequantize(value=found, nf4=table), table[found])
    half = torchao.NF4Tensor.dequantize(found, q.Tensor(table))
    np.testing.assert_array_equal(half.float(), q.Tensor(table[found]).float())
    # Another table than its own.
    w, levels = normal(96), np.linspace(-1, 1, 16, dtype=np.float32)
    packed = torchao.NF4Tensor.convert_to_norm_float_weight(w, 3, 32, levels)
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(3, 32)
    scaled = w.reshape(3, 32) / np.abs(w.reshape(3, 32)).max(axis=1, keepdims=True)
    assert np.abs(levels[codes] - scaled).max() <= 1 / 15 * (1 + 1e-5)
    # Sizes that torchao refuses.
    w = normal(10, 33)
    t = torchao.to_nf4(w, 64, 256)
    assert t.n_blocks == 6 and np.abs(t.get_original_weight() - w).max() < 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_torchao_s_linear(dtype):
    t = torchao.to_nf4(normal(64, 256))
    x = normal(2, 3, 256, seed=1)
    given = q.Tensor(x) if dtype == "bfloat16" else x.astype(dtype)
    y = torchao.linear_nf4(given, t)
    assert y.dtype == dtype and y.shape == (2, 3, 64)
    y = y.float() if dtype == "bfloat16" else y
    limit = {"float32": 1e-4, "float64": 1e-4, "float16": 0.05, "bfloat16": 0.3}[dtype]
    np.testing.assert_allclose(y, x @ t.get_original_weight().T, atol=limit, rtol=1e-2)
    np.testing.assert_array_equal(torchao.linear_nf4(input=x, weight=t), torchao.linear_nf4(x, t))


def test_torchao_s_mistakes():
    w = normal(64, 256)
    t = torchao.to_nf4(w)
    meta = torchao.SubclassTensorArgs((64, 256), (256, 1), 0, "float32", "cpu", False)
    parts = (t.quantized_scalers, t.quantization_factor, t.scaler_mean, t.quantized_data, t.nf4)
    for call, error, message in (
            (lambda: torchao.to_nf4(normal(2, 3, 4)), ValueError, "at most 2 dimensions, found 3"),
            (lambda: torchao.to_nf4(w, 64.0), TypeError, "block_size: expected an integer"),
            (lambda: torchao.to_nf4(w, 64, 0), ValueError, "scaler_block_size"),
            (lambda: torchao.to_nf4("w"), TypeError, "found str"),
            (lambda: torchao.to_nf4(np.zeros((0, 4))), ValueError, "expected values"),
            (lambda: torchao.to_nf4(w / 0 * 0), q.Error, "nan at index 0"),
            (lambda: torchao.NF4Tensor((64, 256), 64, 256, 256, *parts), TypeError, "tensor_meta"),
            (lambda: torchao.NF4Tensor(meta, 64, 255, 256, *parts), ValueError, "do not make 255"),
            (lambda: torchao.NF4Tensor(meta, 64, 256, 256, *parts[:4], t.nf4[:8]), q.Error, "nf4"),
            (lambda: torchao.NF4Tensor(meta, 64, 256), TypeError, "missing"),
            (lambda: torchao.NF4Tensor.double_quantize_scalers(w, 64, 256), ValueError, "flattened"),
            (lambda: torchao.NF4Tensor.dequantize(w, t.nf4), TypeError, "integers, found float32"),
            (lambda: torchao.NF4Tensor.dequantize(np.array([16]), t.nf4), IndexError, "16"),
            (lambda: t.dequantize_scalers(w.reshape(-1), t.quantization_factor, 256), TypeError,
             "int8"),
            (lambda: torchao.linear_nf4(w, w), TypeError, "expected an NF4Tensor, found ndarray"),
            (lambda: torchao.linear_nf4(normal(2, 255), t), ValueError, r"\(2, 255\) for \(64, 256"),
    ):
        with np.errstate(all="ignore"):
            refused(call, error, message)
