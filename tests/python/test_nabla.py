"""The calls of Nabla, as its documents write them, and the values that those print."""

import numpy as np
import pytest

import qlora_cpp as q
from other_names import normal, refused
from qlora_cpp import nabla


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
             "compute_dtype: expected float32, bfloat16 or float16, found int8"),
    ):
        refused(call, error, message)
