// What the text of a conversation leaves out of its record.
#ifndef QLORA_DATA_LEFT_OUT_H_
#define QLORA_DATA_LEFT_OUT_H_

#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample_check.h"
#include "prompt/rendered_conversation.h"

namespace qlora {

// Fields that the text of some record so far has shown. May be used by several threads.
class ReadFields {
 public:
  void Add(const std::string& name);
  bool Has(const std::string& name) const;
  std::set<std::string> names() const;

 private:
  mutable std::mutex mutex_;
  std::set<std::string> names_;
};

// Names in `notes` the messages of a conversation that its text does not show, and the fields of
// messages, "tools" and variables that change nothing in it. A template that names a field may read
// it in another place only, so the renderings decide; a field of `read` is not looked at again.
void NoteLeftOut(RenderedConversation& chat, ReadFields& read, SampleNotes& notes);

// Many templates show the thoughts of the last answers alone. Without its thoughts an earlier
// answer is none that the model is ever asked for: it would learn to answer without thinking.
//
// Returns the messages of the trained answers whose thoughts the text leaves out, but would show if
// the conversation ended with them. Thoughts that the template never shows count as shown: then all
// answers are alike.
std::vector<std::size_t> FindStrippedThoughts(RenderedConversation& chat);

// True when the text of a turn shows the tool calls of its message: it has the name of the first
// one, which every template prints unchanged.
bool ShowsCalls(const OrderedJson& message, std::string_view turn);

}  // namespace qlora

#endif  // QLORA_DATA_LEFT_OUT_H_
