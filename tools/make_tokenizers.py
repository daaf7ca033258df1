#!/usr/bin/env python3
"""Trains and builds the small tokenizers of tests/fixtures, one of each structural kind.

    python3 tools/make_tokenizers.py [OUT]        (default tests/fixtures)

Deterministic, standard library only. Each folder gets a tokenizer.json; the expected ids come from
the real Hugging Face library: node tests/interop/tokenizer_diff.mjs --write-golden
"""
import collections
import json
import pathlib
import re
import sys

CORPUS = """
The tokenizer reads a word and looks for the longest pieces that it has seen. When there is no such
piece, it takes the letters one by one. That's all it does; it isn't magic, and it won't guess.
We'll train it on a few lines, they're short, and you'd better not expect more than that. I'm sure
you've seen better. In 1995 there were 12345 of them, in 2024 only 7, at 3.14 a piece.
    for (int i = 0; i < 100; ++i) {
        std::vector<int> values(i, 42);  // a comment
        total += values.size() * 2;
    }
def train(model, data):
    return [step(model, batch) for batch in data if batch is not None]
Le petit garçon a déjà mangé la crème brûlée à l'hôtel, où l'été ne finit pas. Ça va? Voilà!
Der Bär fährt über die Straße; größer, schöner, müde. Ελληνικά γράμματα και λέξεις. Привет, мир!
Это просто текст. 今日は良い天気です。明日も晴れるでしょう。你好，世界！这是一个测试。 안녕하세요 세계
مرحبا بالعالم नमस्ते दुनिया 😀😀 👍🏽 👨‍👩‍👧‍👦 naïve café résumé
The end of the line is the start of the next one. The cat and the dog and the bird sat on the mat.
"""

META = "\u2581"
L3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
      r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = L3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_characters():
    """GPT-2's table: byte -> printable character."""
    own = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    rest = [b for b in range(256) if b not in own]
    return {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(rest)}


BYTE = byte_characters()


def train_bpe(words, symbols, merges_wanted):
    """words: Counter of tuples of symbols. Returns the pieces in id order and the merges."""
    pieces, merges = list(symbols), []
    words = dict(words)
    while len(merges) < merges_wanted:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        if "".join(best) not in pieces:
            pieces.append("".join(best))
        merged = {}
        for word, count in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    out.append("".join(best))
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            merged[tuple(out)] = merged.get(tuple(out), 0) + count
        words = merged
    return pieces, merges


def byte_level_model(merges_wanted):
    words = collections.Counter(re.findall(r" ?[^\W\d_]+| ?\d{1,3}| ?[^\s\w]+|\s+", CORPUS))
    words = {tuple(BYTE[b] for b in w.encode()): n for w, n in words.items()}
    return train_bpe(words, [BYTE[b] for b in range(256)], merges_wanted)


def sentencepiece_model(merges_wanted, byte_pieces):
    first = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_pieces else [])
    words = collections.Counter(re.findall(r" *[^ \n]+", CORPUS.replace("\n", " \n")))
    words = {tuple(w.replace(" ", META)): n for w, n in words.items()}
    seen = collections.Counter(c for w, n in words.items() for c in w * n)
    letters = [c for c, n in sorted(seen.items(), key=lambda x: (-x[1], x[0])) if n > 1]
    words = {w: n for w, n in words.items() if all(c in letters for c in w)}
    return train_bpe(words, first + letters, merges_wanted)


def added(token_id, content, **flags):
    token = dict(id=token_id, content=content, single_word=False, lstrip=False, rstrip=False,
                 normalized=False, special=True)
    return token | flags


def template(before, after, ids):
    special = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    single = [special(n) for n in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    single += [special(n) for n in after]
    return {"type": "TemplateProcessing", "single": single,
            "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in before + after}}


def bpe(pieces, merges, pairs=False, **flags):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False}
    model |= flags
    model["vocab"] = {piece: i for i, piece in enumerate(pieces)}
    model["merges"] = [list(m) for m in merges] if pairs else [" ".join(m) for m in merges]
    return model


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(use_regex, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True,
            "use_regex": use_regex}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


BYTE_DECODER = byte_level(True, True)
BYTE_POST = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
SPM_DECODER = sequence("decoders", replace(META, " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                       {"type": "Strip", "content": " ", "start": 1, "stop": 0})
METASPACE = {"type": "Metaspace", "replacement": META, "prepend_scheme": "always", "split": True}


def tokenizers():
    """name -> (tokenizer.json, tokenizer_config.json)."""
    out = {}

    def add(name, model, added_tokens=(), normalizer=None, pre=None, post=None, decoder=None, config=None):
        out[name] = ({"version": "1.0", "truncation": None, "padding": None,
                      "added_tokens": list(added_tokens), "normalizer": normalizer,
                      "pre_tokenizer": pre, "post_processor": post, "decoder": decoder,
                      "model": model}, config)

    pieces, merges = byte_level_model(150)
    n = len(pieces)
    two = [added(n, "<|begin|>"), added(n + 1, "<|end|>")]
    ids = {"<|begin|>": n, "<|end|>": n + 1}
    add("llama3", bpe(pieces + ["hello"], merges, ignore_merges=True),
        [added(n + 1, "<|begin|>"), added(n + 2, "<|end|>"),
         added(n + 3, "<|pad|>", special=False)],
        pre=sequence("pretokenizers", split({"Regex": L3}), byte_level(False)),
        post=sequence("processors", BYTE_POST,
                      template(["<|begin|>"], [], {"<|begin|>": n + 1})),
        decoder=BYTE_DECODER,
        config={"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>", "special": True},
                "pad_token": None, "chat_template": "{{ messages[0].content }}"})
    add("qwen2", bpe(pieces, merges, pairs=True),
        two + [added(n + 2, "<tool>", special=False), added(n + 3, "<too"), added(n + 4, "\u00e9t\u00e9", normalized=True)],
        normalizer={"type": "NFC"},
        pre=sequence("pretokenizers", split({"Regex": QWEN}), byte_level(False)),
        post=BYTE_POST, decoder=BYTE_DECODER)
    add("gpt2", bpe(pieces, merges), two, pre=byte_level(True),
        post=BYTE_POST, decoder=BYTE_DECODER)
    add("gpt2-prefix", bpe(pieces, merges, unk_token="<unk>"),
        two + [added(n + 2, "<mask>", lstrip=True)], pre=byte_level(True, True),
        post=template(["<|begin|>"], ["<|end|>"], ids), decoder=BYTE_DECODER)
    add("smollm2", bpe(pieces, merges), two,
        pre=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(True)),
        decoder=BYTE_DECODER)
    add("o200k", bpe(pieces, merges, ignore_merges=True), two,
        pre=sequence("pretokenizers", split({"Regex": O200K}), byte_level(False)),
        post=template(["<|begin|>"], ["<|end|>"], ids), decoder=BYTE_DECODER)
    add("splits", bpe(pieces, merges),
        two + [added(n + 2, "word", single_word=True, special=False),
               added(n + 3, "[L]", lstrip=True), added(n + 4, "[R]", rstrip=True),
               added(n + 5, "[B]", lstrip=True, rstrip=True, special=False),
               added(n + 6, "  ", special=False)],
        pre=sequence("pretokenizers",
                     {"type": "Punctuation", "behavior": "MergedWithPrevious"},
                     split({"String": "the"}, "MergedWithNext"),
                     {"type": "Digits", "individual_digits": False},
                     split({"Regex": r"\s?[A-Za-z\u00b5\u00c0-\u00d6]+|[\r\n]|\p{N}{2}+|\s+$"}),
                     split({"Regex": r"[^.]+"}, "Contiguous", True),
                     byte_level(False)),
        decoder=BYTE_DECODER)
    add("phi4", bpe(pieces, merges), two, pre=sequence("pretokenizers",
        split({"Regex": L3}, "Removed", True), byte_level(False)), decoder=BYTE_DECODER)
    add("falcon3", bpe(pieces, merges), two,
        pre=sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True),
                     {"type": "Digits", "individual_digits": True}, split({"Regex": "[0-9][0-9][0-9]"})),
        post=BYTE_POST, decoder=BYTE_DECODER)

    pieces, merges = sentencepiece_model(150, True)
    n = len(pieces)
    three = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")]
    flags = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    bos = template(["<s>"], [], {"<s>": 1})
    add("llama2", bpe(pieces, merges, **flags), three,
        normalizer=sequence("normalizers", {"type": "Prepend", "prepend": META}, replace(" ", META)),
        post=bos, decoder=SPM_DECODER,
        config={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    add("llama2-metaspace", bpe(pieces, merges, pairs=True, **flags),
        three + [added(n, "<|user|>", rstrip=True), added(n + 1, "[INST]", special=False, normalized=True)],
        pre=METASPACE | {"prepend_scheme": "first", "split": False},
        post=bos, decoder=SPM_DECODER)
    add("gemma", bpe(pieces, merges, **flags),
        three + [added(n, "<start>"), added(n + 1, "\n\n", special=False), added(pieces.index(META * 2), META * 2, special=False)],
        normalizer=replace(" ", META), pre=split({"String": " "}, "MergedWithPrevious"),
        post=bos, decoder=sequence("decoders", replace(META, " "), {"type": "ByteFallback"}, {"type": "Fuse"}))
    pieces, merges = sentencepiece_model(150, False)
    add("unknown", bpe(pieces, merges, unk_token="<unk>"), three,
        normalizer={"type": "NFKC"}, pre=METASPACE,
        post=template(["<s>"], ["</s>"], {"<s>": 1, "</s>": 2}),
        decoder={"type": "Metaspace", "replacement": META, "prepend_scheme": "always", "split": True})
    add("unknown-fused", bpe(pieces, merges, unk_token="<unk>", fuse_unk=True), three,
        normalizer=sequence("normalizers", {"type": "NFKC"}, replace("z", ""), replace("th", "T"), replace("x", "y"),
                            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
        pre=METASPACE | {"prepend_scheme": "first"})
    return out


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/fixtures"
    for name, (tokenizer, config) in tokenizers().items():
        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text + "\n")
        if config:
            (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        print(f"{name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
