"""The calls of qlora-rs, as its documents write them, and the values that those print."""

import struct

import numpy as np
import pytest

import qlora_cpp as q
from other_names import normal, refused, uniform
from qlora_cpp import qlora_rs


def test_qlora_rs_quantizes():
    values = (2 * uniform(64, 42) - 1).astype(np.float32)
    quantized = qlora_rs.quantize_nf4(values, 64)
    assert quantized.data.tobytes().hex() == (
        "29a50b1006843e5d0dc554458578a5cfa5a041bff1fee50512677160d32006de")
    assert quantized.scales[0] == float.fromhex("0x1.fe5ba4p-1")
    np.testing.assert_allclose(qlora_rs.dequantize_nf4(quantized)[:4], [
        0.16041408479213715, -0.5233891010284424, -0.1841808408498764, 0.24532300233840942],
        rtol=1e-6)
    quantized = qlora_rs.quantize_nf4(np.zeros((1024, 1024)), block_size=64)
    assert quantized.size_bytes() == 589824 and quantized.numel() == 1 << 20
    assert quantized.compression_ratio() == pytest.approx(7.111, abs=1e-3)
    assert quantized.shape == (1024, 1024) and quantized.block_size == 64
    assert not quantized.double_quant_enabled
    assert not qlora_rs.dequantize_nf4(quantized=quantized, device="cpu").any()


def test_qlora_rs_s_layer():
    config = qlora_rs.QLoraConfig.default()
    assert (config.lora.r, config.lora.alpha, config.lora.dropout) == (64, 16, 0.05)
    assert config.quantization.block_size == 64 and config.quantization.double_quant
    assert config.scale() == 0.25
    assert config.is_target("model.layer.q_proj") and not config.is_target("lm_head")
    w = normal(768, 768)
    layer = qlora_rs.QuantizedLinear.from_weight(w, None, config, "cpu")
    output = layer.forward(np.zeros((1, 10, 768), np.float32))
    assert output.shape == (1, 10, 768) and not output.any()
    assert layer.num_trainable_parameters() == 98304
    assert layer.config() is config and layer.quantized_weight().double_quant_enabled
    a, b = layer.lora_weights()
    assert a.shape == (64, 768) and b.shape == (768, 64) and not b.any()
    # Operands of products are bfloat16, as the configuration says.
    x = normal(4, 768, seed=1)
    exact = x @ qlora_rs.dequantize_nf4(layer.quantized_weight()).T
    assert 1e-3 < np.abs(layer(x) - exact).max() / np.abs(exact).max() < 2e-2
    zero = qlora_rs.QuantizedLinear.new(64, 128, config)
    assert zero.forward(np.ones((2, 64), np.float32)).shape == (2, 128)
    # What is stored, without a second copy of the scales.
    assert qlora_rs.QuantizedLinear(4096, 4096).memory_bytes() == 10752004


def test_qlora_rs_s_layer_learns():
    config = qlora_rs.QLoraConfig(qlora_rs.LoraConfig(r=4, alpha=8.0, dropout=0.0),
                                  qlora_rs.QuantizationConfig(compute_dtype="float32"))
    layer = qlora_rs.QuantizedLinear.from_weight(normal(16, 24) * 0.2, np.zeros(16), config)
    x = normal(64, 24, seed=1)
    target = x @ (normal(16, 24) * 0.2 + normal(16, 1, seed=2) * normal(1, 24, seed=3) * 0.2).T
    losses = []
    for _ in range(300):
        error = layer.forward(x) - target
        losses.append(float(np.mean(error ** 2)))
        layer.zero_gradients()
        layer.backward(x, 2 / error.size * error)
        layer.set_lora_weights(*(value - 0.5 * gradient for value, gradient in
                                 zip(layer.lora_weights(), layer.lora_gradients())))
    assert losses[-1] < losses[0] / 10


def read_gguf(data):
    """{name: (dimensions, type, values as bytes)} by GGUF's specification."""
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", data)
    assert (magic, version, keys) == (b"GGUF", 3, 0)
    at, infos = 24, []
    for _ in range(tensors):
        length, = struct.unpack_from("<Q", data, at)
        name = data[at + 8:at + 8 + length].decode()
        rank, = struct.unpack_from("<I", data, at + 8 + length)
        *sizes, kind, offset = struct.unpack_from(f"<{rank}QIQ", data, at + 12 + length)
        at += 12 + length + 8 * rank + 12
        infos.append((name, sizes, kind, offset))
    start = -(-at // 32) * 32
    # Each tensor starts where the one before it ends, rounded up to 32 bytes.
    width, end, found = {0: 4, 1: 2}, 0, {}
    for name, sizes, kind, offset in infos:
        assert offset == -(-end // 32) * 32
        end = offset + width[kind] * int(np.prod(sizes))
        found[name] = sizes, kind, data[start + offset:start + end]
    assert start + end <= len(data) < start + end + 32
    return found


def test_qlora_rs_s_gguf(tmp_path):
    first = qlora_rs.quantize_nf4(normal(24, 40), 64)
    second = qlora_rs.quantize_nf4(normal(5, 7), 64)
    name = "model.layers.0.self_attn.q_proj.weight"
    qlora_rs.export_gguf([(name, first), ["b", second]], str(tmp_path / "model.gguf"))
    found = read_gguf((tmp_path / "model.gguf").read_bytes())
    assert list(found) == [name, "b"]
    for tensor, key in ((first, name), (second, "b")):
        sizes, kind, values = found[key]
        assert sizes == list(reversed(tensor.shape)) and kind == 1
        np.testing.assert_array_equal(
            np.frombuffer(values, np.float16).reshape(tensor.shape),
            qlora_rs.dequantize_nf4(tensor).astype(np.float16))
    qlora_rs.export_gguf(tensors=((n, t) for n, t in [("w", first)]), path=tmp_path / "w.gguf",
                         outtype="f32")
    values = read_gguf((tmp_path / "w.gguf").read_bytes())["w"][2]
    np.testing.assert_array_equal(np.frombuffer(values, np.float32).reshape(24, 40),
                                  qlora_rs.dequantize_nf4(first))


def test_qlora_rs_s_mistakes(tmp_path):
    w, path = normal(8, 64), tmp_path / "x.gguf"
    quantized = qlora_rs.quantize_nf4(w, 64)
    make, config = qlora_rs.QuantizedLinear.from_weight, qlora_rs.QLoraConfig
    for call, error, message in (
            (lambda: qlora_rs.quantize_nf4(w, 0), ValueError, "block_size"),
            (lambda: qlora_rs.quantize_nf4(w, 2 ** 70), ValueError, "block_size: expected at most"),
            (lambda: qlora_rs.quantize_nf4([1.0], 64), TypeError, "found list"),
            (lambda: qlora_rs.dequantize_nf4(w), TypeError, "QuantizedTensor, found ndarray"),
            (lambda: qlora_rs.dequantize_nf4(quantized, "cuda"), ValueError, "expected the CPU"),
            (lambda: make(w[0]), ValueError, "expected a matrix"),
            (lambda: make(w, None, {"r": 8}), TypeError, "QLoraConfig, found dict"),
            (lambda: make(w, None, config(None)), TypeError, "LoraConfig"),
            (lambda: make(w, np.zeros(9)), ValueError, "bias"),
            (lambda: make(w, np.zeros((2, 4))), ValueError, "bias: expected one dimension"),
            (lambda: make(w, None, config(qlora_rs.LoraConfig(r=0))), ValueError, "r: expected"),
            (lambda: make(w, None, config(qlora_rs.LoraConfig(dropout=1.5))), ValueError, "dropout"),
            (lambda: make(w, None, config(quantization=qlora_rs.QuantizationConfig(
                compute_dtype="int4"))), ValueError, "compute_dtype: expects one of float32, "),
            (lambda: make(w).forward(w[:, :60]), ValueError, r"\(..., 64\)"),
            (lambda: qlora_rs.QuantizedLinear(64), TypeError, "out_features"),
            (lambda: qlora_rs.export_gguf([("a", w)], path), TypeError, "str and ndarray"),
            (lambda: qlora_rs.export_gguf([quantized], path), TypeError, "pairs"),
            (lambda: qlora_rs.export_gguf([(1, quantized)], path), TypeError, "int and Quantized"),
            (lambda: qlora_rs.export_gguf([("a" * 64, quantized)], path), ValueError, "63"),
            (lambda: qlora_rs.export_gguf([("a", quantized)] * 2, path), ValueError, "twice"),
            (lambda: qlora_rs.export_gguf([("a", quantized)], 5), TypeError, "PathLike"),
            (lambda: qlora_rs.export_gguf([("\udc80", quantized)], path), UnicodeError, "surrogate"),
            (lambda: q.export_gguf([("a", w)], path), TypeError, r"found \(str, ndarray\)"),
            (lambda: q.export_gguf([quantized], path), TypeError, "pairs"),
    ):
        refused(call, error, message)
    assert not path.exists()
