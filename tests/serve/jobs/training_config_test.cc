#include "serve/jobs/training_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "inference/served_prompts.h"
#include "io/json.h"
#include "model/base_record.h"
#include "prompt/chat_template_load.h"
#include "prompt/prompt_renderer.h"
#include "qlora/options.h"
#include "serve/tiny_model.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

Job SomeJob() {
  Job job;
  job.request.n_epochs = 1;
  job.request.batch_size = 2;
  return job;
}

// A form or a template that the training did not have would be another model.
TEST(TrainingConfigTest, HasEveryFieldOfTheFormAndOfTheTemplate) {
  ModelOptions base;
  base.load_in_4bit = "true";
  base.quantization = {.bnb_4bit_quant_type = "fp4",
                       .bnb_4bit_use_double_quant = false,
                       .bnb_4bit_blocksize = 128,
                       .scale_search = true};
  base.chat = {.chat_template = "chatml",
               .chat_template_kwargs = R"({"a": 1})",
               .chat_template_date = "2026-11-30"};
  const OrderedJson config = TrainingConfig(SomeJob(), base, {}, 4096);
  OptionTable fields;
  base.quantization.Declare(fields);
  base.chat.Declare(fields);
  for (const Option& field : fields.options()) {
    ASSERT_TRUE(config.contains(field.name)) << field.name;
    EXPECT_EQ(TextOrJson(config[field.name]), field.ToString());
  }
}

TEST(TrainingConfigTest, LeavesOutWhatIsNotSaid) {
  ModelOptions base;
  base.load_in_4bit = "false";
  const OrderedJson config = TrainingConfig(SomeJob(), base, {}, 4096);
  EXPECT_EQ(config["load_in_4bit"], "false");
  EXPECT_EQ(config["max_length"], 4096);
  EXPECT_EQ(config["over_long"], "truncate");
  for (const char* name : {"scale_search", "chat_template", "chat_template_kwargs"}) {
    EXPECT_FALSE(config.contains(name)) << name;
  }
}

// The training runs in another folder than the server.
TEST(TrainingConfigTest, NamesLeadFromEveryFolder) {
  const TemporaryFolder folder;
  const auto file = folder.Write("chat.jinja", "{{ messages }}");
  const std::filesystem::path near = std::filesystem::relative(file);
  ModelOptions base;
  base.model_name_or_path = near.parent_path().string();
  base.chat.chat_template = near.string();
  const OrderedJson config = TrainingConfig(SomeJob(), base, {}, 4096);
  for (const char* name : {"model_name_or_path", "chat_template"}) {
    const std::filesystem::path path = config[name].get<std::string>();
    EXPECT_TRUE(path.is_absolute() && std::filesystem::exists(path)) << path;
  }
  base.model_name_or_path = "org/model";
  base.chat.chat_template = "chatml";
  const OrderedJson names = TrainingConfig(SomeJob(), base, {}, 4096);
  EXPECT_EQ(names["model_name_or_path"], "org/model");
  EXPECT_EQ(names["chat_template"], "chatml");
}

TEST(TrainingConfigTest, WhatIsInAFolderIsNamedFromThere) {
  const TemporaryFolder folder;
  folder.Write("runs/job/file", "");
  folder.Write("other/file", "");
  std::filesystem::create_symlink("runs", folder / "link");
  EXPECT_EQ(NameWithin(folder / "link", folder / "runs/job"), "job");
  EXPECT_EQ(NameWithin(folder / "runs/", folder / "link/job/../job/file"), "job/file");
  EXPECT_EQ(NameWithin(folder / "runs", folder / "other"),
            std::filesystem::canonical(folder / "other").string());
}

// Tokens, because who asks and who trains put BOS in another place.
TEST(TrainingConfigTest, AnAdapterOfTextsIsTrainedAsItIsAsked) {
  const TestModelFolder model;
  const TemporaryFolder adapter;
  const Tokenizer tokenizer = Tokenizer::Load(model.path());
  const PromptLayout layout{.kind = PromptLayout::Kind::kText,
                            .format = RecordFormat::kPromptCompletion,
                            .prompt_template = "{prompt}",
                            .completion_template = "{completion}"};
  BaseRecord record;
  record.chat_template = TemplateOfLayout(layout, tokenizer, nullptr, false, true);
  record.prompts.layout = layout;
  SaveBaseRecord(adapter.path(), record);
  const Tokenizer own = Tokenizer::Load(model.path(), adapter.path());
  const ServedPrompts served({}, adapter.path().string(), model.path(), own);
  const char* messages =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}])";
  const ChatFields fields{.chat_template = TextTemplateOf(adapter.path()).string()};
  const auto chat = LoadChatTemplate(fields, own, ChatClock::kFixed);
  EXPECT_EQ(
      EncodePrompt(own, {.text = chat->Prompt(ParseOrderedJson(messages, "messages"), nullptr),
                         .add_special_tokens = false}),
      EncodePrompt(own, served.OfChat(messages, "")));
  // The template of the model itself, and of an adapter of conversations, is no matter of jobs.
  EXPECT_TRUE(TextTemplateOf(model.path()).empty());
  record.prompts.layout = PromptLayout{.kind = PromptLayout::Kind::kChat};
  SaveBaseRecord(adapter.path(), record);
  EXPECT_TRUE(TextTemplateOf(adapter.path()).empty());
}

}  // namespace
}  // namespace qlora
