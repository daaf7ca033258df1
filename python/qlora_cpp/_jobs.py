"""Plans and exports: what the verbs of the program do without a model in memory."""

import json

from . import _core
from ._records import given


def plan(model, dataset=None, *, context=None, **options):
    """plan(model: str, dataset: str | list | Iterable[dict] = None, *, context: Context,
    **options: Any) -> dict

    Checks a run of train() and says what it needs, before weights are read, as `qlora plan` does.

    model, dataset, options: those of train(). Without a dataset the model alone is looked at; it may
        then also be a config.json or the name of a well-known model, such as "Llama-3.1-8B".
    Returns the keys of `qlora plan --json`: steps, data, memory (bytes by part and "peak"), disk,
    warnings; and "shortage": why the run does not fit, or "". Nothing is written.
    Raises Error: whatever train() would refuse.
    """
    with given({"model_name_or_path": model, "dataset": dataset, **options}) as (settings, files):
        text, shortage = _core.plan(settings, files, context)
    return {**json.loads(text), "shortage": shortage}


def export(model, output, adapter=None, *, context=None, **options):
    """export(model: str, output: str, adapter: Any = None, *, context: Context, **options: Any)
    -> ExportReport

    Writes a model for other programs, with the adapter merged in, or the adapter alone, as `qlora
    export` does.

    output: a file for GGUF, otherwise a folder.
    adapter: as for Model.load: of several, their weighted sum.
    options: format ("gguf", "hf"; the adapter alone: "gguf-adapter", "peft-adapter", "mlx-adapter";
        default: "gguf-adapter" for an adapter of a GGUF file, otherwise "gguf"), outtype ("f16",
        "q8_0", "q4_k_m" ...), adapter_rank, imatrix, merge_base, verify, overwrite ... of `qlora
        help export`.
    Returns an ExportReport: files, bytes, and, of an adapter that was merged into a GGUF file of
        blocks or bfloat16 ("q8_0", "q4_k_m" ...), kept_change: the share of its change that rounding leaves ...
    Ctrl+C leaves nothing behind. Remarks on what the files lack are UserWarnings.
    Raises Error: an option, the model or the adapter are wrong; RunError: it cannot be written.
    """
    return _core.export({"model_name_or_path": model, "output": output, "adapter": adapter,
                         **options}, context)
