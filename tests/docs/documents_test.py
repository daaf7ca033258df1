#!/usr/bin/env python3
"""How the blocks of a document are read, which form a smoke run has, and what is said not to exist."""

import pathlib
import tempfile
import unittest

import documents
import references

ROOT = pathlib.Path(__file__).resolve().parents[2]


class DocumentsTest(unittest.TestCase):
    def read(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "document.md")
            path.write_text(text, encoding="utf-8")
            return documents.read(path)[1]

    def test_comments_before_a_block_add_up(self):
        one, two, three = self.read(
            "<!-- needs: a, b/c -->\n<!-- run: first -->\n<!-- smoke: --n 1 -->\n```console\n$ x \\\n  --n 2\nout\n```\n"
            "<!-- needs: d -->\n\n```console\n$ y\n```\n")
        self.assertEqual((one.text, one.needs, one.smoke), ("first", ("a", "b/c"), ""))
        self.assertEqual((two.text, two.needs, two.smoke, two.output), ("x \\\n  --n 2", ("a", "b/c"), "--n 1", ["out"]))
        self.assertEqual((three.needs, three.smoke), ((), ""))

    def test_what_is_not_run_shows_no_output(self):
        self.assertEqual(self.read("<!-- not run: reason -->\n```console\n$ x\n```\n")[0].not_run, "reason")
        with self.assertRaises(documents.DocumentError):
            self.read("<!-- not run: reason -->\n```console\n$ x\nout\n```\n")

    def test_a_smoke_form_replaces_values_and_adds_the_rest(self):
        form = documents.smoke_form
        self.assertEqual(form("qlora-bench step --max_length 2048 --json  # slow", "--max-length 16 --steps 1"),
                         "qlora-bench step --max_length 16 --json --steps 1")
        self.assertEqual(form("T=avx512 qlora-bench \\\n  decode", "T=avx2 N=1 8"), "T=avx2 qlora-bench decode 8")
        self.assertEqual(form("x --busy --n 3", "--busy --n 1"), "x --busy --n 1")
        with self.assertRaises(documents.DocumentError):
            form("x | y", "--n 1")


class ReferencesTest(unittest.TestCase):
    def unknown(self, command):
        return references.unknown(ROOT, pathlib.Path("/nonexistent"), command)

    def test_scripts_and_their_options(self):
        self.assertEqual(self.unknown("scripts/same_bits.sh --programs && scripts/fuzz.sh 600"), [])
        self.assertEqual(self.unknown("scripts/same_bits.sh --programmes"), ["--programmes of scripts/same_bits.sh"])
        self.assertEqual(self.unknown("scripts/fuzzy.sh 600"), ["scripts/fuzzy.sh"])
        self.assertEqual(self.unknown("bench/peers/step.py --layers 4 --bases nf4 --compute_dtype bfloat16"), [])
        self.assertEqual(self.unknown("bench/peers/step.py --layer 4"), ["--layer of bench/peers/step.py"])

    def test_names_of_the_build(self):
        self.assertEqual(self.unknown("cmake --preset dev -DQLORA_PROGRAM=OFF && cmake --build --preset dev"), [])
        self.assertEqual(self.unknown("cmake --preset debug -DQLORA_PROGRAMS=OFF"), ["preset debug", "QLORA_PROGRAMS"])
        self.assertEqual(self.unknown("apt-get install -y g++ \\\n  libfmt-dev"), [])
        self.assertEqual(self.unknown("apt-get install libfmt"), ["libfmt in scripts/dependencies.sh"])


if __name__ == "__main__":
    unittest.main()
