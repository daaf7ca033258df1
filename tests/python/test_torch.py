"""PyTorch: tensors in and out without copies, and torchao's arithmetic as an oracle."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs python3-torch")

import qlora_cpp as q  # noqa: E402
from qlora_cpp import kizzasi, nabla, qlora_rs, torchao  # noqa: E402
import torchao_oracle as oracle  # noqa: E402


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def as_numpy(result):
    return result.bits() if isinstance(result, q.Tensor) else result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_go_in_and_out(dtype):
    w = normal(64, 256, dtype=dtype)
    t = q.quantize(w, scale_type="float32")
    same = q.quantize(w.float().numpy(), scale_type="float32")
    np.testing.assert_array_equal(t.quantized_data, same.quantized_data)
    back = t.dequantize(dtype)
    tensor = torch.from_dlpack(back)
    assert tensor.dtype == dtype
    assert torch.equal(tensor.float(), torch.from_dlpack(t.dequantize()).to(dtype).float())
    # The same memory: what one side writes, the other sees.
    tensor[0, 0] = 3
    first = as_numpy(back)[0, 0]
    assert first == (0x4040 if dtype == torch.bfloat16 else 3)
    # Into a tensor of PyTorch's.
    out = torch.full_like(w, float("nan"))
    assert t.dequantize(out=out) is out
    tensor[0, 0] = out[0, 0]
    assert torch.equal(out, tensor)


def test_memory_outlives_its_owners():
    tensor = torch.from_dlpack(q.quantize(normal(64, 64)).dequantize("bfloat16"))
    codes = torch.from_dlpack(q.quantize(normal(64, 64)).quantized_data)
    torch.randn(1 << 20)
    assert torch.isfinite(tensor.float()).all() and codes.sum() > 0
    capsule = q.quantize(normal(8, 64)).dequantize("bfloat16").__dlpack__()
    del capsule  # nobody took it


def test_tensors_that_cannot_be_viewed_are_refused():
    with pytest.raises(q.Error, match="another memory order"):
        q.quantize(normal(64, 128).t())
    with pytest.raises(Exception, match="grad"):
        q.quantize(normal(64, 64).requires_grad_())
    with pytest.raises(q.Error, match="expected float32, bfloat16, float16 or float64, found int32"):
        q.quantize(torch.zeros(64, 64, dtype=torch.int32))


def test_layer_on_tensors():
    layer = q.QLoraLinear.from_weight(normal(32, 64) * 0.1, r=4, lora_alpha=8)
    layer.lora_b = normal(32, 4, seed=1)
    x = normal(5, 64, seed=2, dtype=torch.bfloat16)
    y = torch.from_dlpack(layer(x))
    assert y.dtype == torch.bfloat16
    expected = x.float() @ torch.from_dlpack(layer.merged_weight()).T
    assert torch.allclose(y.float(), expected, rtol=1e-2, atol=1e-2)

    # The gradients are those that autograd finds.
    x = normal(5, 64, seed=2).requires_grad_()
    a = torch.tensor(layer.lora_a).requires_grad_()
    b = torch.tensor(layer.lora_b).requires_grad_()
    dy = normal(5, 32, seed=3)
    w = torch.from_dlpack(layer.dequantize_weight())
    (x @ w.T + layer.scaling * (x @ a.T) @ b.T).backward(dy)
    dx = layer.backward(x.detach(), dy)
    np.testing.assert_allclose(dx, x.grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer.da, a.grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer.db, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block,group", [(64, 256), (32, 16)])
def test_to_nf4_is_torchao_s(dtype, block, group):
    w = normal(128, 256 if group == 256 else 64, seed=5, dtype=dtype) * 0.02
    t = q.to_nf4(w, block, group)
    codes = oracle.codes(w, block)
    np.testing.assert_array_equal(t.quantized_data, oracle.pack(codes).numpy())

    scalers = oracle.absmax(w, block)
    scaler_codes, factors, mean = oracle.quantize_scalers(scalers, group)
    # The order in which PyTorch adds up a mean is its own: the last bit of the mean may differ, and
    # with it a code here and there.
    assert t.scaler_mean == pytest.approx(float(mean), rel=float(torch.finfo(dtype).eps))
    if t.scaler_mean == float(mean):
        np.testing.assert_array_equal(t.quantized_scalers, scaler_codes.numpy())
        np.testing.assert_array_equal(t.quantization_factor, factors.float().numpy())
        restored = oracle.dequantize_scalers(scaler_codes, factors, mean, group)
        np.testing.assert_array_equal(t.scalers, restored.float().numpy())
        expected = oracle.dequantize(codes, restored, w.shape)
        found = torch.from_dlpack(t.get_original_weight(dtype))
        assert torch.equal(found, expected)
    else:
        difference = t.quantized_scalers.astype(int) - scaler_codes.numpy().astype(int)
        assert np.abs(difference).max() <= 1


def test_scalers_of_torchao_with_the_mean_given():
    # Whole numbers of a power of two add up exactly in any order, so every bit must agree.
    steps = torch.randint(64, 1024, (1024,), generator=torch.Generator().manual_seed(6))
    scalers = (steps / 256).float()
    codes, factors, mean = q.double_quantize_scalers(scalers, 256)
    expected = oracle.quantize_scalers(scalers, 256)
    assert mean == float(expected[2])
    np.testing.assert_array_equal(codes, expected[0].numpy())
    np.testing.assert_array_equal(factors, expected[1].numpy())
    np.testing.assert_array_equal(q.dequantize_scalers(codes, factors, mean, 256),
                                  oracle.dequantize_scalers(*expected, 256).numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torchao_s_names_take_tensors(dtype):
    w = normal(64, 256, dtype=dtype)
    t = torchao.to_nf4(w, block_size=64, scaler_block_size=256)
    assert t.shape == torch.Size([64, 256]) and t.dtype == dtype and t.device == w.device
    assert t.nf4.dtype == t.scaler_mean.dtype == t.quantization_factor.dtype == dtype
    assert t.quantized_scalers.dtype == torch.int8 and t.quantized_data.dtype == torch.uint8
    restored = t.get_original_weight()
    assert torch.equal(restored, torch.from_dlpack(q.to_nf4(w).dequantize(dtype)))
    assert torch.equal(t.to(torch.float32), torch.from_dlpack(q.to_nf4(w).dequantize()))
    codes, factor, mean = torchao.NF4Tensor.double_quantize_scalers(w.flatten(), 64, 256)
    assert torch.equal(codes, t.quantized_scalers) and torch.equal(factor, t.quantization_factor)
    assert mean == t.scaler_mean
    assert t.dequantize_scalers(codes, factor, 256).dtype == dtype
    assert torch.equal(torchao.NF4Tensor.convert_to_norm_float_weight(w, 256, 64, t.nf4),
                       t.quantized_data)
    nearest = torchao.NF4Tensor.quantize_tensor_nearest(w, t.nf4)
    assert nearest.dtype == torch.int64 and nearest.shape == w.shape
    assert torch.equal(torchao.NF4Tensor.dequantize(nearest, t.nf4), t.nf4[nearest])
    # Any memory order, and tensors that are trained.
    assert torch.equal(torchao.to_nf4(w.t().contiguous().t()).quantized_data, t.quantized_data)
    assert torchao.to_nf4(w.requires_grad_()).requires_grad

    x = normal(2, 3, 256, seed=1, dtype=dtype).requires_grad_()
    y = torchao.linear_nf4(x, t)
    assert y.dtype == dtype and y.shape == (2, 3, 64)
    dy = normal(2, 3, 64, seed=2, dtype=dtype)
    y.backward(dy)
    assert x.grad.dtype == dtype
    limit = 1e-4 if dtype == torch.float32 else 0.5
    assert torch.allclose(y.float(), x.float() @ restored.float().t(), atol=limit, rtol=1e-2)
    assert torch.allclose(x.grad.float(), dy.float() @ restored.float(), atol=limit, rtol=1e-2)


def test_other_names_take_tensors():
    w, x = normal(40, 24), normal(5, 40, seed=1)
    qweight = nabla.quantize_nf4(w)
    assert qweight["indices"].dtype == torch.uint8 and qweight["scales"].dtype == torch.float32
    adapter = {"A": normal(40, 3, seed=2), "B": normal(3, 24, seed=3)}
    expected = x @ nabla.dequantize_nf4(qweight) + x @ (adapter["A"] @ adapter["B"] * 2)
    y = nabla.qlora_linear(x, qweight, adapter, alpha=6.0)
    assert torch.allclose(y, expected, rtol=1e-4, atol=1e-4)
    half = nabla.qlora_linear(x, qweight, adapter, alpha=6.0, compute_dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16 and torch.allclose(half.float(), y, rtol=0.02, atol=0.3)
    assert nabla.dequantize_nf4(qweight, dtype=torch.bfloat16).dtype == torch.bfloat16

    layer = kizzasi.QLoraLinear.from_weight(w, 3, 6.0, 64)
    y = layer.forward(normal(24, dtype=torch.float64))
    assert y.dtype == torch.float32 and y.shape == (40,)
    layer = qlora_rs.QuantizedLinear.from_weight(w.bfloat16(), normal(40, dtype=torch.bfloat16))
    layer.set_lora_weights(normal(64, 24), normal(40, 64))
    y = layer.forward(normal(2, 24, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16 and y.shape == (2, 40)
    assert layer.backward(normal(2, 24), normal(2, 40)).shape == (2, 24)
    assert qlora_rs.quantize_nf4(w.t(), 64).shape == (24, 40)
