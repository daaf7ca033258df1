"""Training from Python."""

import sys

from . import _core
from ._records import given


def _chain(first, then):
    """A callback that calls both; either may be None."""
    if first is None or then is None:
        return first or then

    def both(*arguments):
        first(*arguments)
        return then(*arguments)
    return both


def _print_step(every):
    def show(step):
        if step.step % every == 0 or step.step == step.total_steps:
            print(f"step {step.step}/{step.total_steps}  loss {step.loss:.4f}  "
                  f"lr {step.learning_rate:.2e}  {step.tokens_per_second:.0f} tokens/s",
                  file=sys.stderr, flush=True)
    return show


def _print_eval(step, report):
    print(f"step {step}  eval loss {report.loss:.4f}  perplexity {report.perplexity:.2f}",
          file=sys.stderr, flush=True)


def train(model, dataset=None, output_dir="qlora-out", *, train_dataset=None, on_step=None, on_eval=None,
          on_checkpoint=None, on_sample=None, on_load=None, on_resume=None, progress=False,
          save_quantized=None, context=None, **options):
    """train(model: str, dataset: str | list | Iterable[dict], output_dir: str = "qlora-out", *,
    train_dataset: str | list | Iterable[dict], on_step: Callable, on_eval: Callable, on_checkpoint: Callable, on_sample: Callable, on_load: Callable,
    on_resume: Callable, progress: bool = False, save_quantized: str, context: Context,
    **options: Any) -> TrainSummary

    Fine-tunes a model and leaves a LoRA adapter in output_dir, as `qlora train` does.

    model: a folder of a Hugging Face model.
    dataset: a file or a list of files; or records, a list or another iterable of dicts, which
        messages call "records", as the option eval_dataset does too ("eval_records").
    train_dataset: TRL's name of dataset.
    options: those of `qlora help train`, by name: learning_rate=2e-4, max_steps=100,
        lora_target_modules=["q_proj", "v_proj"], rank_pattern={"down_proj": 8}. Names of TRL,
        transformers, PEFT, Axolotl, LLaMA-Factory and mlx-lm are taken too, or answered with what to
        write; what has nothing to set is a UserWarning.
    on_step(StepReport), on_eval(step, EvalReport), on_checkpoint(folder), on_sample(SampleReport),
        on_load(done, total), on_resume(folder, step, total_steps): called between steps, in the
        thread of this call. A callback computes in a Context of its own. One of the first four that
        returns "stop" ends the run after its step as early stopping does: checkpoint and adapter
        are saved, and stopped_early is True.
    progress: print steps (every logging_steps) and evaluations to standard error.
    save_quantized: a folder for the model in 4 bits. The first run makes it, later runs load it.
    context: threads to use. The interpreter's lock is released.
    Ctrl+C, or an exception in a callback, ends the run with a checkpoint in output_dir, from which
    resume_from_checkpoint="auto" resumes. Warnings about the run are UserWarnings.
    Raises Error: an option, the model or the data are wrong; OutOfMemoryError: the run does not
    fit; RunError: it failed or diverged; KeyboardInterrupt.
    """
    if train_dataset is not None:
        if dataset is not None:
            raise TypeError("train() has dataset and train_dataset, two names of one argument; "
                            "keep one")
        dataset = train_dataset
    if dataset is None:
        raise TypeError("train() needs a dataset: the name of a file, or records")
    if progress:
        every = max(1, int(options.get("logging_steps") or 1))
        on_step = _chain(_print_step(every), on_step)
        on_eval = _chain(_print_eval, on_eval)
    callbacks = {"on_step": on_step, "on_eval": on_eval, "on_sample": on_sample,
                 "on_load": on_load, "on_resume": on_resume, "on_checkpoint": on_checkpoint}
    callbacks = {name: call for name, call in callbacks.items() if call is not None}
    settings = {"model_name_or_path": model, "dataset": dataset, "output_dir": output_dir,
                "save_quantized": save_quantized, **options}
    with given(settings) as (settings, files):
        return _core.train(settings, callbacks, files, context)
