// The program `qlora-bench` on small shapes.
#include <gmock/gmock.h>

#include <map>
#include <string>

#include "bench/bench_nf4.h"
#include "bench/bench_program.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

TEST_F(BenchTest, MeasuresAStep) {
  const nlohmann::json report =
      RunJson({"step", "--hidden_size=64", "--intermediate_size=64", "--num_hidden_layers=1",
               "--num_attention_heads=2", "--num_key_value_heads=1", "--vocab_size=64",
               "--lora_r=2", "--max_length=16", "--steps=1", "--threads=1"});
  ASSERT_FALSE(report.at("results").empty());
  for (const nlohmann::json& row : report.at("results")) {
    for (const char* key : {"op", "shape", "dtype", "threads", "seconds", "value", "unit", "limit",
                            "limit_kind", "ratio"}) {
      EXPECT_TRUE(row.contains(key)) << key << " in " << row;
    }
  }
}

TEST_F(BenchTest, MeasuresStepsAndTokensOfSeveralFormats) {
  const auto with = [](const char* what, const char* formats) {
    return Words{what,
                 "--hidden_size=64",
                 "--intermediate_size=96",
                 "--num_hidden_layers=1",
                 "--num_attention_heads=2",
                 "--num_key_value_heads=1",
                 "--vocab_size=64",
                 "--lora_r=2",
                 "--max_length=16",
                 "--prompt_tokens=4",
                 "--new_tokens=2",
                 "--steps=2",
                 "--threads=1",
                 std::string("--weight_formats=") + formats};
  };
  for (const char* what : {"step", "decode"}) {
    const nlohmann::json report = RunJson(with(what, "nf4,Q4_0"));
    for (const std::string format : {"nf4", "Q4_0"}) {
      int found = 0;
      for (const nlohmann::json& row : report.at("results")) {
        const bool of_format = row.at("shape").get<std::string>().ends_with(" " + format);
        if (of_format && row.at("unit") == "tokens/s") ++found;
      }
      // decode: of prompts, of texts, of both.
      EXPECT_EQ(found, what == std::string("decode") ? 3 : 2) << what << " " << format;
    }
    EXPECT_THAT(Refused(with(what, "Q4_K")), HasSubstr("no whole blocks of Q4_K"));
    EXPECT_THAT(Refused(with(what, "fp4")), HasSubstr("found 'fp4'"));
  }
}

TEST_F(BenchTest, MeasuresStepsOfObjectivesInTurn) {
  const auto with = [](const char* objectives, const char* share_prefix) {
    return Words{"step",
                 "--hidden_size=64",
                 "--intermediate_size=64",
                 "--num_hidden_layers=1",
                 "--num_attention_heads=2",
                 "--num_key_value_heads=1",
                 "--vocab_size=64",
                 "--lora_r=2",
                 "--max_length=24",
                 "--steps=1",
                 "--threads=1",
                 "--compute_dtype=float32",
                 std::string("--share_prefix=") + share_prefix,
                 std::string("--objectives=") + objectives};
  };
  // Prefixes that are computed once change no loss beyond rounding.
  std::map<std::string, double> losses;
  for (const char* share_prefix : {"true", "false"}) {
    const nlohmann::json report = RunJson(with("supervised,preference,decision", share_prefix));
    for (const nlohmann::json& row : report.at("results")) {
      if (row.at("op") != "loss of step 0") continue;
      const double loss = row.at("value");
      const auto [found, is_new] = losses.emplace(row.at("shape").get<std::string>(), loss);
      EXPECT_NEAR(loss, found->second, is_new ? 0 : 1e-5 * loss) << row;
    }
  }
  EXPECT_EQ(losses.size(), 3);
  EXPECT_THAT(Refused(with("kto", "true")), HasSubstr("supervised, preference, decision"));
}

TEST_F(BenchTest, TellsWhereEightBitsHaveNoEffect) {
  for (const Words& words : {Words{"step"}, {"decode", "--compute_dtype=int8"}, {"nf4-matmul"}}) {
    Words backward = words;
    backward.emplace_back("--int8_backward=true");
    EXPECT_THAT(Refused(backward), HasSubstr("int8_backward would have no effect"));
  }
  const auto step = [&](const char* load_in_4bit) {
    return Run({"step", "--hidden_size=64", "--intermediate_size=64", "--num_hidden_layers=1",
                "--num_attention_heads=2", "--num_key_value_heads=1", "--vocab_size=64",
                "--lora_r=2", "--max_length=16", "--steps=1", "--threads=1", "--compute_dtype=int8",
                std::string("--load_in_4bit=") + load_in_4bit, "--json"});
  };
  const auto type = [](const Outcome& outcome) {
    return nlohmann::json::parse(outcome.out).at("results").at(0).at("dtype");
  };
  const Outcome quantized = step("true");
  const Outcome dense = step("false");
  EXPECT_EQ(type(quantized), "i8");
  EXPECT_THAT(quantized.err, ::testing::Not(HasSubstr("no effect")));
  EXPECT_EQ(type(dense), "bf16");
  EXPECT_THAT(dense.err, HasSubstr("note: compute_dtype int8 has no effect"));
}

TEST_F(BenchTest, RecomputesWhatAnOptionSays) {
  const Words step = {"step",
                      "--hidden_size=64",
                      "--intermediate_size=64",
                      "--num_hidden_layers=1",
                      "--num_attention_heads=2",
                      "--num_key_value_heads=1",
                      "--vocab_size=64",
                      "--lora_r=2",
                      "--max_length=16",
                      "--steps=1",
                      "--threads=1",
                      "--optim=adamw_8bit"};
  const auto with = [&](const char* option) {
    Words words = step;
    words.push_back(option);
    return words;
  };
  EXPECT_EQ(Run(with("--recompute=layer")).code, 0);
  EXPECT_THAT(Refused(with("--recompute=offload")), HasSubstr("none, attention, mlp, layer"));
}

TEST_F(BenchTest, MeasuresTheLimitOfEachInstruction) {
  const nlohmann::json report = RunJson({"peak", "--threads=1"});
  EXPECT_EQ(report.at("clock"), "wall");
  const nlohmann::json& rows = report.at("results");
  ASSERT_GE(rows.size(), 2);
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    EXPECT_EQ(rows[i].at("unit"), "GOP/s");
    EXPECT_EQ(rows[i + 1].at("op"), rows[i].at("op").get<std::string>() + ", each");
    EXPECT_THAT(rows[i + 1].at("unit").get<std::string>(), HasSubstr("cycles of "));
    EXPECT_GT(rows[i + 1].at("value").get<double>(), 0);
  }
}

TEST_F(BenchTest, CountsProcessorTimeOfOneThreadAlone) {
  const Outcome outcome = Run({"peak", "--clock=cpu", "--threads=1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("clock: processor time of the one thread"));
  EXPECT_EQ(RunJson({"peak", "--clock=cpu", "--threads=1"}).at("clock"), "cpu");
  for (const Words& words : {Words{"peak", "--clock=cpu", "--threads=2"},
                             Words{"models", "--clock=cpu", "--threads=2"}}) {
    EXPECT_THAT(Refused(words), HasSubstr("give --threads 1"));
  }
}

TEST_F(BenchTest, CountsProcessorTimeInEveryMeasurement) {
  const fs::path model = SourceDir() / "examples/base-1m";
  const std::string config = (model / "config.json").string();
  const std::string text = (SourceDir() / "README.md").string();
  const std::vector<Words> measurements = {
      {"models", "--models", config},
      {"step", "--shape", config},
      {"decode", "--shape", config},
      {"nf4-matmul", "--shapes=64x64", "--rows=1,16", "--repetitions=1"},
      {"tokenizer", "--model", model.string(), "--text_file", text},
      {"blocks"}};
  for (Words words : measurements) {
    words.insert(words.end(),
                 {"--clock=cpu", "--threads=1", "--lora_r=2", "--max_length=16", "--steps=1",
                  "--warmup_steps=1", "--prompt_tokens=4", "--new_tokens=2"});
    const nlohmann::json report = RunJson(words);
    const bool has_machine = report.contains("machine");
    EXPECT_EQ((has_machine ? report["machine"] : report).at("clock"), "cpu") << words[0];
    EXPECT_FALSE(report.at("results").empty()) << words[0];
  }
  Context context(1);
  for (const bench::BenchRow& row :
       bench::BenchNf4(context, bench::Clock::kCpu, {.sizes = {64}, .repetitions = 1})) {
    EXPECT_GE(row.seconds, 0) << row.op;
  }
}

TEST_F(BenchTest, RefusesAFolderWithoutGgml) {
  const std::string error = Refused({"nf4-matmul", "--ggml", "absent"});
  EXPECT_THAT(error, HasSubstr("libggml-base.so"));
  EXPECT_THAT(error, HasSubstr("'absent'"));
}

TEST_F(BenchTest, PrintsErrorsAsJson) {
  for (const Words& words : {Words{"step", "--nonsense", "--json"},
                             Words{"step", "--json", "--steps=0"}, Words{"json=true"}}) {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    const nlohmann::json object = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(object.at("exit_code"), 2);
    EXPECT_THAT(outcome.err, HasSubstr(object.at("error").get<std::string>()));
  }
  EXPECT_THAT(Refused({"step", "--steps=0"}), HasSubstr("error: steps expects a number from 1"));
}

TEST_F(BenchTest, FailsWhereItsOutputIsLost) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const Outcome outcome =
      RunProgram("sh", scratch_, {"-c", Program().string() + " --help > /dev/full"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("standard output cannot be written"));
}

TEST_F(BenchTest, SaysHowItIsCalled) {
  const Outcome help = Run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("Usage: qlora-bench WHAT"));
  EXPECT_THAT(Refused({}), HasSubstr("--what is missing"));
  EXPECT_THAT(Refused({"stepp"}), HasSubstr("found 'stepp'"));
}

}  // namespace
}  // namespace qlora
