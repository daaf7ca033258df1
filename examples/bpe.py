"""A byte-level BPE tokenizer: training, encoding, and the tokenizer.json of Hugging Face.

The scheme is GPT-2's: the text is cut into words by a regular expression, every byte of a word is
written as one printable character, and pairs of symbols are merged in the order in which training
found them. Text must be ASCII here, because Python's `re` has no \\p{L}; the file that is written
works for any text.
"""

import collections
import json
import re

SPECIAL_TOKENS = ["<pad>", "<s>", "</s>"]  # ids 0, 1, 2
BOS, EOS = 1, 2
# GPT-2's expression, with \p{L} and \p{N} written for ASCII.
WORD = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
)


def byte_characters():
    """{byte: the printable character that stands for it}: itself, or one from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    characters = {b: chr(b) for b in visible}
    characters.update({b: chr(256 + i) for i, b in enumerate(hidden)})
    return characters


BYTE_TO_CHARACTER = byte_characters()
CHARACTER_TO_BYTE = {c: b for b, c in BYTE_TO_CHARACTER.items()}


def merge(symbols, pair):
    """`symbols` with every occurrence of `pair`, from the left, made one symbol."""
    out, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


class Tokenizer:
    """Vocabulary: the special tokens, the 256 bytes, then one token for each merge."""

    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]
        self.rank = {pair: i for i, pair in enumerate(self.merges)}
        tokens = SPECIAL_TOKENS + sorted(CHARACTER_TO_BYTE) + [a + b for a, b in self.merges]
        self.id_of = {token: i for i, token in enumerate(tokens)}
        self.tokens = tokens
        self.cache = {}  # word -> ids

    @classmethod
    def train(cls, texts, vocab_size):
        """Merges the most frequent pair, of equal ones the first, until the vocabulary is full."""
        counts = collections.Counter(word for text in texts for word in WORD.findall(text))
        words = {word: [BYTE_TO_CHARACTER[b] for b in word.encode()] for word in counts}
        merges = []
        while len(SPECIAL_TOKENS) + 256 + len(merges) < vocab_size:
            pairs = collections.Counter()
            for word, symbols in words.items():
                for pair in zip(symbols, symbols[1:]):
                    pairs[pair] += counts[word]
            best = min(pairs, key=lambda pair: (-pairs[pair], pair))
            merges.append(best)
            words = {word: merge(symbols, best) for word, symbols in words.items()}
        return cls(merges)

    @classmethod
    def load(cls, path):
        model = json.loads(path.read_text(encoding="utf-8"))["model"]
        return cls(line.split(" ") for line in model["merges"])

    def encode(self, text):
        """Ids of `text` without <s> and </s>."""
        ids = []
        for word in WORD.findall(text):
            if word not in self.cache:
                symbols = [BYTE_TO_CHARACTER[b] for b in word.encode("ascii")]
                while pairs := set(zip(symbols, symbols[1:])) & self.rank.keys():
                    symbols = merge(symbols, min(pairs, key=self.rank.get))
                self.cache[word] = [self.id_of[symbol] for symbol in symbols]
            ids += self.cache[word]
        return ids

    def decode(self, ids):
        """The text of `ids`; special tokens are left out."""
        characters = "".join(self.tokens[i] for i in ids if i >= len(SPECIAL_TOKENS))
        return bytes(CHARACTER_TO_BYTE[c] for c in characters).decode("utf-8", "replace")

    def save(self, path):
        """Writes tokenizer.json; its post-processor puts <s> before every text."""
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        }
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
        tokenizer = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": i, "content": token, **flags, "special": True}
                for i, token in enumerate(SPECIAL_TOKENS)
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [
                    bos,
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "<s>", "type_id": 1}},
                    {"Sequence": {"id": "B", "type_id": 1}},
                ],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
            },
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self.id_of,
                "merges": [f"{a} {b}" for a, b in self.merges],
            },
        }
        text = json.dumps(tokenizer, indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
