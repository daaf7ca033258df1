#!/usr/bin/env python3
"""What may differ between a document and a run, and what may not."""

import unittest

import matching


class MatchingTest(unittest.TestCase):
    def same(self, shown, found):
        self.assertTrue(matching.Line(shown).matches(found), f"{shown!r} against {found!r}")

    def differs(self, shown, found):
        self.assertFalse(matching.Line(shown).matches(found), f"{shown!r} against {found!r}")

    def test_words_are_exact(self):
        self.same("prompt layout: Alpaca text", "prompt layout: Alpaca text")
        self.differs("prompt layout: Alpaca text", "prompt layout: chat template")
        self.differs("q8_0", "q4_0")
        self.differs("done", "done now")

    def test_counts_are_exact(self):
        self.same("36 of 40 records", "36 of 40 records")
        self.differs("36 of 40 records", "35 of 40 records")
        self.differs("34,680 tokens", "34,681 tokens")
        self.differs("step=20/40", "step=21/40")
        self.differs("tokens 23", "tokens 23.5")

    def test_losses_are_within_a_percent(self):
        self.same("loss=4.9764", "loss=4.9301")
        self.differs("loss=4.9764", "loss=4.9201")
        self.same("rmse 7.2208e-03", "rmse 7.2211e-03")
        self.differs("rmse 7.2208e-03", "rmse 7.3208e-03")
        self.differs("rmse 7.2208e-03", "rmse 7.2208e-02")

    def test_a_unit_of_the_last_digit_may_differ(self):
        self.same("accuracy 0.01", "accuracy 0.02")
        self.differs("accuracy 0.01", "accuracy 0.03")
        self.same("differ by 1.2e-03", "differ by 1.3e-03")

    def test_times_and_speeds_are_not_compared(self):
        self.same("1.2 s, 5120 tokens/s", "35 s, 7.5 tokens/s")
        self.same("tokens_per_second=6613 limit_share=0.71 eta=4s", "tokens_per_second=12 limit_share=0.002 eta=41s")
        self.same('"elapsed":0.012,"epoch":1', '"elapsed":3.5e-05,"epoch":1')
        self.same("seconds             0.02          0.04", "seconds  1.50  12.25")
        self.same("memory=45MiB", "memory=1045MiB")
        self.differs("1.2 s", "1.2 MiB")

    def test_sizes_are_similar(self):
        self.same("weights   594 KiB", "weights  1.0 MiB")
        self.differs("weights   594 KiB", "weights  1.2 MiB")
        self.differs("weights   594 KiB", "weights  594 GiB")

    def test_versions_and_hashes_are_not_compared(self):
        self.same("qlora 0.1.0 (8442cfd4498f)", "qlora 0.2.0+31 (31646b20aa01-dirty)")
        self.differs("qlora 0.1.0", "qlora")

    def test_white_space_may_be_wider(self):
        self.same("loss  6.00      1.50", "loss      6.00  1.50")
        self.differs("loss 6.00", "loss6.00")

    def test_dots_stand_for_text(self):
        self.same("disk: 640 MiB needed, ... free", "disk: 640 MiB needed, 71.09 GiB free")
        self.differs("disk: 640 MiB needed, ... free", "disk: 640 MiB needed")

    def test_dots_stand_for_lines(self):
        self.assertEqual(matching.align(["a", "...", "d"], ["a", "b", "c", "d"]), [(" ", "a"), (" ", "..."), (" ", "d")])
        self.assertEqual(matching.align(["...", "d"], ["d"]), [(" ", "..."), (" ", "d")])

    def test_a_difference_keeps_what_is_right(self):
        found = ["loss 2.0", "new line", "took 9 s", "x", "end"]
        self.assertEqual(
            matching.align(["loss 1.0", "took 3 s", "...", "end"], found),
            [("-", "loss 1.0"), ("+", "loss 2.0"), ("+", "new line"), (" ", "took 3 s"), (" ", "..."), (" ", "end")],
        )

    def test_a_line_that_changed_is_found_behind_others(self):
        found = ["memory plan", "weights 603 KiB", "peak 44.6 MiB (train 44.6 MiB)", "step 1"]
        self.assertEqual(
            matching.align(["...", "peak 44.6 MiB (train ?)", "step 1"], found),
            [(" ", "..."), ("-", "peak 44.6 MiB (train ?)"), ("+", found[2]), (" ", "step 1")],
        )


if __name__ == "__main__":
    unittest.main()
