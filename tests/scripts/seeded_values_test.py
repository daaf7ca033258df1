#!/usr/bin/env python3
"""bench/peers/seeded_values.py makes the weights and tokens of `qlora bench step`.

  seeded_values_test.py [QLORA]   with the program: a small model in plain Python has its first loss
"""
import json
import math
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"))
import seeded_values  # noqa: E402

QLORA = sys.argv.pop() if len(sys.argv) > 1 else None
HIDDEN, WIDE, HEADS, KV_HEADS, VOCAB, LENGTH = 32, 48, 4, 2, 61, 12
DIM = HIDDEN // HEADS


def matrix(values, rows, cols):
    """As SeededWeights.matrix."""
    width = 1 / math.sqrt(cols)
    return [[seeded_values.to_bfloat16(width * values[(r * seeded_values.ROW_STEP + c)
                                                      % seeded_values.COUNT])
             for c in range(cols)] for r in range(rows)]


def apply(weight, rows):
    return [[sum(w * x for w, x in zip(line, row)) for line in weight] for row in rows]


def norm(rows):
    return [[x / math.sqrt(sum(y * y for y in row) / len(row) + 1e-5) for x in row] for row in rows]


def rotate(row, at):
    """RoPE of the heads of one row."""
    out = []
    for head in range(0, len(row), DIM):
        x = row[head:head + DIM]
        for i in range(DIM):
            angle = at * 10000 ** (-2 * (i % (DIM // 2)) / DIM)
            other = -x[i + DIM // 2] if i < DIM // 2 else x[i - DIM // 2]
            out.append(x[i] * math.cos(angle) + other * math.sin(angle))
    return out


def attend(q, k, v):
    out = []
    for at, row in enumerate(q):
        mixed = []
        for head in range(HEADS):
            kv = head // (HEADS // KV_HEADS) * DIM
            mine = row[head * DIM:(head + 1) * DIM]
            scores = [sum(a * b for a, b in zip(mine, k[j][kv:kv + DIM])) / math.sqrt(DIM)
                      for j in range(at + 1)]
            parts = [math.exp(s - max(scores)) for s in scores]
            mixed += [sum(p * v[j][kv + i] for j, p in enumerate(parts)) / sum(parts)
                      for i in range(DIM)]
        out.append(mixed)
    return out


def add(a, b):
    return [[x + y for x, y in zip(r, s)] for r, s in zip(a, b)]


def first_loss():
    values = seeded_values.listed_values()
    ids = [seeded_values.token(i, VOCAB) for i in range(LENGTH)]
    table = matrix(values, VOCAB, HIDDEN)  # embedding and head
    square, kv = matrix(values, HIDDEN, HIDDEN), matrix(values, KV_HEADS * DIM, HIDDEN)
    wide, narrow = matrix(values, WIDE, HIDDEN), matrix(values, HIDDEN, WIDE)
    x = [table[i] for i in ids]
    n = norm(x)
    q = [rotate(row, at) for at, row in enumerate(apply(square, n))]
    k = [rotate(row, at) for at, row in enumerate(apply(kv, n))]
    x = add(x, apply(square, attend(q, k, apply(kv, n))))
    gate = apply(wide, norm(x))  # and up: matrices of one shape are equal
    act = [[g / (1 + math.exp(-g)) * g for g in row] for row in gate]
    x = add(x, apply(narrow, act))
    logits = apply(table, norm(x))
    losses = [math.log(sum(math.exp(z) for z in row)) - row[target]
              for row, target in zip(logits, ids[1:])]
    return sum(losses) / len(losses)


class SeededValues(unittest.TestCase):
    def test_words_are_those_of_the_publication(self):
        self.assertEqual(seeded_values.words(0, 0, 0),
                         [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
        ones = 2 ** 64 - 1
        self.assertEqual(seeded_values.words(ones, ones, ones),
                         [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD])

    def test_values_are_rounded_to_bfloat16(self):
        self.assertEqual(seeded_values.to_bfloat16(1 + 2.0 ** -8), 1.0)  # a tie, to even
        self.assertEqual(seeded_values.to_bfloat16(1 + 3 * 2.0 ** -8), 1 + 2.0 ** -6)

    @unittest.skipIf(QLORA is None, "no program given")
    def test_the_model_is_that_of_the_program(self):
        shape = dict(hidden_size=HIDDEN, intermediate_size=WIDE, num_hidden_layers=1,
                     num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, vocab_size=VOCAB,
                     lora_r=2, max_length=LENGTH, steps=1, warmup_steps=1)
        done = subprocess.run(
            [QLORA, "bench", "step", "--json", "--threads", "1", "--device", "cpu",
             "--load_in_4bit", "false", "--compute_dtype", "float32"] +
            ["--%s=%d" % item for item in shape.items()], capture_output=True, text=True, check=True)
        rows = json.loads(done.stdout)["results"]
        loss = next(row["value"] for row in rows if row["op"] == "loss of step 0")
        self.assertAlmostEqual(loss, first_loss(), delta=1e-4)


if __name__ == "__main__":
    unittest.main()
