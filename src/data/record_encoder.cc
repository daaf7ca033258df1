#include "data/record_encoder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "data/stripped_thoughts.h"
#include "io/json.h"
#include "prompt/chat_template.h"
#include "prompt/conversation.h"
#include "prompt/known_fields.h"
#include "prompt/loss_mask.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

// Raised whenever the same record may give another sample than before, so that an index on disk is
// not taken for the samples of an earlier version.
constexpr int kEncodingVersion = 8;

using Ids = std::vector<std::int32_t>;
using Kind = PromptLayout::Kind;

// A field that lists token ids, labels or a mask.
Ids Integers(const OrderedJson& record, const char* key) {
  const OrderedJson& field = RequiredField(record, key);
  if (!field.is_array()) {
    ThrowInvalidInput("field '{}': expected a list of integers, found {}", key, field.type_name());
  }
  Ids values;
  values.reserve(field.size());
  for (const OrderedJson& value : field) {
    const bool fits = value.is_number_integer() && value >= INT32_MIN && value <= INT32_MAX;
    if (!fits) {
      ThrowInvalidInput("{}[{}]: expected an integer of 32 bits, found {}", key, values.size(),
                        FormatJson(value));
    }
    values.push_back(value.get<std::int32_t>());
  }
  return values;
}

// True when the rendering of a message shows its tool calls: it has the name of the first one,
// which every template prints unchanged.
bool ShowsCalls(const OrderedJson& message, std::string_view rendered) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array() || calls->empty()) return true;
  const OrderedJson& call = calls->front();
  const OrderedJson& function = call.contains("function") ? call["function"] : call;
  const auto name = function.find("name");
  if (name == function.end() || !name->is_string()) return true;
  return rendered.find(name->get_ref<const std::string&>()) != std::string_view::npos;
}

// True when a text ends in what an answer says behind its thoughts.
bool EndsIn(const OrderedJson& answer, std::string_view text) {
  const OrderedJson& content = answer.at("content");
  if (!content.is_string()) return false;
  constexpr std::string_view kThought = "</think>";
  std::string_view said = TrimEnd(content.get_ref<const std::string&>());
  const std::size_t thought = said.rfind(kThought);
  if (thought != said.npos) said = Trim(said.substr(thought + kThought.size()));
  return !said.empty() && TrimEnd(text).ends_with(said);
}

}  // namespace

RecordEncoder::RecordEncoder(PromptLayout layout, const DataOptions& options,
                             const Tokenizer& tokenizer, const ChatRenderer* chat)
    : layout_(std::move(layout)),
      options_(options),
      tokenizer_(tokenizer),
      chat_(chat),
      chat_source_(chat == nullptr ? "" : chat->source()),
      vocab_size_(options.vocab_size > 0 ? options.vocab_size : tokenizer.vocab_size()) {
  const Kind kind = this->layout().kind;
  // Refused here rather than at the first record, which would read like a fault of that record.
  if (kind == Kind::kChat && chat == nullptr) {
    ThrowInvalidInput(
        "conversations need a chat template and the model has none; name one with chat_template: "
        "{}, or a Jinja file",
        TemplatesFor(tokenizer));
  }
  const bool appends = kind == Kind::kText || this->layout().format == RecordFormat::kText;
  if (appends && options.append_eos && !tokenizer.eos_id().has_value()) {
    ThrowInvalidInput(
        "the tokenizer names no EOS, so that the model could not learn to stop; add eos_token to "
        "tokenizer_config.json or set append_eos: false");
  }
}

std::string RecordEncoder::key() const {
  OrderedJson key = {{"version", kEncodingVersion},
                     {"layout", LayoutToJson(layout())},
                     {"max_length", options_.max_length},
                     {"over_long", static_cast<int>(options_.over_long)},
                     {"append_eos", options_.append_eos},
                     {"train_on_inputs", options_.train_on_inputs},
                     {"assistant_only_loss", options_.assistant_only_loss},
                     {"train_turns", static_cast<int>(options_.train_turns)},
                     {"vocab_size", vocab_size_},
                     // Named by other files than tokenizer.json, which its hash does not cover.
                     {"eos_ids", tokenizer_.eos_ids()},
                     {"around", tokenizer_.Encode("", /*add_special_tokens=*/true)},
                     {"tokenizer", tokenizer_.spec().hash},
                     {"chat", chat_source_}};
  // Not in the keys of before: an index of all records is the same without the option.
  if (options_.bad_records == BadRecords::kDrop) key["bad_records"] = "drop";
  return FormatJson(key);
}

EncodedRecord RecordEncoder::Encode(const OrderedJson& record, std::int64_t part) const {
  EncodedRecord encoded = EncodeFields(record, part);
  NoteUnusedFields(record, encoded.notes);
  CheckSample(encoded.sample, tokenizer_, vocab_size_, encoded.notes);
  // In a conversation the last turn alone decides, which CheckTurns has looked at.
  if (layout().kind != Kind::kChat) {
    encoded.notes.without_eos = !TrainsStop(encoded.sample, tokenizer_);
  }
  return encoded;
}

std::int64_t RecordEncoder::CountParts(const OrderedJson& record) const {
  if (layout().kind != Kind::kChat || options_.train_turns != TrainTurns::kEach) return 1;
  const Conversation conversation = layout_.WholeConversation(record);
  return std::max<std::int64_t>(1, std::ranges::count(conversation.trained, true));
}

std::set<std::string> RecordEncoder::read_fields() const {
  const std::lock_guard lock(mutex_);
  return read_fields_;
}

// A flag of the record that says to train says nothing new.
void RecordEncoder::NoteUnusedFields(const OrderedJson& record, SampleNotes& notes) const {
  for (const auto& [name, value] : record.items()) {
    const bool trains = value == true || value == 1;
    if (SaysNothing(value) || layout_.Uses(name)) continue;
    if (IsKnownAs(name, FieldMeaning::kFlag) && trains) continue;
    notes.unused_fields.push_back(name);
  }
}

// Keeps the trained turns that the option asks for.
void RecordEncoder::ChooseTurns(Conversation& conversation, std::int64_t part) const {
  std::vector<bool>& trained = conversation.trained;
  if (options_.train_turns == TrainTurns::kLast) {
    std::int64_t last = std::ssize(trained) - 1;
    while (last >= 0 && !trained[last]) --last;
    std::fill_n(trained.begin(), std::max<std::int64_t>(last, 0), false);
  } else if (options_.train_turns == TrainTurns::kEach) {
    // The conversation ends with the turn, as it does when the model answers.
    for (std::size_t m = 0; m < trained.size(); ++m) {
      if (!trained[m] || part-- > 0) continue;
      std::fill_n(trained.begin(), m, false);
      return conversation.Shorten(m + 1);
    }
  }
}

// By layout; the checks that all layouts share come after.
EncodedRecord RecordEncoder::EncodeFields(const OrderedJson& record, std::int64_t part) const {
  switch (layout().kind) {
    case Kind::kChat: {
      Conversation conversation = layout_.WholeConversation(record);
      ChooseTurns(conversation, part);
      return EncodeConversation(conversation);
    }
    case Kind::kText:
      return EncodeCompletion(layout_.Prompt(record), layout_.Completion(record));
    case Kind::kTokens:
      return EncodeIds(record);
    case Kind::kWhole:
      break;
  }
  if (layout().format == RecordFormat::kText) return EncodeText(record);
  ThrowInvalidInput("the format '{}' has no records", RecordFormatName(layout().format));
}

std::vector<std::int32_t> RecordEncoder::EncodeRaw(std::string_view text) const {
  return tokenizer_.Encode(text, /*add_special_tokens=*/false);
}

std::int64_t RecordEncoder::window_tokens() const {
  // Less the place of BOS, with which Window begins.
  return options_.max_length - (tokenizer_.adds_bos() ? 1 : 0);
}

bool RecordEncoder::BeginsWithBos(std::span<const std::int32_t> tokens) const {
  return tokenizer_.adds_bos() && !tokens.empty() && tokens[0] == tokenizer_.bos_id();
}

Sample RecordEncoder::Window(std::span<const std::int32_t> tokens) const {
  Sample sample;
  if (tokenizer_.adds_bos() && !BeginsWithBos(tokens)) {
    sample.ids.push_back(tokenizer_.bos_id().value());
  }
  sample.ids.insert(sample.ids.end(), tokens.begin(), tokens.end());
  sample.labels = sample.ids;
  return sample;
}

EncodedRecord RecordEncoder::EncodeText(const OrderedJson& record) const {
  const std::string text = TextField(record, "text");
  if (text.empty()) ThrowInvalidInput("field 'text' is empty");
  EncodedRecord encoded;
  encoded.sample.ids = EncodeOpen(text, encoded.notes);
  AppendEos(encoded.sample.ids);
  encoded.sample.labels = encoded.sample.ids;
  return encoded;
}

// Prompt and completion are encoded as one text, as the model will see them. If a token would span
// both, they are encoded apart: the prompt must have the tokens that it has when it is given alone.
EncodedRecord RecordEncoder::EncodeCompletion(const std::string& prompt,
                                              const std::string& completion) const {
  EncodedRecord encoded;
  const Ids prefix = EncodeOpen(prompt, encoded.notes);
  Ids& ids = encoded.sample.ids;
  ids = EncodeOpen(prompt + completion, encoded.notes);
  if (CommonPrefix(prefix, ids) != std::ssize(prefix)) {
    ids = prefix;
    const Ids rest = tokenizer_.Encode(completion, /*add_special_tokens=*/false);
    ids.insert(ids.end(), rest.begin(), rest.end());
    encoded.notes.split_boundary = true;
  }
  encoded.notes.empty_completion = completion.empty();
  AppendEos(ids);
  encoded.sample.labels = ids;
  if (!options_.train_on_inputs) {
    // ids     prompt prompt prompt | answer answer EOS
    // labels  -100   -100   -100   | answer answer EOS
    std::fill_n(encoded.sample.labels.begin(), prefix.size(), kIgnoreLabel);
  }
  return encoded;
}

// Text and turns come from the template, with BOS and EOS where the template writes them; the
// tokenizer adds none.
EncodedRecord RecordEncoder::EncodeConversation(const Conversation& conversation) const {
  RenderedChat chat = chat_->RenderConversation(conversation);
  EncodedRecord encoded;
  encoded.notes.unread_fields = UnreadFields(conversation, chat.text);
  encoded.notes.warnings = conversation.warnings;
  encoded.notes.unused_fields = conversation.unused_fields;
  encoded.notes.readings = std::move(chat.readings);
  WarnOfHiddenMessages(conversation, chat, encoded.notes);
  const std::vector<std::size_t> stripped = FindStrippedThoughts(*chat_, conversation, chat);
  if (!stripped.empty()) {
    encoded.notes.warnings.push_back(
        "earlier answers whose thoughts the chat template leaves out, so that they are not trained "
        "(train_turns: each shows and trains all of them)");
  }
  if (!conversation.trained.empty() && conversation.trained.back()) {
    std::ranges::move(chat.warnings, std::back_inserter(encoded.notes.warnings));
  }
  std::erase_if(chat.assistant, [&](const ChatSpan& span) {
    const bool is_read = !conversation.trained.at(span.message);  // and not learned
    return is_read || std::ranges::count(stripped, span.message) > 0;
  });
  Sample& sample = encoded.sample;
  sample.ids = tokenizer_.Encode(chat.text, /*add_special_tokens=*/false);
  LossMask mask = FindTurnTokens(tokenizer_, chat.text, chat.assistant, sample.ids);
  encoded.notes.split_boundary = mask.split_boundary;
  CheckTurns(conversation, chat, mask, encoded);
  const bool everything = options_.train_on_inputs ||
                          (!options_.assistant_only_loss && IsConversationFormat(layout().format));
  sample.labels = everything ? sample.ids : LabelsOf(sample.ids, mask.turns);
  return encoded;
}

// Every trained turn must end in a token that ends generation, and show its tool calls.
void RecordEncoder::CheckTurns(const Conversation& conversation, const RenderedChat& chat,
                               LossMask& mask, EncodedRecord& encoded) const {
  for (std::size_t s = 0; s < chat.assistant.size(); ++s) {
    const ChatSpan& span = chat.assistant[s];
    const OrderedJson& message = conversation.messages[span.message];
    const std::string_view rendered =
        std::string_view(chat.text).substr(span.begin, span.end - span.begin);
    if (!ShowsCalls(message, rendered)) {
      encoded.notes.hidden_calls = true;
      encoded.notes.warnings.push_back("tool calls that the chat template does not show");
    }

    const TurnTokens turn = mask.turns[s];
    const auto tokens = std::span(encoded.sample.ids).subspan(turn.begin, turn.end - turn.begin);
    const TurnEnd end = EndOf(tokens, tokenizer_);
    if (span.open_end) continue;
    if (end == TurnEnd::kSpecial) encoded.notes.unlisted_stop = true;
    if (end != TurnEnd::kText) continue;
    const bool last = s + 1 == chat.assistant.size();
    if (!last || !CloseLastTurn(message, chat, mask, encoded)) {
      ThrowOpenTurn(tokens, static_cast<std::int64_t>(span.message), tokenizer_);
    }
  }
}

// Fields of messages, "tools" and variables that change nothing in the text. A template that names
// a field may read it in another place only, so the rendering decides; a field that one record has
// shown is not looked at again.
std::vector<std::string> RecordEncoder::UnreadFields(const Conversation& conversation,
                                                     const std::string& text) const {
  std::vector<std::string> names;
  const std::set<std::string> known = read_fields();
  const auto add = [&](const std::string& name) {
    if (known.contains(name) || std::ranges::count(names, name) > 0) return;
    names.push_back(name);
  };
  for (const OrderedJson& message : conversation.messages) {
    for (const auto& [name, value] : message.items()) {
      if (name != "role" && name != "content" && !SaysNothing(value)) add(name);
    }
  }
  if (!conversation.tools.is_null()) add("tools");
  const auto read = [this](const std::string& name) {
    const std::lock_guard lock(mutex_);
    read_fields_.insert(name);
  };
  // Mostly all of these fields are read, or none, which one rendering without all of them shows.
  if (!names.empty() && !AreUnread(names, conversation, text)) {
    std::erase_if(names, [&](const std::string& name) {
      const bool unread = names.size() > 1 && AreUnread({&name, 1}, conversation, text);
      if (!unread) read(name);
      return !unread;
    });
  }
  // Variables mostly change prompts alone.
  for (const auto& [name, value] : conversation.variables.items()) {
    if (!chat_->ReadsVariable(name)) names.push_back("chat_template_kwargs: " + name);
  }
  return names;
}

// True when the conversation has the same text without these fields.
bool RecordEncoder::AreUnread(std::span<const std::string> names, const Conversation& conversation,
                              const std::string& text) const {
  Conversation other = conversation;
  for (const std::string& name : names) {
    if (name == "tools") {
      other.tools = OrderedJson();
      continue;
    }
    for (OrderedJson& message : other.messages) message.erase(name);
  }
  try {
    return chat_->RenderConversation(other).text == text;
  } catch (const Error&) {  // the template misses a field
    return false;
  }
}

// Names the messages whose content the text does not show: it is not there, and another content
// gives the same text. Says as well when there is nothing to learn but to stop.
void RecordEncoder::WarnOfHiddenMessages(const Conversation& conversation, const RenderedChat& chat,
                                         SampleNotes& notes) const {
  for (std::size_t m = 0; m < conversation.messages.size(); ++m) {
    const OrderedJson& message = conversation.messages[m];
    const OrderedJson& content = message.at("content");
    const std::string_view said =
        content.is_string() ? Trim(content.get_ref<const std::string&>()) : std::string_view();
    const auto calls = message.find("tool_calls");
    const bool has_calls = calls != message.end() && !SaysNothing(*calls);
    if (said.empty()) {
      if (!conversation.trained[m] || has_calls) continue;
      if (FindByMeaning(message, FieldMeaning::kThoughts)) continue;
      notes.empty_completion = true;
      notes.warnings.push_back("answers without text, of which the model learns to stop alone");
      continue;
    }
    if (chat.text.find(said) != std::string::npos) continue;
    Conversation other = conversation;
    other.messages[m]["content"] = "Xylem quartz";
    try {
      if (chat_->RenderConversation(other).text != chat.text) continue;
    } catch (const Error&) {
      continue;
    }
    notes.warnings.push_back(
        fmt::format("messages of the role {}{} that the chat template does not show",
                    message.at("role").get<std::string>(), has_calls ? " with tool calls" : ""));
  }
}

// Some templates (GLM) end a turn with the token that begins the next message, and so leave the
// last turn open. It is such a turn if nothing but white space follows what the answer says to the
// end of the text. EOS is appended to it, or with append_eos: false the turn is trained as it is.
bool RecordEncoder::CloseLastTurn(const OrderedJson& answer, const RenderedChat& chat,
                                  LossMask& mask, EncodedRecord& encoded) const {
  if (TrimEnd(chat.text).size() > chat.assistant.back().end) return false;
  const auto calls = answer.find("tool_calls");
  const bool has_calls = calls != answer.end() && !SaysNothing(*calls);
  // Of calls, the template decides how they look.
  const OrderedJson probe = {{{"role", "user"}, {"content", "Hello"}},
                             {{"role", "assistant"}, {"content", "Hi"}}};
  try {
    const bool open = has_calls ? EndsIn(probe[1], chat_->Render(probe, nullptr).text)
                                : EndsIn(answer, chat.text);
    if (!open) return false;
  } catch (const Error&) {
    return false;  // a template that asks for more than the probe has
  }
  encoded.notes.without_eos = !options_.append_eos;
  if (!options_.append_eos) return true;
  if (!tokenizer_.eos_id()) return false;
  encoded.notes.closed_turn = true;
  TurnTokens& turn = mask.turns.back();
  encoded.sample.ids.resize(turn.end);
  encoded.sample.ids.push_back(*tokenizer_.eos_id());
  ++turn.end;
  return true;
}

// Tokens as they are. Mistakes of the program that made them are refused: padding, and labels that
// are shifted already.
EncodedRecord RecordEncoder::EncodeIds(const OrderedJson& record) const {
  EncodedRecord encoded;
  Sample& sample = encoded.sample;
  sample.ids = Integers(record, "input_ids");
  sample.labels = HasField(record, "labels") ? Integers(record, "labels") : sample.ids;
  if (sample.labels.size() != sample.ids.size()) {
    ThrowInvalidInput("{} input_ids but {} labels; expected as many labels as input_ids",
                      sample.ids.size(), sample.labels.size());
  }
  if (HasField(record, "attention_mask")) {
    const Ids mask = Integers(record, "attention_mask");
    if (mask.size() != sample.ids.size() ||
        std::count(mask.begin(), mask.end(), 1) != std::ssize(mask)) {
      ThrowInvalidInput("attention_mask hides tokens; write the sample without padding");
    }
  }
  CheckNotShifted(sample);
  // Masks of TRL beside the labels: 0 takes a token out.
  for (const char* key : {"completion_mask", "assistant_masks", "loss_mask"}) {
    if (!HasField(record, key)) continue;
    const Ids mask = Integers(record, key);
    const bool valid = mask.size() == sample.ids.size() &&
                       std::ranges::all_of(mask, [](auto bit) { return bit == 0 || bit == 1; });
    if (!valid) {
      ThrowInvalidInput("{}: expected {} numbers, each 0 or 1, found {}", key, sample.ids.size(),
                        mask.size());
    }
    for (std::size_t t = 0; t < mask.size(); ++t) {
      if (mask[t] == 0) sample.labels[t] = kIgnoreLabel;
    }
  }
  return encoded;
}

// Conversations that a program has rendered into texts begin with BOS, as templates write it.
std::vector<std::int32_t> RecordEncoder::EncodeOpen(std::string_view text,
                                                    SampleNotes& notes) const {
  Ids ids = tokenizer_.Encode(text, /*add_special_tokens=*/true);
  if (!ids.empty() && BeginsWithBos(std::span(ids).subspan(1))) {
    ids.erase(ids.begin());
    notes.own_bos = true;
  }
  // append_eos, not the tokenizer, decides whether EOS follows.
  if (tokenizer_.adds_eos()) ids.pop_back();
  return ids;
}

// Nothing to do for a text that ends in EOS, or in another token that ends generation.
void RecordEncoder::AppendEos(Ids& ids) const {
  const bool there = !ids.empty() && IsStopToken(tokenizer_, ids.back());
  if (options_.append_eos && !there) ids.push_back(tokenizer_.eos_id().value());
}

}  // namespace qlora
