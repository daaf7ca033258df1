"""Wrong input raises exceptions in words of Python, and an interpreter that ends does so quietly."""

import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import qlora_cpp as q

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
TINY = GOLDEN / "llama-tiny"
W = np.ones((8, 64), np.float32)
T = q.quantize(W)
LAYER = q.QLoraLinear.from_weight(W, r=2)


def from_arrays(scale=1.0, shape=(1, 8), **parts):
    scales = np.full(1, scale, np.float32)
    return q.NF4Tensor.from_arrays(np.zeros(4, np.uint8), scales, shape, **parts)


class Foreign:
    """A tensor of another library, which has DLPack alone."""

    def __init__(self, values):
        self.dtype = f"torch.{values.dtype}"
        self.__dlpack__, self.__dlpack_device__ = values.__dlpack__, values.__dlpack_device__


MODEL = q.Model.load(TINY)
CALLS = [
    # The arguments of a call.
    (lambda: q.export_gguf([("q", T)], 5), TypeError, "export_gguf(): path: expected a path, found int"),
    (lambda: q.export_gguf(5, "x"), TypeError, "export_gguf(): tensors: expected an iterable, found int"),
    (lambda: q.export_gguf([("q", W)], "x"), TypeError, "tensors: expected pairs (name, NF4Tensor), found (str, ndarray)"),
    (lambda: q.quantize(), TypeError, "quantize(): w is missing"),
    (lambda: q.quantize(W, 64), TypeError, "quantize(): expected at most 1 argument without a name, found 2"),
    (lambda: q.quantize(W, blocksize=4), TypeError, "quantize(): no argument is called 'blocksize'; there are: w, quant_type, block_size"),
    (lambda: q.quantize(W, block_size="64"), TypeError, "quantize(): block_size: expected an integer, found str"),
    (lambda: q.quantize(W, block_size=None), TypeError, "block_size: expected an integer, found NoneType"),
    (lambda: q.quantize(W, quant_type=5), TypeError, "quant_type: expected a text, found int"),
    (lambda: q.quantize(W, zero_point="yes"), TypeError, "zero_point: expected True or False, found str"),
    (lambda: q.quantize(W, context=5), TypeError, "context: expected a Context, found int"),
    (lambda: q.quantize(W, block_size=2 ** 80), q.Error, f"quantize(): {2 ** 80} is too large"),
    (lambda: q.dequantize_nf4(T.quantized_data, T.scalers, None), TypeError, "dequantize_nf4(): shape: expected an integer"),
    (lambda: q.dequantize_nf4(T.quantized_data, T.scalers, "512"), TypeError, "shape: expected an integer"),
    (lambda: T.dequantize("float32", None, 3), TypeError, "dequantize(): expected at most 2 arguments without a name, found 3"),
    (lambda: q.NF4Tensor.from_arrays(1, 2, (1.5, 3)), TypeError, "shape: expected a sequence of integers, found tuple"),
    (lambda: q.QLoraLinear.from_weight(W, r=1.5), TypeError, "from_weight(): r: expected an integer, found float"),
    (lambda: q.QLoraLinear.from_weight(W, seed=-1), q.Error, "from_weight(): seed: expected 0 or more, found -1"),
    (lambda: q.QLoraLinear.from_weight(W, compute_dtype="int4"), q.Error,
     "compute_dtype: expects one of float32, bfloat16, int8, found 'int4'"),
    (lambda: q.QLoraLinear.from_quantized(T, compute_dtype="auto"), q.Error,
     "compute_dtype: expects one of float32, bfloat16, int8, found 'auto'"),
    (lambda: q.QLoraLinear.from_weight(W, compute_dtype="float16"), q.Error,
     "compute_dtype: float16 is not supported: nothing is computed in float16"),
    (lambda: q.QLoraLinear.from_quantized(W), TypeError, "weight: expected an NF4Tensor, found ndarray"),
    (lambda: LAYER(W, dropout_step="a"), TypeError, "dropout_step: expected an integer, found str"),
    (lambda: q.Context("x"), TypeError, "Context(): threads: expected an integer, found str"),
    (lambda: q.Tensor(), TypeError, "Tensor(): values is missing"),
    (lambda: MODEL.generate(5), TypeError, "generate(): prompt: expected a text, found int"),
    (lambda: MODEL.generate("a", system=5), TypeError, "generate(): system: expected a text, found int"),
    (lambda: MODEL.generate("a", chat="yes"), TypeError, "generate(): chat: expected True or False, found str"),
    (lambda: MODEL.count_tokens(5), TypeError, "count_tokens(): text: expected a text, found int"),
    (lambda: MODEL.tokenize("a", special="x"), TypeError, "special: expected True or False, found str"),
    (lambda: MODEL.detokenize("ab"), TypeError, "detokenize(): ids: expected a sequence of integers, found str"),
    (lambda: MODEL.detokenize([10 ** 6]), q.Error, "ids: 1000000 is not a token id of this model"),
    (lambda: q.train("m", "d", context=4), TypeError, "train(): context: expected a Context, found int"),
    # Classes that make their objects themselves.
    (lambda: q.QLoraLinear(), TypeError, "QLoraLinear is made by QLoraLinear.from_quantized() or QLoraLinear.from_weight() or QLoraLinear.load()"),
    (lambda: q.NF4Tensor(W), TypeError, "NF4Tensor is made by NF4Tensor.from_arrays()"),
    (lambda: q.StepReport(), TypeError, "StepReport is made by the library alone"),
    # Element types: exactly what is taken.
    (lambda: q.quantize(W.astype(np.int64)), q.Error, "w: expected float32, bfloat16, float16 or float64, found int64"),
    (lambda: q.quantize(W.astype(np.uint8)), q.Error, "w: expected float32, bfloat16, float16 or float64, found uint8"),
    (lambda: q.quantize(Foreign(W.astype(np.int32))), q.Error, "w: expected float32, bfloat16, float16 or float64, found int32"),
    (lambda: LAYER(W.astype(np.float16)), q.Error, "x: expected float32, bfloat16 or float64, found float16"),
    (lambda: LAYER.set_lora_a(W.astype(np.int8)), q.Error, "A: expected float32 or float64, found int8"),
    (lambda: T.dequantize(out=np.empty((8, 64))), q.Error, "out: expected float32, bfloat16 or float16, found float64"),
    (lambda: T.dequantize("float64"), q.Error, "dtype: expected float32, bfloat16 or float16, found float64"),
    (lambda: np.asarray(T, copy=False) if np.lib.NumpyVersion(np.__version__) >= "2.0.0"
     else T.__array__(copy=False), q.Error, "leave out copy=False"),
    # Parts that no quantizer makes.
    (lambda: from_arrays(shape=(2 ** 61 + 1, 8)), q.Error, "shape (2305843009213693953, 8) has more than 2^48 values"),
    (lambda: from_arrays(shape=(2 ** 63 - 1, 2)), q.Error, "has more than 2^48 values"),
    (lambda: from_arrays(shape=(-1, -8)), q.Error, "has a size below 0"),
    (lambda: from_arrays(shape=(0, 8)), q.Error, "expected positive sizes, found (0, 8)"),
    (lambda: from_arrays(block_size=2 ** 62), q.Error, "block sizes from 1 to 2^48"),
    (lambda: from_arrays(np.nan), q.Error, "scalers: block 0 has the scale nan; expected finite numbers of 0 or more"),
    (lambda: from_arrays(-1), q.Error, "block 0 has the scale -1"),
    (lambda: from_arrays(zero_point=np.full(1, np.nan)), q.Error, "zero_point: found NaN"),
    (lambda: q.quantize(W, block_size=2 ** 62), q.Error, "expected block_size <= 2^48"),
    (lambda: q.QLoraLinear.from_weight(W, r=2 ** 60), q.Error, "more than 2^48 values"),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_mistakes_are_told_in_words_of_python(number):
    call, kind, message = CALLS[number]
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind and message in str(caught.value)


def test_every_message_is_one_of_ours():
    """No call of any function or method shows the text of the binding library."""
    strange = object()
    functions = [getattr(q, name) for name in q.__all__ if not isinstance(getattr(q, name), type)]
    functions += [getattr(thing, name) for thing in (T, LAYER, MODEL, q.Context(1), q.NF4Tensor, q.QLoraLinear)
                  for name in dir(thing) if not name.startswith("_")]
    tried = 0
    for function in filter(callable, functions):
        for arguments in ((strange,), (strange,) * 3, (None,) * 2):
            try:
                function(*arguments)
            except Exception as error:
                tried += 1
                text = str(error)
                for word in ("C++", "pybind", "incompatible function", "Invoked with", "_core."):
                    assert word not in text, (function, text)
    assert tried > 50


@pytest.mark.parametrize("kind", [q.QLoraLinear, q.NF4Tensor, q.Context, q.Tensor, q.StepReport])
def test_objects_that_were_never_made_are_refused(kind):
    empty = kind.__new__(kind)
    members = [name for name in vars(kind) if isinstance(vars(kind)[name], property)]
    for name in members:
        with pytest.raises(TypeError, match="made by __new__ alone"):
            getattr(empty, name)
    if kind is q.QLoraLinear:
        with pytest.raises(TypeError, match="made by __new__ alone"):
            empty(W)
        with pytest.raises(TypeError, match="made by __new__ alone"):
            kind.forward(empty, W)
    if kind is q.Context:
        with pytest.raises(TypeError):
            q.quantize(W, context=empty)


def test_objects_describe_themselves():
    layer = q.QLoraLinear.from_weight(W, r=2, lora_alpha=4)
    assert repr(layer) == "<QLoraLinear 64 -> 8, r 2, lora_alpha 4, blocks of 64, compute_dtype float32>"
    layer.merge()
    assert repr(layer).endswith(", merged>")
    assert repr(T.dequantize("bfloat16")) == "<Tensor of bfloat16 (8, 64)>"
    assert repr(q.Context(1)) == "<Context of 1 thread>"


def test_numpy_sees_the_values():
    np.testing.assert_array_equal(np.asarray(T), T.dequantize())
    assert np.asarray(T, np.float64).dtype == np.float64
    half = T.dequantize("bfloat16")
    np.testing.assert_array_equal(np.asarray(half), half.float())
    np.testing.assert_array_equal(np.array(T) + 1, T.dequantize() + 1)


def test_layers_take_float64():
    x = np.random.default_rng(0).standard_normal((3, 64))
    layer = q.QLoraLinear.from_weight(W, r=2, bias=np.ones(8))
    layer.lora_b = np.random.default_rng(1).standard_normal((8, 2))
    y = layer(x)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, layer(x.astype(np.float32)))
    dx = layer.backward(x, np.ones((3, 8)))
    assert dx.dtype == np.float32 and layer.da.any()


def test_the_interpreter_ends_while_a_thread_trains(tmp_path):
    script = textwrap.dedent(f"""
        import threading, qlora_cpp
        stepped = threading.Event()
        def train():
            qlora_cpp.train({str(TINY)!r}, {str(GOLDEN / "train-20" / "data.jsonl")!r}, {str(tmp_path / "out")!r},
                            max_steps=1000000, over_long="truncate", max_length=64,
                            on_step=lambda step: stepped.set())
        threading.Thread(target=train, daemon=True).start()
        assert stepped.wait(60)
        print("ends")
    """)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True,
                          timeout=1200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
