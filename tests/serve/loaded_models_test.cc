#include "serve/loaded_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "adapter/lora.h"
#include "base/memory.h"
#include "decision/decision_file.h"
#include "io/json.h"
#include "qlora/error.h"
#include "serve/api_error.h"
#include "serve/requests/conversation_request.h"
#include "serve/requests/tool_choice.h"
#include "serve/tiny_model.h"

namespace qlora {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string ErrorOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(NamedAdapter, NamesAndFolders) {
  TemporaryFolder folder;
  const std::filesystem::path dir = folder.path() / "my tales=x";
  std::filesystem::create_directory(dir);
  EXPECT_EQ(ParseNamedAdapter("a=" + dir.string()).name, "a");
  EXPECT_EQ(ParseNamedAdapter("a=" + dir.string()).folder, dir.string());
  EXPECT_EQ(ParseNamedAdapter(dir.string()).name, "my-tales-x");
  EXPECT_EQ(ParseNamedAdapter(dir.string() + "/").name, "my-tales-x");
  for (const char* name : {"", "a/b", ".a", "a b", "-a"}) {
    EXPECT_THAT(ErrorOf([&] { ParseNamedAdapter(std::string(name) + "=" + dir.string()); }),
                HasSubstr("is no name for a model"))
        << name;
  }
  EXPECT_TRUE(IsModelName(std::string(64, 'a')));
  EXPECT_FALSE(IsModelName(std::string(65, 'a')));
}

class LoadedModelsTest : public testing::Test {
 protected:
  // A copy of the adapter that was trained on a base in this form.
  std::string Adapter(const std::string& name, bool in_4bit, const std::string& type = "nf4") {
    const std::filesystem::path folder = adapters_.path() / name;
    std::filesystem::copy(SourceDir() / "tests/golden/llama-tiny/adapter", folder);
    WriteTextFile(folder / "qlora_base.json", FormatJson(Json{{"model_name_or_path", "llama-tiny"},
                                                              {"load_in_4bit", in_4bit},
                                                              {"bnb_4bit_quant_type", type},
                                                              {"bnb_4bit_use_double_quant", true},
                                                              {"bnb_4bit_blocksize", 64},
                                                              {"scale_search", false}}));
    return folder.string();
  }
  void Load(const std::vector<std::string>& adapters, const std::string& load_in_4bit = "auto",
            ServeOptions options = {}) {
    options.model.model_name_or_path = model_.path().string();
    options.model.compute_dtype = "float32";
    options.model.adapter = adapters;
    options.model.load_in_4bit = load_in_4bit;
    options.served_model_name = "tiny";
    models_.emplace(context_, options, "1", ProgressFn());
  }

  TestModelFolder model_;
  TemporaryFolder adapters_;
  Context context_{1};
  std::optional<LoadedModels> models_;
};

TEST_F(LoadedModelsTest, TheBaseIsHeldAsTheAdaptersWereTrained) {
  Load({Adapter("a", false), Adapter("b", false)});
  EXPECT_FALSE(models_->base().base.load_in_4bit);
  const std::vector<ServedModelPtr> all = models_->All();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]->name, "tiny");
  EXPECT_EQ(all[1]->name, "a");
  EXPECT_EQ(all[1]->fingerprint, all[2]->fingerprint) << "the same values";
  EXPECT_NE(all[0]->fingerprint, all[1]->fingerprint);
  EXPECT_EQ(models_->Find("b"), all[2]);
  EXPECT_EQ(models_->Find(""), all[0]);
}

// Norms are computed while it loads, at the start before anything has asked the backend for room.
TEST_F(LoadedModelsTest, ADoraAdapterLoadsAtTheStartAndLater) {
  Load({});
  AdapterConfig config;
  config.target_modules = std::vector<std::string>{"q_proj", "down_proj"};
  config.use_dora = true;
  const std::string folder = (adapters_.path() / "dora").string();
  LoraAdapter::Create(config, models_->base().config, HostMemory(), 1).Save(folder);
  ASSERT_EQ(ErrorOf([&] { Load({folder}); }), "no error");
  EXPECT_TRUE(models_->Find("dora")->adapter->config().use_dora);
  Load({});
  EXPECT_EQ(ErrorOf([&] { models_->Load("late", folder); }), "no error");
}

TEST_F(LoadedModelsTest, OtherFormsAreRefusedNamingBoth) {
  EXPECT_THAT(ErrorOf([&] {
                Load({Adapter("a", true), Adapter("b", false)});
              }),
              AllOf(HasSubstr("as its files have it"), HasSubstr("in nf4 with double")));
  EXPECT_THAT(ErrorOf([&] {
                Load({Adapter("c", true), Adapter("d", true, "fp4")});
              }),
              AllOf(HasSubstr("in fp4"), HasSubstr("in nf4")));
  EXPECT_THAT(ErrorOf([&] { Load({Adapter("e", false)}, "true"); }), HasSubstr("e: the adapter"));
}

TEST_F(LoadedModelsTest, LaterAdaptersHaveTheRankThatPassesHaveRoomFor) {
  ServeOptions options;
  options.adapter_dir = adapters_.path().string();
  options.max_lora_rank = 3;
  const std::string adapter = Adapter("a", false);  // of rank 4
  Load({}, "false", options);
  EXPECT_THAT(ErrorOf([&] { models_->Load("late", adapter); }), HasSubstr("--max_lora_rank 4"));
  // Room for one at the start is room for others.
  Load({adapter}, "auto", options);
  EXPECT_EQ(ErrorOf([&] { models_->Load("late", adapter); }), "no error");
}

TEST_F(LoadedModelsTest, AnAdapterBringsHowItDecides) {
  const std::string a = Adapter("a", true);
  WriteDecisionFile(a, {.decision_template = "{{ state }}", .labels = {"A", "C"}});
  EXPECT_THAT(ErrorOf([&] { Load({a}); }), HasSubstr("a/decision.json: key 'labels': found A C"));
  WriteDecisionFile(a, {.decision_template = "{{ state }}"});
  Load({a});
  EXPECT_FALSE(models_->Find("")->decisions);
  EXPECT_EQ(models_->Find("a")->decisions->file.decision_template, "{{ state }}");
}

TEST_F(LoadedModelsTest, NamesAreGivenOnce) {
  const std::string a = Adapter("a", true);
  EXPECT_THAT(ErrorOf([&] { Load({a, a}); }), HasSubstr("two models would have the name 'a'"));
  EXPECT_THAT(ErrorOf([&] { Load({"tiny=" + a}); }), HasSubstr("'tiny'"));
}

// Checkpoints with a template of their own for tools tell by that one how calls are written.
TEST_F(LoadedModelsTest, CallsAreThoseOfTheTemplateForTools) {
  std::filesystem::create_directory(model_.path() / "additional_chat_templates");
  WriteTextFile(
      model_.path() / "additional_chat_templates" / "tool_use.jinja",
      "{{ tools | tojson }}<tool_call>{% for m in messages %}{{ m.content }}{% endfor %}");
  Load({Adapter("a", false)});
  for (const ServedModelPtr& model : models_->All()) {
    ConversationRequest request;
    request.messages = {{{"role", "user"}, {"content", "Hi"}}};
    request.choice.must_call = true;
    EXPECT_EQ(PromptOf(*model, request).text, "<s>[user]Hi[assistant]");
    EXPECT_THROW(ForcedCall(*model, request), ApiError) << "the other template has no calls";
    request.tools = OrderedJson::parse(
        R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
    request.reads_calls = true;
    const ConversationPrompt prompt = PromptOf(*model, request);
    EXPECT_THAT(prompt.text, HasSubstr("<tool_call>Hi"));
    EXPECT_NE(ForcedCall(*model, request).grammar, nullptr);
    AnswerParts parts = PartsOf(*model, request, prompt);
    const std::vector<AnswerPart> found =
        parts.Add("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found[0].kind, AnswerPart::Kind::kCallBegin);
  }
}

TEST_F(LoadedModelsTest, TheModelsOwnSamplingIsTheDefault) {
  Load({});
  EXPECT_TRUE(models_->Find("")->sampling.do_sample);
  EXPECT_EQ(models_->Find("")->sampling.temperature, 1);
  WriteTextFile(model_.path() / "generation_config.json",
                R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9})");
  Load({});
  EXPECT_EQ(models_->Find("")->sampling.temperature, 0.6);
  EXPECT_EQ(models_->Find("")->sampling.top_p, 0.9);
}

TEST_F(LoadedModelsTest, AnUnloadedAdapterCountsWhileItAnswers) {
  const std::filesystem::path one = SourceDir() / "tests/golden/llama-tiny/adapter";
  const std::filesystem::path other = adapters_.path() / "other";
  std::filesystem::copy(one, other);
  Json config = Json::parse(ReadTextFile(one / "adapter_config.json"));
  config["lora_alpha"] = config["lora_alpha"].get<int>() + 1;
  WriteTextFile(other / "adapter_config.json", FormatJson(config));
  Load({});
  models_->Load("one", one.string());
  ServedModelPtr answers = models_->Find("one");
  models_->SetRoom(128, 128, answers->adapter->bytes() * 3 / 2, 1000);
  answers = models_->Find("one");
  models_->Unload("one");
  EXPECT_THROW(models_->Load("other", other.string()), ApiError);
  models_->Load("again", one.string());
  EXPECT_EQ(models_->Find("again")->adapter, answers->adapter) << "the same values";
  models_->Unload("again");
  answers.reset();
  models_->Load("other", other.string());
}

TEST_F(LoadedModelsTest, ATokenizerOfItsOwnCounts) {
  const std::filesystem::path one = SourceDir() / "tests/golden/llama-tiny/adapter";
  const std::filesystem::path other = adapters_.path() / "other";
  std::filesystem::copy(one, other);
  WriteTextFile(other / "chat_template.jinja", "{{ messages }}");
  Load({});
  models_->Load("one", one.string());
  const std::size_t adapter = models_->Find("one")->adapter->bytes();
  models_->SetRoom(128, 128, adapter + 1000, 1000);
  EXPECT_THROW(models_->Load("other", other.string()), ApiError);
  models_->SetRoom(128, 128, adapter + 512 * models_->base().tokenizer.vocab_size(), 1000);
  models_->Load("other", other.string());
  EXPECT_EQ(models_->Find("other")->adapter, models_->Find("one")->adapter);
  // One that is the same is no other, however its files are written.
  const std::filesystem::path same = adapters_.path() / "same";
  std::filesystem::copy(other, same);
  Json tokenizer = Json::parse(ReadTextFile(model_.path() / "tokenizer.json"));
  WriteTextFile(same / "tokenizer.json", FormatJson(tokenizer));
  models_->Load("same", same.string());
  EXPECT_EQ(models_->Find("same")->tokenizer, models_->Find("other")->tokenizer);
  EXPECT_EQ(models_->Find("same")->token_texts, models_->Find("other")->token_texts);
  std::filesystem::remove(same / "chat_template.jinja");
  models_->Load("as-base", same.string());
  EXPECT_EQ(models_->Find("as-base")->tokenizer, models_->Find("")->tokenizer);
  EXPECT_EQ(BytesOfAdapters(models_->All()),
            adapter + 512 * models_->base().tokenizer.vocab_size());
}

// Sizes are those of the heads of files: nothing is read of one that has no place.
TEST_F(LoadedModelsTest, AnAdapterWithoutRoomIsNotRead) {
  const std::filesystem::path one = SourceDir() / "tests/golden/llama-tiny/adapter";
  Load({});
  models_->Load("one", one.string());
  const std::size_t bytes = models_->Find("one")->adapter->bytes();
  const std::filesystem::path damaged = adapters_.path() / "damaged";
  std::filesystem::copy(one, damaged);
  std::string weights = ReadTextFile(damaged / "adapter_model.safetensors");
  weights.replace(weights.size() - 4, 4, std::string("\0\0\xc0\x7f", 4));  // NaN
  WriteTextFile(damaged / "adapter_model.safetensors", weights);
  const auto code = [&] {
    try {
      models_->Load("damaged", damaged.string());
    } catch (const ApiError& error) {
      return error.code + " " + error.message;
    }
    return std::string("no error");
  };
  models_->SetRoom(128, 128, 2 * bytes - 1, 1000);
  EXPECT_THAT(code(), testing::StartsWith(kNoRoom));
  models_->SetRoom(128, 128, 2 * bytes, 1000);
  EXPECT_THAT(code(), HasSubstr("NaN"));
}

}  // namespace
}  // namespace qlora
