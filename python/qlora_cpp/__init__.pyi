"""Types of qlora_cpp; the docstrings of the module say shapes, dtypes, errors and sources."""

import os
from typing import (
    Any, Callable, Iterable, Literal, Mapping, Optional, Protocol, Sequence, Union, overload)

import numpy as np
import numpy.typing as npt

from typing_extensions import Unpack

from . import kizzasi as kizzasi, nabla as nabla, qlora_rs as qlora_rs, torchao as torchao
from ._options import TrainOptions as _TrainOptions

class _Dlpack(Protocol):
    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

Path = Union[str, os.PathLike[str]]
# A numpy array, or a tensor that speaks DLPack (PyTorch ...). Float32, bfloat16 or float16; what is
# quantized may also be float64, which is rounded to float32.
Floats = Union[np.ndarray, _Dlpack, Tensor]
# Names of files, or records.
Dataset = Union[Path, Sequence[Path], Iterable[Mapping[str, Any]]]
Result = Union[np.ndarray, _Dlpack, Tensor]
Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]
# "float32", numpy.float32, torch.float32 ...
DType = Any
QuantType = Literal["nf4", "fp4"]
ScaleType = Literal["float32", "float16", "bfloat16", "double_bnb", "double_torchao"]
Rule = Literal["cpu", "cuda", "torchao"]
Scheme = Literal["bnb", "torchao"]

__version__: str
NF4_CODEBOOK: Float32
FP4_CODEBOOK: Float32
NF4_MAX_ERROR: float

class QLoRAError(Exception): ...
class Error(QLoRAError, ValueError): ...
class RunError(QLoRAError, RuntimeError): ...
class OutOfMemoryError(QLoRAError, MemoryError): ...

class Context:
    def __init__(self, threads: int = 0) -> None: ...
    @property
    def threads(self) -> int: ...

class StepReport:
    step: int
    total_steps: int
    epoch: float
    loss: float
    grad_norm: float
    metrics: dict[str, float]
    token_accuracy: float
    learning_rate: float
    tokens: int
    tokens_per_second: float
    memory_bytes: int
    elapsed_seconds: float
    remaining_seconds: float
    skipped: bool
    spike: bool
    bad_tensor: str
    def _asdict(self) -> dict[str, Any]: ...

class EvalReport:
    loss: float
    metrics: dict[str, float]
    perplexity: float
    token_accuracy: float
    tokens: int
    seconds: float
    best: bool
    def _asdict(self) -> dict[str, Any]: ...

class SampleReport:
    step: int
    prompt: str
    text: str
    def _asdict(self) -> dict[str, Any]: ...

class TrainSummary:
    steps: int
    resumed_step: int
    tokens: int
    seconds: float
    mean_loss: float
    peak_memory_bytes: int
    stopped_early: bool
    skipped_steps: int
    best_step: int
    adapter_dir: str
    def _asdict(self) -> dict[str, Any]: ...

class GenerateReport:
    text: str
    prompt_tokens: int
    new_tokens: int
    stopped_at_eos: bool
    stop_reason: str
    prefill_seconds: float
    decode_seconds: float
    def _asdict(self) -> dict[str, Any]: ...

class EvalResult:
    loss: float
    perplexity: float
    token_accuracy: float
    tokens: int
    sequences: int
    dropped: int
    truncated: int
    seconds: float
    data: str
    warning: str
    logprobs: list[float]
    token_ids: list[int]
    def _asdict(self) -> dict[str, Any]: ...

class ExportReport:
    files: list[str]
    bytes: int
    format: str
    outtype: str
    merge_base: str
    kept_change: Optional[float]
    verified: bool
    mean_logprob_difference: float
    max_logprob_difference: float
    seconds: float
    def _asdict(self) -> dict[str, Any]: ...

class Model:
    @classmethod
    def load(
        cls, path: Path, adapter: Union[None, Path, Sequence[Path]] = None, *,
        on_load: Optional[Callable[[int, int], Any]] = None, context: Optional[Context] = None,
        **options: Any) -> Model: ...
    @overload
    def generate(
        self, prompt: Sequence[str], *, chat: Optional[bool] = None, system: Optional[str] = None,
        on_text: Optional[Callable[[str], Any]] = None, **options: Any) -> list[GenerateReport]: ...
    @overload
    def generate(
        self, prompt: str, *, chat: Optional[bool] = None, system: Optional[str] = None,
        on_text: Optional[Callable[[str], Any]] = None, **options: Any) -> GenerateReport: ...
    def chat(
        self, messages: Union[str, Sequence[Mapping[str, Any]]],
        tools: Optional[Sequence[Mapping[str, Any]]] = None, *,
        on_text: Optional[Callable[[str], Any]] = None, **options: Any) -> GenerateReport: ...
    def chat_prompt(
        self, messages: Union[str, Sequence[Mapping[str, Any]]],
        tools: Optional[Sequence[Mapping[str, Any]]] = None) -> str: ...
    def eval(self, dataset: Dataset, **options: Any) -> EvalResult: ...
    def count_tokens(self, text: str) -> int: ...
    def tokenize(self, text: str, special: bool = True) -> list[int]: ...
    def detokenize(self, ids: Sequence[int], special: bool = True) -> str: ...
    @property
    def context_length(self) -> int: ...
    @property
    def has_chat_template(self) -> bool: ...
    @property
    def prompt_layout(self) -> str: ...
    @property
    def stop_tokens(self) -> list[str]: ...

class Tensor:
    def __init__(self, values: Floats) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray: ...
    def bits(self) -> npt.NDArray[np.uint16]: ...
    def float(self) -> Float32: ...
    def __dlpack__(self, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class NF4Tensor:
    @staticmethod
    def from_arrays(
        quantized_data: Any, scalers: Any, shape: Sequence[int], *, block_size: int = 64,
        quant_type: QuantType = "nf4", nested_scalers: Any = None, nested_code: Any = None,
        offset: float = 0.0, scaler_block_size: int = 256, nf4: Any = None,
        zero_point: Any = None, row_blocks: bool = False) -> NF4Tensor: ...
    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def n_blocks(self) -> int: ...
    @property
    def scaler_block_size(self) -> int: ...
    @property
    def quantized_data(self) -> UInt8: ...
    @property
    def quantized_scalers(self) -> Union[np.ndarray, Tensor]: ...
    @property
    def quantization_factor(self) -> Optional[Float32]: ...
    @property
    def scaler_mean(self) -> float: ...
    @property
    def scalers(self) -> Float32: ...
    @property
    def zero_point(self) -> Optional[Float32]: ...
    @property
    def nf4(self) -> Float32: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def bits_per_weight(self) -> float: ...
    @property
    def compression_ratio(self) -> float: ...
    @overload
    def dequantize(
        self, dtype: DType = "float32", out: Optional[Floats] = None, *,
        context: Optional[Context] = None) -> Result: ...
    # Called on the class, as torchao's static method: the table's value of each code.
    @overload
    def dequantize(value: Any, nf4: Any) -> np.ndarray: ...  # type: ignore[misc]
    def get_original_weight(
        self, dtype: DType = "float32", out: Optional[Floats] = None, *,
        context: Optional[Context] = None) -> Result: ...

class QLoraLinear:
    @staticmethod
    def from_weight(
        w: Floats, r: int = 16, lora_alpha: float = 32.0, lora_dropout: float = 0.0,
        use_rslora: bool = False, seed: int = 42, *, compute_dtype: str = "float32",
        bias: Any = None, quant_type: QuantType = "nf4", block_size: int = 64,
        scale_type: ScaleType = "double_bnb", scaler_block_size: int = 256, rule: Rule = "cpu",
        scale_search: bool = False, importance: Any = None, row_blocks: bool = False,
        zero_point: bool = False, context: Optional[Context] = None) -> QLoraLinear: ...
    @staticmethod
    def from_quantized(
        weight: NF4Tensor, r: int = 16, lora_alpha: float = 32.0, lora_dropout: float = 0.0,
        use_rslora: bool = False, seed: int = 42, *, compute_dtype: str = "float32",
        bias: Any = None, context: Optional[Context] = None) -> QLoraLinear: ...
    @staticmethod
    def load(
        file: Path, *, context: Optional[Context] = None) -> QLoraLinear: ...
    def save(self, file: Path) -> None: ...
    def forward(
        self, x: Floats, dropout_step: Optional[int] = None, *,
        out: Optional[Floats] = None) -> Result: ...
    def __call__(
        self, x: Floats, dropout_step: Optional[int] = None, *,
        out: Optional[Floats] = None) -> Result: ...
    def backward(self, x: Floats, dy: Floats, dropout_step: Optional[int] = None) -> Result: ...
    def zero_gradients(self) -> None: ...
    def dequantize_weight(
        self, dtype: DType = "float32", *, out: Optional[Floats] = None) -> Result: ...
    def merged_weight(
        self, dtype: DType = "float32", *, out: Optional[Floats] = None) -> Result: ...
    def merge(self) -> None: ...
    def unmerge(self) -> None: ...
    @property
    def merged(self) -> bool: ...
    def set_lora_a(self, a: Floats) -> None: ...
    def set_lora_b(self, b: Floats) -> None: ...
    @property
    def lora_a(self) -> Float32: ...
    @lora_a.setter
    def lora_a(self, a: Floats) -> None: ...
    @property
    def lora_b(self) -> Float32: ...
    @lora_b.setter
    def lora_b(self, b: Floats) -> None: ...
    @property
    def da(self) -> Float32: ...
    @property
    def db(self) -> Float32: ...
    @property
    def bias(self) -> Optional[Float32]: ...
    @property
    def weight(self) -> NF4Tensor: ...
    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def r(self) -> int: ...
    @property
    def lora_alpha(self) -> float: ...
    @property
    def lora_dropout(self) -> float: ...
    @property
    def scaling(self) -> float: ...
    @property
    def group_size(self) -> int: ...
    @property
    def zero_point(self) -> Optional[Float32]: ...
    @property
    def trainable_params(self) -> int: ...
    @property
    def num_trainable_parameters(self) -> int: ...
    @property
    def total_params(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def memory_saved_bytes(self) -> int: ...
    @property
    def compression_ratio(self) -> float: ...

def quantize(
    w: Floats, *, quant_type: QuantType = "nf4", block_size: int = 64,
    scale_type: ScaleType = "double_bnb", scaler_block_size: int = 256, rule: Rule = "cpu",
    scale_search: bool = False, importance: Any = None, row_blocks: bool = False,
    zero_point: bool = False, name: str = "", context: Optional[Context] = None) -> NF4Tensor: ...
def to_nf4(
    w: Floats, block_size: int = 64, scaler_block_size: int = 256, *,
    context: Optional[Context] = None) -> NF4Tensor: ...
def quantize_nf4(
    x: Floats, block_size: int = 64, *,
    context: Optional[Context] = None) -> tuple[UInt8, Float32]: ...
def dequantize_nf4(
    packed: Any, absmax: Any, shape: Union[int, Sequence[int]], block_size: int = 64,
    dtype: DType = "float32", out: Optional[Floats] = None, *,
    context: Optional[Context] = None) -> Result: ...
def quantize_tensor_nearest(x: Any, codebook: Any) -> UInt8: ...
def double_quantize_scalers(
    scalers: Any, scaler_block_size: int = 256, scheme: Scheme = "torchao",
    rule: Rule = "cpu") -> tuple[np.ndarray, Result, float]: ...
def dequantize_scalers(
    codes: Any, factors: Any, mean: float, scaler_block_size: int = 256,
    scheme: Scheme = "torchao") -> Float32: ...
def convert_to_norm_float_weight(
    w: Floats, block_size: int = 64, rule: Rule = "torchao", *,
    context: Optional[Context] = None) -> UInt8: ...
def bits_per_weight(
    block_size: int = 64, scale_type: ScaleType = "double_bnb",
    scaler_block_size: int = 256) -> float: ...
def memory_table(block_size: int = 64, double_quant: bool = True) -> list[dict[str, Any]]: ...
def qlora_linear(
    x: Floats, weight: NF4Tensor, a: Floats, b: Floats, lora_alpha: float, bias: Any = None, *,
    context: Optional[Context] = None) -> Result: ...
def export_gguf(
    tensors: Iterable[tuple[str, NF4Tensor]], path: Path,
    outtype: Literal["f32", "f16", "bf16", "q8_0"] = "f16") -> None: ...
def train(
    model: Path, dataset: Optional[Dataset] = None, output_dir: Path = "qlora-out", *,
    train_dataset: Optional[Dataset] = None, on_step: Optional[Callable[[StepReport], Any]] = None,
    on_eval: Optional[Callable[[int, EvalReport], Any]] = None,
    on_checkpoint: Optional[Callable[[str], Any]] = None,
    on_sample: Optional[Callable[[SampleReport], Any]] = None,
    on_load: Optional[Callable[[int, int], Any]] = None,
    on_resume: Optional[Callable[[str, int, int], Any]] = None,
    progress: bool = False, save_quantized: Optional[Path] = None,
    context: Optional[Context] = None, **options: Unpack[_TrainOptions]) -> TrainSummary: ...
def plan(
    model: Path, dataset: Optional[Dataset] = None, *, context: Optional[Context] = None,
    **options: Unpack[_TrainOptions]) -> dict[str, Any]: ...
def export(
    model: Path, output: Path, adapter: Union[None, Path, Sequence[Path]] = None, *,
    context: Optional[Context] = None, **options: Any) -> ExportReport: ...
