// The prompt that was trained is the prompt that is used: a memorised record comes back from the
// command that training prints, from the merged checkpoint, and from sample_prompts, for every
// format of data, with and without a chat template.
#include <gmock/gmock.h>

#include "cli/tiny_model.h"
#include "test_build.h"
#include "training/generate_command.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kChatTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

struct MemoryCase {
  const char* name;
  const char* file;
  std::string data;
  const char* answer;              // of the first record, or how its text goes on
  const char* layout;              // as training names it, without a chat template in the model
  const char* chat_layout;         // and with one
  std::vector<std::string> words;  // further options of training
  // The line that a person types in a chat, who is answered with `answer` at last; "": needs a
  // record.
  std::string typed = {};
  std::string system = {};
};

const std::vector<MemoryCase>& MemoryCases() {
  static const std::vector<MemoryCase> kCases = {
      {"text",
       "d.jsonl",
       "{\"text\": \"The sky is blue and wide.\"}\n",
       "blue and wide.",
       "text as it is",
       "text as it is",
       {}},
      {"raw",
       "d.txt",
       "The sky is blue and wide.",
       "blue and wide.",
       "text as it is",
       "text as it is",
       {}},
      {"prompt_completion",
       "d.jsonl",
       "{\"prompt\": \"What's \\\"up\\\"; $HOME?\", \"completion\": \" Not much.\"}\n"
       "{\"prompt\": \"Who?\", \"completion\": \" Me.\"}\n",
       "Not much.",
       "prompt and completion as they are",
       "the chat template",
       {},
       "What's \"up\"; $HOME?\n"},
      {"csv",
       "d.csv",
       "prompt,completion\n-5 + 3 =, minus two\n",
       "minus two",
       "prompt and completion as they are",
       "the chat template",
       {},
       "-5 + 3 =\n"},
      // One row, made with tests/golden/parquet/build.mjs.
      {"parquet",
       "d.parquet",
       ReadAll(SourceDir() / "tests/fixtures/prompt.parquet"),
       "warm.",
       "prompt and completion as they are",
       "the chat template",
       {},
       "The sun is\n"},
      {"alpaca",
       "d.jsonl",
       "{\"instruction\": \"Add two and two.\", \"input\": \"\", \"output\": \"It is four.\"}\n"
       "{\"instruction\": \"Add.\", \"input\": \"1 1\", \"output\": \"It is two.\"}\n",
       "It is four.",
       "Alpaca text",
       "the chat template",
       {},
       "Add two and two.\n"},
      {"alpaca_input",
       "d.jsonl",
       "{\"instruction\": \"Add.\", \"input\": \"1 'n' 1\", \"output\": \"It is two.\"}\n",
       "It is two.",
       "Alpaca text",
       "the chat template",
       {}},
      {"instruction_answer",
       "d.jsonl",
       "{\"instruction\": \"Add two and two.\", \"output\": \"It is four.\"}\n",
       "It is four.",
       "text with Instruction: and Answer:",
       "text with Instruction: and Answer:",
       {"--prompt_layout", "instruction_answer"},
       "Add two and two.\n"},
      {"template",
       "d.jsonl",
       "{\"question\": \"Why?\", \"hint\": \"\", \"reply\": \"Because.\"}\n",
       "Because.",
       "prompt_template",
       "prompt_template",
       {"--prompt_template", "Q: {question} [[({hint}) ]]A: ", "--completion_template", "{reply}"}},
      {"messages",
       "d.jsonl",
       "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
       "\"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Hello.\"}]}\n",
       "Hello.",
       "the chat template",
       "the chat template",
       {},
       "Hi\n",
       "Be brief."},
      {"sharegpt",
       "d.jsonl",
       "{\"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, {\"from\": \"gpt\", "
       "\"value\": \"Hello.\"}, {\"from\": \"human\", \"value\": \"Bye\"}, {\"from\": \"gpt\", "
       "\"value\": \"See you.\"}]}\n",
       "See you.",
       "the chat template",
       "the chat template",
       {},
       "Hi\nBye\n"},
      {"input_ids",
       "d.jsonl",
       "{\"input_ids\": [1, 40, 41, 42, 43, 44, 2], \"labels\": [-100, -100, -100, 42, 43, 44, "
       "2]}\n",
       "",
       "token ids",
       "token ids",
       {}},
  };
  return kCases;
}

class PromptTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    // Room for the text of Alpaca in tokens of one or two letters.
    EditJson(model() / "config.json",
             [](nlohmann::json& json) { json["max_position_embeddings"] = 512; });
  }

  void AddChatTemplate() const {
    EditJson(model() / "tokenizer_config.json",
             [](nlohmann::json& json) { json["chat_template"] = kChatTemplate; });
  }

  // Trains until the data are memorised.
  Outcome Memorise(const std::string& data, const std::vector<std::string>& more,
                   bool in_4bit = false) const {
    std::vector<std::string> words = {"train",
                                      "--model",
                                      "model",
                                      "--dataset",
                                      data,
                                      "--output_dir",
                                      "out",
                                      "--max_steps=80",
                                      "--learning_rate=0.01",
                                      "--lora_r=16",
                                      "--max_length=256",
                                      "--compute_dtype=float32",
                                      "--threads=1",
                                      "--warmup_ratio=0.1"};
    if (!in_4bit) words.emplace_back("--load_in_4bit=false");
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  }

  // The standard output of the command that training printed, run by a shell.
  std::string Try(const Outcome& trained) const {
    const std::string line = trained.LastErrorLine();
    const std::string mark = "to try it: ";
    EXPECT_TRUE(line.starts_with(mark)) << trained.err;
    return Shell(line.substr(mark.size()) + " --max_new_tokens 24");
  }
  // Merges the adapter and asks the checkpoint, with the command that export prints.
  void AskMerged(const std::string& answer) const {
    const Outcome exported = Run({"export", "model", "merged", "--adapter", "out", "--format", "hf",
                                  "--outtype", "f32", "--overwrite"});
    ASSERT_EQ(exported.code, 0) << exported.err;
    std::string command = exported.LastErrorLine();
    const std::string mark = "to try it: ";
    ASSERT_TRUE(command.starts_with(mark)) << exported.err;
    command.erase(0, mark.size());
    EXPECT_THAT(Shell(command + " --max_new_tokens 24"), HasSubstr(answer)) << command;
  }
  std::string Shell(const std::string& command) const {
    const std::string path = QloraBinary().parent_path().string();
    const std::string whole =
        "cd '" + scratch_.string() + "' && PATH='" + path + "':$PATH " + command + " 2>err.txt";
    FILE* pipe = popen(whole.c_str(), "r");
    std::string out;
    char buffer[256];
    for (std::size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
      out.append(buffer, n);
    EXPECT_EQ(pclose(pipe), 0) << command << ReadAll(scratch_ / "err.txt");
    return out;
  }
};

class PromptMemoryTest : public PromptTest,
                         public testing::WithParamInterface<std::tuple<MemoryCase, bool>> {};

TEST_P(PromptMemoryTest, AMemorisedRecordComesBack) {
  const auto& [c, chat] = GetParam();
  if (chat) AddChatTemplate();
  Write(c.file, c.data);
  std::vector<std::string> words = c.words;
  const bool needs_chat = std::string_view(c.layout) == "the chat template" && !chat;
  if (needs_chat) words.insert(words.end(), {"--chat_template", "plain"});
  const Outcome trained = Memorise(c.file, words);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err,
              HasSubstr(std::string("prompt layout: ") + (chat ? c.chat_layout : c.layout)));
  const std::string answer = Try(trained);
  EXPECT_THAT(answer, HasSubstr(c.answer)) << trained.LastErrorLine();

  const Outcome eval = Run({"eval", "model", c.file, "--adapter", "out", "--json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(nlohmann::json::parse(eval.out).at("token_accuracy"), 1.0);
  EXPECT_THAT(eval.err, HasSubstr(", as in training\n"));
  if (!c.typed.empty()) {
    std::vector<std::string> chat_words = {"chat", "model", "--adapter", "out",
                                           "--max_new_tokens=24"};
    if (!c.system.empty()) chat_words.insert(chat_words.end(), {"--system", c.system});
    const Outcome talk = Run(chat_words, c.typed);
    EXPECT_THAT(talk.out, HasSubstr(c.answer)) << talk.err;
    EXPECT_THAT(talk.err, HasSubstr(", as in training (--raw"));
  }

  AskMerged(c.answer);
}

std::string NameOfMemory(const testing::TestParamInfo<std::tuple<MemoryCase, bool>>& test) {
  const auto& [memory, chat] = test.param;
  return memory.name + std::string(chat ? "_with_template" : "");
}

INSTANTIATE_TEST_SUITE_P(All, PromptMemoryTest,
                         testing::Combine(testing::ValuesIn(MemoryCases()), testing::Bool()),
                         NameOfMemory);

// As above, on the base in NF4 that is the default.
TEST_F(PromptTest, AMemorisedRecordComesBackFromA4BitBase) {
  Write("d.jsonl", "{\"instruction\": \"Add two and two.\", \"output\": \"It is four.\"}\n");
  const Outcome trained = Memorise("d.jsonl", {}, /*in_4bit=*/true);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(Try(trained), HasSubstr("It is four."));
  const Outcome eval = Run({"eval", "model", "d.jsonl", "--adapter", "out", "--json"});
  EXPECT_EQ(nlohmann::json::parse(eval.out).at("token_accuracy"), 1.0) << eval.err;
  AskMerged("It is four.");
}

TEST_F(PromptTest, EvalAndChatApplyTheLayout) {
  Write("d.jsonl", "{\"instruction\": \"Add two and two.\", \"output\": \"It is four.\"}\n");
  ASSERT_EQ(Memorise("d.jsonl", {}).code, 0);
  AddChatTemplate();  // the adapter's layout stays
  const Outcome eval = Run({"eval", "model", "d.jsonl", "--adapter", "out", "--json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_THAT(eval.err, HasSubstr("prompt layout: Alpaca text, as in training"));
  EXPECT_EQ(nlohmann::json::parse(eval.out).at("token_accuracy"), 1.0);
  const Outcome raw = Run({"eval", "model", "d.jsonl", "--adapter", "out", "--raw", "--json"});
  EXPECT_THAT(raw.err, HasSubstr("prompt layout: the chat template"));
  EXPECT_LT(nlohmann::json::parse(raw.out).at("token_accuracy"), 1.0);
  const std::string other = "warning: the adapter was trained in another prompt layout";
  EXPECT_THAT(eval.err + raw.err, Not(HasSubstr(other)));
  Write("p.jsonl", "{\"prompt\": \"Add two and two.\", \"completion\": \"It is four.\"}\n");
  const Outcome differs = Run({"eval", "model", "p.jsonl", "--adapter", "out", "--json"});
  EXPECT_THAT(differs.err,
              HasSubstr(other + " (Alpaca text) than these data get (the chat template)"));

  const Outcome chat = Run({"chat", "model", "--adapter", "out", "--max_new_tokens=24"},
                           "Add two and two.\n/exit\n");
  EXPECT_THAT(chat.out, HasSubstr("It is four."));
  EXPECT_THAT(chat.err, HasSubstr("prompt layout: Alpaca text, as in training"));
  const Outcome generated =
      Run({"generate", "model", "Add two and two.", "--adapter", "out", "--raw"});
  EXPECT_THAT(generated.out, Not(HasSubstr("It is four.")));
  EXPECT_THAT(generated.err, Not(HasSubstr("prompt layout")));
}

TEST_F(PromptTest, AMergedCheckpointKeepsTheLayoutOfItsAdapter) {
  AddChatTemplate();
  Write("d.jsonl", "{\"instruction\": \"Add two and two.\", \"output\": \"It is four.\"}\n");
  ASSERT_EQ(Memorise("d.jsonl", {"--prompt_layout=text"}).code, 0);
  const std::vector<std::string> words = {"export",   "model", "merged",       "--adapter=out",
                                          "--format", "hf",    "--outtype=f32"};
  ASSERT_EQ(Run(words).code, 0);
  const std::string said = "prompt layout: Alpaca text, as the merged adapter was trained";
  const Outcome generated = Run({"generate", "merged", "Add two and two.", "--load_in_4bit=false"});
  EXPECT_THAT(generated.out, HasSubstr("It is four."));
  EXPECT_THAT(generated.err, HasSubstr(said + " (--raw ignores the layout)\n"));
  const Outcome raw =
      Run({"generate", "merged", "Add two and two.", "--raw", "--load_in_4bit=false"});
  EXPECT_THAT(raw.out, Not(HasSubstr("It is four.")));
  EXPECT_THAT(raw.err, Not(HasSubstr("prompt layout")));
  const Outcome chat = Run({"chat", "merged", "--load_in_4bit=false"}, "Add two and two.\n");
  EXPECT_THAT(chat.out, HasSubstr("It is four."));
  EXPECT_THAT(chat.err, HasSubstr(said));
  const Outcome eval = Run({"eval", "merged", "d.jsonl", "--load_in_4bit=false", "--json"});
  EXPECT_THAT(eval.err, HasSubstr(said + "\n"));
  EXPECT_EQ(nlohmann::json::parse(eval.out).at("token_accuracy"), 1.0) << eval.err;

  // Another checkpoint made of this one keeps the record, unless another adapter is merged in.
  ASSERT_EQ(Run({"quantize", "merged", "nf4"}).code, 0);
  EXPECT_EQ(ReadAll(scratch_ / "nf4/qlora_prompt.json"),
            ReadAll(scratch_ / "merged/qlora_prompt.json"));
  fs::remove(scratch_ / "out/qlora_base.json");
  ASSERT_EQ(Run({"export", "merged", "again", "--adapter=out", "--format=hf"}).code, 0);
  EXPECT_THAT(ReadAll(scratch_ / "again/qlora_prompt.json"), Not(HasSubstr("layout")));

  // What training renders is the choice of the run, not of the record.
  const std::vector<std::string> train = {"train", "--model=merged", "--dataset=d.jsonl",
                                          "--dry-run", "--json"};
  const auto layout = [&] {
    return nlohmann::json::parse(Run(train).out).at("prompt_layout").get<std::string>();
  };
  const std::string with_record = layout();
  fs::remove(scratch_ / "merged/qlora_prompt.json");
  EXPECT_EQ(with_record, layout());
}

TEST_F(PromptTest, TextsAreContinuedInSpiteOfATemplate) {
  AddChatTemplate();
  Write("d.txt", "The sky is blue and wide.");
  ASSERT_EQ(Memorise("d.txt", {}).code, 0);
  const std::string said =
      "prompt layout: text as it is, as in training; the prompt is read as it is\n";
  const std::vector<std::string> more = {"--adapter", "out", "--max_new_tokens=15"};
  std::vector<std::string> words = {"generate", "model", "The sky is"};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome generated = Run(words);
  EXPECT_THAT(generated.out, HasSubstr("blue and wide."));
  EXPECT_THAT(generated.err, HasSubstr(said));
  words = {"chat", "model"};
  words.insert(words.end(), more.begin(), more.end());
  const Outcome chat = Run(words, "The sky is\n/exit\n");
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_THAT(chat.err, HasSubstr(said + "the model continues plain text\n"));
}

TEST_F(PromptTest, SamplesOfTrainingHaveTheLayout) {
  Write("d.jsonl", "{\"instruction\": \"Add two and two.\", \"output\": \"It is four.\"}\n");
  const Outcome laid_out = Memorise("d.jsonl", {"--sample_prompts", "Add two and two."});
  EXPECT_THAT(laid_out.err, HasSubstr("prompt layout: Alpaca text, also of sample_prompts"));
  EXPECT_THAT(laid_out.err, HasSubstr("sample step=80 \"Add two and two.\" -> \"It is four.\""));
  const Outcome raw =
      Memorise("d.jsonl", {"--sample_prompts", "Add two and two.", "--sample_raw", "--overwrite"});
  ASSERT_EQ(raw.code, 0) << raw.err;
  EXPECT_THAT(raw.err, Not(HasSubstr("also of sample_prompts")));
  EXPECT_THAT(raw.err, HasSubstr("sample step=80 \"Add two and two.\" -> "));
  EXPECT_THAT(raw.err, Not(HasSubstr("-> \"It is four.\"")));
}

TEST_F(PromptTest, CompareShowsTheBaseBesideTheAdapter) {
  Write("d.jsonl", "{\"text\": \"The sky is blue and wide.\"}\n");
  ASSERT_EQ(Memorise("d.jsonl", {}).code, 0);
  const std::vector<std::string> words = {"eval",      "model", "d.jsonl",
                                          "--adapter", "out",   "--compare"};
  const Outcome table = Run(words);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("                    base       adapter\nloss        "));
  std::vector<std::string> with_json = words;
  with_json.push_back("--json");
  const nlohmann::json both = nlohmann::json::parse(Run(with_json).out);
  const nlohmann::json base = nlohmann::json::parse(
      Run({"eval", "model", "d.jsonl", "--load_in_4bit=false", "--json"}).out);
  EXPECT_EQ(both.at("base").at("loss"), base.at("loss"));
  EXPECT_LT(both.at("loss"), both.at("base").at("loss"));
  EXPECT_THAT(Refused({"eval", "model", "d.jsonl", "--compare"}), HasSubstr("--adapter"));
}

TEST_F(PromptTest, TrainingReadsTheChatOfAnAdapterWithoutChatTemplate) {
  Write("d.jsonl", "{\"instruction\": \"Add two and two.\", \"output\": \"It is four.\"}\n");
  ASSERT_EQ(Memorise("d.jsonl", {}).code, 0);
  const Outcome chat = Run({"chat", "model", "--adapter", "out", "--max_new_tokens=24"},
                           "Add two and two.\n/save talk.jsonl\n");
  EXPECT_THAT(chat.err, HasSubstr("saved in talk.jsonl; train reads it with --chat_template "
                                  "out/chat_template.jinja\n"));
  const auto tokens = [&](const std::vector<std::string>& data) {
    std::vector<std::string> words = {"inspect", "--model", "model", "--json", "--dataset"};
    words.insert(words.end(), data.begin(), data.end());
    const nlohmann::json shown = nlohmann::json::parse(Run(words).out).at("shown");
    return std::pair(shown[0].at("ids"), shown[0].at("labels"));
  };
  EXPECT_EQ(tokens({"talk.jsonl", "--chat_template", "out/chat_template.jinja"}),
            tokens({"d.jsonl"}));
}

TEST_F(PromptTest, AnAdapterInThePlaceOfTheModel) {
  ASSERT_EQ(Run(TrainWords()).code, 0);
  EXPECT_THAT(Refused({"generate", "out"}),
              HasSubstr("out: this is an adapter, not a model; write `qlora generate model PROMPT "
                        "--adapter out`"));
  EXPECT_THAT(Refused({"generate", "out", "Who?"}),
              HasSubstr("write `qlora generate model 'Who?' --adapter out`"));
  EXPECT_THAT(Refused({"chat", "out"}), HasSubstr("write `qlora chat model --adapter out`"));
  EXPECT_THAT(Refused({"eval", "out"}), HasSubstr("`qlora eval model DATASET --adapter out`"));
  EXPECT_THAT(Refused({"export", "out", "m.gguf"}),
              HasSubstr("`qlora export model m.gguf --adapter out`"));
}

TEST_F(PromptTest, GenerateSaysWhereItStops) {
  const Outcome cut = Run({"generate", "model", "Once", "--max_new_tokens=3"});
  EXPECT_THAT(cut.err, HasSubstr("(cut after 3 tokens, by max_new_tokens)\n"));
  const nlohmann::json full = nlohmann::json::parse(
      Run({"generate", "model", "Once", "--max_new_tokens=999999", "--json"}).out);
  const Outcome whole = Run({"generate", "model", "Once", "--max_new_tokens=999999"});
  if (full.at("stop_reason") == "context") {
    EXPECT_THAT(whole.err, HasSubstr("at the end of the model's context of "));
  }
  const std::string text = full.at("text").get<std::string>();
  ASSERT_GT(text.size(), 6u);
  const std::string stop = text.substr(3, 2);
  const nlohmann::json stopped = nlohmann::json::parse(
      Run({"generate", "model", "Once", "--max_new_tokens=999999", "--json", "--stop=" + stop})
          .out);
  EXPECT_EQ(stopped.at("stop_reason"), "stop");
  EXPECT_EQ(stopped.at("text").get<std::string>(), text.substr(0, text.find(stop)));
}

TEST_F(PromptTest, TheRecordOfAPrompt) {
  Write("d.jsonl", "{\"instruction\": \"Add.\", \"input\": \"1 1\", \"output\": \"It is two.\"}\n");
  ASSERT_EQ(Memorise("d.jsonl", {}).code, 0);
  const Outcome outcome = Run({"generate", "model", "--adapter", "out", "--record",
                               R"({"instruction": "Add.", "input": "1 1"})"});
  EXPECT_THAT(outcome.out, HasSubstr("It is two."));
  EXPECT_THAT(Refused({"generate", "model", "x", "--record", "{}"}), HasSubstr("more than one"));
  EXPECT_THAT(Refused({"generate", "model", "--record", "{}", "--raw"}), HasSubstr("leave out"));
  EXPECT_THAT(Refused({"generate", "model", "--record", "[]", "--adapter", "out"}),
              HasSubstr("expected a JSON object"));
}

TEST(GenerateCommandTest, ShellsTakeThePromptForNothingElse) {
  EXPECT_EQ(GenerateCommand("m", "out", {.prompt = "It's $HOME"}),
            "qlora generate m 'It'\\''s $HOME' --adapter out");
  EXPECT_EQ(GenerateCommand("m", "out", {.prompt = "-n"}),
            "qlora generate m --prompt=-n --adapter out");
  EXPECT_EQ(GenerateCommand("m", "out", {.prompt = "x=1", .system = "--s"}),
            "qlora generate m --prompt=x=1 --system=--s --adapter out");
  EXPECT_EQ(GenerateCommand("my model", "out", {.record = R"({"a":"b"})"}),
            R"(qlora generate 'my model' --record '{"a":"b"}' --adapter out)");
  EXPECT_EQ(GenerateCommand("m", "out", {.prompt = "x", .raw = true}),
            "qlora generate m x --raw --adapter out");
  EXPECT_EQ(GenerateCommand("m", "out", {.prompt = "a\xEF\xBF\xBD"}),
            "qlora generate m \"your prompt\" --adapter out");
  EXPECT_EQ(GenerateCommand("m", "out", {}), "qlora generate m \"your prompt\" --adapter out");
}

}  // namespace
}  // namespace qlora
