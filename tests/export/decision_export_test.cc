// Models that decide, written for llama.cpp: their answers to requests are those that llama.cpp
// b12211 gave (tests/golden/decision/answers.jsonl).
#include <fstream>

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "inference/decision_source.h"
#include "io/json.h"
#include "io/test_util.h"
#include "qlora/model.h"

namespace qlora {
namespace {

using testing::HasSubstr;

// llama.cpp computes in float32.
constexpr double kTolerance = 1e-4;

void ExpectClose(const OrderedJson& found, const OrderedJson& expected, const std::string& place) {
  if (expected.is_number() && found.is_number()) {
    EXPECT_NEAR(found.get<double>(), expected.get<double>(), kTolerance) << place;
  } else if (expected.is_structured()) {
    ASSERT_EQ(found.type(), expected.type()) << place;
    ASSERT_EQ(found.size(), expected.size()) << place;
    for (const auto& [key, value] : expected.items()) {
      ExpectClose(expected.is_object() ? found.at(key) : found.at(std::stoul(key)), value,
                  place + "." + key);
    }
  } else {
    EXPECT_EQ(found, expected) << place;
  }
}

class DecisionExportTest : public ConvertTest {
 protected:
  const fs::path model_ = kGolden / "decision" / "tiny-qwen3";

  ExportOptions Decides(const std::string& name) {
    ExportOptions options = ExportTo(name);
    options.model_name_or_path = model_;
    options.outtype = "f32";
    options.decision_template = "plain";
    options.decision_temperature = "choice=2.5,noul=0.75,score=1.6";
    return options;
  }
  Model Load(const fs::path& model) {
    ModelOptions options;
    options.model_name_or_path = model;
    options.load_in_4bit = "false";
    options.compute_dtype = "float32";
    return Model::Load(context_, options);
  }
};

TEST_F(DecisionExportTest, AnswersAreThoseOfLlamaCpp) {
  const ExportOptions gguf = Decides("decides.gguf");
  Export(context_, gguf);
  ExportOptions hf = Decides("decides");
  hf.format = "hf";
  Export(context_, hf);
  for (const std::string& output : {gguf.output, hf.output}) {
    SCOPED_TRACE(output);
    Model model = Load(output);
    std::ifstream lines(kGolden / "decision" / "answers.jsonl");
    int compared = 0;
    for (std::string line; std::getline(lines, line); ++compared) {
      const OrderedJson golden = OrderedJson::parse(line);
      const OrderedJson found = OrderedJson::parse(model.Decide(golden["request"].dump()));
      ExpectClose(found["answers"], golden["answer"]["answers"], "answers");
      EXPECT_EQ(found["usage"], golden["answer"]["usage"]);
    }
    EXPECT_EQ(compared, 3);
  }
}

// SentencePiece puts a space before texts; llama.cpp read this file with the same answers.
TEST_F(DecisionExportTest, PromptsOfSentencePieceHaveTheirSpaces) {
  const fs::path shared = SharedFolder();
  const fs::path golden = shared / "golden" / "decision" / "gguf";
  if (!fs::exists(golden)) GTEST_SKIP() << "no " << golden;
  ExportOptions options = Decides("stories.gguf");
  options.model_name_or_path = shared / "models" / "stories260K-hf";
  options.decision_temperature = "noul=1";
  Export(context_, options);
  EXPECT_FALSE(
      *GetGguf<bool>(ReadGgufMetadata(options.output), "tokenizer.ggml.add_space_prefix", "file"));
  Model model = Load(options.output);
  const std::string request = ReadTextFile(golden / "request_score.json");
  const OrderedJson expected =
      OrderedJson::parse(ReadTextFile(golden / "answer_stories260K_score.json"));
  ExpectClose(OrderedJson::parse(model.Decide(request))["answers"], expected["answers"], "answers");
}

// An adapter without a decision.json, beside a base that decides.
TEST_F(DecisionExportTest, AnAdapterAnswersByTheKeysOfItsBase) {
  const fs::path golden = SharedFolder() / "golden" / "decision" / "gguf";
  if (!fs::exists(golden)) GTEST_SKIP() << "no " << golden;
  const ExportOptions gguf = Decides("decides.gguf");
  Export(context_, gguf);
  ModelOptions options;
  options.model_name_or_path = gguf.output;
  options.adapter = {kGolden / "decision" / "qwen3" / "adapter_mixed"};
  options.load_in_4bit = "false";
  options.compute_dtype = "float32";
  Model model = Model::Load(context_, options);
  const std::string request = ReadTextFile(golden / "request_choice.json");
  const OrderedJson expected =
      OrderedJson::parse(ReadTextFile(golden / "answer_adapter_choice.json"));
  ExpectClose(OrderedJson::parse(model.Decide(request))["answers"], expected["answers"], "answers");
}

TEST_F(DecisionExportTest, KeysAreThoseOfLlamaCpp) {
  const ExportOptions options = Decides("decides.gguf");
  Export(context_, options);
  const GgufMetadata metadata = ReadGgufMetadata(options.output);
  EXPECT_EQ(*GetGguf<std::string>(metadata, "qwen3.decision.type", "file"), "nimble");
  EXPECT_EQ(*GetGguf<float>(metadata, "qwen3.decision.temperature.noul", "file"), 0.75f);
  const auto source = DecisionOfGguf(metadata, "file");
  ASSERT_TRUE(source);
  EXPECT_EQ(source->file.temperatures.Of(QuestionType::kChoice, 4), 2.5);
  EXPECT_THAT(source->file.decision_template, HasSubstr("Answer:"));
}

// Files that llama.cpp refuses are refused here.
TEST_F(DecisionExportTest, KeysThatCannotBeReadAreRefused) {
  const auto refusal = [](const auto& change) -> std::string {
    GgufMetadata metadata;
    metadata.Add("general.architecture", std::string("qwen3"));
    change(metadata);
    try {
      DecisionOfGguf(metadata, "m.gguf");
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const auto nimble = [](GgufMetadata& m) { m.Add("qwen3.decision.type", std::string("nimble")); };
  const auto templated = [&](GgufMetadata& m) {
    nimble(m);
    m.Add("tokenizer.chat_template.systemone", std::string("{{ state }}"));
  };
  EXPECT_THAT(refusal([](GgufMetadata& m) { m.Add("qwen3.decision.type", std::string("kev")); }),
              HasSubstr("m.gguf: qwen3.decision.type: expected nimble"));
  EXPECT_THAT(refusal(nimble), HasSubstr("tokenizer.chat_template.systemone is missing"));
  EXPECT_THAT(refusal([&](GgufMetadata& m) {
                templated(m);
                m.Add("qwen3.decision.temperature.noul", 0.0f);
              }),
              HasSubstr("above 0"));
  // Numbers as texts count, and other names do not.
  EXPECT_EQ(refusal([&](GgufMetadata& m) {
              templated(m);
              m.Add("qwen3.decision.temperature.choice.3", std::string("1.5"));
              m.Add("qwen3.decision.temperature.choice.small", -1.0f);
            }),
            "");
}

TEST_F(DecisionExportTest, AnAdapterFileHasNoPlaceForATemplate) {
  ExportOptions options = Decides("adapter.gguf");
  options.format = "gguf-adapter";
  options.adapter = {kGolden / "decision" / "qwen3" / "adapter_mixed"};
  EXPECT_THAT(Refusal(options), HasSubstr("has no place for"));
}

}  // namespace
}  // namespace qlora
