// The texts of a record that a conversation holds, and where each of them stands.
#ifndef QLORA_DATA_AUDIT_RECORD_TEXTS_H_
#define QLORA_DATA_AUDIT_RECORD_TEXTS_H_

#include <cstddef>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "prompt/conversation.h"
#include "prompt/prompt_layout.h"

namespace qlora {

enum class TextKind { kContent, kThoughts, kCalls, kTools, kSystem, kOther };

inline constexpr std::size_t kNoMessage = static_cast<std::size_t>(-1);

struct TextSite {
  std::string path;  // "messages[].content"
  TextKind kind;
  std::size_t message = kNoMessage;  // of the conversation
};

struct RecordText {
  std::string_view text;
  const TextSite* site;
};

// Texts in the order of the record, which must outlive them. They point into the other members.
struct RecordTexts {
  RecordTexts() = default;
  RecordTexts(RecordTexts&&) = default;
  RecordTexts(const RecordTexts&) = delete;
  RecordTexts& operator=(const RecordTexts&) = delete;

  std::vector<RecordText> texts;
  bool has_foreign_ids = false;  // results whose id is that of no call, where calls have ids
  std::deque<TextSite> sites;
  std::deque<std::string> written;  // numbers
  std::deque<OrderedJson> parsed;   // calls that are a text of JSON
};

// layout: that of the record.
RecordTexts CollectTexts(const OrderedJson& record, const Conversation& conversation,
                         const RecordLayout& layout);

// True for the fields of turns and calls that say what something is, or tie one to another. They
// are used before a template sees them, or say nothing to the model.
bool IsLabelField(std::string_view name);

}  // namespace qlora

#endif  // QLORA_DATA_AUDIT_RECORD_TEXTS_H_
