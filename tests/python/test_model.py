"""Training, generation and evaluation from Python."""

import _thread
import json
import pathlib
import resource
import shutil
import signal
import threading

import pytest

import qlora_cpp as q

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
TINY = GOLDEN / "llama-tiny"
DATA = GOLDEN / "train-20" / "data.jsonl"
CHATML = {"chat_template": "chatml"}


def run(tmp_path, **options):
    settings = {"max_steps": 4, "over_long": "truncate", "max_length": 64,
                "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, **options}
    return q.train(TINY, DATA, tmp_path / "adapter", **settings)


@pytest.fixture(scope="module")
def model():
    return q.Model.load(TINY)


def test_train_reports_steps_and_evaluations(tmp_path, capfd):
    steps, evaluations, checkpoints, loads = [], [], [], []
    summary = run(tmp_path, on_step=steps.append, on_checkpoint=checkpoints.append,
                  on_eval=lambda step, report: evaluations.append((step, report)),
                  on_load=lambda done, total: loads.append((done, total)),
                  eval_dataset=[DATA], eval_steps=2, save_steps=2,
                  rank_pattern={"down_proj": 4}, lora_target_modules=["q_proj", "down_proj"])
    assert [s.step for s in steps] == [1, 2, 3, 4] and summary.steps == 4
    assert steps[0]._asdict()["loss"] == steps[0].loss > 0
    assert [step for step, _ in evaluations] == [2, 4]
    assert evaluations[-1][1].perplexity > 1
    assert checkpoints[0].endswith("checkpoint-2") and loads[-1][0] == loads[-1][1]
    assert summary.adapter_dir == str(tmp_path / "adapter")
    assert repr(summary).startswith("TrainSummary(steps=4, ")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["rank_pattern"] and sorted(config["target_modules"]) == ["down_proj", "q_proj"]
    assert capfd.readouterr() == ("", "")  # the library prints nothing

    trained = q.Model.load(TINY, adapter=summary.adapter_dir)
    again = trained.eval(DATA, over_long="truncate", max_length=64)
    assert again.loss == pytest.approx(evaluations[-1][1].loss, rel=1e-6)


def test_a_log_that_cannot_be_written_is_a_warning(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit_files_for_one_step(report):
        limit = 1 if report.step == 1 else soft
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    with pytest.warns(UserWarning, match="train_log.jsonl: File too large; the run goes on"):
        assert run(tmp_path, on_step=limit_files_for_one_step).steps == 4
    log = (tmp_path / "adapter" / "train_log.jsonl").read_text()
    assert [json.loads(line)["step"] for line in log.splitlines()] == [1]


def test_progress_is_printed_on_request(tmp_path, capsys):
    run(tmp_path, progress=True, logging_steps=2, eval_dataset=DATA, eval_steps=4)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["2/4", "4/4", "4"]


def adapter_of(summary):
    return pathlib.Path(summary.adapter_dir, "adapter_model.safetensors").read_bytes()


def test_a_quantized_base_is_made_once_and_loaded_later(tmp_path):
    base = tmp_path / "base-4bit"
    unkept = run(tmp_path / "unkept")
    first = run(tmp_path / "first", save_quantized=base)
    weights = (base / "model.safetensors").stat()
    second = run(tmp_path / "second", save_quantized=str(base))
    assert (base / "model.safetensors").stat().st_mtime_ns == weights.st_mtime_ns
    assert adapter_of(first) == adapter_of(second) == adapter_of(unkept)
    record = json.loads((tmp_path / "second" / "adapter" / "qlora_base.json").read_text())
    assert record["model_name_or_path"] == str(base)
    with pytest.raises(q.Error, match="was made from something else .scale_search differs"):
        run(tmp_path / "other", save_quantized=base, scale_search=True)
    with pytest.raises(q.Error, match="exists and was not made by this option"):
        run(tmp_path / "other", save_quantized=tmp_path / "first")
    assert not (tmp_path / "other").exists()


@pytest.fixture
def ctrl_c():
    """Ctrl+C raises, also under a shell that started the tests in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_a_checkpoint(tmp_path, ctrl_c):
    def press(step):
        if step.step == 2:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt, match="checkpoint-2.*resume_from_checkpoint"):
        run(tmp_path, on_step=press)
    assert (tmp_path / "adapter" / "checkpoint-2").is_dir()
    resumed = []
    summary = run(tmp_path, resume_from_checkpoint="auto",
                  on_resume=lambda folder, step, total: resumed.append((step, total)))
    assert resumed == [(2, 4)] and summary.steps == 4
    uninterrupted = run(tmp_path / "other")
    name = "adapter_model.safetensors"
    assert (tmp_path / "adapter" / name).read_bytes() == (
        pathlib.Path(uninterrupted.adapter_dir, name).read_bytes())


def test_an_exception_of_a_callback_ends_the_run(tmp_path):
    def refuse(step):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        run(tmp_path, on_step=refuse)
    assert (tmp_path / "adapter" / "checkpoint-1").is_dir()
    with pytest.raises(LookupError, match="enough"):
        run(tmp_path / "load", on_load=lambda done, total: refuse(None))
    assert not (tmp_path / "load").exists()
    with pytest.raises(LookupError, match="enough"):
        q.Model.load(TINY, on_load=lambda done, total: refuse(None))


def test_mistakes_are_errors_of_python(tmp_path):
    with pytest.raises(q.Error, match="did you mean 'learning_rate'"):
        run(tmp_path, learning_rat=1)
    with pytest.raises(ValueError, match="expects an integer"):
        run(tmp_path, max_steps="many")
    with pytest.raises(q.OutOfMemoryError):
        run(tmp_path, max_memory="1MB")
    with pytest.raises(MemoryError):
        run(tmp_path, max_memory="1MB")
    with pytest.raises(q.QLoRAError, match="absent"):
        q.Model.load("absent")
    assert issubclass(q.RunError, RuntimeError)
    with pytest.raises(q.Error, match="pass context=qlora_cpp.Context()"):
        run(tmp_path, on_step=lambda step: q.Model.load(TINY))


def test_a_callback_computes_in_its_own_context(tmp_path):
    context, losses = q.Context(1), []

    def evaluate(folder):
        part = q.Model.load(TINY, adapter=folder, context=context)
        losses.append(part.eval(DATA, over_long="truncate", max_length=64).loss)

    run(tmp_path, save_steps=2, on_checkpoint=evaluate)
    assert len(losses) >= 1


def test_warnings_about_the_run_are_warnings(tmp_path):
    with pytest.warns(UserWarning):
        q.train(TINY, DATA, tmp_path / "adapter", max_steps=1, max_length=100000,
                gradient_accumulation_steps=1)


def test_generate(model):
    pieces = []
    report = model.generate("a", max_new_tokens=8, on_text=pieces.append)
    assert str(report) == report.text == "".join(pieces)
    assert report.new_tokens <= 8 and report.prompt_tokens == model.count_tokens("a")
    assert model.generate("a", max_new_tokens=8).text == report.text
    drawn = {model.generate("a", max_new_tokens=8, temperature=3.0, seed=s).text for s in range(4)}
    assert len(drawn) > 1  # a temperature asks for sampling
    assert model.context_length > 8
    with pytest.raises(q.Error, match="max_new_tokens"):
        model.generate("a", max_new_token=8)
    with pytest.raises(LookupError):
        model.generate("a", on_text={}.__getitem__)


def test_texts_at_the_same_time_are_those_of_each_alone(model):
    prompts = ["a", "Once upon a time", "b"]
    options = {"max_new_tokens": 8, "temperature": 0.9, "seed": 3}
    together = model.generate(prompts, **options)
    assert [r.text for r in together] == [model.generate(p, **options).text for p in prompts]
    assert [r.prompt_tokens for r in together] == [model.count_tokens(p) for p in prompts]
    pieces = [[] for _ in prompts]
    model.generate(prompts, on_text=lambda i, piece: pieces[i].append(piece), **options)
    assert ["".join(p) for p in pieces] == [r.text for r in together]
    stopped = model.generate(prompts, on_text=lambda i, _: "stop" if i == 1 else None, **options)
    # A text of bytes that are no UTF-8 is received at its end alone.
    assert stopped[1].stop_reason == "caller" and stopped[1].new_tokens <= together[1].new_tokens
    assert [stopped[i].text for i in (0, 2)] == [together[i].text for i in (0, 2)]
    assert model.generate([]) == []
    with pytest.raises(TypeError):
        model.generate(["a", 5])


def test_ctrl_c_ends_a_text(model, ctrl_c):
    with pytest.raises(KeyboardInterrupt):
        model.generate("a", max_new_tokens=100, on_text=lambda piece: _thread.interrupt_main())


def test_chat(model):
    messages = [{"role": "user", "content": "hello"}]
    assert not model.has_chat_template
    with pytest.raises(q.Error, match="template"):
        model.chat(messages)
    with pytest.raises(q.Error, match="system message needs a chat template"):
        model.generate("hello", system="be brief")
    other = q.Model.load(TINY, chat_template="plain")
    assert other.has_chat_template
    prompt = other.chat_prompt(messages)
    assert "hello" in prompt
    answer = other.chat(messages, max_new_tokens=4)
    assert answer.text == other.generate("hello", max_new_tokens=4).text
    assert isinstance(other.stop_tokens, list)


def test_the_layout_of_the_data_is_applied(tmp_path):
    base = tmp_path / "model"  # with room for the text of Alpaca
    shutil.copytree(TINY, base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").unlink()
    (base / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    data = tmp_path / "d.jsonl"
    data.write_text('{"instruction": "Add.", "input": "", "output": "It is two."}\n' * 4)
    summary = q.train(base, data, tmp_path / "adapter", max_steps=4, warmup_ratio=0,
                      gradient_accumulation_steps=1)
    trained = q.Model.load(base, adapter=summary.adapter_dir)
    assert trained.prompt_layout.startswith("Alpaca text, as in training")
    assert q.Model.load(base).prompt_layout == ""
    text = ("Below is an instruction that describes a task. Write a response that appropriately "
            "completes the request.\n\n### Instruction:\nAdd.\n\n### Response:\n")
    laid_out = trained.generate("Add.", max_new_tokens=4)
    assert laid_out.prompt_tokens == trained.count_tokens(text)
    as_it_is = trained.generate(text, chat=False, max_new_tokens=4)
    assert laid_out.text == as_it_is.text
    messages = [{"role": "user", "content": "Add."}]
    assert trained.chat_prompt(messages).endswith(text)
    assert trained.chat(messages, max_new_tokens=4).text == laid_out.text
    same = tmp_path / "same.jsonl"
    same.write_text(json.dumps({"prompt": text, "completion": "It is two."}) + "\n")
    assert trained.eval(data).loss == pytest.approx(
        trained.eval(same, raw=True, prompt_layout="text").loss, rel=1e-6)


def test_eval(model):
    result = model.eval(DATA, per_token=True, over_long="truncate", max_length=16)
    assert result.loss == pytest.approx(-sum(result.logprobs) / result.tokens, rel=1e-9)
    assert "perplexity=" in repr(result) and result.truncated > 0 and result.sequences > 0
    with pytest.raises(q.Error, match="nothing.jsonl"):
        model.eval("nothing.jsonl")


def test_a_model_is_loaded_not_constructed():
    with pytest.raises(TypeError, match="Model.load"):
        q.Model(str(TINY))


def test_other_threads_run_during_training(tmp_path):
    count, stop = [0], threading.Event()

    def other():
        while not stop.wait(0.001):
            count[0] += 1

    thread = threading.Thread(target=other)
    thread.start()
    try:
        run(tmp_path, max_steps=20)
    finally:
        stop.set()
        thread.join()
    assert count[0] > 0
