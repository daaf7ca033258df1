#include "foreign/dataset_info.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "base/text.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDatasetInfo = "dataset_info.json";

// The text of `key` in one of the objects of an entry. An object that is given leaves out the keys
// that it does not name, so `missing` counts only without the object.
std::string NameIn(const Json& entry, const char* object, const char* key,
                   std::string_view missing) {
  const auto names = entry.find(object);
  if (names == entry.end() || !names->is_object()) return std::string(missing);
  const auto name = names->find(key);
  return name == names->end() || !name->is_string() ? "" : name->get<std::string>();
}

std::string Column(const Json& entry, const char* key, std::string_view missing = "") {
  return NameIn(entry, "columns", key, missing);
}

std::string Tag(const Json& entry, const char* key, std::string_view missing) {
  return NameIn(entry, "tags", key, missing);
}

// True for "" and `name`: `train` reads the field of that name, or there is no field.
bool IsNoneOr(const std::string& column, std::string_view name) {
  return column.empty() || column == name;
}

// A name that a template can show.
bool IsPlain(const std::string& field) {
  return !field.empty() && field.find_first_of("{}[]!?.") == std::string::npos;
}

// Instruction, input and output under any names; the text is built as for Alpaca records in a chat
// template: the input on a line after the instruction.
void ReadAlpaca(const Json& entry, NamedDataset& named) {
  const std::string prompt = Column(entry, "prompt", "instruction");
  const std::string query = Column(entry, "query", "input");
  // Pairs have their answers as chosen and rejected.
  const std::string given = Column(entry, "response", "output");
  const std::string response = named.prefers && given.empty() ? "output" : given;
  const bool has_our_system = IsNoneOr(Column(entry, "system"), "system");
  const bool has_our_history = IsNoneOr(Column(entry, "history"), "history");
  if (!Column(entry, "tools").empty()) {
    named.fault = "tools are read from conversations alone";
  } else if (!has_our_system || !has_our_history) {
    named.fault = "rename the fields of system and history to system and history";
  } else if (prompt == "instruction" && IsNoneOr(query, "input") && response == "output") {
    return;  // the names of Alpaca
  } else if (!Column(entry, "history").empty()) {
    named.fault = "history is read with the fields instruction, input and output alone";
  } else if (!IsPlain(prompt) || !IsPlain(response) || !(query.empty() || IsPlain(query))) {
    named.fault = "rename the columns to instruction, input and output";
  } else {
    named.prompt_template =
        query.empty() ? fmt::format("{{{}}}", prompt)
                      : fmt::format("[[{{{0}}}]][[{{?{0}}}{{?{1}}}\n]][[{{{1}}}]]", prompt, query);
    named.completion_template = fmt::format("{{{}}}", response);
  }
}

// Conversations in the two forms that `train` reads.
void ReadConversations(const Json& entry, NamedDataset& named) {
  struct Speaker {
    const char* tag;
    std::string_view missing;
    std::string_view known;  // separated by spaces
  };
  constexpr auto kSpeakers = std::to_array<Speaker>({
      {"user_tag", "human", "human user"},
      {"assistant_tag", "gpt", "gpt assistant"},
      {"observation_tag", "observation", "observation tool function_response"},
      {"function_tag", "function_call", "function_call"},
      {"system_tag", "system", "system"},
  });
  const std::string messages = Column(entry, "messages", "conversations");
  const std::string role = Tag(entry, "role_tag", "from");
  const std::string content = Tag(entry, "content_tag", "value");
  const bool as_messages = role == "role" && content == "content";
  const bool as_sharegpt = role == "from" && content == "value" && messages == "conversations";
  // A list of `messages` has the roles of OpenAI.
  const bool has_our_roles =
      messages != "messages" || (Tag(entry, "user_tag", "human") == "user" &&
                                 Tag(entry, "assistant_tag", "gpt") == "assistant");
  if (!as_sharegpt && !(as_messages && (messages == "messages" || messages == "conversations"))) {
    named.fault =
        "conversations are read as 'messages' of role and content, or 'conversations' of from and "
        "value; rename the fields";
  } else if (!has_our_roles) {
    named.fault = "the roles of 'messages' are user and assistant; rename the tags";
  } else if (!IsNoneOr(Column(entry, "tools"), "tools") ||
             !IsNoneOr(Column(entry, "system"), messages == "messages" ? "" : "system")) {
    named.fault = "rename the field of tools to tools, and put the system text into the messages";
  }
  if (!named.fault.empty()) return;
  for (const Speaker& speaker : kSpeakers) {
    const std::string tag = Tag(entry, speaker.tag, speaker.missing);
    if (tag.empty() || HasWord(speaker.known, tag)) continue;
    named.fault =
        fmt::format("the {} '{}' is not known; rename it to {}", speaker.tag, tag, speaker.missing);
    return;
  }
}

std::string TextAt(const Json& entry, const char* key) {
  const auto text = entry.find(key);
  return text == entry.end() || !text->is_string() ? "" : text->get<std::string>();
}

bool IsOn(const Json& entry, const char* key) {
  const auto value = entry.find(key);
  return value != entry.end() && !value->is_null() && *value != false;
}

// Settings that change which records are read or which tokens are trained on; "" without such
// settings.
std::string FaultOf(const Json& entry) {
  if (!entry.is_object()) return "expected an object";
  const auto is_on = [&entry](const char* key) { return IsOn(entry, key); };
  if (is_on("num_samples")) return "cut the file, or give a weight: FILE:0.1";
  // The names that training on preferences reads.
  for (const char* column : {"chosen", "rejected", "kto_tag"}) {
    if (IsNoneOr(Column(entry, column), column)) continue;
    return fmt::format("rename the column {} to {}", Column(entry, column), column);
  }
  for (const char* column : {"images", "videos", "audios"}) {
    if (!Column(entry, column).empty()) return fmt::format("the column {} is not read", column);
  }
  for (const char* source : {"script_url", "cloud_file_name"}) {
    if (is_on(source)) return fmt::format("{}: give a file as dataset", source);
  }
  const bool is_of_hub = is_on("hf_hub_url");
  if (!is_of_hub && (is_on("ms_hub_url") || is_on("om_hub_url"))) {
    return "data sets are downloaded from Hugging Face; give a file as dataset";
  }
  const bool has_part =
      is_on("subset") || is_on("folder") || (is_on("split") && entry.at("split") != "train");
  if (has_part) return "subset, folder and split: name the files of the part as dataset";
  const bool has_source = !TextAt(entry, is_of_hub ? "hf_hub_url" : "file_name").empty();
  return has_source ? "" : "file_name is missing";
}

NamedDataset ReadEntry(const fs::path& folder, const Json& entry) {
  NamedDataset named;
  named.fault = FaultOf(entry);
  if (!named.fault.empty()) return named;
  const std::string hub = TextAt(entry, "hf_hub_url");
  named.path = hub.empty() ? (folder / TextAt(entry, "file_name")).string() : hub;
  named.prefers = IsOn(entry, "ranking") || !Column(entry, "chosen").empty() ||
                  !Column(entry, "kto_tag").empty();
  const std::string format = TextAt(entry, "formatting");
  if (format.empty() || format == "alpaca") {
    ReadAlpaca(entry, named);
  } else if (format == "sharegpt" || format == "openai") {
    ReadConversations(entry, named);
  } else {
    named.fault = fmt::format("formatting {} is not read", format);
  }
  return named;
}

}  // namespace

bool HasDatasetInfo(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / kDatasetInfo, ignored);
}

std::optional<NamedDataset> FindNamedDataset(const fs::path& folder, const std::string& name) {
  if (!HasDatasetInfo(folder)) return {};
  try {
    const Json list = ReadJsonFile(folder / kDatasetInfo);
    const auto entry = list.find(name);
    if (entry == list.end()) return {};
    return ReadEntry(folder, *entry);
  } catch (const Error& error) {
    NamedDataset damaged;
    damaged.fault = error.what();
    return damaged;
  }
}

}  // namespace qlora
