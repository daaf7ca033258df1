"""Quantization on arrays: exactness, memory, errors."""

import copy
import pickle

import numpy as np
import pytest

import qlora_cpp as q


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def unpack(packed, n):
    return np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)[:n]


def test_codebook_is_the_paper_s():
    assert q.NF4_CODEBOOK.dtype == np.float32 and q.NF4_CODEBOOK.shape == (16,)
    assert q.NF4_CODEBOOK[1] == np.float32(-0.6961928009986877)
    assert q.NF4_MAX_ERROR == pytest.approx(0.1519036)
    with pytest.raises(ValueError):
        q.NF4_CODEBOOK[0] = 0
    assert sorted(q.FP4_CODEBOOK)[-1] == 1


@pytest.mark.parametrize("n,block_size", [(64, 64), (1000, 64), (4097, 128), (1, 32), (63, 32)])
def test_quantize_nf4_is_the_nearest_code(n, block_size):
    x = normal(n)
    packed, absmax = q.quantize_nf4(x, block_size)
    blocks = -(-n // block_size)
    assert packed.shape == ((n + 1) // 2,) and packed.dtype == np.uint8
    assert absmax.shape == (blocks,) and absmax.dtype == np.float32
    padded = np.zeros(blocks * block_size, np.float32)
    padded[:n] = x
    rows = padded.reshape(blocks, block_size)
    np.testing.assert_array_equal(absmax, np.abs(rows).max(axis=1))
    scaled = (rows * (np.float32(1) / absmax[:, None])).reshape(-1)
    middles = (q.NF4_CODEBOOK[1:] + q.NF4_CODEBOOK[:-1]) / np.float32(2)
    expected = np.searchsorted(middles, scaled, side="left")[:n]
    codes = unpack(packed, n)
    if n % block_size:  # a short last block is divided, not multiplied: equal but for ties
        assert (codes != expected).mean() < 1e-3
    else:
        np.testing.assert_array_equal(codes, expected)
    back = q.dequantize_nf4(packed, absmax, n, block_size)
    np.testing.assert_array_equal(back, q.NF4_CODEBOOK[codes] * np.repeat(absmax, block_size)[:n])
    limit = q.NF4_MAX_ERROR * np.repeat(absmax, block_size)[:n]
    assert (np.abs(back - x) <= limit * (1 + 1e-6)).all()
    again, again_absmax = q.quantize_nf4(back, block_size)
    np.testing.assert_array_equal(again, packed)
    np.testing.assert_array_equal(again_absmax, absmax)


def test_error_on_normal_values():
    x = normal(1024, 4096)
    plain = q.quantize(x, scale_type="float32")
    assert np.sqrt(np.mean((plain.dequantize() - x) ** 2)) == pytest.approx(0.09198, abs=2e-4)
    searched = q.quantize(x, scale_type="float32", scale_search=True)
    assert np.sqrt(np.mean((searched.dequantize() - x) ** 2)) <= 0.0855


def test_other_programs_published_errors():
    # Mean |error| / mean |w| and RMSE that another implementation gives for this weight.
    w = np.random.default_rng(82).normal(size=(16, 16)).astype(np.float32)
    error = q.quantize(w, block_size=8, scale_type="float32").dequantize() - w
    assert np.abs(error).mean() / np.abs(w).mean() == pytest.approx(0.06817344576120377, rel=1e-4)
    assert np.sqrt(np.mean(error ** 2)) == pytest.approx(0.07611743360757828, rel=1e-4)


def test_zero_point_centres_the_blocks():
    x = np.random.default_rng(3).uniform(1, 5, 64 * 256).astype(np.float32)
    t = q.quantize(x, scale_type="float32", zero_point=True)
    assert t.zero_point.shape == (256,)
    assert np.sqrt(np.mean((t.dequantize() - x) ** 2)) <= 0.11
    naive = q.quantize(x, scale_type="float32").dequantize()
    assert np.sqrt(np.mean((naive - x) ** 2)) > 0.11
    assert q.quantize(x).zero_point is None


def test_fields_of_a_tensor():
    w = normal(96, 128)
    t = q.quantize(w)
    assert t.shape == (96, 128) and t.size == 96 * 128
    assert t.block_size == 64 and t.n_blocks == 192 and t.scaler_block_size == 256
    assert t.quantized_data.shape == (96 * 64,)
    assert t.quantized_scalers.dtype == np.uint8 and t.quantized_scalers.shape == (192,)
    assert t.quantization_factor.shape == (1,)
    assert t.scaler_mean == pytest.approx(t.scalers.mean(), rel=1e-2)
    np.testing.assert_array_equal(t.nf4, q.NF4_CODEBOOK)
    assert t.size_bytes == 96 * 64 + 192 + 4 + 4
    assert t.bits_per_weight == 8 * t.size_bytes / t.size
    assert t.compression_ratio == pytest.approx(4 * t.size / t.size_bytes)
    assert q.quantize(w, scale_type="float16").quantized_scalers.dtype == np.float16
    assert q.quantize(w, scale_type="bfloat16").quantized_scalers.dtype == "bfloat16"
    np.testing.assert_array_equal(t.get_original_weight(), t.dequantize())
    assert "192" not in repr(t) and "96 x 128" in repr(t)


def test_arrays_are_views():
    t = q.quantize(normal(64, 64))
    before = t.dequantize()
    address = t.quantized_data.__array_interface__["data"][0]
    assert address == t.quantized_data.__array_interface__["data"][0]
    data = t.quantized_data
    del t
    assert data.sum() > 0  # the view keeps the memory
    packed, absmax = q.quantize_nf4(before)
    same = q.NF4Tensor.from_arrays(packed, absmax, (64, 64))
    assert same.quantized_data.__array_interface__["data"] == packed.__array_interface__["data"]
    np.testing.assert_array_equal(same.dequantize(), q.dequantize_nf4(packed, absmax, (64, 64)))
    packed[0] ^= 0xff
    assert same.dequantize()[0, 0] != before[0, 0]


def test_from_arrays_takes_nested_scales():
    t = q.quantize(normal(64, 512))
    codes, factors, mean = q.double_quantize_scalers(
        q.quantize_nf4(normal(64, 512))[1], scheme="bnb")
    np.testing.assert_array_equal(codes, t.quantized_scalers)
    np.testing.assert_array_equal(factors, t.quantization_factor)
    assert mean == t.scaler_mean
    code = np.linspace(-1, 1, 256, dtype=np.float32)
    other = q.NF4Tensor.from_arrays(t.quantized_data, t.quantized_scalers, (64, 512),
                                    nested_scalers=t.quantization_factor, nested_code=code,
                                    offset=t.scaler_mean)
    np.testing.assert_array_equal(
        other.scalers, code[codes] * np.repeat(factors, 256)[:512] + np.float32(mean))


def test_out_is_written_in_place():
    t = q.quantize(normal(32, 64))
    out = np.full((32, 64), np.nan, np.float32)
    assert t.dequantize(out=out) is out
    np.testing.assert_array_equal(out, t.dequantize())
    wide = np.full((32, 100), np.nan, np.float32)
    t.dequantize(out=wide[:, 10:74])
    np.testing.assert_array_equal(wide[:, 10:74], out)
    assert np.isnan(wide[:, :10]).all() and np.isnan(wide[:, 74:]).all()
    half = np.empty((32, 64), np.float16)
    t.dequantize(out=half)
    np.testing.assert_array_equal(half, out.astype(np.float16))


def test_strided_rows_are_read_in_place():
    wide = normal(32, 100)
    np.testing.assert_array_equal(q.quantize(wide[:, 10:74]).quantized_data,
                                  q.quantize(wide[:, 10:74].copy()).quantized_data)


def test_bfloat16_comes_as_a_tensor():
    t = q.quantize(normal(8, 64))
    half = t.dequantize("bfloat16")
    assert half.dtype == "bfloat16" and half.shape == (8, 64)
    exact = t.dequantize()
    bits = exact.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(half.bits(), rounded)
    np.testing.assert_array_equal(half.float(),
                                  (rounded.astype(np.uint32) << 16).view(np.float32))
    np.testing.assert_array_equal(q.quantize(half, scale_type="float32").quantized_data,
                                  q.quantize(half.float(), scale_type="float32").quantized_data)


def test_nearest_and_scalers():
    x = np.array([-2, -0.51, -0.5, 0.25, 0.26, 3], np.float32)
    book = np.array([-1, 0, 0.5], np.float32)
    np.testing.assert_array_equal(q.quantize_tensor_nearest(x, book), [0, 0, 0, 1, 2, 2])
    scalers = np.abs(normal(600)) + 1
    # torchao's largest value saturates by a step; half the widest gap of the dynamic map.
    for scheme, kind, limit in (("torchao", np.int8, 1 / 128), ("bnb", np.uint8, 0.0071)):
        codes, factors, mean = q.double_quantize_scalers(scalers, 256, scheme)
        assert codes.dtype == kind and codes.shape == (600,) and factors.shape == (3,)
        back = q.dequantize_scalers(codes, factors, mean, 256, scheme)
        assert np.abs(back - scalers).max() <= limit * np.abs(scalers - mean).max() * (1 + 1e-4)


def test_float64_is_rounded_to_float32():
    x = np.random.default_rng(3).standard_normal((16, 64))
    rounded = x.astype(np.float32)
    for make in (q.quantize, q.to_nf4):
        np.testing.assert_array_equal(make(x).quantized_data, make(rounded).quantized_data)
    for found, expected in zip(q.quantize_nf4(x[0]), q.quantize_nf4(rounded[0])):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        q.quantize(x, scale_search=True, importance=np.linspace(0, 1, 64)).quantized_data,
        q.quantize(rounded, scale_search=True,
                   importance=np.linspace(0, 1, 64).astype(np.float32)).quantized_data)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_small_quantizers_take_every_float(dtype):
    x = np.array([-2, -0.51, -0.5, 0.25, 0.26, 3], dtype)
    np.testing.assert_array_equal(q.quantize_tensor_nearest(x, [-1, 0, 0.5] * np.ones(3)),
                                  q.quantize_tensor_nearest(x.astype(np.float32),
                                                            np.array([-1, 0, 0.5], np.float32)))
    scalers = (np.abs(normal(600)) + 1).astype(dtype)
    for scheme in ("torchao", "bnb"):
        codes, factors, mean = q.double_quantize_scalers(scalers, 256, scheme)
        half = dtype == np.float16 and scheme == "torchao"
        assert factors.dtype == (np.float16 if half else np.float32)
        back = q.dequantize_scalers(codes, factors, mean, 256, scheme)
        assert back.dtype == np.float32
        assert np.abs(back - scalers).max() <= 0.01 * np.abs(scalers.astype(float) - mean).max()


FORMS = ({}, {"scale_type": "float32", "quant_type": "fp4"}, {"scale_type": "float16"},
         {"scale_type": "bfloat16", "zero_point": True},
         {"scale_type": "double_torchao", "rule": "torchao"},
         {"row_blocks": True, "block_size": 48}, {"rule": "cuda", "block_size": 32})


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))],
                         ids=["copy", "deepcopy", "pickle"])
def test_tensors_are_copied(form, way):
    w = normal(8, 3, 100).astype(np.float16)
    t = q.quantize(w, **form)
    same = way(t)
    assert repr(same) == repr(t) and same.shape == (8, 3, 100) and same.size_bytes == t.size_bytes
    np.testing.assert_array_equal(same.dequantize(), t.dequantize())
    np.testing.assert_array_equal(same.nf4, t.nf4)
    before = t.dequantize()
    same.quantized_data[:] = 0
    shared = (t.dequantize() != before).any()
    assert shared == (way is copy.copy)


def test_bfloat16_arrays_are_copied():
    half = q.quantize(normal(8, 64)).dequantize("bfloat16")
    for same in (copy.deepcopy(half), pickle.loads(pickle.dumps(half))):
        assert same.shape == half.shape
        np.testing.assert_array_equal(same.bits(), half.bits())


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_torchao_s_own_parts_make_a_tensor(dtype):
    t = q.to_nf4((normal(64, 256) * 0.02).astype(dtype))
    factors = t.quantization_factor.astype(dtype)  # torchao keeps them in the dtype of the weight
    for nf4 in (t.nf4.astype(dtype), None):
        same = q.NF4Tensor.from_arrays(
            t.quantized_data, t.quantized_scalers, t.shape, nested_scalers=factors,
            offset=t.scaler_mean, nf4=nf4)
        assert same.quantized_scalers.dtype == np.int8
        np.testing.assert_array_equal(same.scalers, t.scalers)
        np.testing.assert_array_equal(same.dequantize(), t.dequantize())
    with pytest.raises(q.Error, match="without nested_scalers"):
        q.NF4Tensor.from_arrays(t.quantized_data, t.quantized_scalers, t.shape)


def test_codes_are_looked_up_on_the_class():
    codes = np.arange(16, dtype=np.uint8).reshape(4, 4)
    table = q.NF4_CODEBOOK.astype(np.float16)
    found = q.NF4Tensor.dequantize(codes, table)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, table.reshape(4, 4))


def test_export_gguf(tmp_path):
    tensors = [("blk.0.ffn_up.weight", q.quantize(normal(8, 64))), ("b", q.to_nf4(normal(64, 32)))]
    q.export_gguf(tensors, tmp_path / "weights.gguf", "f32")
    data = (tmp_path / "weights.gguf").read_bytes()
    assert data[:4] == b"GGUF" and b"blk.0.ffn_up.weight" in data
    assert tensors[0][1].dequantize().tobytes() in data
    assert tensors[1][1].dequantize().tobytes() in data
    q.export_gguf(iter(tensors), str(tmp_path / "weights.gguf"))  # replaced, as float16
    assert tensors[1][1].dequantize("float16").tobytes() in (tmp_path / "weights.gguf").read_bytes()
    with pytest.raises(q.Error, match="outtype"):
        q.export_gguf(tensors, tmp_path / "weights.gguf", "q4_k")


def test_convert_to_norm_float_weight_is_the_codes_alone():
    w = normal(64, 256)
    np.testing.assert_array_equal(q.convert_to_norm_float_weight(w), q.to_nf4(w).quantized_data)


def test_costs():
    assert q.bits_per_weight(64, "float32") == 4.5
    assert q.bits_per_weight(64) == 4.126953125
    assert q.bits_per_weight(256, "float16") == 4.0625
    rows = q.memory_table()
    assert [row["model"] for row in rows] == ["7B", "13B", "33B", "65B", "70B"]
    assert rows[0]["parameters"] == 6738415616
    assert rows[3]["total_bytes"] == pytest.approx(34.462e9, abs=5e5)
    assert q.memory_table(double_quant=False)[4]["ratio"] == pytest.approx(3.487, abs=5e-4)


def test_importance_lowers_the_weighted_error():
    w = normal(64, 128)
    importance = np.geomspace(1e-3, 10, 128).astype(np.float32)
    plain = q.quantize(w, scale_type="float32", scale_search=True).dequantize()
    weighted = q.quantize(w, scale_type="float32", scale_search=True,
                          importance=importance).dequantize()
    assert ((weighted - w) ** 2 * importance).sum() < ((plain - w) ** 2 * importance).sum()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    w = normal(16, 64)
    w[3, 5] = bad
    with pytest.raises(q.Error, match=r"tensor 'up_proj'.*index 197 \(row 3, column 5\)"):
        q.quantize(w, name="up_proj")
    assert issubclass(q.Error, ValueError)


def test_mistakes_are_named():
    w = normal(16, 64)
    for call, message in (
            (lambda: q.quantize([1.0, 2.0]), "expected a numpy array .* found list"),
            (lambda: q.quantize(w.astype(np.int32)), "found int32"),
            (lambda: q.quantize(np.full((4, 4), 1e300)), "value inf at index 0"),
            (lambda: q.quantize(w.T), "another memory order"),
            (lambda: q.quantize(w[::-1]), "another memory order"),
            (lambda: q.quantize(w, block_size=0), "block_size >= 1"),
            (lambda: q.quantize(w, quant_type="int4"), "one of nf4, fp4, found 'int4'"),
            (lambda: q.quantize(w, scale_type="f32"), "scale_type"),
            (lambda: q.quantize(w, rule="gpu"), "rule"),
            (lambda: q.quantize(w, importance=np.ones(64, np.float32)), "needs scale_search"),
            (lambda: q.quantize(w).dequantize("float64"), "dtype"),
            (lambda: q.quantize(w).dequantize(out=np.empty((16, 63), np.float32)),
             r"expected shape \(16, 64\), found \(16, 63\)"),
            (lambda: q.dequantize_nf4(np.zeros(4, np.uint8), np.ones(1, np.float32), 9), "expected 5"),
            (lambda: q.quantize_tensor_nearest(w, np.array([1, 0], np.float32)), "ascending"),
    ):
        with pytest.raises(q.Error, match=message):
            call()
    frozen = np.zeros((16, 64), np.float32)
    frozen.setflags(write=False)
    with pytest.raises(q.Error, match="read-only"):
        q.quantize(w).dequantize(out=frozen)
    q.quantize(frozen)  # reading is fine


def test_python_threads_take_turns():
    from concurrent.futures import ThreadPoolExecutor
    w = normal(256, 512)
    expected = q.quantize(w).quantized_data
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: q.quantize(w).quantized_data, range(16)):
            np.testing.assert_array_equal(found, expected)
    one = q.Context(1)
    assert one.threads == 1
    np.testing.assert_array_equal(q.quantize(w, context=one).quantized_data, expected)


def test_the_interpreter_s_lock_is_released():
    # Nobody is made to give up the lock, so another thread only gets on when a call lets it go.
    import sys
    import threading
    import time
    count, stop = [0], []

    def other():
        while not stop:
            count[0] += 1
            time.sleep(0)  # gives the lock back at once

    w = normal(512, 512)
    t = q.quantize(w)
    many_scales = q.quantize(w, block_size=1)
    scalers = np.abs(normal(1 << 18)) + 1
    codes, factors, mean = q.double_quantize_scalers(scalers)
    layer = q.QLoraLinear.from_quantized(t, r=4)
    calls = {
        "quantize": lambda: q.quantize(w),
        "dequantize": lambda: t.dequantize(),
        "scalers": lambda: many_scales.scalers,
        "quantize_tensor_nearest": lambda: q.quantize_tensor_nearest(w, q.NF4_CODEBOOK),
        "double_quantize_scalers": lambda: q.double_quantize_scalers(scalers),
        "dequantize_scalers": lambda: q.dequantize_scalers(codes, factors, mean),
        "forward": lambda: layer(w),
        "backward": lambda: layer.backward(w, w),
        "merged_weight": lambda: layer.merged_weight(),
    }
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    thread.start()
    try:
        sys.setswitchinterval(1000)
        for name, call in calls.items():
            for _ in range(10000):  # the other thread may wake up too late for a short call
                before = count[0]
                call()
                if count[0] != before:
                    break
            else:
                raise AssertionError(f"{name} keeps the lock")
    finally:
        sys.setswitchinterval(interval)
        stop.append(True)
        thread.join()


def test_works_in_a_forked_process():
    import multiprocessing
    w = normal(64, 64)
    q.quantize(w)  # the threads exist
    with multiprocessing.get_context("fork").Pool(1) as pool:
        total = pool.apply(_sum_of_codes, (w,))
    assert total == q.quantize(w).quantized_data.astype(int).sum()


def _sum_of_codes(w):
    return q.quantize(w).quantized_data.astype(int).sum()
