// The main job from end to end on a tiny model: train, generate, eval, export, quantize.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

class MainJobTest : public TinyModelTest {
 protected:
  nlohmann::json RunJson(Words words) {
    words.push_back("--json");
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  std::vector<nlohmann::json> Log(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::ifstream in(scratch_ / run / "train_log.jsonl");
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
};

TEST_F(MainJobTest, TrainsAndUsesTheAdapter) {
  const Words base = {"eval", "model", "data.jsonl", "--max_length", "64"};
  const nlohmann::json before = RunJson(base);
  const Outcome outcome = Run(TrainWords({"--max_steps=30", "--lr", "0.01"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("step=30/30 "));
  EXPECT_THAT(outcome.err, HasSubstr("adapter saved in out\n"));
  EXPECT_THAT(outcome.LastErrorLine(), StartsWith("to try it: qlora generate model"));
  EXPECT_TRUE(fs::exists(scratch_ / "out/adapter_config.json"));
  EXPECT_TRUE(fs::exists(scratch_ / "out/adapter_model.safetensors"));

  const std::vector<nlohmann::json> log = Log("out");
  ASSERT_EQ(log.size(), 30u);
  for (const char* key :
       {"loss", "grad_norm", "learning_rate", "tokens", "tokens_per_second", "memory"}) {
    EXPECT_TRUE(log[0].contains(key)) << key << " in " << log[0];
  }
  EXPECT_LT(log[29].at("loss").get<double>(), log[0].at("loss").get<double>());

  Words adapted = base;
  adapted.insert(adapted.end(), {"--adapter", "out"});
  const nlohmann::json after = RunJson(adapted);
  EXPECT_LT(after.at("loss").get<double>(), before.at("loss").get<double>());
  EXPECT_NEAR(after.at("perplexity").get<double>(), std::exp(after.at("loss").get<double>()),
              1e-9 * after.at("perplexity").get<double>());
  EXPECT_EQ(after.at("tokens"), before.at("tokens"));

  adapted.push_back("--per_token");
  const nlohmann::json tokens = RunJson(adapted);
  ASSERT_EQ(tokens.at("logprobs").size(), tokens.at("tokens").get<std::size_t>());
  double sum = 0;
  for (const nlohmann::json& logprob : tokens.at("logprobs")) sum -= logprob.get<double>();
  const double mean = sum / tokens.at("tokens").get<double>();
  EXPECT_NEAR(mean, tokens.at("loss").get<double>(), 1e-9 * mean);
}

TEST_F(MainJobTest, TheSameCommandGivesTheSameAdapter) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  const std::string first = ReadAll(scratch_ / "out/adapter_model.safetensors");
  ASSERT_EQ(Run(TrainWords({"--overwrite"})).code, 0);
  EXPECT_TRUE(first == ReadAll(scratch_ / "out/adapter_model.safetensors"));
}

TEST_F(MainJobTest, YamlAndFlagsAreTheSame) {
  ASSERT_EQ(Run(TrainWords({"--lr", "0.01"})).code, 0);
  const std::string yaml = ReadAll(scratch_ / "out/adapter_model.safetensors");
  const Outcome flags =
      Run({"train", "--base-model", "model", "--datasets=data.jsonl", "type=text", "--output-dir",
           "out2", "max_steps=2", "--sequence_len", "64", "--rank", "4", "--no-packing",
           "--compute-dtype=float32", "--threads", "1", "--learning_rate=1e-2"});
  ASSERT_EQ(flags.code, 0) << flags.err;
  EXPECT_TRUE(yaml == ReadAll(scratch_ / "out2/adapter_model.safetensors"));
}

TEST_F(MainJobTest, Generates) {
  const Words words = {"generate", "model",     "Once upon", "--max_new_tokens",
                       "12",       "--threads", "1"};
  const Outcome text = Run(words);
  ASSERT_EQ(text.code, 0) << text.err;
  const nlohmann::json report = RunJson(words);
  EXPECT_EQ(text.out, report.at("text").get<std::string>() + "\n");
  EXPECT_LE(report.at("new_tokens").get<int>(), 12);
  EXPECT_GT(report.at("prompt_tokens").get<int>(), 0);

  Words from_file = {"generate", "model", "--prompt_file", Write("p.txt", "Once upon\n").string(),
                     "--max_new_tokens=12"};
  EXPECT_EQ(Run(from_file).out, text.out);
  EXPECT_EQ(Run({"generate", "model", "-", "--max_new_tokens=12"}, "Once upon").out, text.out);
  EXPECT_THAT(Refused({"generate", "model", "a", "--prompt_file", "p.txt"}),
              HasSubstr("more than one"));

  const Words drawn = {"generate", "model", "Once", "--do_sample", "--max_new_tokens=12", "--seed"};
  const auto with_seed = [&](const char* seed) {
    Words all = drawn;
    all.push_back(seed);
    return Run(all).out;
  };
  EXPECT_EQ(with_seed("7"), with_seed("7"));
  EXPECT_NE(with_seed("7"), with_seed("8"));
}

TEST_F(MainJobTest, Chats) {
  const Words words = {"chat", "model", "--max_new_tokens=4", "--threads=1"};
  const Outcome once = Run(words, "Once upon\n/exit\nnever read\n");
  ASSERT_EQ(once.code, 0) << once.err;
  EXPECT_FALSE(once.out.empty());
  const Outcome twice = Run(words, "Once upon\n/reset\nOnce upon\n");
  EXPECT_EQ(twice.code, 0);
  EXPECT_EQ(twice.out, once.out + once.out) << "/reset forgets the first turn";
}

TEST_F(MainJobTest, ConversationsThatOutgrowTheContextKeepTheirNewestTurns) {
  EditJson(model() / "config.json", [](nlohmann::json& c) { c["max_position_embeddings"] = 96; });
  const Words words = {"chat", "model", "--max_new_tokens=9223372036854775807", "--threads=1"};
  const Outcome grown = Run(words, "Once upon\na time\nthere were\nbears\n");
  ASSERT_EQ(grown.code, 0) << grown.err;
  EXPECT_THAT(grown.err, HasSubstr("outgrew the context of 96 tokens"));
  EXPECT_THAT(grown.err, HasSubstr("warning: cut after "));
  EXPECT_THAT(grown.err, HasSubstr("the end of the model's context"));
  const Outcome flood = Run(words, std::string(4000, 'x') + "\nOnce\n");
  EXPECT_EQ(flood.code, 0) << flood.err;
  EXPECT_THAT(flood.err, HasSubstr("the context holds 96; shorten the message"));
  EXPECT_FALSE(flood.out.empty()) << "the chat goes on";
  const nlohmann::json report =
      RunJson({"generate", "model", "Once", "--max_new_tokens=9223372036854775807"});
  EXPECT_LE(report.at("prompt_tokens").get<int>() + report.at("new_tokens").get<int>(), 96);
}

TEST_F(MainJobTest, Exports) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  const Outcome gguf = Run({"export", "model", "m.gguf", "--adapter", "out", "--outtype", "f32"});
  ASSERT_EQ(gguf.code, 0) << gguf.err;
  EXPECT_EQ(gguf.out, "m.gguf\n");
  EXPECT_THAT(ReadAll(scratch_ / "m.gguf"), StartsWith("GGUF"));
  const nlohmann::json adapter =
      RunJson({"export", "model", "a.gguf", "--adapter", "out", "--format", "gguf-adapter"});
  EXPECT_EQ(adapter.at("bytes").get<std::size_t>(), fs::file_size(scratch_ / "a.gguf"));
  const Outcome merged = Run({"export", "model", "merged", "--adapter", "out", "--format", "hf",
                              "--outtype", "f32", "--merge_base", "original"});
  ASSERT_EQ(merged.code, 0);
  EXPECT_THAT(merged.err, HasSubstr("--load_in_4bit false"));
  EXPECT_EQ(Run({"generate", "merged", "Once", "--max_new_tokens=2"}).code, 0);
}

TEST_F(MainJobTest, SaysWhenAnAdapterNamesAnotherBase) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  fs::copy(scratch_ / "model", scratch_ / "other");
  const auto notes = [&](const std::string& model) {
    const Outcome outcome =
        Run({"generate", model, "Once", "--adapter", "out", "--max_new_tokens=1"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(notes("model"), Not(HasSubstr("note:")));
  EXPECT_THAT(notes((scratch_ / "model").string() + "/"), Not(HasSubstr("note:")));
  EXPECT_THAT(notes("other"), HasSubstr("note: out was trained on model, "));
  EXPECT_THAT(Run({"export", "other", "m.gguf", "--adapter", "out"}).err, HasSubstr("note: out"));
  EXPECT_THAT(Run(TrainWords({"--model", "other", "--adapter", "out", "--output_dir", "on"})).err,
              HasSubstr("note: out"));
  EXPECT_THAT(Run({"validate", "base.yaml", "--model", "other", "--adapter", "out"}).err,
              HasSubstr("note: out"));
  const auto trained_on = [&](const std::string& base) {
    EditJson(scratch_ / "out/adapter_config.json",
             [&](nlohmann::json& json) { json["base_model_name_or_path"] = base; });
  };
  for (const char* base : {"org/model", "org/model@main", "/elsewhere/model/", ".", ""}) {
    trained_on(base);
    EXPECT_THAT(notes("model"), Not(HasSubstr("note:"))) << base;
  }
  trained_on(std::string(300, 'x'));  // not a possible name of a file
  EXPECT_THAT(notes("model"), HasSubstr("note:"));
}

TEST_F(MainJobTest, Quantizes) {
  const nlohmann::json report = RunJson({"quantize", "model", "nf4"});
  EXPECT_FALSE(report.at("kinds").empty());
  EXPECT_GT(report.at("bits_per_weight").get<double>(), 4);
  EXPECT_LT(report.at("bits_per_weight").get<double>(), 5);
  EXPECT_DOUBLE_EQ(report.at("ratio_to_fp32").get<double>(),
                   2 * report.at("ratio_to_fp16").get<double>());
  const nlohmann::json& memory = report.at("memory_table").at(0);
  EXPECT_EQ(memory.at("model"), "7B");
  EXPECT_NEAR(memory.at("double_quant").at("total_bytes").get<double>(), 3.866e9, 5e5);
  EXPECT_NEAR(memory.at("single_quant").at("ratio_to_fp16").get<double>(), 3.233, 5e-4);
  const Words words = {"--max_new_tokens=8", "--compute_dtype=float32", "--threads=1"};
  Words direct = {"generate", "model", "Once upon"};
  Words quantized = {"generate", "nf4", "Once upon"};
  direct.insert(direct.end(), words.begin(), words.end());
  quantized.insert(quantized.end(), words.begin(), words.end());
  const std::string text = Run(quantized).out;
  EXPECT_EQ(Run(direct).out, text);
  quantized.push_back("--no-copy_weights");
  EXPECT_EQ(Run(quantized).out, text);

  // What is stored in 4 bits is used so, and not taken for something else.
  EXPECT_THAT(Refused({"eval", "nf4", "data.jsonl", "--load_in_4bit", "false"}),
              HasSubstr("16-bit"));
  EXPECT_THAT(Refused({"eval", "nf4", "data.jsonl", "--bnb_4bit_quant_type", "fp4"}),
              HasSubstr("nf4"));
  ASSERT_EQ(Run({"train", "--model", "nf4", "--dataset", "data.jsonl", "--max_steps", "1",
                 "--bnb_4bit_blocksize", "64", "--output_dir", "on-nf4"})
                .code,
            0);
}

TEST_F(MainJobTest, KeepsTheQuantizedBaseForLaterRuns) {
  const Words first = TrainWords({"--save_quantized", "kept", "--output_dir", "first"});
  const Outcome made = Run(first);
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("quantized base written"));
  const auto when = fs::last_write_time(scratch_ / "kept" / "model.safetensors");
  const Outcome used = Run(TrainWords({"--save_quantized", "kept", "--output_dir", "second"}));
  ASSERT_EQ(used.code, 0) << used.err;
  EXPECT_EQ(fs::last_write_time(scratch_ / "kept" / "model.safetensors"), when);
  ASSERT_EQ(Run(TrainWords({"--output_dir", "direct"})).code, 0);
  for (const char* run : {"first", "second"}) {
    EXPECT_EQ(ReadAll(scratch_ / run / "adapter_model.safetensors"),
              ReadAll(scratch_ / "direct" / "adapter_model.safetensors"));
  }
  EXPECT_THAT(Refused(TrainWords({"--save_quantized", "kept", "--scale_search"})),
              HasSubstr("scale_search"));
  EXPECT_THAT(Refused(TrainWords({"--save_quantized", "model"})), HasSubstr("not made by"));
  fs::last_write_time(scratch_ / "model" / "model.safetensors", when + std::chrono::hours(1));
  EXPECT_THAT(Refused(TrainWords({"--save_quantized", "kept"})), HasSubstr("something else"));
}

TEST_F(MainJobTest, EvalSaysWhatItLeftOut) {
  Write("mixed.jsonl",
        "{\"text\": \"ab\"}\n{\"text\": \"Once upon a time there was a long text.\"}\n");
  const Words words = {"eval", "model", "mixed.jsonl", "--max_length", "12"};
  nlohmann::json json = RunJson(words);
  EXPECT_GT(json.at("dropped").get<int>(), 0);
  EXPECT_EQ(json.at("truncated").get<int>(), 0);
  EXPECT_THAT(Run(words).err, HasSubstr("dropped, longer than max_length"));
  Words cut = words;
  cut.insert(cut.end(), {"--over_long", "truncate"});
  json = RunJson(cut);
  EXPECT_EQ(json.at("dropped").get<int>(), 0);
  EXPECT_GT(json.at("truncated").get<int>(), 0);
  EXPECT_THAT(Run({"eval", "model", "data.jsonl", "--max_length", "100000"}).err,
              HasSubstr("max_position_embeddings"));
}

TEST_F(MainJobTest, Tokenizes) {
  const Outcome one = Run({"tokenize", "model", "Once upon"});
  ASSERT_EQ(one.code, 0) << one.err;
  const nlohmann::json line = nlohmann::json::parse(one.out);
  EXPECT_EQ(line.at("text"), "Once upon");
  const Outcome many = Run({"tokenize", "model", "--jsonl", "-"}, "\"Once upon\"\n\"\\u00e9\"\n");
  EXPECT_THAT(many.out, StartsWith(one.out));
  EXPECT_EQ(std::count(many.out.begin(), many.out.end(), '\n'), 2);
  std::string ids;
  for (const nlohmann::json& id : line.at("ids")) ids += (ids.empty() ? "" : ",") + id.dump();
  EXPECT_EQ(Run({"tokenize", "model", "--ids", ids, "--no-special"}).out, "Once upon\n");
  EXPECT_THAT(Refused({"tokenize", "model", "--ids", "1,99999"}),
              HasSubstr("ids: 99999 is not a token id of this model, which has "));
  const std::string talk = Write("talk.json", R"([{"role": "user", "content": "Hi"}])").string();
  EXPECT_THAT(Refused({"tokenize", "model", "--messages", talk}),
              HasSubstr("this model has no chat template; name one with chat_template (plain"));
}

// The result as one object, and everything else where it was.
TEST_F(MainJobTest, TheResultOfARunAsJson) {
  const Outcome trained = Run(TrainWords({"--json"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const nlohmann::json run = nlohmann::json::parse(trained.out);
  EXPECT_EQ(run.at("ok"), true);
  EXPECT_EQ(run.at("adapter_dir"), "out");
  EXPECT_EQ(run.at("train_steps"), 2);
  EXPECT_GT(run.at("train_loss"), 0);
  EXPECT_GT(run.at("trained_tokens"), 0);
  EXPECT_FALSE(run.at("interrupted").get<bool>());
  EXPECT_THAT(trained.LastErrorLine(), "to try it: " + run.at("to_try_it").get<std::string>());
  EXPECT_THAT(trained.err, HasSubstr("step=2/2"));
  const nlohmann::json more = RunJson({"resume", "out", "--max_steps=3"});
  EXPECT_EQ(more.at("ok"), true);
  EXPECT_EQ(more.at("train_steps"), 3);
  EXPECT_EQ(more.at("resumed_step"), 2);
  EXPECT_EQ(nlohmann::json::parse(Run({"resume", "out", "--json"}).out).at("ok"), false);
  const nlohmann::json page = RunJson({"report", "out", "--out", "page.html"});
  EXPECT_EQ(page.at("ok"), true);
  EXPECT_EQ(page.at("file"), "page.html");
  EXPECT_EQ(page.at("runs")[0].at("damaged_lines"), 0);
  EXPECT_TRUE(RunJson(TrainWords({"--dry-run", "--output_dir=new"})).at("ok").get<bool>());
}

// One object that says both: the run failed, and its result.
TEST_F(MainJobTest, ADivergedRunKeepsItsResultInJson) {
  const Outcome diverged = Run(TrainWords({"--json", "--max_steps=4", "--lr", "1e30"}));
  ASSERT_EQ(diverged.code, 1) << diverged.err;
  const nlohmann::json run = nlohmann::json::parse(diverged.out);
  EXPECT_EQ(run.at("ok"), false);
  EXPECT_EQ(run.at("exit_code"), 1);
  EXPECT_THAT(run.at("error").get<std::string>(), HasSubstr("NaN or Inf"));
  EXPECT_EQ(run.at("adapter_dir"), "out");
  EXPECT_EQ(run.at("train_steps"), 4);
  EXPECT_GT(run.at("skipped_steps"), 0);
}

TEST_F(MainJobTest, PlansWithoutWriting) {
  const auto before = Everything();
  const nlohmann::json plan = RunJson({"plan", "base.yaml"});
  std::size_t sum = 0;
  for (const nlohmann::json& bytes : plan.at("memory").at("parts")) sum += bytes.get<std::size_t>();
  EXPECT_GT(sum, 0u);
  EXPECT_GE(plan.at("memory").at("peak"), plan.at("memory").at("train_peak"));
  const Outcome text = Run({"plan", "base.yaml"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("\n  peak "));
  EXPECT_EQ(text.out.back(), '\n');
  const Outcome tight = Run({"plan", "base.yaml", "--max_memory", "1MB"});
  EXPECT_EQ(tight.code, 3) << tight.err;
  EXPECT_THAT(tight.out, HasSubstr("\n  peak ")) << "the plan that does not fit is shown";
  EXPECT_TRUE(before == Everything());
}

TEST_F(MainJobTest, InspectsModelsAdaptersAndFiles) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  ASSERT_EQ(Run({"export", "model", "m.gguf"}).code, 0);
  for (const auto& [path, kind] :
       {std::pair("model", "model"), {"out", "adapter"}, {"m.gguf", "gguf"}}) {
    EXPECT_EQ(RunJson({"inspect", path}).at("kind"), kind);
    const Outcome text = Run({"inspect", path});
    EXPECT_EQ(text.code, 0);
    EXPECT_THAT(text.out, HasSubstr("tensors"));
  }
  EXPECT_THAT(Run({"inspect", "model"}).out,
              HasSubstr("tokenizer of 288 tokens, no chat template, EOS: </s>\n"));
  EXPECT_EQ(RunJson({"inspect", "out/checkpoint-2"}).at("global_step"), 2);
  EXPECT_THAT(Run({"inspect", "out/checkpoint-2"}).out, HasSubstr("checkpoint of step 2, mean"));
  EXPECT_THAT(Refused({"inspect", "data.jsonl"}), HasSubstr("--dataset"));
  EXPECT_THAT(Refused({"inspect"}), HasSubstr("a path is missing"));
}

TEST_F(MainJobTest, InspectsADataset) {
  Write("pairs.jsonl", "{\"prompt\": \"Who?\", \"completion\": \" Bears.\"}\n");
  const Words words = {"inspect", "--dataset", "pairs.jsonl", "--model", "model"};
  const nlohmann::json report = RunJson(words);
  EXPECT_EQ(report.at("samples"), 1);
  EXPECT_GT(report.at("tokens"), report.at("trained_tokens")) << "the prompt is masked";
  const Outcome text = Run(words);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("Bears"));
  EXPECT_EQ(text.out.find('\033'), std::string::npos) << "no colours in a file";
  EXPECT_THAT(Refused({"inspect", "--dataset", "pairs.jsonl"}), HasSubstr("--model"));
}

TEST_F(MainJobTest, MeasuresAStep) {
  const nlohmann::json report =
      RunJson({"bench", "step", "--hidden_size=64", "--intermediate_size=64",
               "--num_hidden_layers=1", "--num_attention_heads=2", "--num_key_value_heads=1",
               "--vocab_size=64", "--lora_r=2", "--max_length=16", "--steps=1", "--threads=1"});
  ASSERT_FALSE(report.at("results").empty());
  for (const nlohmann::json& row : report.at("results")) {
    for (const char* key : {"op", "shape", "dtype", "threads", "seconds", "value", "unit", "limit",
                            "limit_kind", "ratio"}) {
      EXPECT_TRUE(row.contains(key)) << key << " in " << row;
    }
  }
}

TEST_F(MainJobTest, MeasuresAStepWithinALimit) {
  const Words step = {"bench",
                      "step",
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
  EXPECT_EQ(Run(with("--max_memory=4GB")).code, 0);
  const Outcome small = Run(with("--max_memory=1MB"));
  EXPECT_EQ(small.code, 3);
  EXPECT_THAT(small.LastErrorLine(), HasSubstr("max_memory 1MB allows"));
  EXPECT_THAT(Refused(with("--recompute=offload")), HasSubstr("device with separate memory"));
}

TEST_F(MainJobTest, ARunThatGotWorseFailsAndLeavesItsAdapter) {
  ASSERT_EQ(Run(TrainWords({"--max_steps=60", "--lr=0.03"})).code, 0);
  const Outcome ruined = Run(TrainWords({"--adapter", "out", "--output_dir", "ruined",
                                         "--max_steps=24", "--lr=5", "--logging_steps=9"}));
  EXPECT_EQ(ruined.code, 1) << ruined.err;
  EXPECT_THAT(ruined.err, HasSubstr("warning: the learning rate makes the loss rise, from "));
  EXPECT_THAT(ruined.LastErrorLine(), StartsWith("error: the loss rose from "));
  EXPECT_THAT(ruined.LastErrorLine(), HasSubstr("the adapter saved in ruined is of little use"));
  EXPECT_EQ(Log("ruined").size(), 24u);
  EXPECT_EQ(Run({"generate", "model", "Once", "--adapter", "ruined", "--max_new_tokens=2"}).code,
            0);
}

TEST_F(MainJobTest, WarningsComeLastBeforeTheFirstStep) {
  const Outcome outcome =
      Run(TrainWords({"--max_steps=1", "--max_length=8", "--over_long=truncate"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::size_t plan = outcome.err.find("memory plan");
  const std::size_t lost = outcome.err.find(
      "warning: 8 of 8 records (100 %) are dropped or cut: 8 are "
      "cut to 8 tokens (raise max_length");
  const std::size_t warmup = outcome.err.find("warning: warm-up eats the run");
  const std::size_t step = outcome.err.find("step=1/1");
  EXPECT_LT(plan, lost) << outcome.err;
  EXPECT_LT(lost, warmup);
  EXPECT_LT(warmup, step);
  ASSERT_NE(step, std::string::npos);
  EXPECT_THAT(Run({"validate", "base.yaml", "--max_steps=1", "--output_dir=new"}).err,
              HasSubstr("warm-up eats the run"));
}

TEST_F(MainJobTest, AnInterruptedRunIsSavedAndGoesOn) {
  const Words more = {"--max_steps=40", "--logging_steps=1"};
  const Words words = TrainWords(more);
  ASSERT_EQ(Run(words).code, 0);
  const std::string whole = ReadAll(scratch_ / "out/adapter_model.safetensors");
  fs::remove_all(scratch_ / "out");

  Words with_json = words;
  with_json.push_back("--json");
  const Outcome outcome = RunQlora(scratch_, with_json, "", [&](pid_t child) {
    const fs::path log = scratch_ / "out/train_log.jsonl";
    EXPECT_TRUE(HoldWhen(child, [&] { return fs::exists(log) && fs::file_size(log) > 0; }));
    kill(child, SIGINT);
    kill(child, SIGCONT);
  });
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("checkpoint saved in out/checkpoint-"));
  EXPECT_EQ(outcome.LastErrorLine(), "to resume: qlora resume out");
  const nlohmann::json result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result.at("ok"), false);
  EXPECT_EQ(result.at("exit_code"), 130);
  EXPECT_EQ(result.at("interrupted"), true);
  EXPECT_THAT(result.at("checkpoint").get<std::string>(), StartsWith("out/checkpoint-"));

  const Outcome rest = Run({"resume", "out"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(whole == ReadAll(scratch_ / "out/adapter_model.safetensors"));
  EXPECT_EQ(Log("out").size(), 40u);
}

TEST_F(MainJobTest, AReaderThatGoesAwayDoesNotEndTheRun) {
  std::string command = QloraBinary();
  for (const std::string& word : TrainWords({"--max_steps=20"})) command += " " + word;
  const std::string shell = "cd " + scratch_.string() + " && " + command + " 2>&1 | head -n 1";
  ASSERT_EQ(std::system((shell + " > /dev/null").c_str()), 0);
  EXPECT_EQ(Log("out").size(), 20u);
  EXPECT_TRUE(fs::exists(scratch_ / "out/adapter_model.safetensors"));
}

}  // namespace
}  // namespace qlora
