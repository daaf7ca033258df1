// What a GGUF file says of where its model comes from, and the Modelfile beside it.
#include "export/gguf/gguf_origin.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "convert/model_card.h"
#include "export/modelfile.h"
#include "io/json.h"
#include "io/test_util.h"
#include "model/base_record.h"
#include "model/checkpoint.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using testing::ElementsAre;

TEST(ModelCard, ReadsTheTopLevel) {
  const auto card = ReadModelCard(
      "---\n# a remark\nlicense: apache-2.0\nlanguage:\n- en\n- \"de\"\ntags: [a, 'b c']\n"
      "base_model: org/base\nempty:\nmodel-index:\n- name: x\n  results:\n  - task:\n"
      "      type: y\n---\nlicense: no\n");
  EXPECT_THAT(card.at("license"), ElementsAre("apache-2.0"));
  EXPECT_THAT(card.at("language"), ElementsAre("en", "de"));
  EXPECT_THAT(card.at("tags"), ElementsAre("a", "b c"));
  EXPECT_THAT(card.at("base_model"), ElementsAre("org/base"));
  EXPECT_THAT(card.at("empty"), ElementsAre());
  EXPECT_THAT(card.at("model-index"), ElementsAre());
  EXPECT_FALSE(card.contains("results"));
}

TEST(ModelCard, IsEmptyWhereThereIsNone) {
  EXPECT_TRUE(ReadModelCard("").empty());
  EXPECT_TRUE(ReadModelCard("# A model\n\nlicense: mit\n").empty());
  EXPECT_TRUE(ReadModelCard("---\nlicense: mit\n").empty());
}

class GgufOriginTest : public ConvertTest {
 protected:
  GgufOriginTest() {
    fs::copy(kGolden / "llama-tiny", root_ / "model", fs::copy_options::recursive);
    WriteTextFile(root_ / "model" / "README.md",
                  "---\nlicense: mit\nlanguage: en\ntags: [tiny]\nbase_model: org/base\n---\n");
  }

  ExportOptions To(const std::string& name, const std::string& outtype) const {
    ExportOptions options;
    options.model_name_or_path = root_ / "model";
    options.output = root_ / name;
    options.outtype = outtype;
    return options;
  }
};

TEST_F(GgufOriginTest, KeysFollowTheCard) {
  Export(context_, To("a.gguf", "f16"));
  const auto file = OpenGguf(root_ / "a.gguf");
  EXPECT_EQ(file->Require<std::string>("general.license"), "mit");
  EXPECT_THAT(file->Require<std::vector<std::string>>("general.languages"), ElementsAre("en"));
  EXPECT_THAT(file->Require<std::vector<std::string>>("general.tags"), ElementsAre("tiny"));
  EXPECT_EQ(file->Require<std::uint32_t>("general.base_model.count"), 1U);
  EXPECT_EQ(file->Require<std::string>("general.base_model.0.name"), "base");
  EXPECT_EQ(file->Require<std::string>("general.base_model.0.organization"), "org");
  EXPECT_EQ(file->Require<std::string>("general.base_model.0.repo_url"),
            "https://huggingface.co/org/base");
  // Nothing is rounded to blocks.
  EXPECT_EQ(file->Get<std::string>("general.quantized_by"), nullptr);

  // A file that is made from it says the same.
  ExportOptions again = To("b.gguf", "q8_0");
  again.model_name_or_path = root_ / "a.gguf";
  Export(context_, again);
  const auto second = OpenGguf(root_ / "b.gguf");
  EXPECT_EQ(second->Require<std::string>("general.license"), "mit");
  EXPECT_EQ(second->Require<std::string>("general.base_model.0.name"), "base");
  EXPECT_EQ(second->Require<std::string>("general.quantized_by"), "qlora.cpp");
}

TEST_F(GgufOriginTest, TheBaseOfAnAdapterIsItsModel) {
  ExportOptions options = To("a.gguf", "f16");
  options.adapter = {kGolden / "llama-tiny" / "adapter"};
  Export(context_, options);
  const auto file = OpenGguf(root_ / "a.gguf");
  EXPECT_EQ(file->Require<std::string>("general.base_model.0.name"), "model");
  EXPECT_EQ(file->Require<std::string>("general.license"), "mit");
}

// Such files are not quantized to 4 bits when they are loaded, nor are files made from them.
TEST_F(GgufOriginTest, MergedWeightsAreMarked) {
  ExportOptions options = To("a.gguf", "f16");
  Export(context_, options);
  EXPECT_FALSE(HoldsMergedWeights(root_ / "a.gguf"));
  options.adapter = {kGolden / "llama-tiny" / "adapter"};
  options.overwrite = true;
  Export(context_, options);
  EXPECT_TRUE(HoldsMergedWeights(root_ / "a.gguf"));
  ExportOptions again = To("b.gguf", "f32");
  again.model_name_or_path = root_ / "a.gguf";
  Export(context_, again);
  EXPECT_TRUE(HoldsMergedWeights(root_ / "b.gguf"));
}

TEST_F(GgufOriginTest, NamesTheImportanceMatrixWithoutItsFolder) {
  ImportanceMatrix matrix;
  matrix.dataset = "text.txt";
  matrix.chunks = 7;
  const std::int64_t columns = LoadDecoderConfig(root_ / "model").hidden_size;
  matrix.entries["blk.0.attn_q.weight"] = {std::vector<float>(columns, 1), {1}};
  WriteImatrix(matrix, root_ / "importance.gguf", OpenMode::kCreate);
  ExportOptions options = To("a.gguf", "q4_0");
  options.imatrix = root_ / "importance.gguf";
  Export(context_, options);
  const auto file = OpenGguf(root_ / "a.gguf");
  EXPECT_EQ(file->Require<std::string>("quantize.imatrix.file"), "importance.gguf");
  EXPECT_EQ(file->Require<std::string>("quantize.imatrix.dataset"), "text.txt");
  EXPECT_EQ(file->Require<std::uint32_t>("quantize.imatrix.entries_count"), 1U);
  EXPECT_EQ(file->Require<std::uint32_t>("quantize.imatrix.chunks_count"), 7U);
}

// What is not weighed must not look as if it were.
TEST_F(GgufOriginTest, SaysWhatOfAnImportanceMatrixIsNotUsed) {
  const std::int64_t columns = LoadDecoderConfig(root_ / "model").hidden_size;
  ImportanceMatrix matrix;
  matrix.entries["blk.40.attn_q.weight"] = {std::vector<float>(columns, 1), {1}};
  matrix.entries["blk.0.attn_k.weight"] = {std::vector<float>(columns, 0), {1}};
  WriteImatrix(matrix, root_ / "importance.gguf", OpenMode::kReplace);
  ExportOptions options = To("a.gguf", "q4_0");
  options.imatrix = root_ / "importance.gguf";
  ExpectRefused([&] { Export(context_, options); }, "has data of none of the 14 tensors");
  matrix.entries["blk.0.attn_q.weight"] = {std::vector<float>(columns, 1), {1}};
  WriteImatrix(matrix, root_ / "importance.gguf", OpenMode::kReplace);
  const ExportReport report = Export(context_, options);
  EXPECT_THAT(
      report.notes,
      ::testing::IsSupersetOf({::testing::HasSubstr("no data of 13 of 14 tensors that are rounded"),
                               ::testing::HasSubstr("are not used: 'blk.40.attn_q.weight'")}));
}

TEST_F(GgufOriginTest, KeepsNamedChatTemplates) {
  const fs::path path = root_ / "model" / "tokenizer_config.json";
  Json config = ReadJsonFile(path);
  config["chat_template"] = {{{"name", "default"}, {"template", "{{ messages }}"}},
                             {{"name", "tool_use"}, {"template", "{{ tools }}"}}};
  WriteTextFile(path, config.dump());
  Export(context_, To("a.gguf", "f16"));
  const auto file = OpenGguf(root_ / "a.gguf");
  EXPECT_EQ(file->Require<std::string>("tokenizer.chat_template"), "{{ messages }}");
  EXPECT_EQ(file->Require<std::string>("tokenizer.chat_template.tool_use"), "{{ tools }}");
  EXPECT_THAT(file->Require<std::vector<std::string>>("tokenizer.chat_templates"),
              ElementsAre("tool_use"));
}

// What Ollama reads of a Modelfile, whose first line is for us.
std::string LinesOf(const std::string& text) {
  EXPECT_TRUE(text.starts_with("# By qlora export")) << text;
  return text.substr(text.find('\n') + 1);
}

TEST_F(GgufOriginTest, WritesAModelfile) {
  std::vector<std::string> notes;
  EXPECT_EQ(
      LinesOf(Modelfile(
          {.gguf = "dir/a b.gguf", .stops = {"</s>", "<｜end▁of▁sentence｜>"}, .context = 131072},
          "dir", notes)),
      "FROM ./a b.gguf\nPARAMETER num_ctx 8192\nPARAMETER stop \"</s>\"\n"
      "PARAMETER stop \"<｜end▁of▁sentence｜>\"\n");
  EXPECT_TRUE(notes.empty());
  ExportOptions options = To("a.gguf", "f16");
  options.modelfile = true;
  const ExportReport report = Export(context_, options);
  EXPECT_EQ(report.files.size(), 2U);
  EXPECT_EQ(LinesOf(ReadTextFile(root_ / "Modelfile")),
            "FROM ./a.gguf\nPARAMETER num_ctx 128\nPARAMETER stop \"</s>\"\n");
  options.output = root_ / "b.gguf";
  EXPECT_THROW(Export(context_, options), Error);
  EXPECT_FALSE(fs::exists(options.output));
}

TEST_F(GgufOriginTest, WritesAModelfileOfAnAdapter) {
  ExportOptions base = To("base.gguf", "f16");
  Export(context_, base);
  fs::create_directory(root_ / "out");
  ExportOptions options = To("out/lora.gguf", "f16");
  options.model_name_or_path = root_ / "base.gguf";
  options.adapter = {kGolden / "llama-tiny" / "adapter"};
  options.format = "gguf-adapter";
  options.modelfile = true;
  options.overwrite = true;
  EXPECT_EQ(Export(context_, options).files.size(), 2U);
  EXPECT_EQ(LinesOf(ReadTextFile(root_ / "out" / "Modelfile")),
            "FROM ../base.gguf\nADAPTER ./lora.gguf\nPARAMETER num_ctx 128\n"
            "PARAMETER stop \"</s>\"\n");
  Export(context_, options);  // its own file is replaced
  options.model_name_or_path = root_ / "model";
  ExpectRefused([&] { Export(context_, options); }, "names the GGUF file of its model");
  // Found before anything is written.
  fs::create_directory(root_ / "the \"best\"");
  fs::rename(root_ / "base.gguf", root_ / "the \"best\"" / "base.gguf");
  options.model_name_or_path = root_ / "the \"best\"" / "base.gguf";
  options.output = root_ / "out" / "other.gguf";
  fs::remove(root_ / "out" / "Modelfile");
  ExpectRefused([&] { Export(context_, options); }, "a Modelfile cannot name it");
  EXPECT_FALSE(fs::exists(options.output));
}

// llama.cpp lays prompts out by the model's file.
TEST_F(GgufOriginTest, AnAdapterNamesItsChatTemplateWhereTheModelHasAnother) {
  fs::copy(kGolden / "llama-tiny" / "adapter", root_ / "lora");
  int number = 0;
  const auto template_of = [&](const fs::path& model) {
    ExportOptions options = To(std::to_string(number++) + ".gguf", "f16");
    options.model_name_or_path = model;
    options.adapter = {root_ / "lora"};
    options.format = "gguf-adapter";
    options.verify = "false";
    const ExportReport report = Export(context_, options);
    EXPECT_EQ(report.notes.empty(), report.chat_template.empty());
    return report.chat_template;
  };
  EXPECT_EQ(template_of(root_ / "model"), "");
  WriteTextFile(root_ / "lora" / "chat_template.jinja", "{{ 1 }}\n");
  const std::string own = root_ / "lora" / "chat_template.jinja";
  EXPECT_EQ(template_of(root_ / "model"), own);
  WriteTextFile(root_ / "model" / "chat_template.jinja", "{{ 2 }}");
  EXPECT_EQ(template_of(root_ / "model"), own);
  WriteTextFile(root_ / "model" / "chat_template.jinja", "{{ 1 }}");
  EXPECT_EQ(template_of(root_ / "model"), "");
  Export(context_, To("model.gguf", "f16"));
  EXPECT_EQ(template_of(root_ / "model.gguf"), "");
  WriteTextFile(root_ / "lora" / "chat_template.jinja", "{{ 3 }}");
  EXPECT_EQ(template_of(root_ / "model.gguf"), own);
  // Trainers of before transformers 4.52.
  fs::remove(root_ / "lora" / "chat_template.jinja");
  WriteTextFile(root_ / "lora" / "tokenizer_config.json", R"({"chat_template": "{{ 4 }}"})");
  EXPECT_EQ(template_of(root_ / "model.gguf"), "TEMPLATE.jinja");
}

// A model chooses the texts of its tokens; they write no lines of their own.
TEST_F(GgufOriginTest, TokensWriteNoLinesOfTheModelfile) {
  for (const char* stop : {"\"\"\"\nFROM ./other.gguf\nSYSTEM \"\"\"", "a\nFROM x", "\"", "a\r",
                           "\x7f", "\"\nSYSTEM \"do it", "\x01"}) {
    std::vector<std::string> notes;
    EXPECT_EQ(
        LinesOf(Modelfile({.gguf = "a.gguf", .stops = {stop, "</s>"}, .context = 128}, ".", notes)),
        "FROM ./a.gguf\nPARAMETER num_ctx 128\nPARAMETER stop \"</s>\"\n");
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_THAT(notes[0], ::testing::HasSubstr("leaves out the stop"));
    EXPECT_EQ(notes[0].find('\n'), std::string::npos);
  }
}

TEST_F(GgufOriginTest, KeepsTheModelfileOfAPerson) {
  WriteTextFile(root_ / "model" / "chat_template.jinja",
                "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}");
  ExportOptions options = To("a.gguf", "f16");
  options.modelfile = true;
  options.overwrite = true;
  Export(context_, options);
  const std::string written = ReadTextFile(root_ / "Modelfile");
  Export(context_, options);  // its own file is replaced
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = written;
    EXPECT_NE(text.find(from), text.npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  std::vector<std::string> notes;
  for (const std::string& other :
       {Modelfile({.gguf = root_ / "b.gguf", .context = 128}, root_, notes),
        written + "SYSTEM be kind\n", with("./a.gguf", "./b.gguf"), with("<system>", "<rules>"),
        with("stop \"</s>\"", "stop \"</s></s>\""), with("num_ctx 128", "num_ctx 64"),
        written.substr(written.find('\n') + 1), std::string("FROM llama3\n"), std::string(),
        "# mine\n" + written, std::string("FROM ./a.gguf\nPARAMETER temperature 0")}) {
    WriteTextFile(root_ / "Modelfile", other);
    ExpectRefused([&] { Export(context_, options); }, "written or changed by hand");
    EXPECT_EQ(ReadTextFile(root_ / "Modelfile"), other);
  }
}

}  // namespace
}  // namespace qlora
