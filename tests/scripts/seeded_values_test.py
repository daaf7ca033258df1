#!/usr/bin/env python3
"""The generator of bench/peers/seeded_values.py is that of src/base/random.h."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"))
import seeded_values  # noqa: E402


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
        values = seeded_values.listed_values()
        self.assertEqual(len(values), 65472)
        self.assertTrue(all(-1 <= v <= 1 for v in values))
        self.assertLess(abs(sum(values) / len(values)), 0.01)

    def test_tokens_are_below_the_size_of_the_vocabulary(self):
        tokens = [seeded_values.token(i, 1000) for i in range(500)]
        self.assertTrue(all(0 <= t < 1000 for t in tokens))
        self.assertGreater(len(set(tokens)), 300)


if __name__ == "__main__":
    unittest.main()
