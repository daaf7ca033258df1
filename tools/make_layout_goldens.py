#!/usr/bin/env python3
"""Writes the texts and tokens that other trainers make of small records, for tests of `qlora migrate`.

    python3 tools/make_layout_goldens.py [OUT]        (default tests/fixtures/layouts.jsonl)

Standard library only. The layouts are written down here from what the trainers do, checked against
Axolotl (July 2026), LLaMA-Factory (August 2026), TRL (July 2026) and stanford_alpaca. No code of
qlora takes part. Each line holds a configuration, a record, and the text, token ids and labels
(-100: not trained on) that the trainer makes of it, with the tokenizer below.
"""
import json
import pathlib
import sys

IGNORE = -100
BOS, EOS = "<s>", "</s>"
FIRST_SPECIALS = [BOS, EOS, "<|im_start|>", "<|im_end|>"]
MORE_SPECIALS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>",
                 "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|eot|>",
                 "<|end_of_text|>"]
SPECIALS = {text: i for i, text in enumerate(FIRST_SPECIALS)}
SPECIALS |= {text: 261 + i for i, text in enumerate(MORE_SPECIALS)}
FIRST_BYTE, AB = 4, 260


def encode(text, bos=False):
    """Special tokens, the merge of a and b, bytes; BOS first where the tokenizer is asked for it."""
    ids = [SPECIALS[BOS]] if bos else []
    at = 0
    while at < len(text):
        special = next((s for s in SPECIALS if text.startswith(s, at)), None)
        if special:
            ids.append(SPECIALS[special])
            at += len(special)
        elif text.startswith("ab", at):
            ids.append(AB)
            at += 2
        else:
            ids += [FIRST_BYTE + byte for byte in text[at].encode()]
            at += 1
    return ids


class Sample:
    def __init__(self):
        self.text, self.ids, self.labels = "", [], []

    def add(self, text, trained, bos=False):
        """The trainers tokenize prompts and answers one by one."""
        ids = encode(text, bos)
        self.text += (BOS if bos else "") + text
        self.ids += ids
        self.labels += ids if trained else [IGNORE] * len(ids)
        return self


# Axolotl

def axolotl_alpaca(record):
    preamble = "Below is an instruction that describes a task"
    if record.get("input"):
        preamble += ", paired with an input that provides further context"
    prompt = preamble + ". Write a response that appropriately completes the request.\n\n"
    prompt += f"### Instruction:\n{record['instruction']}\n\n"
    if record.get("input"):
        prompt += f"### Input:\n{record['input']}\n\n"
    return Sample().add(prompt + "### Response:\n", False, bos=True).add(record["output"] + EOS, True)


def axolotl_completion(record):
    return Sample().add(record["text"] + EOS, True, bos=True)


def axolotl_chatml(messages):
    sample = Sample()
    for message in messages:
        trained = message["role"] == "assistant"
        sample.add(f"<|im_start|>{message['role']}\n", False)
        sample.add(message["content"] + "<|im_end|>", trained).add("\n", False)
    return sample


def axolotl_llama3(messages):
    sample = Sample().add(BOS, False)
    for message in messages:
        sample.add(f"<|start_header_id|>{message['role']}<|end_header_id|>\n\n", False)
        sample.add(message["content"].strip() + "<|eot_id|>", message["role"] == "assistant")
    return sample


ALPACA_SYSTEM = ("Below is an instruction that describes a task{}. Write a response that "
                 "appropriately completes the request.")
WITH_INPUT = ", paired with an input that provides further context"


def axolotl_prompt(prompt, answer):
    return Sample().add(prompt, False, bos=True).add(answer + EOS, True)


def axolotl_chat(record, system):
    """AlpacaPrompter in the style CHAT."""
    more = record["input"] + "\n" if record.get("input") else ""
    head = f"SYSTEM: {system}\n" if system else ""
    return axolotl_prompt(f"{head}USER: {record['instruction']}\n{more}ASSISTANT:", record["output"])


def axolotl_map(record, format, no_input_format, system_format=""):
    """UserDefinedPrompter: Python's own format."""
    head = system_format.format(system=record["rules"]) if record.get("rules") else ""
    turn = format if record.get("more") else no_input_format
    return axolotl_prompt(head + turn.format(instruction=record["ask"], input=record.get("more")),
                          record["reply"])


def axolotl_qwen25(messages):
    if messages[0]["role"] != "system":
        messages = [{"role": "system",
                     "content": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
                    *messages]
    return axolotl_chatml(messages)


# LLaMA-Factory: (prefix, default system text, system, user with the head of the answer, answer);
# a system text of None becomes a part of the first question.

CHATML = ("<|im_start|>system\n{}<|im_end|>\n",
          "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "{}<|im_end|>\n")
ROLE = "<|start_of_role|>{}<|end_of_role|>"
HEADER4 = "<|header_start|>{}<|header_end|>\n\n"
HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
VICUNA = ("A chat between a curious user and an artificial intelligence assistant. The assistant "
          "gives helpful, detailed, and polite answers to the user's questions.")
FACTORY = {
    "alpaca": ("", "Below is an instruction that describes a task. Write a response that "
               "appropriately completes the request.\n\n", "{}",
               "### Instruction:\n{}\n\n### Response:\n", "{}" + EOS + "\n\n"),
    "chatml": ("", "", *CHATML),
    "deepseek3": (BOS, "", "{}", "<｜User｜>{}<｜Assistant｜>", "{}" + EOS),
    "default": ("", "", "System: {}" + EOS + "\n", "Human: {}" + EOS + "\nAssistant:",
                "{}" + EOS + "\n"),
    "gemma": (BOS, "", "{}\n\n", "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
              "{}<end_of_turn>\n"),
    "gemma3": (BOS, "", "{}\n\n", "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
               "{}<end_of_turn>\n"),
    "granite3": ("", "", ROLE.format("system") + "{}<|end_of_text|>\n",
                 ROLE.format("user") + "{}<|end_of_text|>\n" + ROLE.format("assistant"),
                 "{}<|end_of_text|>\n"),
    "intern_s1": ("", "", *CHATML),
    "llama2": ("", "", "<<SYS>>\n{}\n<</SYS>>\n\n", BOS + "[INST] {} [/INST]", "{}" + EOS),
    "llama3": (BOS, "", HEADER.format("system") + "{}<|eot_id|>",
               HEADER.format("user") + "{}<|eot_id|>" + HEADER.format("assistant"), "{}<|eot_id|>"),
    "llama4": (BOS, "", HEADER4.format("system") + "{}<|eot|>",
               HEADER4.format("user") + "{}<|eot|>" + HEADER4.format("assistant"), "{}<|eot|>"),
    "ministral": (BOS, "", "{}\n\n", "[INST]{}[/INST]", "{}" + EOS),
    "mistral_small": (BOS, "", "[SYSTEM_PROMPT]{}[/SYSTEM_PROMPT]", "[INST]{}[/INST]", "{}" + EOS),
    "mistral": (BOS, "", "{}\n\n", "[INST] {}[/INST]", " {}" + EOS),
    "phi": ("", "", "<|system|>\n{}<|end|>\n", "<|user|>\n{}<|end|>\n<|assistant|>\n",
            "{}<|end|>\n"),
    "phi4": ("", "", "<|im_start|>system<|im_sep|>{}<|im_end|>",
             "<|im_start|>user<|im_sep|>{}<|im_end|><|im_start|>assistant<|im_sep|>",
             "{}<|im_end|>"),
    "qwen": ("", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", *CHATML),
    "qwen3_nothink": ("", "", *CHATML),
    "smollm": ("", "", *CHATML),
    "vicuna": ("", VICUNA, "{}", "USER: {} ASSISTANT:", "{}" + EOS),
    "yi": ("", "", *CHATML),
    "zephyr": ("", "You are Zephyr, a helpful assistant.", "<|system|>\n{}" + EOS,
               "<|user|>\n{}" + EOS + "<|assistant|>\n", "{}" + EOS),
}
SYSTEM_IN_QUESTION = {"gemma", "gemma3", "llama2", "ministral", "mistral"}


def factory(template, messages):
    prefix, system, format_system, format_user, format_answer = FACTORY[template]
    if messages[0]["role"] == "system":
        system, messages = messages[0]["content"], messages[1:]
    shown = format_system.format(system) if system else ""
    sample = Sample()
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            sample.add(format_answer.format(message["content"]), True)
            continue
        content, head = message["content"], ""
        if i == 0:
            head = prefix
            if template in SYSTEM_IN_QUESTION:
                content = shown + content
            else:
                head += shown
        sample.add(head + format_user.format(content), False)
    return sample


def alpaca_messages(record):
    messages = []
    if record.get("system"):
        messages.append({"role": "system", "content": record["system"]})
    for question, answer in record.get("history", []):
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    query = "\n".join(part for part in (record["instruction"], record.get("input")) if part)
    messages.append({"role": "user", "content": query})
    return messages + [{"role": "assistant", "content": record["output"]}]


def sharegpt_messages(record):
    roles = {"system": "system", "human": "user", "gpt": "assistant"}
    return [{"role": roles[m["from"]], "content": m["value"]} for m in record["conversations"]]


# TRL: prompt and completion are tokenized as one text.

def trl_text(record):
    return Sample().add(record["text"] + EOS, True, bos=True)


def trl_prompt_completion(record):
    return Sample().add(record["prompt"], False, bos=True).add(record["completion"] + EOS, True)


GENERATION = ("{% for m in messages %}<|im_start|>{{ m.role }}\n"
              "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}"
              "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}\n\n{% endfor %}"
              "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")

ALPACA = [{"instruction": "Say ab.", "input": "", "output": "ab, 'so' <it> is."},
          {"instruction": "Add.", "input": "1 & 2\n3", "output": "6\n"}]
SYSTEM = [{"instruction": "Say ab.", "input": "", "output": "No.", "system": "Be brief."},
          {"instruction": "Again.", "input": "x", "output": "ab", "history": [["Hi", "Hello"]]}]
TALK = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " Hi ab "},
        {"role": "assistant", "content": " Hello. "}, {"role": "user", "content": "More"},
        {"role": "assistant", "content": "No, {content}."}]
SHARE = {"conversations": [{"from": {"system": "system", "user": "human", "assistant": "gpt"}[m["role"]],
                            "value": m["content"]} for m in TALK]}
PROMPT = {"prompt": "The sky\n", "completion": "is ab."}

AXOLOTL = "base_model: m\nsequence_len: 4096\ndatasets:\n  - path: data.jsonl\n"
FACTORY_CONFIG = "stage: sft\nfinetuning_type: lora\ndataset: data.jsonl\ncutoff_len: 4096\n"
TRL = "model_name_or_path: m\nuse_peft: true\ndataset_name: data.jsonl\nmax_length: 4096\n"


def cases():
    for record in ALPACA:
        yield "axolotl", AXOLOTL + "    type: alpaca\n", record, axolotl_alpaca(record), {}
    text = {"text": "Once ab upon.\n\nEnd"}
    yield "axolotl", AXOLOTL + "    type: completion\n", text, axolotl_completion(text), {}
    messages = {"messages": TALK}
    chat = AXOLOTL + "    type: chat_template\n"
    yield "axolotl", chat + "chat_template: chatml\n", messages, axolotl_chatml(TALK), {}
    yield "axolotl", chat + "chat_template: llama3\n", messages, axolotl_llama3(TALK), {}
    yield ("axolotl", chat + "chat_template: tokenizer_default\n", messages,
           axolotl_chatml(TALK), {"template": "chatml"})
    share = ("    field_messages: conversations\n    message_property_mappings:\n      role: from\n"
             "      content: value\n")
    yield "axolotl", chat + share + "chat_template: chatml\n", SHARE, axolotl_chatml(TALK), {}
    yield "axolotl", chat + "chat_template: qwen_25\n", messages, axolotl_qwen25(TALK), {}
    short = {"messages": TALK[1:3]}
    yield "axolotl", chat + "chat_template: qwen_25\n", short, axolotl_qwen25(TALK[1:3]), {}
    for record in ALPACA:
        system = ALPACA_SYSTEM.format(WITH_INPUT if record["input"] else "")
        yield ("axolotl", AXOLOTL + "    type: alpaca_chat.load\n", record,
               axolotl_chat(record, system), {"template": "chatml"})
        asked = {"question": record["instruction"], "answer": record["output"]}
        yield ("axolotl", AXOLOTL + "    type: alpaca_chat.load_qa\n", asked,
               axolotl_chat({**record, "input": ""}, ALPACA_SYSTEM.format("")), {})
        for system in ("", "Be brief."):
            full = {**record, "system": system}
            yield ("axolotl", AXOLOTL + "    type: alpaca_w_system.load_chat\n", full,
                   axolotl_chat(record, system), {})
            head = system + "\n\n" if system else ""
            more = f"### Input:\n{record['input']}\n\n" if record["input"] else ""
            yield ("axolotl", AXOLOTL + "    type: alpaca_w_system.load_instruct\n", full,
                   axolotl_prompt(f"{head}### Instruction:\n{record['instruction']}\n\n{more}"
                                  "### Response:\n", record["output"]), {})
            orca = {"system_prompt": system, "question": "Add.", "response": "ab"}
            head = f"### System:\n{system}\n" if system else ""
            yield ("axolotl", AXOLOTL + "    type: alpaca_w_system.load_open_orca\n", orca,
                   axolotl_prompt(f"{head}### Human:\nAdd.\n### Assistant:\n", "ab"), {})
    fields = {"field_instruction": "ask", "field_input": "more", "field_output": "reply"}
    for formats in ({"format": "[INST] {instruction} {input} [/INST]",
                     "no_input_format": "[INST] {instruction} [/INST]"},
                    {"format": "{{q}} {instruction}\nWith [{input}]", "no_input_format":
                     "{{q}} {instruction}\nAlone", "system_format": "<<{system}>>[sys]"},
                    # Letters that share their first byte, or their last, where the formats part.
                    {"format": "Вопрос: {instruction}\nВвод: {input}\nОтвет:",
                     "no_input_format": "Вопрос: {instruction}\nОтвет:"},
                    {"format": "{instruction} {input} с:", "no_input_format": "{instruction} Ё:"}):
        kind = {**fields, **formats}
        if "system_format" in formats:
            kind["field_system"] = "rules"
        for record in ({"ask": "Say ab.", "reply": "ab"},
                       {"ask": "Add.", "more": "1 2", "reply": "3", "rules": "Be kind."}):
            yield ("axolotl", AXOLOTL + "    type: " + json.dumps(kind) + "\n", record,
                   axolotl_map(record, **formats), {"template": "chatml"})
    # An Alpaca data set keeps its text, whatever template the model has.
    yield ("axolotl", AXOLOTL + "    type: alpaca\n", ALPACA[1], axolotl_alpaca(ALPACA[1]),
           {"template": "chatml"})

    for name in FACTORY:
        config = FACTORY_CONFIG + f"template: {name}\n"
        for record in ALPACA + SYSTEM if name in ("alpaca", "qwen") else ALPACA[1:]:
            yield "llama-factory", config, record, factory(name, alpaca_messages(record)), {}
        yield "llama-factory", config, SHARE, factory(name, sharegpt_messages(SHARE)), {}

    for template in ({}, {"template": "chatml"}):
        yield "trl", TRL, PROMPT, trl_prompt_completion(PROMPT), template
        yield "trl", TRL, text, trl_text(text), template
    listed = {"prompt": TALK[:2], "completion": TALK[2:3]}
    yield "trl", TRL, listed, axolotl_chatml(TALK[:3]), {"template": "chatml"}
    yield ("trl", TRL + "assistant_only_loss: true\n", messages, axolotl_chatml(TALK),
           {"template": GENERATION})
    # By default TRL trains every token of a conversation, and completions alone.
    everything = axolotl_chatml(TALK)
    everything.labels = list(everything.ids)
    for option in ("", "assistant_only_loss: false\ncompletion_only_loss: null\n"):
        yield "trl", TRL + option, messages, everything, {"template": "chatml"}
    yield ("trl", TRL + "assistant_only_loss: false\n", PROMPT, trl_prompt_completion(PROMPT), {})
    whole = trl_prompt_completion(PROMPT)
    whole.labels = list(whole.ids)
    yield "trl", TRL + "completion_only_loss: false\n", PROMPT, whole, {}


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/fixtures/layouts.jsonl")
    with open(out, "w") as file:
        for trainer, config, record, sample, more in cases():
            line = {"from": trainer, "config": config, **more, "record": record,
                    "text": sample.text, "ids": sample.ids, "labels": sample.labels}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


main()
