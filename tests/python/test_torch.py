"""PyTorch: tensors in and out without copies, and torchao's arithmetic as an oracle."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs python3-torch")

import qlora_cpp as q  # noqa: E402
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
    with pytest.raises(q.Error, match="float32, float16, bfloat16, float64, uint8 or int8"):
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
