#include "serve/jobs/training_file_check.h"

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "io/json.h"
#include "preference/preference_record.h"
#include "prompt/known_fields.h"
#include "prompt/record_format.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// A line is in memory while it is checked, as text and as values of a hundred bytes each.
constexpr std::size_t kMaxLineBytes = std::size_t{8} << 20;
constexpr std::int64_t kMaxLineValues = 100'000;

OrderedJson ParseLine(std::string_view line) {
  OrderedJson record;
  if (const auto defect = TryParseJson(line, record, kMaxLineValues)) {
    ThrowInvalidInput("column {}: this is no JSON object: {}", defect->offset + 1, defect->reason);
  }
  if (!record.is_object()) {
    ThrowInvalidInput("expected a JSON object, found {}", record.type_name());
  }
  return record;
}

void CheckContent(const OrderedJson& message, const std::string& where) {
  if (!HasField(message, "content")) return;
  const OrderedJson& content = message["content"];
  if (content.is_string()) return;
  if (!content.is_array()) {
    ThrowInvalidInput("{}.content: expected text, found {}", where, content.type_name());
  }
  for (const OrderedJson& part : content) {
    if (!part.is_object() || !HasField(part, "text") || !part["text"].is_string()) {
      ThrowInvalidInput("{}.content: expected parts of text, {{\"type\": \"text\", \"text\"}}",
                        where);
    }
  }
}

bool IsKnownRole(std::string_view role) {
  constexpr std::string_view kRoles = "system user assistant tool function_call";
  return HasWord(kRoles, RoleOfTemplates(role));
}

// Returns whether the message is of the assistant and says something, or calls a tool.
bool CheckMessage(const OrderedJson& message, const std::string& where) {
  if (!message.is_object()) {
    ThrowInvalidInput("{}: expected an object, found {}", where, message.type_name());
  }
  if (!HasField(message, "role") || !message["role"].is_string()) {
    ThrowInvalidInput("{}.role: missing; expected system, user, assistant or tool", where);
  }
  const auto role = message["role"].get<std::string>();
  if (!IsKnownRole(role)) {
    ThrowInvalidInput("{}.role: expected system, user, assistant or tool, found '{}'", where, role);
  }
  CheckContent(message, where);
  if (RoleOfTemplates(role) != "assistant") return role == kCallRole;
  return (HasField(message, "content") && !SaysNothing(message["content"])) ||
         static_cast<bool>(FindByMeaning(message, FieldMeaning::kCalls));
}

// Returns the number of answers.
std::int64_t CheckMessages(const OrderedJson& messages, const std::string& where) {
  if (!messages.is_array() || messages.empty()) {
    ThrowInvalidInput("{}: expected a list of messages, which is not empty", where);
  }
  std::int64_t answers = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    answers += CheckMessage(messages[i], fmt::format("{}[{}]", where, i));
  }
  return answers;
}

// True for a conversation.
bool CheckSupervised(const OrderedJson& record) {
  if (LooksLikePreference(record)) {
    ThrowInvalidInput("the record has preferred answers; train on them with method dpo");
  }
  if (!HasField(record, "messages")) {
    // Of other formats, `train` says what is wrong.
    if (DetectRecordFormat(record, /*has_template=*/false)) return false;
    ThrowInvalidInput("messages: missing; expected {{\"messages\": [...]}}");
  }
  if (CheckMessages(record["messages"], "messages") == 0) {
    ThrowInvalidInput("messages: there is no answer of the assistant, which is what is trained");
  }
  return true;
}

bool CheckPreference(const OrderedJson& record) {
  if (!LooksLikePreference(record)) {
    ThrowInvalidInput(
        "expected input.messages, preferred_output and non_preferred_output, which method dpo "
        "trains on");
  }
  const bool chats = HasField(record, "input") && record["input"].is_object() &&
                     HasField(record["input"], "messages");
  if (chats) CheckMessages(record["input"]["messages"], "input.messages");
  for (const char* output : {"preferred_output", "non_preferred_output"}) {
    if (HasField(record, output) && record[output].is_array() &&
        CheckMessages(record[output], output) == 0) {
      ThrowInvalidInput("{}: there is no answer of the assistant", output);
    }
  }
  return chats;
}

}  // namespace

bool CheckTrainingFile(const fs::path& path, const std::string& filename, TrainingMethod method) {
  std::int64_t number = 0;
  std::int64_t records = 0;
  bool all_chat = true;
  try {
    ForEachLine(path, 0, kMaxLineBytes, [&](std::string_view line, bool /*whole*/) {
      ++number;
      try {
        if (line.size() > kMaxLineBytes) {
          ThrowInvalidInput("expected at most {} bytes", kMaxLineBytes);
        }
        if (Trim(line).empty()) return;
        ++records;
        const OrderedJson record = ParseLine(line);
        const bool chats =
            method == TrainingMethod::kDpo ? CheckPreference(record) : CheckSupervised(record);
        all_chat = all_chat && chats;
      } catch (const Error& error) {
        ThrowInvalidInput("line {}: {}", number, error.what());
      }
    });
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", filename, error.what()));
  }
  if (records == 0) ThrowInvalidInput("{}: the file is empty: it has no examples", filename);
  return all_chat;
}

}  // namespace qlora
