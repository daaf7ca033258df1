// From a conversation to tokens and labels.
#ifndef QLORA_DATA_CONVERSATION_ENCODER_H_
#define QLORA_DATA_CONVERSATION_ENCODER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/data_options.h"
#include "data/sample_check.h"
#include "prompt/conversation.h"
#include "prompt/loss_mask.h"
#include "prompt/prompt_layout.h"
#include "prompt/rendered_conversation.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

struct EncodedConversation {
  EncodedRecord encoded;
  std::string text;
};

// Encodes the conversations of one file. May be used by several threads. The arguments of the
// constructor must outlive it.
class ConversationEncoder {
 public:
  // everything: train on every token.
  ConversationEncoder(const EncodingOptions& options, bool everything, const Tokenizer& tokenizer,
                      const ChatTemplate& chat);

  // The number of samples of a conversation: 1, or with train_turns `each` the number of turns that
  // are trained on, at least 1.
  std::int64_t CountParts(const Conversation& whole) const;
  // The record that a conversation is made of, and its layout.
  struct Source {
    const OrderedJson& record;
    const RecordLayout& layout;
  };
  // Encodes the turns that one of these samples trains. source: to name in the notes what the text
  // leaves out of the record, or null. Errors: InvalidInput, without a place, when the template
  // refuses the conversation, or a turn does not train the token that ends it.
  EncodedConversation Encode(Conversation whole, std::int64_t part, const Source* source) const;

 private:
  void ChooseTurns(Conversation& conversation, std::int64_t part) const;
  void CheckTurn(RenderedConversation& chat, const ChatSpan& span, TurnTokens& turn,
                 EncodedRecord& encoded) const;
  bool CloseLastTurn(RenderedConversation& chat, const ChatSpan& span, TurnTokens& turn,
                     EncodedRecord& encoded) const;
  std::optional<std::int32_t> SpecialTokenAt(std::string_view text) const;
  std::optional<std::int32_t> EndOfCalls(RenderedConversation& chat, const ChatSpan& span) const;

  const EncodingOptions& options_;
  const bool everything_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
};

}  // namespace qlora

#endif  // QLORA_DATA_CONVERSATION_ENCODER_H_
