#include "prompt/known_fields.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "base/text.h"

namespace qlora {
namespace {

using Meaning = FieldMeaning;

constexpr std::string_view kSystem = "the system text, for which this layout has no place";
constexpr std::string_view kTools = "descriptions of tools";
constexpr std::string_view kVariables =
    "variables of a chat template, and these records are not laid out by one";
constexpr std::string_view kThoughts = "thoughts of the assistant";
constexpr std::string_view kFlag =
    "whether to train, which is a field of messages; take records out of the file, or weigh files";
constexpr std::string_view kMedia = "pictures, sound or video; only text is trained on";
constexpr std::string_view kPair = "an answer of a preference pair; only one answer is trained on";
constexpr std::string_view kPrompt = "text for the model to read";
constexpr std::string_view kAnswer = "an answer";
constexpr std::string_view kPart = "text that the model is to read or to write";
constexpr std::string_view kMask = "which tokens are trained on, for which there must be input_ids";
constexpr std::string_view kUnclearMask =
    "what is not trained on, in a sense that differs from program to program";

// Of one meaning, the most usual name first.
constexpr KnownField kFields[] = {
    {"system", Meaning::kSystem, kSystem},
    {"system_prompt", Meaning::kSystem, kSystem},
    {"system_message", Meaning::kSystem, kSystem},
    {"tools", Meaning::kTools, kTools},
    {"functions", Meaning::kTools, kTools},
    {"chat_template_kwargs", Meaning::kVariables, kVariables},
    {"enable_thinking", Meaning::kVariable, kVariables},
    {"reasoning_content", Meaning::kThoughts, kThoughts},
    {"thinking", Meaning::kThoughts, kThoughts},
    {"reasoning", Meaning::kThoughts, kThoughts},
    {"thoughts", Meaning::kThoughts, kThoughts},
    {"thought", Meaning::kThoughts, kThoughts},
    {"chain_of_thought", Meaning::kThoughts, kThoughts},
    {"rationale", Meaning::kThoughts, kThoughts},
    {"reasoning_trace", Meaning::kThoughts, kThoughts},
    {"scratchpad", Meaning::kThoughts, kThoughts},
    {"cot", Meaning::kThoughts, kThoughts},
    {"complex_cot", Meaning::kThoughts, kThoughts},
    {"weight", Meaning::kFlag, kFlag},
    {"loss", Meaning::kFlag, kFlag},
    {"train", Meaning::kFlag, kFlag},
    {"training", Meaning::kFlag, kFlag},
    {"trainable", Meaning::kFlag, kFlag},
    {"loss_mask", Meaning::kFlag, kFlag},
    {"loss_scale", Meaning::kFlag, kFlag},
    {"loss_weight", Meaning::kFlag, kFlag},
    {"mask", Meaning::kUnclearMask, kUnclearMask},
    {"masked", Meaning::kUnclearMask, kUnclearMask},
    {"is_masked", Meaning::kUnclearMask, kUnclearMask},
    {"ignore", Meaning::kUnclearMask, kUnclearMask},
    {"tool_calls", Meaning::kCalls, "calls of tools"},
    {"function_call", Meaning::kCalls, "a call of a tool"},
    {"completion_mask", Meaning::kMask, kMask},
    {"assistant_masks", Meaning::kMask, kMask},
    {"train_detail", Meaning::kPartMask, "which parts of an answer are trained on"},
    {"training_detail", Meaning::kPartMask, "which parts of an answer are trained on"},
    {"labels", Meaning::kOther, kMask},
    {"attention_mask", Meaning::kOther, "hidden tokens, for which there must be input_ids"},
    {"position_ids", Meaning::kOther, "positions of tokens, which are counted from 0 here"},
    {"response", Meaning::kAnswer, kAnswer},
    {"answer", Meaning::kAnswer, kAnswer},
    {"completion", Meaning::kAnswer, kAnswer},
    {"output", Meaning::kAnswer, kAnswer},
    {"solution", Meaning::kAnswer, kAnswer},
    {"prompt", Meaning::kPrompt, kPrompt},
    {"question", Meaning::kPrompt, kPrompt},
    {"query", Meaning::kPrompt, kPrompt},
    {"instruction", Meaning::kPrompt, kPrompt},
    {"input", Meaning::kPrompt, kPrompt},
    {"context", Meaning::kPrompt, kPrompt},
    {"passage", Meaning::kPrompt, kPrompt},
    {"passages", Meaning::kPrompt, kPrompt},
    {"background", Meaning::kPrompt, kPrompt},
    {"knowledge", Meaning::kPrompt, kPrompt},
    {"history", Meaning::kPrompt, "earlier turns"},
    {"documents", Meaning::kPrompt, "texts to answer from"},
    {"messages", Meaning::kPrompt, "a conversation"},
    {"conversations", Meaning::kPrompt, "a conversation"},
    {"conversation", Meaning::kPrompt, "a conversation"},
    {"dialog", Meaning::kPrompt, "a conversation"},
    {"dialogue", Meaning::kPrompt, "a conversation"},
    {"text", Meaning::kUnclearPart, kPart},
    {"document", Meaning::kUnclearPart, kPart},
    {"article", Meaning::kUnclearPart, kPart},
    {"paragraph", Meaning::kUnclearPart, kPart},
    {"evidence", Meaning::kUnclearPart, kPart},
    {"facts", Meaning::kUnclearPart, kPart},
    {"contexts", Meaning::kUnclearPart, kPart},
    {"choices", Meaning::kUnclearPart, kPart},
    {"options", Meaning::kUnclearPart, kPart},
    {"hint", Meaning::kUnclearPart, kPart},
    {"hints", Meaning::kUnclearPart, kPart},
    {"premise", Meaning::kUnclearPart, kPart},
    {"hypothesis", Meaning::kUnclearPart, kPart},
    {"instructions", Meaning::kUnclearPart, kPart},
    {"inputs", Meaning::kUnclearPart, kPart},
    {"input_text", Meaning::kUnclearPart, kPart},
    {"user_prompt", Meaning::kUnclearPart, kPart},
    {"user_message", Meaning::kUnclearPart, kPart},
    {"user_input", Meaning::kUnclearPart, kPart},
    {"chat_history", Meaning::kUnclearPart, kPart},
    {"summary", Meaning::kUnclearPart, kPart},
    {"target", Meaning::kUnclearPart, kPart},
    {"target_text", Meaning::kUnclearPart, kPart},
    {"outputs", Meaning::kUnclearPart, kPart},
    {"output_text", Meaning::kUnclearPart, kPart},
    {"responses", Meaning::kUnclearPart, kPart},
    {"answers", Meaning::kUnclearPart, kPart},
    {"completions", Meaning::kUnclearPart, kPart},
    {"final_answer", Meaning::kUnclearPart, kPart},
    {"reply", Meaning::kUnclearPart, kPart},
    {"model_response", Meaning::kUnclearPart, kPart},
    {"assistant_response", Meaning::kUnclearPart, kPart},
    {"chosen", Meaning::kOther, kPair},
    {"rejected", Meaning::kOther, kPair},
    {"image", Meaning::kOther, kMedia},
    {"images", Meaning::kOther, kMedia},
    {"audio", Meaning::kOther, kMedia},
    {"audios", Meaning::kOther, kMedia},
    {"video", Meaning::kOther, kMedia},
    {"videos", Meaning::kOther, kMedia},
    {"tool_call_id", Meaning::kOther, "which call a tool answers", false},
    {"name", Meaning::kOther, "the name of a speaker or tool", false},
};

// A name as programs of all habits write it: "systemPrompt", "System prompt" and "system_prompt"
// are one.
std::string Squeezed(std::string_view name) {
  std::string letters = LowerCase(name);
  std::erase_if(letters, [](char c) { return c == '_' || c == '-' || c == ' '; });
  return letters;
}

struct RoleNames {
  std::string_view role;
  std::string_view names;      // separated by spaces; they are read as the role
  std::string_view kept = {};  // names that some templates know
};
constexpr RoleNames kRoles[] = {
    {"user", "human"},
    {"assistant", "gpt chatgpt bing bard model bot ai"},
    {"tool", "", "observation function function_response tool_response ipython"},
    {"system", "", "developer"},
    {kCallRole, "tool_call"},
};

}  // namespace

const KnownField* FindKnownField(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFields), std::end(kFields),
                                   [name](const KnownField& field) { return field.name == name; });
  return found == std::end(kFields) ? nullptr : found;
}

bool IsKnownAs(std::string_view name, FieldMeaning meaning) {
  const KnownField* known = FindKnownField(name);
  return known != nullptr && known->meaning == meaning;
}

bool IsPartOfConversation(std::string_view name) { return !NameOfPart(name).empty(); }

std::string_view NameOfPart(std::string_view name) {
  const std::string letters = Squeezed(name);
  for (const KnownField& field : kFields) {
    const Meaning meaning = field.meaning;
    const bool is_part = meaning == Meaning::kPrompt || meaning == Meaning::kAnswer ||
                         meaning == Meaning::kSystem || meaning == Meaning::kTools ||
                         meaning == Meaning::kThoughts || meaning == Meaning::kUnclearPart;
    if (is_part && Squeezed(field.name) == letters) return field.name;
  }
  return {};
}

std::vector<std::string> NamesOf(FieldMeaning meaning) {
  std::vector<std::string> names;
  for (const KnownField& field : kFields) {
    if (field.meaning == meaning) names.emplace_back(field.name);
  }
  return names;
}

FoundField FindByMeaning(const OrderedJson& object, FieldMeaning meaning) {
  FoundField found;
  for (const KnownField& field : kFields) {
    if (field.meaning != meaning) continue;
    const auto value = object.find(field.name);
    if (value == object.end() || SaysNothing(*value)) continue;
    if (found && *found.value != *value) {
      ThrowInvalidInput("the fields '{}' and '{}' mean the same and differ; keep one of them",
                        found.name, field.name);
    }
    if (!found) found = {std::string(field.name), &*value};
  }
  return found;
}

bool SaysNothing(const OrderedJson& value) { return value.empty() || value == ""; }

std::string_view RoleOfTemplates(std::string_view role) {
  for (const RoleNames& known : kRoles) {
    if (HasWord(known.names, role) || HasWord(known.kept, role)) return known.role;
  }
  return role;
}

std::vector<std::string> OtherNamesOfRole(std::string_view role) {
  const auto* known = std::ranges::find(kRoles, role, &RoleNames::role);
  if (known == std::end(kRoles)) return {};
  std::istringstream words{std::string(known->kept)};
  return {std::istream_iterator<std::string>(words), {}};
}

bool IsRoleOfSomeTemplates(std::string_view role) {
  return std::any_of(std::begin(kRoles), std::end(kRoles),
                     [role](const RoleNames& known) { return HasWord(known.kept, role); });
}

}  // namespace qlora
