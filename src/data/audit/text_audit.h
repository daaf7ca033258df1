// The rule that no text of a record is lost in silence.
//
// Each text of a record - contents, parts, thoughts, names and arguments of calls, results, tools,
// the system text, whatever field - is looked for in the text that a chat template made of it:
//
//   what the assistant wrote, and is to be learnt     in the trained turn of its message
//   any other text                                    outside of the trained turns
//
// each at a place of its own. What is not there as it stands may be there with other white space,
// as JSON, or in another form that follows what the record says, which a rendering with another
// word shows. The rest is named: texts that are not shown, or in part, or not trained.
#ifndef QLORA_DATA_AUDIT_TEXT_AUDIT_H_
#define QLORA_DATA_AUDIT_TEXT_AUDIT_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample_check.h"
#include "prompt/prompt_layout.h"
#include "prompt/rendered_conversation.h"

namespace qlora {

// What of a conversation is trained.
struct TrainedTurns {
  std::span<const ChatSpan> turns;        // on what the assistant wrote there
  std::span<const std::size_t> stripped;  // messages that are left out for their missing thoughts
  bool everything = false;                // on all of the text
};

// Returns what the text of `chat` does not show, or the training leaves out, of the fields of
// `record` that the conversation holds. layout: that of the record.
std::vector<TextFinding> AuditTexts(const OrderedJson& record, RenderedConversation& chat,
                                    const TrainedTurns& trained, const RecordLayout& layout);

// Returns a field of the record that no layout reads and that reads like a part of the conversation
// (known_fields.h), of which `text` does not have all texts; "" when there is none. used: the
// fields that are read. A text that has all of those is none: another program has laid them out.
std::string FindUnusedPart(const OrderedJson& record, std::span<const std::string> used,
                           std::string_view text);

}  // namespace qlora

#endif  // QLORA_DATA_AUDIT_TEXT_AUDIT_H_
