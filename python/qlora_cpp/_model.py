"""Models that generate, decide and are evaluated."""

import json

from . import _core
from ._records import given


# What users of PEFT and transformers call a model for, and what does it here.
_ELSEWHERE = {
    "save_pretrained": "train() leaves the adapter in output_dir; export() writes other files",
    "push_to_hub": "nothing is sent anywhere; the folder of train() is what PEFT pushes",
    "load_adapter": "write Model.load(path, adapter=folder)",
    "set_adapter": "write Model.load(path, adapter=folder)",
    "merge_and_unload": "write export(path, output, adapter=folder)",
    "merge_adapter": "write export(path, output, adapter=folder)",
    "print_trainable_parameters": "plan() counts them, and train() reports them",
    "eval_dataset": "write eval(dataset)",
    "from_pretrained": "write Model.load(path)",
    "to": "qlora computes on the CPU",
    "train": "write qlora_cpp.train(model, dataset)",
    "config": "inspect(path) tells what a model is",
}


def _conversation(messages):
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


class Model:
    """A loaded model, with or without an adapter: Model.load("folder", adapter="folder").

    Calls release the interpreter's lock; calls of several threads take turns.
    """

    def __init__(self, loaded):
        if not isinstance(loaded, _core.LoadedModel):
            raise TypeError("a model is loaded with Model.load(\"folder\")")
        self._loaded = loaded

    @classmethod
    def load(cls, path, adapter=None, *, on_load=None, context=None, **options):
        """Loads a folder of a Hugging Face model, and a LoRA adapter for it.

        adapter: a folder of PEFT or mlx-lm, or a GGUF adapter; of a list of them, each as "PATH" or
            "PATH:WEIGHT", the weighted sum is used, with adapter_rank reduced to a rank.
        options: load_in_4bit, compute_dtype, bnb_4bit_quant_type, chat_template, copy_weights,
            threads ... as `qlora help generate` explains them.
        on_load(done, total): called while weights are read. context: threads to use.
        Raises Error: a file that is missing or wrong, with what to do.
        """
        settings = {"model_name_or_path": path, "adapter": adapter, **options}
        return cls(_core.LoadedModel(settings, on_load, context))

    def __getattr__(self, name):
        if name in _ELSEWHERE:
            raise AttributeError(f"a Model has no {name}: {_ELSEWHERE[name]}")
        raise AttributeError(f"'Model' object has no attribute '{name}'")

    def __repr__(self):
        return f"Model(context_length={self.context_length}, prompt_layout={self.prompt_layout!r})"

    def generate(self, prompt, *, chat=None, system=None, on_text=None, **options):
        """Answers a prompt, or continues it, and returns a GenerateReport; str() is its text.

        prompt: a text, or a list of texts, which are answered at the same time, as a list of
            reports, each as if it were alone.
        chat: None: the prompt is laid out as the data that the adapter was trained on
            (prompt_layout says how), or without a recorded layout in the model's chat template if
            there is one; True: as a conversation of one message, which is an error without either;
            False: the prompt as it is.
        system: a system message before it.
        options: max_new_tokens, do_sample, temperature, top_k, top_p, min_p, repetition_penalty,
            seed. What is left open follows the model's generation_config.json, else every token
            is the most likely one.
        on_text(piece): receives the text as it is written, and ends it by returning "stop". Ctrl+C
            ends it too. Of a list of prompts: on_text(index, piece), which ends that text alone.
        Raises Error: an unknown option, a prompt that fills the context.
        """
        if isinstance(prompt, (list, tuple)):
            return self._loaded.generate_all(list(prompt), system, chat, on_text, options)
        return self._loaded.generate(prompt, system, chat, on_text, options)

    def chat(self, messages, tools=None, *, on_text=None, **options):
        """The assistant's next turn after messages, a list of {"role": ..., "content": ...}, or the
        text of one message of the user.

        tools: descriptions of tools for the chat template. The rest is as in generate().
        Raises Error: a model without a chat template, a conversation that the template refuses.
        """
        return self._loaded.chat(_conversation(messages), tools, on_text, options)

    def chat_prompt(self, messages, tools=None):
        """The text that chat() gives to the model."""
        return self._loaded.chat_prompt(_conversation(messages), tools)

    def eval(self, dataset, **options):
        """Loss and perplexity over files or records that train() reads: an EvalResult. Of records
        that ask questions, its `decision` has accuracy and calibration; with preference_loss, its
        `metrics` are the rewards of pairs or of answers with labels.

        options: dataset_format, max_length, over_long, per_token ... of `qlora help eval`.
        Raises Error: with file and line; RunError: a loss that is not finite.
        """
        with given({"dataset": dataset, **options}) as (settings, files):
            return self._loaded.eval(settings, files)

    def decide(self, request, **options):
        """The probabilities of the answers to typed questions, as a dict in the form of the request.

        request: {"state": ..., "questions": {id: {"type", "instructions", "criteria"}}}, as a dict
            or as JSON (docs/decisions.md).
        options: decision_template, decision_temperature.
        Raises Error: what is wrong with the request, by its field.
        """
        return self._loaded.decide(request if isinstance(request, str) else json.dumps(request), options)

    def calibrate(self, dataset, **options):
        """Fits a temperature for each type of question to files or records of questions with answers
        that were not trained on, and writes them beside the adapter: {"noul": 1.2, ...}.

        options: min_questions ... of `qlora help calibrate`. Load the model again to use them.
        Raises Error: with file and line.
        """
        with given({"dataset": dataset, **options}) as (settings, files):
            return self._loaded.calibrate(settings, files)

    def count_tokens(self, text):
        """Tokens of a text, special tokens included."""
        return self._loaded.count_tokens(text)

    def tokenize(self, text, special=True):
        """The token ids of a text, as a list.

        special: with the special tokens that the tokenizer puts around a text, such as BOS.
        """
        return self._loaded.tokenize(text, special)

    def detokenize(self, ids, special=True):
        """The text of token ids. special: with the texts of special tokens.

        Raises Error: an id that is none.
        """
        return self._loaded.detokenize(ids, special)

    @property
    def context_length(self):
        """Tokens that the model reads at most, prompt and answer together."""
        return self._loaded.context_length

    @property
    def has_chat_template(self):
        """True when there is a chat template. chat() also works in the layout of an adapter."""
        return self._loaded.has_chat_template

    @property
    def prompt_layout(self):
        """How generate() lays prompts out, and why; "" when prompts are read as they are."""
        return self._loaded.prompt_layout

    @property
    def stop_tokens(self):
        """The tokens that end an answer, as a list of texts."""
        return self._loaded.stop_tokens
