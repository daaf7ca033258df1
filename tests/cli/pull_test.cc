// `qlora pull` as a program, and `plan` without data or files.
#include <gmock/gmock.h>

#include "cli/tiny_model.h"
#include "io/test_util.h"
#include "test_build.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PullProgramTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    setenv("HF_HUB_CACHE", (scratch_ / "hub").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("HF_HUB_CACHE");
    TinyModelTest::TearDown();
  }
  nlohmann::json PlanJson(const std::vector<std::string>& words) const {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
};

TEST_F(PullProgramTest, MissingModelsNameTheCommand) {
  EXPECT_THAT(Refused({"inspect", "org/name@v1"}), HasSubstr("qlora pull org/name@v1"));
  EXPECT_THAT(Refused({"pull", "../evil"}), HasSubstr("expected the name of a repository"));
  setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_THAT(Refused({"pull", "org/name"}), HasSubstr("offline"));
  unsetenv("HF_HUB_OFFLINE");
}

TEST_F(PullProgramTest, AddressesOfABrowserAreNames) {
  EXPECT_THAT(Refused({"pull", "https://huggingface.co/datasets/org/name/tree/v2"}),
              HasSubstr("write qlora pull --dataset org/name@v2"));
  EXPECT_THAT(Refused({"pull", "https://example.com/org/name"}),
              HasSubstr("no address of https://huggingface.co; write org/name"));
  setenv("HF_ENDPOINT", "http://127.0.0.1:9/hub", 1);
  for (const char* hub : {"http://127.0.0.1:9/hub/", "HTTPS://me@127.0.0.1:9/hub/", "HF.co/",
                          "https://huggingface.co:443/"}) {
    EXPECT_THAT(Refused({"pull", hub + std::string("datasets/org/name/blob/main/a.jsonl")}),
                HasSubstr("write qlora pull --dataset org/name@main"));
  }
  EXPECT_THAT(Refused({"pull", "http://127.0.0.1:9/hubs/org/name"}), HasSubstr("no address of"));
  EXPECT_THAT(Refused({"pull", "https://huggingface.co.evil.org/org/name"}),
              HasSubstr("no address of"));
  unsetenv("HF_ENDPOINT");
}

// A model of the cache has a repository, which an adapter GGUF names.
TEST_F(PullProgramTest, AnAdapterGgufNamesTheRepositoryOfItsBase) {
  const fs::path folder = scratch_ / "hub/models--org--tiny";
  const std::string commit(40, 'a');
  fs::create_directories(folder / "refs");
  fs::create_directories(folder / "snapshots");
  fs::copy(model(), folder / "snapshots" / commit);
  Write("hub/models--org--tiny/refs/main", commit);
  const Outcome outcome =
      Run({"export", "org/tiny", "a.gguf", "--adapter", (Golden("llama-tiny") / "adapter").string(),
           "--format", "gguf-adapter"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(ReadAll(scratch_ / "a.gguf"), AllOf(HasSubstr("general.base_model.0.organization"),
                                                  HasSubstr("https://huggingface.co/org/tiny")));
}

// Only `pull` opens libcurl, and it does so when it runs.
TEST_F(PullProgramTest, TheProgramDoesNotLoadTheNetworkLibrary) {
  setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
  const Outcome outcome = Run({"version"});
  unsetenv("LD_TRACE_LOADED_OBJECTS");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("libc.so"), Not(HasSubstr("libcurl"))));
}

TEST_F(PullProgramTest, PlansWellKnownModelsWithoutFiles) {
  const nlohmann::json plan = PlanJson(
      {"plan", "Qwen/Qwen3-0.6B", "--max_length", "512", "--max_memory", "64GB", "--json"});
  EXPECT_EQ(plan.at("parameters"), 596049920);
  EXPECT_EQ(plan.at("assumed").at("sequence_tokens"), 512);
  EXPECT_EQ(plan.at("assumed").at("micro_batch_tokens"), 1024);
  EXPECT_FALSE(plan.at("has_weights").get<bool>());
  EXPECT_GT(plan.at("int8_speedup").at("forward").get<double>(), 0);
  EXPECT_GT(plan.at("int8_speedup").at("backward").get<double>(), 0);
  const Outcome tight = Run({"plan", "Llama-3.1-8B", "--max_memory", "2GB"});
  EXPECT_EQ(tight.code, 3);
  EXPECT_THAT(tight.out, AllOf(HasSubstr("8.03 billion parameters"),
                               HasSubstr("every sequence is taken to have 2048 tokens"),
                               HasSubstr("\n  peak ")));
  EXPECT_THAT(Refused({"plan", "Llama-9-8B"}), HasSubstr("such as: Llama-3-8B\n"));
  EXPECT_THAT(Refused({"plan", "gpt-oss"}), HasSubstr("such as: gpt-oss-20b, gpt-oss-120b\n"));
  EXPECT_THAT(Refused({"plan", "org/no-model"}), HasSubstr("Llama-3.1-8B, "));
}

// Shape and files give one plan, since the files are in bfloat16 but for what is quantized.
TEST_F(PullProgramTest, PlansAConfigurationAlone) {
  fs::create_directory(scratch_ / "bare");
  fs::copy_file(model() / "config.json", scratch_ / "bare/config.json");
  const auto parts = [&](const std::string& name) {
    nlohmann::json plan = PlanJson({"plan", name, "--max_length", "64", "--json"});
    EXPECT_EQ(plan.at("parameters"), PlanJson({"plan", "model", "--json"}).at("parameters"));
    return plan.at("memory").at("parts").at("weights");
  };
  EXPECT_EQ(parts("bare"), parts("model"));
  EXPECT_EQ(parts("bare/config.json"), parts("model"));
}

// The plan of a data set whose samples are all of max_length agrees with that of full sequences.
TEST_F(PullProgramTest, FullSequencesAreThePlanOfFullData) {
  std::string ids = "[1";
  for (int i = 1; i < 64; ++i) ids += ", 5";
  Write("full.jsonl", "{\"input_ids\": " + ids + "]}\n{\"input_ids\": " + ids + "]}\n");
  nlohmann::json data = PlanJson({"plan", "model", "--dataset", "full.jsonl", "--max_length", "64",
                                  "--compute_dtype", "float32", "--json"});
  nlohmann::json shape =
      PlanJson({"plan", "model", "--max_length", "64", "--compute_dtype", "float32", "--json"});
  for (const char* part : {"activations", "workspace", "adapter", "rotary tables", "weights"}) {
    EXPECT_EQ(data.at("memory").at("parts").at(part), shape.at("memory").at("parts").at(part))
        << part;
  }
}

TEST_F(PullProgramTest, TrainsOnParquet) {
  const fs::path parquet = SourceDir() / "tests/golden/parquet/good";
  const auto train = [&](const char* name) {
    return Run({"train", "--model", "model", "--dataset", (parquet / name).string(), "--max_steps",
                "1", "--max_length", "64", "--output_dir", "out", "--threads", "1"});
  };
  const Outcome refused = train("hand-zstd-frames.parquet");
  EXPECT_EQ(refused.code, 2);  // a text is empty
  EXPECT_THAT(refused.err, HasSubstr("hand-zstd-frames.parquet:2"));
  const Outcome trained = train("duckdb-one-row.parquet");
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err + trained.out, HasSubstr("duckdb-one-row.parquet: Parquet"));
  EXPECT_TRUE(fs::exists(scratch_ / "out/adapter_model.safetensors"));
}

// A part of the scenarios of a larger fake hub, which needs Node.
TEST_F(PullProgramTest, PassesTheScenariosOfAFakeHub) {
  const fs::path check = SharedFolder() / "checks/hub/check.mjs";
  if (!fs::exists(check) || std::system("node --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "needs node and " << check.string();
  }
  const std::string program = QloraBinary();
  const std::string command =
      "node '" + check.string() + "' --command \"" + program +
      " pull {repo}\" --dataset-command \"" + program +
      " pull --dataset {repo}\" --only plain,again,tag,drop_once,killed,interrupted," +
      "token_variable,gated_not_listed,range_wrong,hostile_index,dataset >'" +
      (scratch_ / "check.log").string() + "' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << ReadAll(scratch_ / "check.log");
}

}  // namespace
}  // namespace qlora
