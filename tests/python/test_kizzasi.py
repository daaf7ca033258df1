"""The calls of kizzasi, as its documents write them, and the values that those print."""

import numpy as np
import pytest

from other_names import normal, refused
from qlora_cpp import kizzasi


def ramp(rows, cols):
    return (np.float32(0.01) * np.arange(rows * cols, dtype=np.float32)).reshape(rows, cols)


def test_kizzasi_s_published_values():
    layer = kizzasi.QLoraLinear.from_weight(ramp(16, 8), rank=4, alpha=8.0, group_size=32)
    np.testing.assert_array_equal(layer.scale(), np.float32([0.31, 0.63, 0.95, 1.27]))
    assert layer.layer.weight.quantized_data.tobytes().hex() == (
        "7788999aaabbbcccddddeeeeeeefffffdddddddddeeeeeeeeeeeeeefffffffff"
        "eeeeeeeeeeeeeeeeeeffffffffffffffeeeeeeeeeeeeeeffffffffffffffffff")
    np.testing.assert_allclose(layer.forward(np.ones(8, np.float32))[:4], [
        0.27529966831207275, 0.8767109513282776, 1.5941115617752075, 2.2223498821258545], rtol=1e-6)
    error = layer.dequantize_weight() - ramp(16, 8)
    assert np.abs(error).max() == pytest.approx(0.17184484004974365, rel=1e-6)
    layer = kizzasi.QLoraLinear.from_weight(ramp(32, 16), 4, 8.0, 64)
    assert layer.memory_saved_bytes() == 1728 and layer.trainable_params() == 192
    layer = kizzasi.QLoraLinear.from_weight(ramp(256, 128), 4, 8.0, 64)
    assert layer.memory_saved_bytes() == 110592


def test_kizzasi_s_methods():
    layer = kizzasi.QLoraLinear.from_weight(weight=normal(24, 40), rank=3, alpha=6, group_size=64)
    assert (layer.in_features(), layer.out_features(), layer.rank()) == (40, 24, 3)
    assert (layer.alpha(), layer.group_size()) == (6.0, 64)
    assert layer.zero_point().shape == layer.scale().shape == (15,) and not layer.zero_point().any()
    assert layer.lora_a().shape == (3, 40) and layer.lora_b().shape == (24, 3)
    assert layer.lora_a().any() and not layer.lora_b().any()
    x = normal(40, seed=1)
    np.testing.assert_allclose(layer.forward(input=x), layer.dequantize_weight() @ x, atol=1e-4)
    same = layer.clone()
    same.set_lora_b(normal(24, 3, seed=2).astype(float))
    assert not layer.lora_b().any()
    expected = same.dequantize_weight() + 2 * same.lora_b() @ same.lora_a()
    np.testing.assert_allclose(same.forward(x), expected @ x, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(same.clone().lora_b(), same.lora_b())
    same.set_lora_a(np.zeros((3, 40)))
    np.testing.assert_array_equal(same.forward(np.stack([x, x])), [layer.forward(x)] * 2)
    same.layer.backward(x, normal(24))
    assert same.layer.da.any()


def test_kizzasi_s_mistakes():
    make, w = kizzasi.QLoraLinear.from_weight, normal(8, 6)
    for call, error, message in (
            (lambda: make(w, 0, 8.0, 64), ValueError, "rank: expected at least 1"),
            (lambda: make(w, 7, 8.0, 64), ValueError, "rank: expected at most 6"),
            (lambda: make(w, 4, -1.0, 64), ValueError, "alpha: expected a number above 0"),
            (lambda: make(w, 4, 8.0, 0), ValueError, "group_size"),
            (lambda: make(w, 4, 8.0), TypeError, "group_size"),
            (lambda: make(w, 4.5, 8.0, 64), TypeError, "rank: expected an integer"),
            (lambda: make(w, 4, "8", 64), TypeError, "alpha: expected a number"),
            (lambda: make(w[0], 4, 8.0, 64), ValueError, "expected a matrix"),
            (lambda: make(np.zeros((0, 6)), 4, 8.0, 64), ValueError, r"values, found shape \(0, 6\)"),
            (lambda: make(w, 4, 8.0, 64).forward(w[:, :5]), ValueError, r"\(..., 6\)"),
            (lambda: make(w, 4, 8.0, 64).set_lora_b(w), ValueError, "expected B of shape"),
            (lambda: kizzasi.QLoraLinear(w), TypeError, "from_weight"),
    ):
        refused(call, error, message)
