// The program as a user meets it: help, wrong commands, exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/test_util.h"

namespace qlora {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

class ProgramTest : public ScratchTest {
 protected:
  Outcome Run(const Words& words, std::string_view input = "") {
    return RunQlora(scratch_, words, input);
  }
  // A command that must be refused before anything is done.
  std::string Refused(const Words& words) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, StartsWith("error: "));
    EXPECT_THAT(outcome.LastErrorLine(), HasSubstr("See: qlora help"));
    EXPECT_TRUE(fs::is_empty(scratch_));
    return outcome.err;
  }
};

TEST_F(ProgramTest, PrintsHelpAndVersion) {
  const Outcome program = Run({"--help"});
  EXPECT_EQ(program.code, 0);
  EXPECT_THAT(program.out, HasSubstr("Usage: qlora VERB"));
  EXPECT_EQ(program.err, "");
  EXPECT_EQ(Run({"help"}).out, program.out);
  EXPECT_EQ(Run({"help", "help"}).out, program.out);
  EXPECT_EQ(Run({"help", "version"}).out, program.out);
  const Outcome verb = Run({"train", "--help"});
  EXPECT_EQ(verb.code, 0);
  EXPECT_THAT(verb.out, HasSubstr("--learning_rate X"));
  EXPECT_EQ(Run({"help", "train"}).out, verb.out);
  EXPECT_EQ(Run({"--help", "train"}).out, verb.out);
  EXPECT_EQ(Run({"-h", "train"}).out, verb.out);
  EXPECT_THAT(Run({"--version"}).out, StartsWith("qlora "));
  EXPECT_EQ(Run({"version"}).out, Run({"--version"}).out);
  EXPECT_EQ(Run({"version"}).out, Run({"-v"}).out);
  EXPECT_TRUE(nlohmann::json::parse(Run({"version", "--json"}).out).contains("version"));
}

TEST_F(ProgramTest, PrintsManualPagesOfEveryVerb) {
  const Outcome page = Run({"man", "train"});
  EXPECT_EQ(page.code, 0) << page.err;
  EXPECT_THAT(page.out, StartsWith(".TH QLORA\\-TRAIN 1"));
  EXPECT_THAT(page.out, HasSubstr(".BI \\-\\-learning_rate \" X\"\n"));
  EXPECT_THAT(Run({"man"}).out, HasSubstr("\n.B config\\-schema\n"));
  EXPECT_THAT(Refused({"man", "trian"}), HasSubstr("unknown verb 'trian'"));
  const fs::path folder = scratch_ / "pages";
  ASSERT_EQ(Run({"man", "--output_dir", folder.string()}).code, 0);
  // Pages of its own are replaced, a file of someone else is not.
  ASSERT_EQ(Run({"man", "--output_dir", folder.string()}).code, 0);
  fs::create_directory(scratch_ / "mine");
  const fs::path mine = Write("mine/qlora-train.1", "precious\n");
  const Outcome refused = Run({"man", "--output_dir", "mine"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("mine/qlora-train.1 exists and was not written by `qlora man`"));
  EXPECT_EQ(ReadTextFile(mine), "precious\n");
  EXPECT_FALSE(fs::exists(scratch_ / "mine/qlora.1"));
  EXPECT_EQ(ReadTextFile(folder / "qlora-train.1"), page.out);
  EXPECT_TRUE(fs::exists(folder / "qlora.1"));
  EXPECT_TRUE(fs::exists(folder / "qlora-man.1"));
}

TEST_F(ProgramTest, PrintsCompletionsForShells) {
  EXPECT_THAT(Run({"completion", "bash"}).out, HasSubstr("export--outtype) words=\"f32 f16"));
  EXPECT_THAT(Run({"completion", "zsh"}).out, HasSubstr("'--outtype=["));
  EXPECT_THAT(Run({"completion", "fish"}).out, HasSubstr("-l outtype "));
  for (const char* shell : {"bash", "zsh", "fish"}) {
    EXPECT_THAT(Run({"completion", shell}).out, HasSubstr("Qwen3-8B")) << shell;
  }
  EXPECT_THAT(Run({"completion", "bash"}).out, HasSubstr("    resume) folders=1 ;;\n"));
  EXPECT_THAT(Run({"completion", "zsh"}).out, HasSubstr("'*:folder:_files -/'"));
  EXPECT_THAT(Run({"completion", "fish"}).out, HasSubstr("(__fish_complete_directories)"));
  EXPECT_THAT(Refused({"completion", "csh"}), HasSubstr("one of bash, zsh, fish"));
}

TEST_F(ProgramTest, NoVerbIsAnErrorThatShowsTheHelp) {
  const Outcome outcome = Run({});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("Usage: qlora VERB"));
}

TEST_F(ProgramTest, RefusesWrongCommands) {
  EXPECT_THAT(Refused({"trian"}), HasSubstr("unknown verb 'trian'; did you mean 'train'?"));
  EXPECT_THAT(Refused({"frobnicate"}),
              HasSubstr("the verbs are pull, train, resume, generate, chat"));
  EXPECT_THAT(Refused({"merge"}), HasSubstr("unknown verb 'merge': write `qlora export"));
  EXPECT_THAT(Refused({"--help", "finetune"}), HasSubstr("write `qlora train"));
  EXPECT_THAT(Refused({"help", "trian"}), HasSubstr("did you mean 'train'?"));
  EXPECT_THAT(Refused({"train", "--learning-rat", "1"}), HasSubstr("'learning_rate'?"));
  EXPECT_THAT(Refused({"train"}), HasSubstr("--model is missing"));
  EXPECT_THAT(Refused({"train", "--model", "m"}), HasSubstr("dataset is missing"));
  EXPECT_THAT(Refused({"train", "--model", "", "--dataset", "d"}), HasSubstr("--model is missing"));
  EXPECT_THAT(Refused({"train", "--lr", "1", "--lr", "2"}), HasSubstr("given twice"));
  EXPECT_THAT(Refused({"train", "--config", "absent.yaml"}), HasSubstr("absent.yaml"));
  EXPECT_THAT(Refused({"export", "m", "o", "--format", "onnx"}), HasSubstr("one of gguf"));
  EXPECT_THAT(Refused({"generate", "m"}), HasSubstr("a prompt is missing"));
  EXPECT_THAT(Refused({"eval", "m", "d", "--per_token"}), HasSubstr("add --json"));
  EXPECT_THAT(Refused({"eval", "m", "d", "--threads", "-1"}), HasSubstr("threads"));
  EXPECT_THAT(Refused({"tokenize", "m"}), HasSubstr("give one of"));
  EXPECT_THAT(Refused({"tokenize", "m", "--ids", "1,x"}), HasSubstr("'x'"));
}

TEST_F(ProgramTest, VersionTakesNoWords) {
  EXPECT_THAT(Refused({"version", "extra"}), HasSubstr("'extra'"));
  EXPECT_THAT(Run({"--version", "--json"}).out, HasSubstr("\"version\""));
}

TEST_F(ProgramTest, AnEmptyPromptIsRefused) {
  EXPECT_THAT(Refused({"generate", "m", "-"}), HasSubstr("standard input holds no text"));
}

// Only a command that could have changed files says that none were changed.
TEST_F(ProgramTest, SaysWhatToDo) {
  const std::string kUnchanged = "No files were changed. ";
  for (const auto& [words, advice] :
       {std::pair(Words{"train", "--x"}, kUnchanged + "See: qlora help train"),
        std::pair(Words{"export"}, kUnchanged + "See: qlora help export"),
        std::pair(Words{"inspect", "absent"}, std::string("See: qlora help inspect")),
        std::pair(Words{"trian"}, std::string("See: qlora help"))}) {
    EXPECT_EQ(Run(words).LastErrorLine(), advice);
  }
}

TEST_F(ProgramTest, JsonIsPrintedForErrorsToo) {
  for (const Words& words :
       {Words{"validate", "--json", "--nonsense"},
        Words{"plan", "--json", "--model", "absent", "--dataset", "d"},
        Words{"inspect", "absent", "--json"}, Words{"generate", "absent", "p", "--json=true"},
        Words{"eval", "absent", "d", "json=true"}, Words{"export", "absent", "o", "--json"},
        Words{"quantize", "absent", "o", "--json"}, Words{"doctor", "--json", "--nonsense"}}) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 2) << words[0];
    const nlohmann::json object = nlohmann::json::parse(outcome.out);
    EXPECT_FALSE(object.at("ok").get<bool>()) << words[0];
    EXPECT_EQ(object.at("exit_code"), 2) << words[0];
    EXPECT_THAT(outcome.err, HasSubstr(object.at("error").get<std::string>())) << words[0];
  }
  EXPECT_EQ(Run({"inspect", "absent", "--json", "false"}).out, "");
}

TEST_F(ProgramTest, SaysWhereMeasurementsAre) {
  EXPECT_THAT(Refused({"bench", "step"}), HasSubstr("qlora-bench"));
}

TEST_F(ProgramTest, MessagesMoveNoCursor) {
  const std::string err = Run({"inspect", "a\x1b[31mred\x7f\xc2\x9b"}).err;
  EXPECT_THAT(err, HasSubstr("a\\x1b[31mred\\x7f\\x9b"));
  EXPECT_EQ(err.find('\x1b'), std::string::npos);
}

TEST_F(ProgramTest, RefusesModelsThatAreNotThere) {
  for (const Words& words :
       {Words{"train", "--model", "absent", "--dataset", "d.jsonl"},
        Words{"generate", "absent", "prompt"}, Words{"chat", "absent"},
        Words{"eval", "absent", "d.jsonl"}, Words{"quantize", "absent", "out"},
        Words{"export", "absent", "out.gguf"}, Words{"tokenize", "absent", "text"}}) {
    EXPECT_THAT(Refused(words), HasSubstr("absent")) << words[0];
  }
}

TEST_F(ProgramTest, DoctorPrintsOneJsonObject) {
  const Outcome outcome = Run({"doctor", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_GE(report.at("cores").get<int>(), 1);
  EXPECT_GT(report.at("memory_total_bytes").get<std::int64_t>(), 0);
  EXPECT_FALSE(report.at("simd_target").get<std::string>().empty());
  EXPECT_FALSE(report.at("int8_kernels").get<std::string>().empty());
  EXPECT_GT(report.at("int8_speedup").at("forward").get<double>(), 0);
  EXPECT_FALSE(report.at("libraries").at("yaml-cpp").get<std::string>().empty());
  EXPECT_EQ(outcome.err, "");
  const Outcome text = Run({"doctor"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("usable"));
}

// The program starts when its reader has gone.
TEST_F(ProgramTest, AReaderThatGoesAwayIsNoError) {
  const std::string command = "cd " + scratch_.string() + " && { until [ -e gone ]; do :; done; " +
                              QloraBinary().string() +
                              " help train 2> err; echo $? > code; } | { exec <&-; : > gone; }";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(ReadAll(scratch_ / "code"), "141\n");
  EXPECT_EQ(ReadAll(scratch_ / "err"), "");
}

TEST_F(ProgramTest, AFullDeviceIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const std::string command =
      QloraBinary().string() + " doctor > /dev/full 2> " + (scratch_ / "err").string();
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(ReadAll(scratch_ / "err"),
              HasSubstr("standard output cannot be written: No space left on device"));
}

}  // namespace
}  // namespace qlora
