// The jobs on a tiny model: generate, chat, eval, export, quantize, tokenize, inspect.
#include <gmock/gmock.h>

#include <algorithm>

#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

class MainJobTest : public TinyModelTest {};

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
  EXPECT_THAT(merged.err, HasSubstr("unchanged; use --load_in_4bit true"));
  const Outcome as_it_is = Run({"generate", "merged", "Once", "--max_new_tokens=2"});
  EXPECT_EQ(as_it_is.code, 0);
  EXPECT_THAT(as_it_is.err, HasSubstr("have an adapter merged in and are used as they are"));
  const Outcome again =
      Run({"generate", "merged", "Once", "--max_new_tokens=2", "--load_in_4bit", "true"});
  EXPECT_THAT(again.err, Not(HasSubstr("have an adapter merged in")));
  EXPECT_TRUE(fs::exists(scratch_ / "out/tokenizer.json"));
  EXPECT_THAT(ReadAll(scratch_ / "out/README.md"),
              AllOf(StartsWith("---\nbase_model: \"model\"\nlibrary_name: peft\n"),
                    HasSubstr("pipeline_tag: text-generation")));
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
  // The weights tell, whatever the name of the folder.
  EXPECT_THAT(notes("other"), Not(HasSubstr("note:")));
  const std::string weights = ReadAll(scratch_ / "model/model.safetensors");
  std::string changed = weights;
  // The first byte behind the header, whose length comes first, in three bytes here.
  const std::size_t header =
      static_cast<unsigned char>(weights[0]) +
      256 * static_cast<std::size_t>(static_cast<unsigned char>(weights[1])) +
      65536 * static_cast<std::size_t>(static_cast<unsigned char>(weights[2]));
  changed[8 + header] ^= 1;
  std::ofstream(scratch_ / "model/model.safetensors", std::ios::binary) << changed;
  EXPECT_THAT(notes("model"), HasSubstr("note: the weights of model are not those"));
  std::ofstream(scratch_ / "model/model.safetensors", std::ios::binary) << weights;
  // Adapters of older versions and of other programs have their base's name alone.
  EditJson(scratch_ / "out/qlora_base.json",
           [](nlohmann::json& json) { json.erase("model_fingerprint"); });
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
              HasSubstr("this model has no chat template; set chat_template to plain, or"));
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
  EXPECT_THAT(Run({"inspect", "data.jsonl"}).out, HasSubstr("to train: qlora train --model MODEL"));
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
  const Outcome alone = Run({"inspect", "--dataset", "pairs.jsonl"});
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("format prompt_completion"));
  const nlohmann::json without = RunJson({"inspect", "pairs.jsonl", "--ignore-fields", "prompt"});
  EXPECT_EQ(without.at("files")[0].at("fields").size(), 1u);
}

}  // namespace
}  // namespace qlora
