"""The calls of other libraries, as their documents write them, and the values that those print."""

import ast
import copy
import importlib
import inspect
import pathlib
import struct

import numpy as np
import pytest

import qlora_cpp as q
from qlora_cpp import kizzasi, nabla, qlora_rs, torchao


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def uniform(count, state):
    """Numbers in [0, 1) of the generator that the golden values were made with."""
    values = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        values.append((state >> 40) / 2 ** 24)
    return np.array(values)


def fnv1a64(data):
    digest = 0xcbf29ce484222325
    for byte in data:
        digest = (digest ^ byte) * 0x100000001b3 % 2 ** 64
    return f"{digest:016x}"


def refused(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "incompatible function arguments" not in str(caught.value)


# ---- Nabla


def test_nabla_quantizes_to_a_dict():
    w = normal(12, 7)
    qweight = nabla.quantize_nf4(w, 64)
    assert list(qweight) == ["indices", "scales", "original_shape", "original_numel",
                             "padded_numel", "block_size"]
    assert qweight["original_shape"] == (12, 7) and qweight["original_numel"] == 84
    assert qweight["padded_numel"] == 128 and qweight["block_size"] == 64
    assert qweight["indices"].dtype == np.uint8 and qweight["indices"].shape == (128,)
    assert qweight["scales"].dtype == np.float32 and qweight["scales"].shape == (2,)
    # Nabla's own arithmetic, in numpy.
    flat = np.pad(w.reshape(-1), (0, 44)).reshape(2, 64)
    scales = np.abs(flat).max(axis=1, keepdims=True)
    distance = np.abs((flat / scales).reshape(-1, 1) - nabla.NF4_CODEBOOK)
    np.testing.assert_array_equal(qweight["indices"], distance.argmin(axis=1))
    np.testing.assert_array_equal(qweight["scales"], scales[:, 0])
    restored = nabla.dequantize_nf4(qweight)
    expected = (nabla.NF4_CODEBOOK[qweight["indices"]].reshape(2, 64) * scales).reshape(-1)[:84]
    assert restored.dtype == np.float32
    np.testing.assert_array_equal(restored, expected.reshape(12, 7))
    for same in (nabla.quantize_nf4(weight=w, block_size=64), nabla.quantize_nf4(w),
                 nabla.quantize_nf4(np.asfortranarray(w.astype(np.float64)))):
        np.testing.assert_array_equal(same["indices"], qweight["indices"])
    assert nabla.dequantize_nf4(qweight, dtype=np.float16).dtype == np.float16
    assert nabla.dequantize_nf4(qweight=qweight, dtype="bfloat16").dtype == "bfloat16"


def test_nabla_s_published_errors():
    w = np.random.default_rng(82).normal(size=(16, 16)).astype(np.float32)
    error = nabla.dequantize_nf4(nabla.quantize_nf4(w, block_size=8)) - w
    assert np.abs(error).mean() / np.abs(w).mean() == pytest.approx(0.06817344576120377, rel=1e-6)
    assert np.sqrt(np.mean(error ** 2)) == pytest.approx(0.07611743360757828, rel=1e-6)


def test_nabla_keeps_zeros():
    w = normal(4, 16)
    w[1] = 0
    qweight = nabla.quantize_nf4(w, block_size=16)
    assert qweight["scales"][1] == 1 and (qweight["indices"][16:32] == 7).all()
    assert not nabla.dequantize_nf4(qweight)[1].any()


def test_nabla_s_linear():
    w, x = normal(40, 24), normal(2, 5, 40, seed=1)
    adapter = {"A": normal(40, 3, seed=2), "B": normal(3, 24, seed=3)}
    qweight = nabla.quantize_nf4(w)
    dense = nabla.dequantize_nf4(qweight)
    for alpha in (16.0, 1, 0, -2.0):
        y = nabla.qlora_linear(x, qweight, adapter, alpha=alpha)
        expected = x @ dense + x @ (alpha / 3 * (adapter["A"] @ adapter["B"]))
        assert y.shape == (2, 5, 24) and y.dtype == np.float32
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    # alpha is 1, and divided by the rank, where it is left out.
    np.testing.assert_array_equal(nabla.qlora_linear(x=x, qweight=qweight, adapter=adapter),
                                  nabla.qlora_linear(x, qweight, adapter, alpha=1.0))
    half = nabla.qlora_linear(x, qweight, adapter, alpha=6.0, compute_dtype="bfloat16")
    exact = nabla.qlora_linear(x, qweight, adapter, alpha=6.0)
    assert half.dtype == "bfloat16"
    np.testing.assert_allclose(half.float(), exact, rtol=0.02, atol=0.3)
    assert nabla.qlora_linear(x[0, 0], qweight, adapter, compute_dtype=np.float16).shape == (24,)


def test_nabla_s_mistakes():
    w, x = normal(8, 6), normal(3, 8)
    qweight = nabla.quantize_nf4(w, 8)
    adapter = {"A": normal(8, 2), "B": normal(2, 6)}
    assert len(qweight["scales"]) == 6  # 48 values in blocks of 8
    for call, error, message in (
            (lambda: nabla.quantize_nf4(normal(8)), ValueError, "expected a matrix, found 1 dim"),
            (lambda: nabla.quantize_nf4(w, 0), ValueError, "block_size: expected at least 1"),
            (lambda: nabla.quantize_nf4(w, "8"), TypeError, "block_size: expected an integer"),
            (lambda: nabla.quantize_nf4([[1.0]]), TypeError, "weight: expected an array"),
            (lambda: nabla.quantize_nf4(w.astype(int)), TypeError, "float type, found int64"),
            (lambda: nabla.quantize_nf4(w * np.nan), q.Error, "nan at index 0"),
            (lambda: nabla.quantize_nf4(), TypeError, "missing 1 required"),
            (lambda: nabla.dequantize_nf4(w), TypeError, "dict of quantize_nf4, found ndarray"),
            (lambda: nabla.dequantize_nf4({}), KeyError, "indices"),
            (lambda: nabla.dequantize_nf4(qweight, dtype="int4"), ValueError, "dtype"),
            (lambda: nabla.dequantize_nf4({**qweight, "indices": qweight["indices"] + 9}),
             ValueError, "indices: expected 0 to 15"),
            (lambda: nabla.dequantize_nf4({**qweight, "block_size": 16}), ValueError, "do not make"),
            (lambda: nabla.dequantize_nf4(qweight, "float32"), TypeError, "positional"),
            (lambda: nabla.qlora_linear(x[:, :7], qweight, adapter), ValueError, r"\(..., 8\)"),
            (lambda: nabla.qlora_linear(x, qweight, {"A": adapter["A"]}), KeyError, "B"),
            (lambda: nabla.qlora_linear(x, qweight, {"A": adapter["A"].T, "B": adapter["B"]}),
             ValueError, r"expected A \(8, r\) and B \(r, 6\)"),
            (lambda: nabla.qlora_linear(x, qweight, adapter, alpha="16"), TypeError, "alpha"),
            (lambda: nabla.qlora_linear(x, qweight, adapter, compute_dtype="int8"), ValueError,
             "dtype"),
    ):
        refused(call, error, message)


# ---- torchao


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


# ---- kizzasi


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


# ---- qlora-rs


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


# ---- All of them


MODULES = ("kizzasi", "nabla", "qlora_rs", "torchao")


def test_bfloat16_is_made_of_floats():
    x = normal(3, 5)
    bits = x.view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(q.Tensor(x).bits(), expected)
    np.testing.assert_array_equal(q.Tensor(values=x.astype(np.float64)).bits(), expected)


def test_other_byte_orders_are_read():
    w = normal(8, 64)
    np.testing.assert_array_equal(nabla.quantize_nf4(w.astype(">f4"))["indices"],
                                  nabla.quantize_nf4(w)["indices"])


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_documented_and_have_stubs(name):
    module = importlib.import_module("qlora_cpp." + name)
    assert module.__doc__ and sorted(module.__all__) == module.__all__
    body = ast.parse(pathlib.Path(module.__file__).with_suffix(".pyi").read_text()).body
    stubs = {node.name: node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    constants = {node.target.id for node in body if isinstance(node, ast.AnnAssign)}
    assert set(stubs) | constants == set(module.__all__)

    def compare(stub, function, where):
        if not isinstance(stub, ast.FunctionDef):
            return
        names = [argument.arg for argument in stub.args.args + stub.args.kwonlyargs]
        assert names == list(inspect.signature(function).parameters), where

    for key, stub in stubs.items():
        value = getattr(module, key)
        assert value.__doc__, key
        if isinstance(stub, ast.FunctionDef):
            compare(stub, value, key)
            continue
        members = {m: v for m, v in vars(value).items() if not m.startswith("_")}
        fields = set(getattr(value, "__dataclass_fields__", ()))
        declared = {getattr(node, "name", None) or node.target.id for node in stub.body}
        attributes = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
        # Attributes of an object are declared in the stub alone.
        assert {m for m in declared if not m.startswith("_")} - attributes == set(members) - fields
        assert fields <= attributes, key
        for node in stub.body:
            if not isinstance(node, ast.FunctionDef) or node.name not in members:
                continue
            what = members[node.name]
            what = what.fget if isinstance(what, property) else getattr(what, "__func__", what)
            assert what.__doc__, (key, node.name)
            compare(node, what, (key, node.name))
