"""Records in memory, names of other trainers, runs that a callback stops, plans and exports."""

import json
import pathlib
import shutil
import warnings

import numpy as np
import pytest

import qlora_cpp as q

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
TINY = GOLDEN / "llama-tiny"
DATA = GOLDEN / "train-20" / "data.jsonl"
OPTIONS = {"max_steps": 4, "max_length": 64, "over_long": "truncate",
           "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}


def records():
    return [json.loads(line) for line in DATA.read_text().splitlines()]


def adapter_of(summary):
    return pathlib.Path(summary.adapter_dir, "adapter_model.safetensors").read_bytes()


def test_records_train_like_a_file(tmp_path):
    from_file = q.train(TINY, DATA, tmp_path / "file", **OPTIONS)
    evaluations = []
    from_list = q.train(TINY, records(), tmp_path / "list", eval_dataset=records()[:5], eval_steps=2,
                        on_eval=lambda step, report: evaluations.append(report.loss), **OPTIONS)
    from_generator = q.train(TINY, iter(records()), tmp_path / "generator", **OPTIONS)
    assert adapter_of(from_file) == adapter_of(from_list) == adapter_of(from_generator)
    trained = q.Model.load(TINY, adapter=from_list.adapter_dir)
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(record) + "\n" for record in records()[:5]))
    held_out = trained.eval(records()[:5])
    assert held_out.loss == trained.eval(few).loss == pytest.approx(evaluations[-1], rel=1e-3)
    assert "records: JSON Lines" in held_out.data
    config = json.loads((tmp_path / "list" / "train_config.json").read_text())
    assert (config["dataset"], config["eval_dataset"]) == ("records", "eval_records")


def test_a_run_on_records_resumes(tmp_path):
    whole = q.train(TINY, records(), tmp_path / "whole", **OPTIONS)
    q.train(TINY, records(), tmp_path / "parts",
            on_step=lambda step: "stop" if step.step == 2 else None, **OPTIONS)
    rest = q.train(TINY, records(), tmp_path / "parts", resume_from_checkpoint="auto", **OPTIONS)
    assert rest.resumed_step == 2 and adapter_of(rest) == adapter_of(whole)
    with pytest.raises(q.Error, match="the samples of dataset"):
        q.train(TINY, records()[1:], tmp_path / "parts", resume_from_checkpoint="auto",
                **{**OPTIONS, "max_steps": 6})


def test_records_hold_values_of_numpy(tmp_path):
    data = [{"input_ids": np.arange(3, 11), "labels": np.arange(3, 11)}] * 4
    assert q.plan(TINY, data, **OPTIONS)["data"]["samples"] == 4


@pytest.mark.parametrize("data, kind, message", [
    ([{"text": "a b c"}, {"text": None}], q.Error, "records:2"),
    ([{"text": "a"}, ["a"]], TypeError, "records:2: expected a dict, found list"),
    ([{"text": "a"}, {"text": object()}], q.Error, "records:2: object is no value of JSON"),
    ([{"text": "a", "n": float("nan")}], q.Error, "records:1: "),
    ([], q.Error, "records: there are no records"),
    (iter(()), q.Error, "records: there are no records"),
    ({"text": "a"}, TypeError, "records are a list of dicts"),
    ({"train": []}, TypeError, "records are a list of dicts"),
])
def test_bad_records_are_named(tmp_path, data, kind, message):
    with pytest.raises(kind) as caught:
        q.train(TINY, data, tmp_path / "out", **OPTIONS)
    assert message in str(caught.value) and not (tmp_path / "out").exists()


def test_records_are_given_as_dataset():
    for key, items in {"train_file": [{"text": "a"}], "datasets": [{"path": DATA, "type": "text"}],
                       "target_modules": [{"q_proj": 4}]}.items():
        with pytest.raises(TypeError, match=f"{key}: expected plain values, found a list of dicts; "
                                            "records are given as dataset or eval_dataset, files "):
            q.plan(TINY, DATA, **{key: items}, **OPTIONS)


def test_train_dataset_is_dataset(tmp_path):
    options = {"max_steps": 1, "max_length": 32}
    records = [{"prompt": "a", "completion": "b"}] * 4
    first = q.train(TINY, records, tmp_path / "a", **options)
    second = q.train(TINY, train_dataset=records, output_dir=tmp_path / "b", **options)
    assert adapter_of(second) == adapter_of(first)
    with pytest.raises(TypeError, match="dataset and train_dataset, two names of one argument"):
        q.train(TINY, records, tmp_path / "c", train_dataset=records)
    with pytest.raises(TypeError, match="needs a dataset"):
        q.train(TINY)


def test_train_is_the_work_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(q.Error, match="ranks without MPI need"):
        q.train(TINY, DATA, tmp_path / "out", max_steps=1)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(q.Error, match="several ranks"):
        q.train(TINY, DATA, tmp_path / "out", max_steps=1)


def test_bad_records_are_counted_by_name(tmp_path):
    records = [{"prompt": "a", "completion": "b"}, {"prompt": "c"}]
    with pytest.raises(q.Error, match=r"\nrecords: 1 of 2 records cannot be read; to train"):
        q.train(TINY, records, tmp_path / "a")


def test_another_base_is_a_warning(tmp_path):
    adapter = q.train(TINY, [{"prompt": "a", "completion": "b"}] * 4, tmp_path / "adapter",
                      max_steps=1, max_length=32).adapter_dir
    other = tmp_path / "other"
    shutil.copytree(TINY, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a copy of the base is the base
        q.Model.load(other, adapter=adapter)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[8 + int.from_bytes(weights[:8], "little")] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    message = "the weights of .*other are not those that .*adapter was trained on"
    with pytest.warns(UserWarning, match=message):
        q.Model.load(other, adapter=adapter)
    with pytest.warns(UserWarning, match=message):
        q.export(other, tmp_path / "m.gguf", adapter=adapter)
    with pytest.warns(UserWarning, match=message):
        q.train(other, [{"prompt": "a", "completion": "b"}] * 4, tmp_path / "on", adapter=adapter,
                max_steps=1, max_length=32)


def test_another_base_is_said_before_the_work(tmp_path):
    few = [{"prompt": "a", "completion": "b"}] * 4
    adapter = q.train(TINY, few, tmp_path / "adapter", max_steps=1, max_length=32).adapter_dir
    other = tmp_path / "other"
    shutil.copytree(TINY, other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[8 + int.from_bytes(weights[:8], "little")] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    loaded = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="was trained on"):
            q.Model.load(other, adapter=adapter, on_load=lambda done, total: loaded.append(done))
        with pytest.raises(UserWarning, match="was trained on"):
            q.export(other, tmp_path / "m.gguf", adapter=adapter)
        with pytest.raises(UserWarning, match="was trained on"):
            q.train(other, few, tmp_path / "on", adapter=adapter, max_steps=1, max_length=32,
                    save_quantized=tmp_path / "quantized")
    assert loaded == []
    assert not any((tmp_path / name).exists() for name in ("m.gguf", "on", "quantized"))


def test_the_saved_base_in_4_bits_is_no_other_base(tmp_path):
    few = [{"prompt": "a", "completion": "b"}] * 4
    options = {"max_steps": 1, "max_length": 32, "warmup_ratio": 0}
    adapter = q.train(TINY, few, tmp_path / "adapter", **options).adapter_dir
    for run in ("first", "second"):  # the second finds what the first saved
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            q.train(TINY, few, tmp_path / run, adapter=adapter, **options,
                    save_quantized=tmp_path / "quantized")


def test_a_merge_into_blocks_reports_what_rounding_keeps(tmp_path):
    plain = q.export(TINY, tmp_path / "base.gguf", outtype="q8_0")
    assert plain.kept_change is None
    adapter = q.train(tmp_path / "base.gguf", DATA, tmp_path / "adapter", learning_rate=0.01,
                      **OPTIONS).adapter_dir
    merged = q.export(tmp_path / "base.gguf", tmp_path / "merged.gguf", adapter=adapter,
                      format="gguf", outtype="q8_0")
    assert 0.7 < merged.kept_change < 1.1
    assert merged._asdict()["kept_change"] == merged.kept_change


def test_a_callback_stops_a_run(tmp_path):
    seen = []

    def on_step(step):
        seen.append(step.step)
        return "stop" if step.step == 2 else False  # other values mean nothing

    summary = q.train(TINY, DATA, tmp_path / "out", on_step=on_step, **OPTIONS)
    assert seen == [1, 2] and summary.steps == 2 and summary.stopped_early
    assert summary.adapter_dir == str(tmp_path / "out") and adapter_of(summary)
    assert (tmp_path / "out" / "checkpoint-2").is_dir()


@pytest.mark.parametrize("event", ["on_eval", "on_checkpoint"])
def test_other_callbacks_stop_a_run_too(tmp_path, event):
    summary = q.train(TINY, DATA, tmp_path / "out", eval_dataset=DATA, eval_steps=2, save_steps=2,
                      progress=True, **{event: lambda *arguments: "stop"}, **OPTIONS)
    assert summary.steps == 2 and summary.stopped_early


def test_a_callback_ends_a_text():
    model = q.Model.load(TINY)
    report = model.generate("a", max_new_tokens=50, on_text=lambda piece: "stop")
    assert report.new_tokens < 50 and report.stop_reason == "caller"


def test_names_of_other_trainers(tmp_path):
    with pytest.warns(UserWarning) as caught:
        q.train(TINY, DATA, tmp_path / "out", bf16=True, use_peft=True, fp16=False, r=2,
                eval_strategy="no", push_to_hub=False, gradient_checkpointing="unsloth",
                dataset_text_field="text", iters=1, max_seq_length=64, over_long="truncate")
    notes = [str(warning.message) for warning in caught]
    assert any(note.startswith("push_to_hub is not needed") for note in notes)
    assert not any("--" in note for note in notes)
    assert all(warning.filename == __file__ for warning in caught)
    config = json.loads((tmp_path / "out" / "train_config.json").read_text())
    assert (config["lora_r"], config["max_steps"], config["compute_dtype"]) == ("2", "1", "bfloat16")


@pytest.mark.parametrize("names", [("torch_dtype", "bnb_4bit_compute_dtype"),
                                   ("bnb_4bit_compute_dtype", "torch_dtype")])
def test_the_type_of_a_checkpoint_yields_to_that_of_products(tmp_path, names):
    values = {"torch_dtype": "bfloat16", "bnb_4bit_compute_dtype": "float32"}
    note = "torch_dtype has no effect: bnb_4bit_compute_dtype sets compute_dtype"
    with pytest.warns(UserWarning, match=note):
        q.train(TINY, DATA, tmp_path / "out", max_steps=1, max_length=64, over_long="truncate",
                **{name: values[name] for name in names})
    config = json.loads((tmp_path / "out" / "train_config.json").read_text())
    assert config["compute_dtype"] == "float32"


@pytest.mark.parametrize("options, message", [
    ({"peft_config": object()}, "peft_config: not an option of qlora: write its values as options: lora_r"),
    ({"quantization_config": object()},
     "quantization_config: not an option of qlora: write its values as options: load_in_4bit"),
    ({"args": object()}, "args: not an option of qlora: write its values as options: learning_rate"),
    ({"tokenizer": object()}, "tokenizer: not an option of qlora: the tokenizer is that of the model"),
    ({"num_layers": 8}, "num_layers: not an option of qlora: write layers_to_transform, such as 16-31"),
    ({"push_to_hub": True}, "push_to_hub: not an option of qlora: nothing leaves this machine"),
    ({"hf_file": "x.gguf"}, "models are folders: write `qlora pull ORG/NAME`, then model ORG/NAME"),
    ({"batch_size": 2, "bogus": 1}, "bogus: unknown option 'bogus'"),
    ({"max_steps": 4, "iters": 5}, "iters: max_steps is given twice, the first time at max_steps; keep one"),
    ({"max_new_tokens": 4}, "max_new_tokens"),
])
def test_what_is_not_there_says_what_to_write(tmp_path, options, message):
    with pytest.raises(q.Error) as caught:
        q.train(TINY, DATA, tmp_path / "out", **options)
    assert message in str(caught.value) and "--" not in str(caught.value)


def test_warnings_name_options_of_python(tmp_path):
    with pytest.warns(UserWarning, match=": save_steps N"):
        q.train(TINY, DATA, tmp_path / "out", **{**OPTIONS, "max_steps": 1001},
                on_step=lambda step: "stop")


def test_names_of_generation():
    model = q.Model.load(TINY)
    assert model.generate("a", max_tokens=5).text == model.generate("a", max_new_tokens=5).text
    with pytest.raises(q.Error, match="max_length: counts the prompt and .* write max_new_tokens"):
        model.generate("a", max_length=5)
    with pytest.raises(q.Error, match="learning_rate: this function has no such option; `qlora train` has it"):
        model.generate("a", learning_rate=1)
    other = q.Model.load(TINY, chat_template="plain", chat_template_kwargs={"enable_thinking": False})
    assert other.has_chat_template
    with pytest.raises(q.Error, match="ids: 1099511627776 is not a token id"):
        model.detokenize([2**40])
    # As text, too, which is the form of the command line.
    q.Model.load(TINY, chat_template="plain", chat_template_kwargs='{"enable_thinking": false}')


def test_plan(tmp_path):
    plan = q.plan(TINY, DATA, output_dir=tmp_path / "out", **OPTIONS)
    assert plan["steps"] == 4 and plan["shortage"] == "" and plan["memory"]["peak"] > 0
    assert plan["data"]["samples"] == 40
    assert q.plan(TINY, DATA, eval_dataset=[], output_dir=tmp_path / "out", **OPTIONS)["data"]["samples"] == 40
    small = q.plan(TINY, DATA, max_memory="1MB", output_dir=tmp_path / "out", **OPTIONS)
    assert "max_memory" in small["shortage"]
    shape = q.plan("Llama-3.1-8B", max_length=2048)
    assert shape["parameters"] > 8e9 and not shape["has_weights"]
    with pytest.raises(q.Error, match="no-such-model"):
        q.plan("no-such-model", DATA)
    assert not (tmp_path / "out").exists()


def test_export(tmp_path):
    summary = q.train(TINY, DATA, tmp_path / "adapter", **OPTIONS)
    report = q.export(TINY, tmp_path / "merged", summary.adapter_dir, format="hf", outtype="f32")
    assert report.merge_base == "nf4" and all(pathlib.Path(file).is_file() for file in report.files)
    assert repr(report).startswith("ExportReport(files=[")
    trained = q.Model.load(TINY, adapter=summary.adapter_dir)
    merged = q.Model.load(tmp_path / "merged", load_in_4bit=False)
    assert merged.eval(DATA, max_length=64, over_long="truncate").loss == pytest.approx(
        trained.eval(DATA, max_length=64, over_long="truncate").loss, rel=1e-3)
    with pytest.raises(q.Error, match="overwrite"):
        q.export(TINY, tmp_path / "merged", format="hf")
    with pytest.raises(q.Error, match="format"):
        q.export(TINY, tmp_path / "x", format="onnx")


def test_several_adapters(tmp_path):
    adapters = [q.train(TINY, DATA, tmp_path / name, **{**OPTIONS, "seed": seed}).adapter_dir
                for name, seed in (("a", 1), ("b", 2))]
    weighted = [f"{adapters[0]}:0.7", f"{adapters[1]}:-0.3"]
    together = q.Model.load(TINY, adapter=weighted).eval(DATA).loss
    assert together != q.Model.load(TINY, adapter=adapters[0]).eval(DATA).loss
    for form in ("peft", "mlx"):
        report = q.export(TINY, tmp_path / form, weighted, format=f"{form}-adapter", verify=True)
        assert report.format == f"{form}-adapter" and report.verified
        loss = q.Model.load(TINY, adapter=tmp_path / form).eval(DATA).loss
        assert loss == pytest.approx(together, rel=1e-6)
    with pytest.warns(UserWarning, match="reduced to rank 1: the relative error"):
        q.Model.load(TINY, adapter=weighted, adapter_rank=1)


def test_tokens():
    model = q.Model.load(TINY)
    ids = model.tokenize("a b c")
    assert len(ids) == model.count_tokens("a b c") and all(isinstance(i, int) for i in ids)
    plain = model.tokenize("a b c", special=False)
    assert model.detokenize(plain) == "a b c" and model.detokenize(ids, special=False).strip() == "a b c"


def test_a_gguf_file_is_a_model(tmp_path):
    base = tmp_path / "base.gguf"
    assert q.export(TINY, base, outtype="q8_0", verify=True).verified
    assert q.plan(base, DATA, **OPTIONS)["steps"] == 4
    summary = q.train(base, DATA, tmp_path / "run", **OPTIONS)
    record = json.loads((tmp_path / "run" / "qlora_base.json").read_text())
    assert record["block_formats"] == ["Q8_0"]
    model = q.Model.load(base, adapter=summary.adapter_dir)
    assert model.eval(DATA).loss > 0
    assert model.generate("Once", max_new_tokens=2).new_tokens <= 2
    report = q.export(base, tmp_path / "adapter.gguf", summary.adapter_dir)
    assert report.verified and report.format == "gguf-adapter"
    assert q.export(base, tmp_path / "merged.gguf", summary.adapter_dir,
                    format="gguf", verify=False).merge_base == "blocks"
    assert q.export(base, tmp_path / "hf", summary.adapter_dir, format="hf").verified
    assert q.Model.load(tmp_path / "hf", load_in_4bit=False).eval(DATA).loss > 0


def test_preferences_are_evaluated_as_in_training(tmp_path):
    pairs = [{"prompt": "Once", "chosen": f" upon a time {i}", "rejected": f" a {i}"} for i in range(6)]
    found = []
    summary = q.train(TINY, pairs, tmp_path / "out", preference_loss="sigmoid", eval_dataset=pairs,
                      learning_rate=1e-3, compute_dtype="float32",
                      on_eval=lambda step, report: found.append(report), **OPTIONS)
    model = q.Model.load(TINY, adapter=summary.adapter_dir, compute_dtype="float32")
    result = model.eval(pairs, preference_loss="sigmoid")
    assert (result.loss, result.metrics) == (found[-1].loss, found[-1].metrics)
    assert result.metrics["rewards/margins"] != 0
