"""QLoRA fine-tuning; 4-bit NormalFloat (NF4) and QLoRA layers on numpy arrays and PyTorch tensors.

    import numpy, qlora_cpp
    qlora_cpp.train("my-model", "train.jsonl", "my-adapter", max_steps=100)
    model = qlora_cpp.Model.load("my-model", adapter="my-adapter")
    print(model.generate("Once upon a time"))

    q = qlora_cpp.quantize(numpy.random.randn(4096, 4096).astype("float32"))
    w = q.dequantize()                                  # float32, the shape of the input
    layer = qlora_cpp.QLoraLinear.from_quantized(q, r=16, lora_alpha=32)
    y = layer(numpy.ones((8, 4096), "float32"))

Arrays go in and out without copies: numpy arrays as they are, PyTorch tensors through DLPack
(torch.from_dlpack for results). bfloat16, which numpy lacks, comes as a Tensor.

The modules nabla, torchao, kizzasi and qlora_rs have the same functions by the names and calls of
those libraries.
"""

from . import kizzasi, nabla, qlora_rs, torchao
from ._core import (
    FP4_CODEBOOK,
    NF4_CODEBOOK,
    NF4_MAX_ERROR,
    Context,
    EvalReport,
    EvalResult,
    ExportReport,
    GenerateReport,
    NF4Tensor,
    QLoraLinear,
    SampleReport,
    StepReport,
    Tensor,
    TrainSummary,
    __version__,
    bits_per_weight,
    convert_to_norm_float_weight,
    dequantize_nf4,
    dequantize_scalers,
    double_quantize_scalers,
    export_gguf,
    qlora_linear,
    quantize,
    quantize_nf4,
    quantize_tensor_nearest,
    to_nf4,
)
from ._errors import Error, OutOfMemoryError, QLoRAError, RunError
from ._jobs import export, plan
from ._memory import memory_table
from ._model import Model
from ._train import train

__all__ = [
    "FP4_CODEBOOK",
    "NF4_CODEBOOK",
    "NF4_MAX_ERROR",
    "Context",
    "Error",
    "EvalReport",
    "EvalResult",
    "ExportReport",
    "GenerateReport",
    "Model",
    "NF4Tensor",
    "OutOfMemoryError",
    "QLoRAError",
    "QLoraLinear",
    "RunError",
    "SampleReport",
    "StepReport",
    "Tensor",
    "TrainSummary",
    "bits_per_weight",
    "convert_to_norm_float_weight",
    "dequantize_nf4",
    "dequantize_scalers",
    "double_quantize_scalers",
    "export",
    "export_gguf",
    "memory_table",
    "plan",
    "qlora_linear",
    "quantize",
    "quantize_nf4",
    "quantize_tensor_nearest",
    "to_nf4",
    "train",
]
