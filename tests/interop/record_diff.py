#!/usr/bin/env python3
"""Compares how chat templates render random records here and with Python's jinja2.

  QLORA_RECORDS=20000 QLORA_RENDERINGS=renderings.jsonl \\
    build/release/bin/data_tests --gtest_filter='RecordGenerator*'
  tests/interop/record_diff.py renderings.jsonl

The records of the file say all that they say in messages and tools, in the form that transformers takes. Their text must be
that of jinja2, for one of the forms that a turn of calls without words may have (no content, null, ""), perhaps with the
prompt of a turn before the last answer, which says more than the conversation; what jinja2 refuses in all of them must be
refused here, or be given in another form that the line names under "readings". Exits with 1 where texts differ.
"""
import copy
import json
import sys
from collections import Counter

from chat_jinja2 import render

NOW = [2024, 1, 1, 0, 0, 0]  # the day of the test
SHOWN = 5
EXPECTED = ("equal", "equal but for the prompt of the last answer", "given in another form", "refused by both")


def forms(messages):
    """Yields the messages with each form of a content that says nothing beside calls."""
    yield messages
    silent = [m for m, message in enumerate(messages) if message.get("tool_calls") and not message.get("content")]
    if not silent:
        return
    for content in ("", None, ...):
        changed = copy.deepcopy(messages)
        for m in silent:
            changed[m].pop("content", None)
            if content is not ...:
                changed[m]["content"] = content
        yield changed


def render_messages(line, messages, prompts=False):
    variables = {"messages": messages, "tools": line["tools"] or None, "documents": None,
                 "add_generation_prompt": prompts, "bos_token": "<s>", "eos_token": "</s>"}
    return render({"template": line["template"], "variables": variables, "now": NOW})


def texts_of(line):
    """Returns the texts of jinja2, and the last refusal."""
    texts, refusal = [], None
    for messages in forms(line["messages"]):
        try:
            texts.append(render_messages(line, messages))
        except Exception as error:  # whatever the template provokes
            refusal = f"{type(error).__name__}: {error}"
    return texts, refusal


def has_whole_prompt(line, texts):
    """True for a text of jinja2 with the prompt of the last answer in the place of the beginning that it shares with it."""
    for messages in forms(line["messages"]):
        try:
            prompt = render_messages(line, messages[:-1], prompts=True)
        except Exception:  # whatever the template provokes
            continue
        answer = line["text"].removeprefix(prompt)
        if answer == line["text"] or not answer:
            continue
        if any(text.endswith(answer) and prompt.startswith(text.removesuffix(answer)) for text in texts):
            return True
    return False


def judge(line):
    texts, refusal = texts_of(line)
    if "error" in line:
        return f"refused here alone: {line['error'][:120]}" if texts else "refused by both"
    if line["text"] in texts:
        return "equal"
    if has_whole_prompt(line, texts):
        return "equal but for the prompt of the last answer"
    if line["readings"]:
        return "given in another form"
    return "texts differ" if texts else f"refused by jinja2 alone: {refusal[:120]}"


def main():
    counts, shown = Counter(), 0
    with open(sys.argv[1], encoding="utf-8") as file:
        for text in file:
            line = json.loads(text)
            verdict = judge(line)
            name = line["template"].rsplit("/", 1)[-1]
            counts[verdict if verdict in EXPECTED else f"{name}: {verdict}"] += 1
            if verdict == "texts differ" and shown < SHOWN:
                shown += 1
                print(f"-- {name}\n{json.dumps(line['messages'], ensure_ascii=False)}\nhere:\n{line['text']}\n"
                      f"jinja2:\n{texts_of(line)[0][0]}")
    for verdict, count in counts.most_common():
        print(f"{count:8} {verdict}")
    return 1 if any("texts differ" in verdict for verdict in counts) else 0


if __name__ == "__main__":
    sys.exit(main())
