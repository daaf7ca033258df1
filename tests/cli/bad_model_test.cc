// Damaged and unsuitable models: exit code 2, a message that names the place, nothing written.
#include <gmock/gmock.h>

#include <tuple>

#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr const char* kQuery = "model.layers.1.self_attn.q_proj.weight";
constexpr const char* kKey = "model.layers.1.self_attn.k_proj.weight";

class BadModelTest : public TinyModelTest {
 protected:
  // What train, quantize, export and eval say, which must all refuse.
  void ExpectRefused(const ::testing::Matcher<std::string>& message) {
    EXPECT_THAT(Refused(TrainWords()), message);
    EXPECT_THAT(Refused({"eval", "model", "data.jsonl"}), message);
    EXPECT_THAT(Refused({"generate", "model", "Once"}), message);
    EXPECT_THAT(Refused({"quantize", "model", "out"}), message);
    EXPECT_THAT(Refused({"export", "model", "out.gguf"}), message);
  }

  // Splits the checkpoint in two shards, the second with one tensor.
  void Shard() {
    SafetensorsParts first = SafetensorsParts::Read(model() / "model.safetensors");
    nlohmann::json map;
    for (const auto& [name, info] : first.header.items()) {
      if (name != "__metadata__") map[name] = "model-00001-of-00002.safetensors";
    }
    map[kQuery] = "model-00002-of-00002.safetensors";
    SafetensorsParts second;
    nlohmann::json info = first.header.at(kQuery);
    const auto begin = info["data_offsets"][0].get<std::size_t>();
    const auto end = info["data_offsets"][1].get<std::size_t>();
    second.data = first.data.substr(begin, end - begin);
    info["data_offsets"] = {0, end - begin};
    second.header[kQuery] = info;
    second.Write(model() / "model-00002-of-00002.safetensors");

    first.data.erase(begin, end - begin);
    first.header.erase(kQuery);
    for (auto& [name, other] : first.header.items()) {
      if (name == "__metadata__" || other["data_offsets"][0].get<std::size_t>() < begin) continue;
      for (nlohmann::json& offset : other["data_offsets"]) {
        offset = offset.get<std::size_t>() - (end - begin);
      }
    }
    first.Write(model() / "model-00001-of-00002.safetensors");
    fs::remove(model() / "model.safetensors");
    std::ofstream(model() / "model.safetensors.index.json")
        << nlohmann::json{{"metadata", nlohmann::json::object()}, {"weight_map", map}}.dump();
  }
};

TEST_F(BadModelTest, ShardsThatAreWholeAreFine) {
  Shard();
  const Outcome outcome = Run({"generate", "model", "Once", "--max_new_tokens", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(BadModelTest, MissingShard) {
  Shard();
  fs::remove(model() / "model-00002-of-00002.safetensors");
  ExpectRefused(HasSubstr("model-00002-of-00002.safetensors"));
}

TEST_F(BadModelTest, TruncatedShard) {
  Shard();
  const fs::path shard = model() / "model-00002-of-00002.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 100);
  ExpectRefused(HasSubstr("model-00002-of-00002.safetensors"));
}

TEST_F(BadModelTest, TruncatedFile) {
  fs::resize_file(model() / "model.safetensors", 1000);
  ExpectRefused(HasSubstr("model.safetensors"));
  fs::resize_file(model() / "model.safetensors", 3);
  ExpectRefused(HasSubstr("model.safetensors"));
  fs::remove(model() / "model.safetensors");
  ExpectRefused(HasSubstr("model"));
}

TEST_F(BadModelTest, HeaderThatLiesAboutOffsets) {
  EditWeights([](SafetensorsParts& parts) {
    parts.header[kQuery]["data_offsets"] = {parts.data.size(), 2 * parts.data.size()};
  });
  ExpectRefused(AllOf(HasSubstr("model.safetensors"), HasSubstr(kQuery)));
}

TEST_F(BadModelTest, UnknownArchitecture) {
  EditJson(model() / "config.json", [](nlohmann::json& config) {
    config["architectures"] = {"FancyForCausalLM"};
    config["model_type"] = "fancy";
  });
  ExpectRefused(AllOf(HasSubstr("config.json"), HasSubstr("fancy")));
}

TEST_F(BadModelTest, ConfigurationThatIsNoJson) {
  std::ofstream(model() / "config.json") << "{\n  \"model_type\": \"llama\",\n  oops\n}";
  ExpectRefused(HasSubstr("config.json"));
}

TEST_F(BadModelTest, TensorOfTheWrongShape) {
  EditWeights([](SafetensorsParts& parts) {
    std::swap(parts.header[kKey]["shape"][0], parts.header[kKey]["shape"][1]);
  });
  ExpectRefused(AllOf(HasSubstr(kKey), HasSubstr("32"), HasSubstr("64")));
}

TEST_F(BadModelTest, MissingTensor) {
  EditWeights([](SafetensorsParts& parts) {
    parts.header["renamed.weight"] = parts.header[kQuery];
    parts.header.erase(kQuery);
  });
  ExpectRefused(HasSubstr(kQuery));
}

TEST_F(BadModelTest, MissingHead) {
  EditWeights([](SafetensorsParts& parts) {
    parts.header["renamed.weight"] = parts.header["lm_head.weight"];
    parts.header.erase("lm_head.weight");
  });
  EditJson(model() / "config.json", [](nlohmann::json& config) {
    config["architectures"] = {"LlamaModel"};
    config["tie_word_embeddings"] = false;
  });
  ExpectRefused(AllOf(HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings")));
  EditJson(model() / "config.json",
           [](nlohmann::json& config) { config["tie_word_embeddings"] = true; });
  const Outcome outcome = Run({"generate", "model", "Once", "--max_new_tokens", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(BadModelTest, NanInAQuantizedWeight) {
  EditWeights([](SafetensorsParts& parts) {
    const auto begin = parts.header[kQuery]["data_offsets"][0].get<std::size_t>();
    parts.data.replace(begin + 4 * 70, 4, "\x00\x00\xC0\x7F", 4);  // row 1, column 6
  });
  ExpectRefused(HasSubstr(kQuery));
}

TEST_F(BadModelTest, NanInTheEmbedding) {
  EditWeights([](SafetensorsParts& parts) {
    const char* name = "model.embed_tokens.weight";
    const auto begin = parts.header[name]["data_offsets"][0].get<std::size_t>();
    parts.data.replace(begin + 4 * 70, 4, "\x00\x00\xC0\x7F", 4);
  });
  ExpectRefused(HasSubstr("model.embed_tokens.weight"));
}

TEST_F(BadModelTest, ConfigurationWithImpossibleNumbers) {
  const auto refuse = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json before;
    EditJson(model() / "config.json", [&](nlohmann::json& config) {
      before = config;
      config[key] = value;
    });
    ExpectRefused(HasSubstr(key));
    EditJson(model() / "config.json", [&](nlohmann::json& config) { config = before; });
  };
  refuse("rope_theta", -5);
  refuse("rms_norm_eps", -1);
  refuse("num_key_value_heads", 3);
  refuse("hidden_size", -64);
}

TEST_F(BadModelTest, TokenizerThatIsMissing) {
  fs::remove(model() / "tokenizer.json");
  const auto advice = HasSubstr(
      "tokenizer.json: no such file: the folder has no tokenizer. Copy tokenizer.json and "
      "tokenizer_config.json from the model that");
  EXPECT_THAT(Refused(TrainWords()), advice);
  EXPECT_THAT(Refused({"generate", "model", "Once"}), advice);
  EXPECT_THAT(Refused({"export", "model", "out.gguf"}), advice);
}

TEST_F(BadModelTest, TokenizerOfVocabularyAndMergesAlone) {
  fs::rename(model() / "tokenizer.json", model() / "vocab.json");
  Write("model/merges.txt", "");
  EXPECT_THAT(
      Refused(TrainWords()),
      HasSubstr("the model has only vocab.json and merges.txt, which are not read. Make the "
                "file once in Python"));
}

TEST_F(BadModelTest, TokenizerOfSentencePieceAlone) {
  fs::rename(model() / "tokenizer.json", model() / "tokenizer.model");
  EXPECT_THAT(Refused(TrainWords()),
              HasSubstr("the model has only tokenizer.model, which is not read. Make the file once "
                        "in Python"));
}

TEST_F(BadModelTest, ABrokenGgufFile) {
  Write("model.gguf", "GGUF");
  EXPECT_THAT(Refused({"generate", "model.gguf", "Hi"}), HasSubstr("model.gguf: ends at byte 4"));
  EXPECT_THAT(Refused({"export", "model", "m.gguf", "--outtype", "q4_k_x"}),
              HasSubstr("--outtype: expects"));
}

TEST_F(BadModelTest, TokenizerWithoutTheNeededParts) {
  EditJson(model() / "tokenizer.json", [](nlohmann::json& json) { json.erase("model"); });
  EXPECT_THAT(Refused(TrainWords()), AllOf(HasSubstr("tokenizer.json"), HasSubstr("model")));
  EXPECT_THAT(Refused({"tokenize", "model", "x"}), HasSubstr("tokenizer.json"));
}

TEST_F(BadModelTest, AdapterForAnotherModel) {
  const std::string adapter = (Golden("qwen2-tiny") / "adapter").string();
  for (const Words& words : {TrainWords({"--adapter", adapter, "--lora_r", "2"}),
                             Words{"generate", "model", "Once", "--adapter", adapter},
                             Words{"eval", "model", "data.jsonl", "--adapter", adapter},
                             Words{"export", "model", "out.gguf", "--adapter", adapter}}) {
    EXPECT_THAT(Refused(words), HasSubstr("adapter_model.safetensors")) << words[0];
  }
}

// As PEFT makes them for all-linear on a mixture of experts, which are read. In a model without
// experts, the module has the name of a router by chance.
TEST_F(BadModelTest, AdapterOfARouter) {
  for (const char* name : {"qwen3moe-tiny", "qwen3-tiny"}) {
    const fs::path model = Golden(name);
    fs::remove_all(scratch_ / "adapter");
    fs::copy(model / "adapter", scratch_ / "adapter");
    EditJson(scratch_ / "adapter" / "adapter_config.json",
             [](nlohmann::json& json) { json["target_modules"].push_back("gate"); });
    const fs::path file = scratch_ / "adapter" / "adapter_model.safetensors";
    SafetensorsParts parts = SafetensorsParts::Read(file);
    for (const auto& [matrix, rows, cols] : {std::tuple("A", 2, 32), {"B", 4, 2}}) {
      const std::size_t begin = parts.data.size();
      parts.data.append(4 * rows * cols, '\0');
      parts.header[std::string("base_model.model.model.layers.0.mlp.gate.lora_") + matrix +
                   ".weight"] = {
          {"dtype", "F32"}, {"shape", {rows, cols}}, {"data_offsets", {begin, parts.data.size()}}};
    }
    parts.Write(file);
    if (model == Golden("qwen3moe-tiny")) {
      EXPECT_THAT(Refused({"train", "--model", model.string(), "--dataset", "data.jsonl",
                           "--output-dir", "out", "--adapter", "adapter"}),
                  HasSubstr("a LoRA on the router 'model.layers.0.mlp.gate'"));
      continue;
    }
    EXPECT_THAT(Refused({"generate", model.string(), "Once", "--adapter", "adapter"}),
                HasSubstr("mlp.gate', which this model does not have"));
  }
}

TEST_F(BadModelTest, AdapterThatIsNotThere) {
  EXPECT_THAT(Refused({"generate", "model", "Once", "--adapter", "absent"}), HasSubstr("absent"));
  EXPECT_THAT(Refused(TrainWords({"--adapter", "absent"})), HasSubstr("absent"));
}

TEST_F(BadModelTest, MistypedPathsComeWithWhatIsThere) {
  fs::create_directory(scratch_ / "models");
  fs::copy(model(), scratch_ / "models/tiny");
  EXPECT_THAT(Refused({"inspect", "./modle"}), HasSubstr("did you mean './model'?"));
  EXPECT_THAT(Refused({"inspect", "./absent"}),
              HasSubstr("./absent: no such model directory; models in .: model\n"));
  for (const auto& [path, advice] : {std::pair("models/tin", "did you mean 'models/tiny'?"),
                                     {"models/tyni", "models in models: tiny\n"}}) {
    const std::string error = Refused({"inspect", path});
    EXPECT_THAT(error, HasSubstr(advice));
    EXPECT_THAT(error, Not(HasSubstr("qlora pull")));
  }
  EXPECT_THAT(Refused({"inspect", "absent"}), HasSubstr("To download it: qlora pull ORG/absent"));
  EXPECT_THAT(Refused({"export", "model", "model", "--format", "hf", "--overwrite"}),
              HasSubstr("error: model is read from; choose another directory to write to"));
  ASSERT_EQ(Run(TrainWords()).code, 0);
  EXPECT_THAT(Refused(TrainWords({"--adapter", "out", "--output_dir=./out", "--overwrite"})),
              HasSubstr("output_dir ./out is the adapter that the run starts from"));
}

}  // namespace
}  // namespace qlora
