#!/usr/bin/env python3
"""Writes the texts of the demo: stories for the base model, tales for the fine-tuning.

    python3 examples/make_corpus.py                    # examples/tales/{train,heldout}.jsonl
    python3 examples/make_corpus.py --stories 5        # prints five stories
    python3 examples/make_corpus.py --stories 200 --stream heldout --jsonl >stories.jsonl

Every text comes from a grammar (stories.txt, tales.txt) and a counter: text number i of a stream is
the same on every machine, whatever was generated before it. Only random.Random.random() is used,
whose sequence Python keeps from version to version.
"""

import argparse
import json
import pathlib
import random
import re

HERE = pathlib.Path(__file__).resolve().parent
SEED = 2024

PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
}
# The list that a slot is picked from, where it is not the slot's own name.
LIST_OF_SLOT = {"E": "relative", "W": "trade"}
CHOICE = re.compile(r"\[([^\[\]]*)\]")
RULE_OR_SLOT = re.compile(r"<([\w.]+)>|\{(a )?(\w+)(?:\.(\w+))?\}")
# Where a sentence begins. After !" and ?" it may go on ("Stop!" he said): the grammar decides.
SENTENCE = re.compile(r'((?:^|[.!?] |\." |\n)"?|[!?]" ")([a-z])')


def read_grammar(*names):
    """{rule: [alternative, ...]} of the files; the top of stories.txt describes their format."""
    rules = {}
    for name in names:
        for line in (HERE / name).read_text(encoding="ascii").splitlines():
            if line.startswith("@"):
                alternatives = rules.setdefault(line[1:], [])
            elif line and not line.startswith("#"):
                alternatives.append(line)
    return rules


def with_article(phrase):
    return ("an " if phrase[0] in "aeiouAEIOU" else "a ") + phrase


class Writer:
    """Writes one text: holds its random numbers and the words that its slots have received."""

    def __init__(self, rules, key):
        self.rules = rules
        self.random = random.Random(f"{SEED}/{key}")
        self.words = {}  # slot -> {"": word, "of": ..., "he": ..., "kind": ...}
        first = self.person("A")
        self.person("B", other_than=first)

    def pick(self, options):
        return options[int(self.random.random() * len(options))]

    def pick_new(self, rule):
        """An alternative of `rule` that no slot of this text holds yet."""
        used = {word[""] for word in self.words.values()}
        return self.pick([o for o in self.rules[rule] if o.split(" = ")[0] not in used])

    def person(self, slot, other_than=None):
        """Fills `slot` with a child or an animal; mostly of the other sex than `other_than`."""
        he = self.pick(["he", "she"])
        if other_than and self.random.random() < 0.6:
            he = "she" if other_than == "he" else "he"
        if self.random.random() < 0.7:
            kind = "girl" if he == "she" else "boy"
            name = self.pick_new(kind)
        else:
            kind = self.pick_new("animal")
            name = self.pick_new("pet")
        if self.random.random() < 0.25:
            name = self.coined_name()
        self.words[slot] = {"": name, "kind": kind, **PRONOUNS[he]}
        return he

    def number(self, low, high):
        return low + int(self.random.random() * (high - low))

    def coined_name(self):
        """A name that nobody has, such as Zelbrato."""
        onsets = "b br c d dr f fl g gr h j k l m n p qu r s st t tr v w x y z".split(" ")
        name = ""
        for _ in range(self.number(2, 4)):
            name += self.pick(onsets) + self.pick("aeiou")
        return (name + self.pick(["", *"lnrstkmx"])).capitalize()

    def new_word(self, rule):
        if rule == "number":
            return {"": str(self.number(2, 100))}
        if rule == "year":
            return {"": str(self.number(1400, 2000))}
        if rule == "coined":
            return {"": self.coined_name()}
        if rule == "sum":
            a, b = self.number(1, 50), self.number(1, 50)
            return {"": "", "a": str(a), "b": str(b), "of": str(a + b)}
        text, _, of = self.pick_new(LIST_OF_SLOT.get(rule, rule)).partition(" = ")
        he = of if of in PRONOUNS else self.pick(["he", "she"])
        return {"": text, "of": of, **PRONOUNS[he]}

    def word(self, slot):
        if slot not in self.words:
            self.words[slot] = self.new_word(slot.rstrip("0123456789"))
        return self.words[slot]

    def replacement(self, match):
        rule, article, slot, form = match.groups(default="")
        if rule:
            return self.expand(self.pick(self.rules[rule]))
        word = self.word(slot)
        if form == "spelled":
            text = ", ".join(word[""].replace(" ", "").lower())
        else:
            text = word[form] if form in word else word[form.lower()].capitalize()
        return with_article(text) if article else text

    def expand(self, text):
        """`text` with its choices, rules and slots replaced, from left to right."""
        while match := CHOICE.search(text):
            text = text[: match.start()] + self.pick(match[1].split("|")) + text[match.end() :]
        return RULE_OR_SLOT.sub(self.replacement, text)

    def write(self, text):
        text = self.expand(text).replace("\\n", "\n")
        return SENTENCE.sub(lambda m: m[1] + m[2].upper(), text)


def story(rules, key):
    """One story; before half of them stands the line that asks for it."""
    writer = Writer(rules, key)
    plot = writer.pick(rules["plots"])
    body = writer.write(f"<{plot}>")
    if writer.random.random() < 0.5:
        rules = {**rules, "topic": rules[plot + ".topic"]}
        writer.rules = rules
        return writer.write("<request>") + "\n" + body
    return body


def stories(stream, count):
    """`count` different stories. Streams: "train", "heldout"."""
    rules = read_grammar("stories.txt")
    return [story(rules, f"story/{stream}/{i}") for i in range(count)]


def tale(rules, key):
    """One record of the fine-tuning set: a request and its answer in the voice of a pirate."""
    writer = Writer(rules, key)
    plot = writer.pick(rules["tale.plots"])
    writer.rules = {**rules, "tale.thing": rules[plot + ".thing"]}
    prompt = writer.write("<tale.request>")
    return {"prompt": prompt, "completion": "\n" + writer.write(f"<tale.{plot}>")}


def tales(stream, count, but_not=()):
    """`count` different records, none with a prompt of `but_not`. Streams: "train", "heldout"."""
    rules = read_grammar("stories.txt", "tales.txt")
    taken = {record["prompt"] for record in but_not}
    records, i = {}, 0
    while len(records) < count:
        record = tale(rules, f"tale/{stream}/{i}")
        if record["prompt"] not in taken:
            records[json.dumps(record)] = record
        i += 1
    return list(records.values())


def write_jsonl(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="ascii")
    print(f"{path}: {len(records)} lines, {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stories", type=int, metavar="N", help="print N stories and stop")
    parser.add_argument("--stream", choices=["train", "heldout"], default="train",
                        help="the stories that the base model was trained on, or others")
    parser.add_argument("--jsonl", action="store_true", help='a line {"text": ...} for each story')
    args = parser.parse_args()
    if args.stories:
        texts = stories(args.stream, args.stories)
        if args.jsonl:
            texts = [json.dumps({"text": text}) for text in texts]
        print(("\n" if args.jsonl else "\n\n").join(texts))
        return
    train = tales("train", 1500)
    write_jsonl(HERE / "tales" / "train.jsonl", train)
    write_jsonl(HERE / "tales" / "heldout.jsonl", tales("heldout", 100, but_not=train))


if __name__ == "__main__":
    main()
