// From a conversation to tokens and labels.
#ifndef QLORA_DATA_CONVERSATION_ENCODER_H_
#define QLORA_DATA_CONVERSATION_ENCODER_H_

#include <cstdint>
#include <set>
#include <string>

#include "data/data_options.h"
#include "data/left_out.h"
#include "data/sample_check.h"
#include "prompt/conversation.h"
#include "prompt/loss_mask.h"
#include "prompt/rendered_conversation.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

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
  // Encodes the turns that one of these samples trains. remarks: fill in all notes, which takes
  // renderings of variations. Errors: InvalidInput, without a place, when the template refuses the
  // conversation, or a turn does not train the token that ends it.
  EncodedRecord Encode(Conversation whole, std::int64_t part, bool remarks) const;

  // Fields of messages that some conversation so far has shown in its text.
  std::set<std::string> read_fields() const { return read_.names(); }

 private:
  void ChooseTurns(Conversation& conversation, std::int64_t part) const;
  void CheckTurn(const RenderedConversation& chat, const ChatSpan& span, TurnTokens& turn,
                 EncodedRecord& encoded) const;
  bool CloseLastTurn(const RenderedConversation& chat, const ChatSpan& span, TurnTokens& turn,
                     EncodedRecord& encoded) const;

  const EncodingOptions& options_;
  const bool everything_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_;
  mutable ReadFields read_;
};

}  // namespace qlora

#endif  // QLORA_DATA_CONVERSATION_ENCODER_H_
