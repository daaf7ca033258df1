// Training in a terminal of 80 columns.
#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>

#include "cli/pseudo_terminal.h"
#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

using TrainTerminalTest = TinyModelTest;

// The width of what a terminal shows of a line: without sequences of control characters.
std::int64_t ShownWidth(const std::string& line) {
  std::int64_t width = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      while (i < line.size() && line[i] != 'm' && line[i] != 'K') ++i;
    } else if ((line[i] & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

TEST_F(TrainTerminalTest, EveryLineFitsAndLoggedStepsStay) {
  const std::string records = ReadAll(scratch_ / "data.jsonl");
  std::string heldout;
  for (int i = 0; i < 200; ++i) heldout += records;
  Write("heldout.jsonl", heldout);
  PseudoTerminal terminal(
      scratch_, {"train", "base.yaml", "--max_steps=12", "--logging_steps=4", "--warmup_steps=10",
                 "--eval_dataset=heldout.jsonl", "--eval_steps=6"});
  std::string shown;
  EXPECT_EQ(terminal.End(&shown), 0) << shown;
  for (const char* part : {"\nwarning: warm-up takes ", "\r\033[Kstep 4/12  loss ",
                           "\r\033[K4/12 [==", "\r\033[Kevaluating [", "\r\033[Keval step 6  loss ",
                           "\nto try it: qlora generate"}) {
    EXPECT_THAT(shown, HasSubstr(part));
  }
  std::replace(shown.begin(), shown.end(), '\r', '\n');
  std::istringstream lines(shown);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(ShownWidth(line), 80) << line;
}

TEST_F(TrainTerminalTest, LinesOfOtherVerbsFit) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  Write("axolotl.yaml",
        "base_model: model\nmicro_batch_size: 2\ndatasets:\n  - path: data.jsonl\n    type: "
        "completion\n\"odd\\e[31mkey\": 1\nflash_attention: true\ndeepspeed: ds.json\n");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"inspect", "model"},
        {"doctor"},
        {"migrate", "axolotl.yaml", "--out", "run.yaml"},
        {"export", "model", "m", "--adapter", "out", "--format", "hf", "--verify"}}) {
    PseudoTerminal terminal(scratch_, words);
    std::string shown;
    EXPECT_EQ(terminal.End(&shown), 0) << shown;
    EXPECT_THAT(shown, Not(HasSubstr("\x1b[31m"))) << "a key of the file";
    std::replace(shown.begin(), shown.end(), '\r', '\n');
    std::istringstream lines(shown);
    for (std::string line; std::getline(lines, line);) {
      // A word is never broken: a path, a version.
      if (line.find(' ') == std::string::npos) continue;
      EXPECT_LE(ShownWidth(line), 80) << line;
    }
  }
}

TEST_F(TrainTerminalTest, HelpFollowsTheWidth) {
  PseudoTerminal terminal(scratch_, {"help", "train"}, 100);
  std::string shown;
  EXPECT_EQ(terminal.End(&shown), 0);
  std::istringstream lines(shown);
  std::int64_t widest = 0;
  for (std::string line; std::getline(lines, line, '\r');) {
    widest = std::max(widest, ShownWidth(line));
  }
  EXPECT_GT(widest, 90);
  EXPECT_LE(widest, 101) << "the line feed counts";
  const Outcome piped = Run({"help", "train"});
  std::istringstream text(piped.out);
  for (std::string line; std::getline(text, line);) EXPECT_LE(std::ssize(line), 80) << line;
}

}  // namespace
}  // namespace qlora
