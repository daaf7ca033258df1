// Faults of the machine and of other programs: what the user is told, and what is left of the
// files.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "bound_by_permissions.h"
#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FaultTest : public TinyModelTest {
 protected:
  // Runs the program with some of its standard descriptors closed, as `qlora ... >&-` does.
  int RunClosed(const std::string& arguments, const std::string& closed) const {
    const std::string command = "cd " + scratch_.string() + " && " + QloraBinary().string() + " " +
                                arguments + " " + closed;
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Makes the model deep, with copies of its first layer, so that an export takes a while.
  void Deepen() const {
    static constexpr int kLayers = 64;
    const std::string first = "model.layers.0.";
    EditWeights([&](SafetensorsParts& parts) {
      const nlohmann::json before = parts.header;
      for (const auto& [name, tensor] : before.items()) {
        if (!name.starts_with(first)) continue;
        const auto begin = tensor["data_offsets"][0].get<std::size_t>();
        const auto end = tensor["data_offsets"][1].get<std::size_t>();
        for (int l = 2; l < kLayers; ++l) {
          nlohmann::json& copy =
              parts.header["model.layers." + std::to_string(l) + "." + name.substr(first.size())];
          copy = tensor;
          copy["data_offsets"] = {parts.data.size(), parts.data.size() + end - begin};
          parts.data += parts.data.substr(begin, end - begin);
        }
      }
    });
    EditJson(model() / "config.json",
             [](nlohmann::json& config) { config["num_hidden_layers"] = kLayers; });
  }
  // True when the program has an unfinished file of so many bytes in the test's folder open.
  bool WritesInScratch(pid_t program, off_t bytes) const {
    const fs::path descriptors = "/proc/" + std::to_string(program) + "/fd";
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(descriptors, ignored)) {
      const std::string target = fs::read_symlink(entry.path(), ignored).string();
      const bool unfinished =
          target.starts_with(scratch_.string() + "/#") || target.find(".tmp-") != std::string::npos;
      struct stat status = {};
      if (unfinished && stat(entry.path().c_str(), &status) == 0 && status.st_size >= bytes)
        return true;
    }
    return false;
  }
};

// Another folder of the name may have a checkpoint of that number, which is not this run's.
TEST_F(FaultTest, NoAdviceToResumeFromACheckpointOfAnotherFolder) {
  const Outcome run = RunQlora(
      scratch_, TrainWords({"--max_steps=1000000", "--save_steps=100"}), "", [&](pid_t program) {
        ASSERT_TRUE(HoldWhen(program, [&] {
          return ReadAll(scratch_ / ".stderr").find("checkpoint out/checkpoint-100\n") !=
                 std::string::npos;
        }));
        fs::rename(scratch_ / "out", scratch_ / "renamed");
        fs::copy(scratch_ / "renamed", scratch_ / "out", fs::copy_options::recursive);
        kill(program, SIGCONT);
      });
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("was renamed, removed or replaced while the run wrote to it"));
  EXPECT_THAT(run.err, Not(HasSubstr("to resume from it")));
}

TEST_F(FaultTest, MessagesOfClosedStreamsLandInNoFile) {
  EXPECT_EQ(RunClosed("train base.yaml --report_to csv", "<&- >&- 2>&-"), 0);
  for (const char* log : {"train_log.jsonl", "train_log.csv"}) {
    const std::string text = ReadAll(scratch_ / "out" / log);
    EXPECT_THAT(text, HasSubstr("loss")) << log;
    EXPECT_THAT(text, AllOf(Not(HasSubstr("adapter saved")), Not(HasSubstr("memory plan")))) << log;
  }
  EXPECT_EQ(RunClosed("doctor", ">&- 2>/dev/null"), 1);
}

TEST_F(FaultTest, AModelThatIsCutWhileItIsReadIsAnError) {
  const Outcome outcome =
      RunQlora(scratch_, TrainWords({"--max_steps", "1000000"}), "", [&](pid_t program) {
        ASSERT_TRUE(
            WaitUntil(program, [&] { return fs::exists(scratch_ / "out/train_log.jsonl"); }));
        fs::resize_file(model() / "model.safetensors", 0);
      });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("a file became shorter"));
}

TEST_F(FaultTest, ALimitOnFilesIsAnErrorAndLeavesNothing) {
  const int code = RunClosed("export model big.gguf", "2>err");
  EXPECT_EQ(code, 0);
  fs::remove(scratch_ / "big.gguf");
  fs::remove(scratch_ / "big.gguf.export_report.json");
  const std::string command = "cd " + scratch_.string() + " && ulimit -f 1 && " +
                              QloraBinary().string() + " export model big.gguf 2>/dev/null";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  for (const auto& entry : fs::directory_iterator(scratch_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("gguf")));
  }
}

TEST_F(FaultTest, ErrorsNameThePathThatWasGiven) {
  for (const char* words : {"export model made/it --format hf", "quantize model made/it",
                            "train base.yaml --save_quantized made/it"}) {
    const std::string command = "cd " + scratch_.string() + " && ulimit -f 1 && " +
                                QloraBinary().string() + " " + words + " 2>err";
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 1) << words;
    EXPECT_THAT(ReadAll(scratch_ / "err"),
                AllOf(HasSubstr("error: made/it/model.safetensors: cannot be written"),
                      Not(HasSubstr("unfinished"))))
        << words;
    EXPECT_TRUE(fs::is_empty(scratch_ / "made")) << words;
  }
}

// Every log outgrows the limit, and every checkpoint fits.
TEST_F(FaultTest, ALogThatCannotBeWrittenCostsNoRun) {
  const std::string command =
      "cd " + scratch_.string() + " && ulimit -f 64 && " + QloraBinary().string() +
      " train base.yaml --max_steps 400 --save_steps 390 --logging_steps 999 "
      "--report_to all --logging_dir logs --lora_r 1 "
      "--lora_target_modules q_proj 2>err";
  EXPECT_EQ(std::system(command.c_str()), 0);
  const std::string err = ReadAll(scratch_ / "err");
  for (const char* log :
       {"out/train_log.jsonl", "out/train_log.csv", "logs/events.out.tfevents."}) {
    const std::size_t at = err.find(std::string("warning: cannot write ") + log);
    ASSERT_NE(at, std::string::npos) << log << '\n' << err;
    EXPECT_EQ(err.find(std::string("cannot write ") + log, at + 20), std::string::npos) << log;
  }
  EXPECT_THAT(err, AllOf(HasSubstr("File too large; the run goes on, and writes no more to this "),
                         HasSubstr("checkpoint out/checkpoint-400"), HasSubstr("adapter saved")));
  EXPECT_EQ(Run({"report", "out", "--out", "page.html"}).code, 0);
  EXPECT_EQ(Run({"resume", "out", "--max_steps", "402", "--logging_dir", "logs"}).code, 0);
}

TEST_F(FaultTest, AFolderForLogsThatCannotBeMadeIsAMistake) {
  EXPECT_THAT(Refused(TrainWords({"--report_to", "tensorboard", "--logging_dir", "data.jsonl"})),
              HasSubstr("logging_dir data.jsonl is a file; choose a directory"));
}

// Killed while the file is open and has bytes.
TEST_F(FaultTest, AKilledExportLeavesNoFile) {
  const int nameless = open(scratch_.c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (nameless < 0) GTEST_SKIP() << "this file system has no files without a name";
  close(nameless);
  Deepen();
  bool killed = false;
  for (int tries = 0; tries < 20 && !killed; ++tries) {
    fs::remove(scratch_ / "out.gguf");
    RunQlora(scratch_, {"export", "model", "out.gguf"}, "", [&](pid_t program) {
      killed = HoldWhen(program, [&] { return WritesInScratch(program, 1); });
      kill(program, SIGKILL);
    });
  }
  ASSERT_TRUE(killed) << "the export was over before it was held";
  for (const auto& entry : fs::directory_iterator(scratch_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("gguf")));
  }
}

// A signal while the file is written leaves nothing, and the message says so.
TEST_F(FaultTest, AnInterruptedExportSaysThatNothingChanged) {
  Deepen();
  Outcome outcome;
  for (int tries = 0; tries < 20 && outcome.code != 130; ++tries) {
    fs::remove(scratch_ / "out.gguf");
    outcome = RunQlora(scratch_, {"export", "model", "out.gguf"}, "", [&](pid_t program) {
      HoldWhen(program, [&] { return WritesInScratch(program, 0); });
      kill(program, SIGINT);
      kill(program, SIGCONT);
    });
  }
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("No files were changed. Run the same command to start again"));
  for (const auto& entry : fs::directory_iterator(scratch_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("gguf")));
  }
}

TEST_F(FaultTest, DeepAndOddJsonIsAnError) {
  const std::string deep = std::string(90'000, '[') + std::string(90'000, ']');
  Write("data.jsonl", "{\"text\": \"a\", \"tools\": " + deep + "}\n");
  EXPECT_THAT(Refused(TrainWords()), AllOf(HasSubstr("data.jsonl:1"), HasSubstr("nested more")));
  Write("data.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": 7}]}]}\n");
  EXPECT_THAT(Refused(TrainWords({"--chat_template", "plain"})), HasSubstr("data.jsonl:1"));
  EXPECT_EQ(Run({"tokenize", "model", "--jsonl", "-"}, deep + "\n").code, 2);
  EXPECT_EQ(Run({"tokenize", "model", "--messages", "-"}, deep).code, 2);
  EditJson(model() / "config.json", [](nlohmann::json& config) { config["x"] = 1; });
  std::string config = ReadAll(model() / "config.json");
  config.insert(1, "\"layer_types\": " + deep + ", ");
  Write("model/config.json", config);
  EXPECT_THAT(Refused({"inspect", "model"}), HasSubstr("config.json"));
}

TEST_F(FaultTest, AZeroByteInANameDoesNotEndTheMessage) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  EditJson(scratch_ / "out/train_config.json",
           [](nlohmann::json& json) { json["model_name_or_path"] = std::string("\0x", 2); });
  EXPECT_THAT(Refused({"resume", "out", "--max_steps=3"}), HasSubstr("\\x00x"));
}

TEST_F(FaultTest, DamagedLogsAreReported) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  std::ofstream log(scratch_ / "out" / "train_log.jsonl", std::ios::app);
  log << std::string(90'000, '[') << "\n{\"step\": \"text\", \"tokens\": \"many\"}\n"
      << "{\"tokens\": 9223372036854775807}\n{\"tokens\": 9223372036854775807}\n{\"step\"";
  log.close();
  EXPECT_EQ(Run({"report", "out", "--out", "page.html"}).code, 0);
  Write("out/run_info.json", "[1, 2]");
  const Outcome odd = Run({"report", "out", "--out", "page.html"});
  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.err, HasSubstr("run_info.json: expected a JSON object"));
}

// Names of files that a terminal would obey, as an archive or a download may bring them.
TEST_F(FaultTest, NamesReachTheTerminalWithoutControlCharacters) {
  const std::string name =
      "d\x1b[31m\x9b"
      "2J.jsonl";
  fs::copy_file(scratch_ / "data.jsonl", scratch_ / name);
  fs::create_directories(scratch_ / "hub/models--org--m\x1b[2J/snapshots");
  fs::copy(model(), scratch_ / "hub/models--org--m\x1b[2J/snapshots/1");
  for (const std::vector<std::string>& words :
       {TrainWords({"--dataset", name, "--eval_dataset", name, "--eval_steps", "1"}),
        TrainWords({"--dataset", name, "--dry_run", "--output_dir", "other"}),
        {"inspect", "--model", "model", "--dataset", name}}) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out + outcome.err, HasSubstr("d\\x1b[31m\\x9b"
                                                     "2J.jsonl"));
    EXPECT_EQ((outcome.out + outcome.err).find_first_of("\x1b\x9b"), std::string::npos);
  }
  setenv("HF_HUB_CACHE", (scratch_ / "hub").c_str(), 1);
  const Outcome doctor = Run({"doctor"});
  unsetenv("HF_HUB_CACHE");
  EXPECT_THAT(doctor.out, HasSubstr("org/m\\x1b[2J"));
  EXPECT_EQ(doctor.out.find('\x1b'), std::string::npos);
}

TEST_F(FaultTest, PipesWithoutAWriterAreRefused) {
  ASSERT_EQ(mkfifo((scratch_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(Run({"train", "pipe"}).err, HasSubstr("pipe: is a pipe that no program writes to"));
  EXPECT_THAT(Run({"migrate", "pipe"}).err, HasSubstr("is a pipe"));
}

TEST_F(FaultTest, AFolderThatMayNotBeEnteredIsAMistake) {
  const BoundByPermissions bound;
  if (!bound.holds()) GTEST_SKIP() << "root may enter every folder";
  fs::create_directories(scratch_ / "closed" / "inner");
  fs::permissions(scratch_ / "closed", fs::perms::none);
  const Outcome outcome = Run(TrainWords({"--output_dir", "closed/inner/out"}));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("Permission denied"));
}

TEST_F(FaultTest, AQuantizedBaseInTheOutputFolderIsRefusedBeforeItIsWritten) {
  for (const char* folder : {"out", "out/base", "."}) {
    EXPECT_THAT(Refused(TrainWords({"--save_quantized", folder})),
                HasSubstr("are one folder, or one is inside the other"));
  }
}

// A signal when the file has its name and is read back.
TEST_F(FaultTest, AnInterruptedVerificationSaysWhatIsThere) {
  Deepen();
  for (const std::vector<std::string>& format :
       {std::vector<std::string>{"out.gguf"}, {"out", "--format=hf"}}) {
    const fs::path output = scratch_ / format[0];
    std::vector<std::string> words = {"export", "model", "--verify"};
    words.insert(words.end(), format.begin(), format.end());
    Outcome outcome;
    for (int tries = 0; tries < 20 && outcome.code != 130; ++tries) {
      fs::remove_all(output);
      outcome = RunQlora(scratch_, words, "", [&](pid_t program) {
        HoldWhen(program, [&] { return fs::exists(output); });
        kill(program, SIGINT);
        kill(program, SIGCONT);
      });
    }
    EXPECT_EQ(outcome.code, 130) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(format[0] + " is complete, but was not verified"));
    EXPECT_THAT(outcome.err, Not(HasSubstr("No files were changed")));
    EXPECT_TRUE(fs::exists(output));
    EXPECT_EQ(Run({"inspect", format[0]}).code, 0);
  }
}

}  // namespace
}  // namespace qlora
