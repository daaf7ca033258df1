// Every text of random records is shown or named, and nothing is trained that the assistant did not
// write. QLORA_RECORDS=100000 runs that many, over more templates where ../shared has them;
// QLORA_RENDERINGS=FILE writes what was rendered, for tests/interop/record_diff.py;
// QLORA_TEMPLATE=NAME takes the templates with this in their names.
#include "data/record_generator.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "base/text.h"
#include "data/data_test_util.h"
#include "data/record_encoder.h"
#include "io/json.h"
#include "prompt/chat_template.h"
#include "prompt/known_fields.h"
#include "prompt/record_format.h"
#include "prompt/rendered_conversation.h"
#include "records/record_file.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

struct Subject {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat;
  // The template itself has a word for nothing, so that one in its text tells nothing.
  bool says_none = false;
};

// A tokenizer that knows the tokens of a template.
Subject SubjectOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::regex token(
      "<\\|[^<>|\\s]+\\|>|<｜[^<>]+?｜>|<[a-z_]+_of_[a-z_]+>|<\\|[a-z_]+>|<[a-z_]+\\|>|"
      "\\[/?[A-Z_]+\\]|</?s>|\\[e~\\[|\\]~b\\]|<SPECIAL_[0-9]+>|<sep>|</?assistant>");
  std::set<std::string> tokens;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), token);
       match != std::sregex_iterator(); ++match) {
    tokens.insert(match->str());
    tokens.insert(ReplaceAll(match->str(), "{}", ":opensource"));  // as a template fills it in
  }
  // Tokens that templates put together of the name of a role.
  for (const char* role : {"user", "assistant", "system", "observation"}) {
    tokens.insert(std::string("<|") + role + "|>");
  }
  for (const char* known : {"<s>", "</s>", "<|im_start|>", "<|im_end|>"}) tokens.erase(known);
  // Those that generation_config.json of such models lists. gpt-oss ends parts of turns with
  // <|end|>.
  std::vector<std::string> stops = {"<|user|>", "<|observation|>", "<|return|>"};
  for (const std::string& one : tokens) {
    const bool ends = one.find("end") != one.npos || one.find("eo") != one.npos;
    if (ends && tokens.count("<|return|>") == 0) stops.push_back(one);
  }
  Subject subject;
  subject.name = path.string();
  subject.tokenizer = std::make_unique<Tokenizer>(
      MakeTestTokenizer({.bos = false, .special = {tokens.begin(), tokens.end()}, .stops = stops}));
  std::tm day = {};
  day.tm_mday = 1;
  day.tm_year = 124;
  subject.chat =
      std::make_unique<ChatTemplate>(text, *subject.tokenizer, ChatTemplateSettings{.now = day});
  subject.says_none = text.find("None") != text.npos || text.find("null") != text.npos;
  return subject;
}

std::vector<Subject> Subjects() {
  std::set<fs::path> paths;
  const auto add = [&paths](const fs::path& folder) {
    if (!fs::is_directory(folder)) return;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".jinja") paths.insert(entry.path());
    }
  };
  add(SourceDir() / "tests/fixtures/chat");
  add(SourceDir() / "tests/fixtures");
  add(SharedFolder() / "data/templates");
  std::vector<Subject> subjects;
  const char* asked = std::getenv("QLORA_TEMPLATE");
  for (const fs::path& path : paths) {
    if (asked == nullptr || path.string().find(asked) != std::string::npos) {
      subjects.push_back(SubjectOf(path));
    }
  }
  return subjects;
}

std::string TrainedText(const Sample& sample, const Tokenizer& tokenizer) {
  Ids trained;
  for (std::size_t t = 0; t < sample.ids.size(); ++t) {
    trained.push_back(sample.labels[t] == kIgnoreLabel ? kByte + '\n' : sample.ids[t]);
  }
  return tokenizer.Decode(trained, /*skip_special_tokens=*/false);
}

bool IsNamed(const SampleNotes& notes, const Mark& mark) {
  for (const TextFinding& one : notes.findings) {
    const bool is_answer = one.what.find(" of the role assistant") != one.what.npos;
    const bool is_other = !is_answer && one.what.find(" of the role ") != one.what.npos;
    if (mark.is_answer ? is_other : is_answer) continue;
    if (one.what.starts_with(mark.path)) return true;
    if (mark.learnt && one.what.starts_with("earlier answers whose thoughts")) return true;
  }
  return std::ranges::count(notes.other_fields, mark.path) > 0;
}

class RecordGeneratorTest : public testing::Test {
 protected:
  // Encodes a record by the format that its fields tell. Nothing where it is refused.
  std::optional<EncodedRecord> Encode(const OrderedJson& written, const Subject& subject) {
    try {
      const auto detected = DetectRecordFormat(written, false);
      if (!detected) ThrowUnknownFormat(written);
      const OrderedJson record = WithNamesOfFormat(written, *detected);
      const bool is_conversation = record.contains("prompt") && record["prompt"].is_array();
      DataOptions options;
      options.max_length = 1 << 20;  // nothing is cut
      const RecordEncoder encoder(ChooseLayout(detected->format, {}, true, is_conversation),
                                  options, *subject.tokenizer, subject.chat.get());
      names_.clear();
      for (const FieldName& name : detected->names) {
        names_.emplace(name.theirs, name.ours);
      }
      return std::move(encoder.EncodeAll(record).front());
    } catch (const Error& error) {
      const std::string kind = fs::path(subject.name).stem().string() + ": " + Kind(error.what());
      if (refused_[kind]++ == 0 && std::getenv("QLORA_TEMPLATE") != nullptr) {
        std::cout << error.what() << "\n" << written.dump() << "\n";
      }
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return std::nullopt;
    }
  }

  // A message without the words of the record and places.
  static std::string Kind(std::string message) {
    message = std::regex_replace(message, std::regex("zq[0-9]+x[0-9]+"), "W");
    return std::regex_replace(message, std::regex("[0-9]+"), "N").substr(0, 330);
  }

  void Check(const MadeRecord& made, const Subject& subject) {
    const std::optional<EncodedRecord> encoded = Encode(made.record, subject);
    Write(made, subject);
    if (!encoded) return;
    ++encoded_;
    const std::string text = subject.tokenizer->Decode(encoded->sample.ids, false);
    const std::string trained = TrainedText(encoded->sample, *subject.tokenizer);
    const auto fail = [&](const std::string& what, const Mark& mark) {
      const std::string kind =
          what + " " + mark.path + " " + fs::path(subject.name).stem().string();
      if (faults_[kind]++ > 0) return;
      ADD_FAILURE() << kind << ": " << mark.word << "\n" << made.record.dump() << "\n" << text;
      for (const TextFinding& one : encoded->notes.findings) {
        ADD_FAILURE() << "  found: " << one.what << " '" << one.quote << "'";
      }
    };
    for (Mark mark : made.marks) {
      if (const auto ours = names_.find(mark.path); ours != names_.end()) mark.path = ours->second;
      const bool is_shown = text.find(mark.word) != text.npos;
      const bool is_trained = trained.find(mark.word) != trained.npos;
      if (!is_shown && !IsNamed(encoded->notes, mark)) fail("lost", mark);
      if (is_shown && mark.learnt && !is_trained && !IsNamed(encoded->notes, mark)) {
        fail("not trained", mark);
      }
      if (is_trained && !mark.learnt) fail("trained", mark);
    }
    const bool has_none = text.find("None") != text.npos || text.find("null") != text.npos;
    if (has_none && !subject.says_none) {
      fail("shows nothing of", {.word = "null", .path = "a record"});
    }
  }

  // The renderings of a record, for comparison with Jinja.
  void Write(const MadeRecord& made, const Subject& subject) {
    if (!out_.is_open() || !made.is_plain || !made.record.contains("messages")) return;
    OrderedJson line = {{"template", subject.name},
                        {"messages", made.record["messages"]},
                        {"tools", made.record.value("tools", OrderedJson())}};
    try {
      const RenderedConversation chat =
          subject.chat->Render(ConversationOfMessages(made.record).messages, line["tools"]);
      line["readings"] = chat.readings();
      line["text"] = chat.text();
    } catch (const Error& error) {
      line["error"] = error.what();
    }
    out_ << line.dump() << "\n";
  }

  std::map<std::string, std::string> names_;  // of fields, theirs to ours
  std::map<std::string, std::int64_t> refused_;
  std::map<std::string, std::int64_t> faults_;
  std::int64_t encoded_ = 0;
  std::ofstream out_;
};

TEST_F(RecordGeneratorTest, EveryTextIsShownOrNamed) {
  const char* asked = std::getenv("QLORA_RECORDS");
  const char* seed = std::getenv("QLORA_SEED");
  const std::int64_t count = asked != nullptr ? std::atoll(asked) : 100;
  if (const char* file = std::getenv("QLORA_RENDERINGS")) out_.open(file);
  const std::vector<Subject> subjects = Subjects();
  ASSERT_FALSE(subjects.empty());
  RecordGenerator generator(seed != nullptr ? std::atoll(seed) : 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const MadeRecord made = generator.Next();
    Check(made, subjects[i % std::ssize(subjects)]);
  }
  if (asked == nullptr) return;
  std::cout << count << " records, " << encoded_ << " encoded, " << subjects.size()
            << " templates\n";
  for (const auto& [kind, times] : refused_)
    std::cout << "refused " << times << ": " << kind << "\n";
  for (const auto& [kind, times] : faults_) std::cout << "FAULT " << times << ": " << kind << "\n";
}

// A record as the only row of a CSV file: what is no text is JSON, and nothing is an empty field.
std::string CsvOf(const OrderedJson& record) {
  std::string header;
  std::string row;
  for (const auto& [name, value] : record.items()) {
    const std::string text = SaysNothing(value)  ? ""
                             : value.is_string() ? value.get<std::string>()
                                                 : value.dump();
    const char* separator = header.empty() ? "" : ",";
    header += separator + name;
    row += separator + ('"' + ReplaceAll(text, "\"", "\"\"") + '"');
  }
  return header + "\n" + row + "\n";
}

TEST_F(RecordGeneratorTest, EachContainerGivesTheSameSample) {
  const std::vector<Subject> subjects = Subjects();
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path();
  const auto read = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return RecordFile(FileBytes(folder / name)).Read(0);
  };
  RecordGenerator generator(2);
  for (int i = 0; i < 60; ++i) {
    const OrderedJson record = generator.Next().record;
    const Subject& subject = subjects[i % std::ssize(subjects)];
    const std::optional<EncodedRecord> expected = Encode(record, subject);
    for (const OrderedJson& other :
         {read("d.jsonl", record.dump()), read("d.json", "[\n" + record.dump(2) + "\n]"),
          read("d.csv", CsvOf(record))}) {
      const std::optional<EncodedRecord> found = Encode(other, subject);
      ASSERT_EQ(found.has_value(), expected.has_value()) << record.dump() << "\n" << other.dump();
      if (!found) continue;
      EXPECT_EQ(found->sample.ids, expected->sample.ids) << record.dump() << "\n" << subject.name;
      EXPECT_EQ(found->sample.labels, expected->sample.labels) << record.dump();
    }
  }
}

}  // namespace
}  // namespace qlora
