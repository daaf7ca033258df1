// Models that decide, written for llama.cpp: their answers to requests are those that llama.cpp
// b12211 gave (tests/golden/decision/answers.jsonl).
#include <fstream>

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "convert/gguf_rewrite.h"
#include "inference/decision_source.h"
#include "io/json.h"
#include "io/test_util.h"
#include "qlora/model.h"
#include "tokenizer/tokenizer.h"

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
  // Returns the number of answers of the golden file.
  static int CompareAnswers(Model& model, const std::string& file) {
    std::ifstream lines(kGolden / "decision" / file);
    int compared = 0;
    for (std::string line; std::getline(lines, line); ++compared) {
      const OrderedJson golden = OrderedJson::parse(line);
      const OrderedJson found = OrderedJson::parse(model.Decide(golden["request"].dump()));
      ExpectClose(found["answers"], golden["answer"]["answers"], "answers");
      EXPECT_EQ(found["usage"], golden["answer"]["usage"]);
    }
    return compared;
  }
  // llama-tiny with a SentencePiece that puts a space before texts, and has letters for labels.
  fs::path ModelWithSpaces() {
    const fs::path model = root_ / "spaces";
    fs::copy(kGolden / "llama-tiny", model);
    Json tokenizer = ReadJsonFile(model / "tokenizer.json");
    tokenizer["normalizer"] = {
        {"type", "Sequence"},
        {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, tokenizer["normalizer"]}}};
    Json& pieces = tokenizer["model"]["vocab"];
    for (char letter = 'a'; letter <= 'z'; ++letter) {
      const Json id = pieces.at(std::string(1, letter));
      pieces.erase(std::string(1, letter));
      pieces[std::string(1, static_cast<char>(letter - 'a' + 'A'))] = id;
    }
    WriteTextFile(model / "tokenizer.json", tokenizer.dump());
    return model;
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
    EXPECT_EQ(CompareAnswers(model, "answers.jsonl"), 3);
  }
}

// SentencePiece puts a space before texts, and prompts of decisions have their own.
TEST_F(DecisionExportTest, PromptsOfSentencePieceHaveTheirSpaces) {
  ExportOptions gguf = Decides("decides.gguf");
  gguf.model_name_or_path = ModelWithSpaces();
  Export(context_, gguf);
  EXPECT_FALSE(
      *GetGguf<bool>(ReadGgufMetadata(gguf.output), "tokenizer.ggml.add_space_prefix", "file"));
  ExportOptions hf = gguf;
  hf.output = root_ / "decides";
  hf.format = "hf";
  Export(context_, hf);
  const std::string request =
      R"({"state": "RAIN", "questions": {"q": {"type": "choice", "instructions": "WHAT",
          "criteria": {"RAIN": null, "SUN": null}}}})";
  const OrderedJson found = OrderedJson::parse(Load(gguf.output).Decide(request));
  const OrderedJson expected = OrderedJson::parse(Load(hf.output).Decide(request));
  EXPECT_EQ(found["usage"], expected["usage"]);
  ExpectClose(found["answers"], expected["answers"], "answers");
}

// llama.cpp read such a file of a real model with the same answers.
TEST_F(DecisionExportTest, AnswersOfSentencePieceAreThoseOfLlamaCpp) {
  const fs::path stories = SharedFolder() / "models" / "stories260K-hf";
  if (!fs::exists(stories)) GTEST_SKIP() << "no " << stories;
  ExportOptions options = Decides("stories.gguf");
  options.model_name_or_path = stories;
  options.decision_temperature = "noul=1";
  Export(context_, options);
  Model model = Load(options.output);
  EXPECT_EQ(CompareAnswers(model, "stories_answers.jsonl"), 1);
}

// An adapter without a decision.json, beside a base that decides.
TEST_F(DecisionExportTest, AnAdapterAnswersByTheKeysOfItsBase) {
  const ExportOptions gguf = Decides("decides.gguf");
  Export(context_, gguf);
  ModelOptions options;
  options.model_name_or_path = gguf.output;
  options.adapter = {kGolden / "decision" / "qwen3" / "adapter_mixed"};
  options.load_in_4bit = "false";
  options.compute_dtype = "float32";
  Model model = Model::Load(context_, options);
  EXPECT_EQ(CompareAnswers(model, "adapter_answers.jsonl"), 1);
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

// The template of decisions is in a file once, and no template of chats.
TEST_F(DecisionExportTest, AFileThatDecidesIsWrittenAgain) {
  const ExportOptions first = Decides("decides.gguf");
  Export(context_, first);
  const DecisionSource expected = *DecisionOfGguf(ReadGgufMetadata(first.output), "file");
  ExportOptions again = ExportTo("again.gguf");
  again.model_name_or_path = first.output;
  again.outtype = "f16";
  Export(context_, again);
  const auto source = DecisionOfGguf(ReadGgufMetadata(again.output), "file");
  ASSERT_TRUE(source);
  EXPECT_EQ(source->file.decision_template, expected.file.decision_template);
  EXPECT_EQ(source->file.temperatures.values(), expected.file.temperatures.values());
  const Tokenizer tokenizer = Tokenizer::Load(again.output);
  for (const ChatTemplateText& chat : tokenizer.spec().chat_templates) {
    EXPECT_NE(chat.name, "systemone");
  }
  ExportOptions hf = ExportTo("decides");
  hf.model_name_or_path = first.output;
  hf.format = "hf";
  Export(context_, hf);
  EXPECT_EQ(ReadTextFile(root_ / "decides" / "tokenizer_config.json").find("systemone"),
            std::string::npos);
}

TEST_F(DecisionExportTest, ItsTemplateTakesThePlaceOfAChatTemplateOfItsName) {
  const fs::path model = root_ / "model";
  fs::copy(model_, model);
  fs::create_directory(model / "additional_chat_templates");
  WriteTextFile(model / "additional_chat_templates" / "systemone.jinja", "{{ state }}");
  ExportOptions options = Decides("decides.gguf");
  options.model_name_or_path = model;
  Export(context_, options);
  const auto source = DecisionOfGguf(ReadGgufMetadata(options.output), "file");
  ASSERT_TRUE(source);
  EXPECT_THAT(source->file.decision_template, HasSubstr("Answer:"));
}

// Where types are kept, keys are, too: however their numbers are spelled, and whatever others say.
TEST_F(DecisionExportTest, KeysThatNothingChangesAreKept) {
  const ExportOptions first = Decides("decides.gguf");
  Export(context_, first);
  RewriteGguf(first.output, [](GgufMetadata& keys) {
    const GgufValue text = std::string("0.75");
    keys = WithKey(keys, "qwen3.decision.temperature.noul", &text);
    keys.Add("qwen3.decision.temperature.other", std::string("knows it"));
  });
  ExportOptions again = ExportTo("again.gguf");
  again.model_name_or_path = first.output;
  again.outtype = "auto";
  Export(context_, again);
  EXPECT_EQ(ReadTextFile(again.output), ReadTextFile(first.output));
  // Temperatures that are given are all that there are.
  again.output = root_ / "other.gguf";
  again.decision_temperature = "noul=2";
  Export(context_, again);
  const GgufMetadata keys = ReadGgufMetadata(again.output);
  EXPECT_EQ(*GetGguf<float>(keys, "qwen3.decision.temperature.noul", "file"), 2);
  for (const char* name : {"choice", "score", "other"}) {
    EXPECT_EQ(keys.Find(std::string("qwen3.decision.temperature.") + name), nullptr) << name;
  }
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
