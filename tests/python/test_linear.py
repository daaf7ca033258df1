"""The QLoRA layer on arrays."""

import copy
import json
import pathlib
import pickle

import numpy as np
import pytest

import qlora_cpp as q


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make(**options):
    layer = q.QLoraLinear.from_weight(normal(24, 40) * 0.1, r=3, lora_alpha=6, **options)
    layer.lora_b = normal(24, 3, seed=1)
    return layer


def effective(layer):
    return layer.dequantize_weight() + layer.scaling * layer.lora_b @ layer.lora_a


def test_forward_backward_and_merge():
    layer = make(bias=normal(24, seed=2))
    x, dy = normal(2, 5, 40, seed=3), normal(2, 5, 24, seed=4)
    w = effective(layer)
    y = layer(x)
    assert y.shape == (2, 5, 24)
    np.testing.assert_allclose(y, x @ w.T + layer.bias, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.forward(x[0, 0]), y[0, 0], rtol=1e-5, atol=1e-5)
    out = np.full((2, 5, 24), np.nan, np.float32)
    assert layer(x, out=out) is out
    np.testing.assert_array_equal(out, y)

    np.testing.assert_allclose(layer.backward(x, dy), dy @ w, rtol=1e-5, atol=1e-5)
    flat_x, flat_dy = x.reshape(-1, 40), dy.reshape(-1, 24)
    np.testing.assert_allclose(
        layer.db, layer.scaling * flat_dy.T @ (flat_x @ layer.lora_a.T), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        layer.da, layer.scaling * (flat_dy @ layer.lora_b).T @ flat_x, rtol=1e-4, atol=1e-4)
    layer.zero_gradients()
    assert not layer.da.any() and not layer.db.any()

    layer.merge()
    assert layer.merged
    np.testing.assert_allclose(layer(x), y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.merged_weight(), w, rtol=1e-6, atol=1e-7)
    with pytest.raises(q.Error, match="unmerge"):
        layer.backward(x, dy)
    layer.unmerge()
    np.testing.assert_array_equal(layer(x), y)


def test_products_in_eight_bits():
    layer, exact = make(compute_dtype="int8"), make()
    x = normal(5, 40, seed=3)
    y, expected = layer(x), exact(x)
    assert np.abs(y - expected).max() > 0
    # Half a code of each operand in each of 40 products, of values below 4 and 0.5; and bfloat16.
    assert np.abs(y - expected).max() < 40 * (4 * 0.5 / 254 * 2 + 4 * 0.5 / 128)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(layer))(x), y)


def test_types_of_products_have_the_names_of_train():
    x = normal(5, 40, seed=3)
    for name, ours in (("INT8", "int8"), ("torch.int8", "int8"), ("bf16", "bfloat16")):
        np.testing.assert_array_equal(make(compute_dtype=name)(x), make(compute_dtype=ours)(x))


@pytest.mark.parametrize("dtype, name", [
    ("bf16", "bfloat16"), (np.float32, "float32"), (np.dtype("float32"), "float32"), (np.int8, "int8")])
def test_types_of_products_may_be_dtypes(dtype, name):
    layer = make(compute_dtype=dtype)
    assert layer.compute_dtype == name and not layer.int8_backward
    assert f"compute_dtype {name}>" in repr(layer)


def test_types_of_products_may_be_those_of_pytorch():
    torch = pytest.importorskip("torch")
    assert make(compute_dtype=torch.bfloat16).compute_dtype == "bfloat16"
    layer = make(compute_dtype=torch.int8, int8_backward=True)
    assert layer.compute_dtype == "int8" and layer.int8_backward
    assert "compute_dtype int8, int8_backward>" in repr(layer)
    with pytest.raises(q.Error, match="compute_dtype: float16 is not supported: nothing is computed in float16"):
        make(compute_dtype=torch.float16)


@pytest.mark.parametrize("dtype", [None, 8, 1.5, [], object()])
def test_types_of_products_are_names_or_dtypes(dtype):
    with pytest.raises(TypeError, match="compute_dtype: expected a dtype or its name, found "):
        make(compute_dtype=dtype)


@pytest.mark.parametrize("name", ["zero_point", "row_blocks"])
def test_products_in_eight_bits_need_codes(name):
    with pytest.raises(q.Error, match="int8 would have no effect with " + name):
        q.QLoraLinear.from_weight(normal(24, 100), compute_dtype="int8", **{name: True})


def golden(name):
    path = pathlib.Path(__file__).parents[1] / "golden" / "int8" / (name + ".json")
    case = json.loads(path.read_text())
    floats = {key: np.array(case[key], np.uint32).view(np.float32)
              for key in ("x", "dy", "absmax", "y", "dx")}
    m, n, k = case["m"], case["n"], case["k"]
    packed = np.array(case["packed"][:n * k // 2], np.uint8)
    weight = q.NF4Tensor.from_arrays(packed, floats["absmax"], (n, k))
    shapes = {"x": (m, k), "y": (m, n), "dy": (m, n), "dx": (m, k)}
    return weight, {key: floats[key].reshape(shape) for key, shape in shapes.items()}


def assert_same_bits(found, expected):
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    kept = ~np.isnan(expected)
    np.testing.assert_array_equal(found[kept].view(np.uint32), expected[kept].view(np.uint32))


# The rule of docs/math/eight-bit.md, of which the expected bits were computed with fractions.
@pytest.mark.parametrize("name", ["plain", "outlier", "edges", "ties", "heavy"])
def test_products_in_eight_bits_are_those_of_their_rule(name):
    weight, case = golden(name)
    layer = q.QLoraLinear.from_quantized(weight, r=2, compute_dtype="int8", int8_backward=True)
    assert not layer.lora_b.any()
    assert_same_bits(layer(case["x"]), case["y"])
    assert_same_bits(layer.backward(case["x"], case["dy"]), case["dx"])
    for row in range(len(case["x"])):
        assert_same_bits(layer(case["x"][row]), case["y"][row])
        assert_same_bits(layer.backward(case["x"][row], case["dy"][row]), case["dx"][row])


def test_gradients_in_eight_bits_are_a_choice():
    x, dy = normal(5, 40, seed=3), normal(5, 24, seed=4)
    forward, both, bf16 = make(compute_dtype="int8"), make(
        compute_dtype="int8", int8_backward=True), make(compute_dtype="bfloat16")
    np.testing.assert_array_equal(both(x), forward(x))
    np.testing.assert_array_equal(forward.backward(x, dy), bf16.backward(x, dy))
    dx = both.backward(x, dy)
    assert np.abs(dx - bf16.backward(x, dy)).max() > 0
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(both)).backward(x, dy), dx)
    with pytest.raises(q.Error, match="int8_backward would have no effect with compute_dtype float"):
        make(int8_backward=True)


def test_numbers():
    # 0.01 * index in groups of 64 with scale and zero point: the published sizes of kizzasi.
    w = (0.01 * np.arange(512)).reshape(32, 16).astype(np.float32)
    layer = q.QLoraLinear.from_weight(w, r=4, scale_type="float32", zero_point=True)
    assert layer.trainable_params == layer.num_trainable_parameters == 192
    assert layer.total_params == 192 + 512
    assert layer.memory_saved_bytes == 1728
    assert layer.size_bytes == 256 + 8 * 8 + 4 * 192
    assert layer.compression_ratio == 4 * 512 / 320
    assert (layer.in_features, layer.out_features, layer.group_size) == (16, 32, 64)
    assert layer.zero_point.shape == (8,) and make().zero_point is None
    assert make(use_rslora=True).scaling == pytest.approx(6 / 3 ** 0.5)
    assert (make().r, make().lora_alpha, make().lora_dropout, make().scaling) == (3, 6, 0, 2)
    fresh = q.QLoraLinear.from_weight(w, r=4)
    assert not fresh.lora_b.any() and np.abs(fresh.lora_a).max() <= 1 / 16 ** 0.5
    np.testing.assert_array_equal(fresh(np.ones((1, 16), np.float32)),
                                  q.qlora_linear(np.ones((1, 16), np.float32), fresh.weight,
                                                 fresh.lora_a, fresh.lora_b, 32))


def test_dropout_belongs_to_its_step():
    layer = make(lora_dropout=0.5)
    x = normal(7, 40, seed=3)
    np.testing.assert_array_equal(layer(x, 5), layer(x, 5))
    assert (layer(x, 5) != layer(x, 6)).any() and (layer(x, 5) != layer(x)).any()


def test_views_share_memory():
    layer = make()
    gradient = layer.da
    layer.backward(normal(2, 40), normal(2, 24))
    assert gradient.any()
    with pytest.raises(ValueError):
        layer.lora_a[0, 0] = 1
    data = layer.weight.quantized_data
    assert data.__array_interface__ == layer.weight.quantized_data.__array_interface__
    del layer
    assert gradient.any()


def test_save_and_load(tmp_path):
    layer = make(lora_dropout=0.25, bias=normal(24, seed=2), quant_type="fp4")
    layer.save(tmp_path / "layer.safetensors")
    same = q.QLoraLinear.load(tmp_path / "layer.safetensors")
    x = normal(3, 40, seed=3)
    np.testing.assert_array_equal(same(x, 9), layer(x, 9))
    same.save(str(tmp_path / "again.safetensors"))
    assert (tmp_path / "again.safetensors").read_bytes() == (
        tmp_path / "layer.safetensors").read_bytes()
    with pytest.raises(q.Error, match="zero points"):
        make(zero_point=True).save(tmp_path / "no.safetensors")
    with pytest.raises(q.Error, match="absent"):
        q.QLoraLinear.load(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda l: pickle.loads(pickle.dumps(l))],
                         ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("options", [{}, {"zero_point": True, "scale_type": "float16"}], ids=str)
def test_layers_are_copied(way, options):
    context = q.Context(1)
    layer = make(lora_dropout=0.25, bias=normal(24, seed=2), use_rslora=True, context=context,
                 **options)
    x = normal(3, 40, seed=3)
    layer.backward(x, normal(3, 24, seed=4), 9)
    for merged in (False, True):
        if merged:
            layer.merge()
        same = way(layer)
        assert same.merged == merged and same.scaling == layer.scaling
        np.testing.assert_array_equal(same(x, 9), layer(x, 9))
        np.testing.assert_array_equal(same.da, layer.da)
        np.testing.assert_array_equal(same.db, layer.db)
        np.testing.assert_array_equal(same.bias, layer.bias)
    same.unmerge()
    same.lora_b = normal(24, 3, seed=5)
    same.zero_gradients()
    assert layer.da.any() and (layer.lora_b == normal(24, 3, seed=1)).all()
    codes = same.weight.quantized_data.__array_interface__["data"]
    shared = codes == layer.weight.quantized_data.__array_interface__["data"]
    assert shared == (way is copy.copy)


def test_training_follows_a_published_example():
    # y = x (W + 0.2 U V), block 8, rank 3, alpha 8, AdamW without decay, 12 steps: a published
    # example of another library. The losses are those of its arithmetic in numpy, in float64.
    rng = np.random.default_rng(2027)
    x = rng.normal(size=(64, 12)).astype(np.float32)
    w = rng.normal(size=(12, 7)).astype(np.float32)
    target = x @ (w + 0.2 * rng.normal(size=(12, 2)) @ rng.normal(size=(2, 7)))
    # That library quantizes (in, out) with a table of four decimals; blocks of one value keep that.
    w = q.quantize(w, block_size=8, scale_type="float32", rule="torchao").dequantize()
    weight = q.quantize(np.ascontiguousarray(w.T), block_size=1, scale_type="float32")
    np.testing.assert_array_equal(weight.dequantize(), w.T)
    for seed, last in enumerate((1.3301009189765465, 1.2025111519944576, 1.2094945426988644,
                                 1.3276579940834037, 1.2874768064352173)):
        layer = q.QLoraLinear.from_quantized(weight, r=3, lora_alpha=8)
        layer.lora_a = np.random.default_rng(seed).normal(0, 0.01, (12, 3)).T.astype(
            np.float32, order="C")
        moments = {"lora_a": [0, 0], "lora_b": [0, 0]}
        losses = []
        for step in range(1, 14):
            error = layer(x) - target
            losses.append(float((error ** 2).mean()))
            layer.zero_gradients()
            layer.backward(x, (2 / error.size * error).astype(np.float32))
            for name, gradient in (("lora_a", layer.da), ("lora_b", layer.db)):
                m, v = moments[name]
                m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient ** 2
                moments[name] = [m, v]
                update = (m / (1 - 0.9 ** step)) / (np.sqrt(v / (1 - 0.999 ** step)) + 1e-8)
                setattr(layer, name, (getattr(layer, name) - 0.02 * update).astype(np.float32))
        assert losses[0] == pytest.approx(2.6578602992629103, rel=1e-6)
        assert losses[12] == pytest.approx(last, rel=1e-4)


def test_mistakes_are_named():
    layer = make()
    for call, message in (
            (lambda: layer(normal(2, 39)), r"expected x of shape \(2, 40\), found \(2, 39\)"),
            (lambda: layer(normal(2, 40).astype(np.float16)), "expected float32, bfloat16 or float64, found float16"),
            (lambda: layer.set_lora_a(normal(2, 40)), r"expected A of shape \(3, 40\)"),
            (lambda: layer.unmerge(), "not merged"),
            (lambda: q.QLoraLinear.from_weight(normal(4, 4), r=0), "r >= 1"),
            (lambda: q.QLoraLinear.from_weight(normal(4)), "expected a matrix"),
    ):
        with pytest.raises(q.Error, match=message):
            call()
