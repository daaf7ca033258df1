#include "data/record_encoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

using Ids = std::vector<std::int32_t>;

bool Has(const OrderedJson& record, const char* key) {
  const auto field = record.find(key);
  return field != record.end() && !field->is_null();
}

std::string Keys(const OrderedJson& record) {
  std::string keys;
  for (const auto& item : record.items()) keys += (keys.empty() ? "" : ", ") + item.key();
  return keys.empty() ? "none" : keys;
}

const std::string& Text(const OrderedJson& record, const char* key) {
  const auto field = record.find(key);
  if (field == record.end()) {
    ThrowInvalidInput("field '{}' is missing; found: {}", key, Keys(record));
  }
  if (!field->is_string()) {
    ThrowInvalidInput("field '{}': expected text, found {}", key, field->type_name());
  }
  return field->get_ref<const std::string&>();
}

Ids Integers(const OrderedJson& record, const char* key) {
  const auto field = record.find(key);
  if (field == record.end()) {
    ThrowInvalidInput("field '{}' is missing; found: {}", key, Keys(record));
  }
  if (!field->is_array()) {
    ThrowInvalidInput("field '{}': expected a list of integers, found {}", key, field->type_name());
  }
  Ids values;
  values.reserve(field->size());
  for (const OrderedJson& value : *field) {
    const bool fits = value.is_number_integer() && value >= INT32_MIN && value <= INT32_MAX;
    if (!fits) {
      ThrowInvalidInput("{}[{}]: expected an integer of 32 bits, found {}", key, values.size(),
                        value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    }
    values.push_back(value.get<std::int32_t>());
  }
  return values;
}

std::size_t CommonPrefix(const Ids& a, const Ids& b) {
  return static_cast<std::size_t>(
      std::mismatch(a.begin(),
                    a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())),
                    b.begin())
          .first -
      a.begin());
}

// Labels that predict the next token already: the user shifted them, as this trainer does too.
bool LooksShifted(const Sample& sample) {
  bool same = true;
  bool shifted = true;
  int trained = 0;
  for (std::size_t t = 0; t + 1 < sample.ids.size(); ++t) {
    if (sample.labels[t] == kIgnoreLabel) continue;
    ++trained;
    same = same && sample.labels[t] == sample.ids[t];
    shifted = shifted && sample.labels[t] == sample.ids[t + 1];
  }
  return trained >= 2 && shifted && !same;
}

}  // namespace

RecordFormat DetectRecordFormat(const OrderedJson& record, const DataOptions& options) {
  if (Has(record, "input_ids")) return RecordFormat::kInputIds;
  if (!options.prompt_template.empty()) return RecordFormat::kTemplate;
  if (Has(record, "messages")) return RecordFormat::kMessages;
  if (Has(record, "conversations")) return RecordFormat::kShareGpt;
  if (Has(record, "prompt") && Has(record, "completion")) return RecordFormat::kPromptCompletion;
  if (Has(record, "instruction") && Has(record, "output")) return RecordFormat::kInstruction;
  if (Has(record, "text")) return RecordFormat::kText;
  ThrowInvalidInput(
      "cannot tell the format from the fields: {}; expected text, prompt and completion, "
      "instruction and output, messages, conversations or input_ids; or say how to lay the fields "
      "out with prompt_template and completion_template",
      Keys(record));
}

RecordEncoder::RecordEncoder(RecordFormat format, const DataOptions& options,
                             const Tokenizer& tokenizer, const ChatRenderer* chat)
    : format_(format),
      options_(options),
      tokenizer_(tokenizer),
      chat_(chat),
      vocab_size_(options.vocab_size > 0 ? options.vocab_size : tokenizer.vocab_size()) {
  if (options.prompt_template.empty() != options.completion_template.empty()) {
    ThrowInvalidInput("prompt_template and completion_template need each other");
  }
  if (format == RecordFormat::kTemplate && options.prompt_template.empty()) {
    ThrowInvalidInput("the format 'template' needs prompt_template and completion_template");
  }
  if (format == RecordFormat::kTemplate || format == RecordFormat::kInstruction) {
    const bool own = !options.prompt_template.empty();
    prompt_.emplace(own ? std::string_view(options.prompt_template) : kInstructionPrompt);
    completion_.emplace(own ? std::string_view(options.completion_template)
                            : kInstructionCompletion);
  }
  const bool conversation = format == RecordFormat::kMessages || format == RecordFormat::kShareGpt;
  if (conversation && chat == nullptr) {
    ThrowInvalidInput(
        "conversations need a chat template and the model has none; name one with chat_template: "
        "chatml or plain, or a Jinja file");
  }
  const bool appends = !conversation && format != RecordFormat::kInputIds && format != RecordFormat::kRaw;
  if (appends && options.append_eos && !tokenizer.eos_id().has_value()) {
    ThrowInvalidInput(
        "the tokenizer names no EOS, so that the model could not learn to stop; add eos_token to "
        "tokenizer_config.json or set append_eos: false");
  }
}

std::string RecordEncoder::key() const {
  const TokenizerSpec& spec = tokenizer_.spec();
  std::string model = spec.normalizer + spec.pre_tokenizer;
  for (const std::string& piece : spec.pieces) model += piece + '\n';
  for (const auto& [left, right] : spec.merges) model += left + ' ' + right + '\n';
  for (const AddedToken& token : spec.added_tokens) model += token.content + '\n';
  for (const float score : spec.scores) model += fmt::format("{} ", score);
  OrderedJson key = {{"format", RecordFormatName(format_)},
                     {"max_length", options_.max_length},
                     {"over_long", static_cast<int>(options_.over_long)},
                     {"append_eos", options_.append_eos},
                     {"train_on_inputs", options_.train_on_inputs},
                     {"prompt_template", options_.prompt_template},
                     {"completion_template", options_.completion_template},
                     {"vocab_size", vocab_size_},
                     {"eos_ids", tokenizer_.eos_ids()},
                     {"around", tokenizer_.Encode("", /*add_special_tokens=*/true)},
                     {"tokenizer", HashBytes(model)},
                     {"chat", chat_ == nullptr ? std::string() : chat_->source()}};
  return key.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

EncodedRecord RecordEncoder::Encode(const OrderedJson& record) const {
  EncodedRecord encoded;
  switch (format_) {
    case RecordFormat::kText:
      encoded = EncodeText(record);
      break;
    case RecordFormat::kPromptCompletion:
      if (Has(record, "prompt") && record["prompt"].is_array()) {
        encoded = EncodeConversation(ConversationOfCompletion(record));
      } else {
        encoded = EncodeCompletion(Text(record, "prompt"), Text(record, "completion"));
      }
      break;
    case RecordFormat::kInstruction:
      if (Has(record, "history") && !record["history"].empty()) {
        ThrowInvalidInput("field 'history' is not read; write the record as messages");
      }
      [[fallthrough]];
    case RecordFormat::kTemplate:
      encoded = EncodeCompletion(prompt_->Render(record), completion_->Render(record));
      break;
    case RecordFormat::kShareGpt:
      encoded = EncodeConversation(ConversationOfShareGpt(record));
      break;
    case RecordFormat::kMessages:
      encoded = EncodeConversation(ConversationOfMessages(record));
      break;
    case RecordFormat::kInputIds:
      encoded = EncodeIds(record);
      break;
    case RecordFormat::kAuto:
    case RecordFormat::kRaw:
      ThrowInvalidInput("the format '{}' has no records", RecordFormatName(format_));
  }
  Check(encoded);
  return encoded;
}

std::vector<std::int32_t> RecordEncoder::EncodeRaw(std::string_view text) const {
  return tokenizer_.Encode(text, /*add_special_tokens=*/false);
}

std::int64_t RecordEncoder::window_tokens() const {
  return options_.max_length - (tokenizer_.adds_bos() ? 1 : 0);
}

Sample RecordEncoder::Window(std::span<const std::int32_t> tokens) const {
  Sample sample;
  if (tokenizer_.adds_bos()) sample.ids.push_back(tokenizer_.bos_id().value());
  sample.ids.insert(sample.ids.end(), tokens.begin(), tokens.end());
  sample.labels = sample.ids;
  return sample;
}

EncodedRecord RecordEncoder::EncodeText(const OrderedJson& record) const {
  const std::string& text = Text(record, "text");
  if (text.empty()) ThrowInvalidInput("field 'text' is empty");
  EncodedRecord encoded;
  encoded.sample.ids = EncodeOpen(text);
  AppendEos(encoded.sample.ids);
  encoded.sample.labels = encoded.sample.ids;
  return encoded;
}

EncodedRecord RecordEncoder::EncodeCompletion(const std::string& prompt,
                                              const std::string& completion) const {
  EncodedRecord encoded;
  const Ids prefix = EncodeOpen(prompt);
  Ids& ids = encoded.sample.ids;
  ids = EncodeOpen(prompt + completion);
  if (CommonPrefix(prefix, ids) != prefix.size()) {
    ids = prefix;
    const Ids rest = tokenizer_.Encode(completion, /*add_special_tokens=*/false);
    ids.insert(ids.end(), rest.begin(), rest.end());
    encoded.notes.split_boundary = true;
  }
  encoded.notes.empty_completion = completion.empty();
  AppendEos(ids);
  encoded.sample.labels = ids;
  if (!options_.train_on_inputs)
    std::fill_n(encoded.sample.labels.begin(), prefix.size(), kIgnoreLabel);
  return encoded;
}

EncodedRecord RecordEncoder::EncodeConversation(const Conversation& conversation) const {
  if (chat_ == nullptr) {
    ThrowInvalidInput("the record is a conversation and the model has no chat template");
  }
  const RenderedChat chat = chat_->Render(conversation.messages, conversation.tools);
  std::vector<ChatSpan> spans;
  for (const ChatSpan& span : chat.assistant) {
    if (conversation.trained.at(span.message)) spans.push_back(span);
  }
  EncodedRecord encoded;
  Sample& sample = encoded.sample;
  sample.ids = tokenizer_.Encode(chat.text, /*add_special_tokens=*/false);
  sample.labels.assign(sample.ids.size(), kIgnoreLabel);
  const std::vector<std::size_t> bounds =
      TokensAtBounds(chat.text, spans, sample.ids, encoded.notes.split_boundary);
  for (std::size_t s = 0; s < spans.size(); ++s) {
    const std::size_t begin = bounds[2 * s];
    const std::size_t end = EndOfTurn(sample.ids, begin, bounds[2 * s + 1]);
    std::copy(sample.ids.begin() + static_cast<std::ptrdiff_t>(begin),
              sample.ids.begin() + static_cast<std::ptrdiff_t>(end),
              sample.labels.begin() + static_cast<std::ptrdiff_t>(begin));
    CheckTurnEnd(std::span(sample.ids).subspan(begin, end - begin), spans[s].message,
                 encoded.notes);
  }
  if (options_.train_on_inputs) sample.labels = sample.ids;
  return encoded;
}

// Which tokens stand at the begin and end of each span. The pieces between the bounds, encoded
// apart, mostly give the same tokens as the whole text; where they do not (a word gets a space at
// the start of a text), what stands before each bound is encoded.
std::vector<std::size_t> RecordEncoder::TokensAtBounds(const std::string& text,
                                                       const std::vector<ChatSpan>& spans,
                                                       const Ids& ids, bool& split) const {
  std::vector<std::size_t> bytes;
  for (const ChatSpan& span : spans) bytes.insert(bytes.end(), {span.begin, span.end});
  const std::string_view view = text;
  std::vector<std::size_t> bounds;
  Ids pieces;
  std::size_t last = 0;
  const auto encode = [&](std::size_t end) {
    const Ids piece = tokenizer_.Encode(view.substr(last, end - last), false);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
    last = end;
  };
  for (const std::size_t byte : bytes) {
    encode(byte);
    bounds.push_back(pieces.size());
  }
  encode(text.size());
  if (pieces == ids) return bounds;

  for (std::size_t b = 0; b < bytes.size(); ++b) {
    const Ids before = tokenizer_.Encode(view.substr(0, bytes[b]), false);
    bounds[b] = CommonPrefix(before, ids);
    split = split || bounds[b] != before.size();
  }
  return bounds;
}

// A template may mark the content alone as the assistant's: EOS right behind it belongs to the
// turn.
std::size_t RecordEncoder::EndOfTurn(const Ids& ids, std::size_t begin, std::size_t end) const {
  if (begin == end || end == ids.size()) return end;
  const bool ended = IsStop(ids[end - 1]) || tokenizer_.IsSpecial(ids[end - 1]);
  return !ended && IsStop(ids[end]) ? end + 1 : end;
}

void RecordEncoder::CheckTurnEnd(std::span<const std::int32_t> turn, std::size_t message,
                                 SampleNotes& notes) const {
  const auto is_space = [&](std::int32_t id) {
    const std::string text = tokenizer_.Decode({&id, 1}, /*skip_special_tokens=*/false);
    return text.find_first_not_of(" \t\r\n") == std::string::npos;
  };
  while (!turn.empty() && is_space(turn.back())) turn = turn.first(turn.size() - 1);
  if (turn.empty()) return;
  const std::int32_t last = turn.back();
  if (!IsStop(last) && !tokenizer_.IsSpecial(last)) {
    ThrowInvalidInput(
        "messages[{}]: the assistant's turn does not end in a token that ends generation, so that "
        "the model could not learn to stop: its last trained token is {} ('{}'); the chat template "
        "must close the turn with EOS or an end-of-turn token of the vocabulary, as the built-in "
        "template 'plain' does",
        message, last, tokenizer_.TokenText(last));
  }
  notes.unlisted_stop = notes.unlisted_stop || !IsStop(last);
}

EncodedRecord RecordEncoder::EncodeIds(const OrderedJson& record) const {
  EncodedRecord encoded;
  Sample& sample = encoded.sample;
  sample.ids = Integers(record, "input_ids");
  sample.labels = Has(record, "labels") ? Integers(record, "labels") : sample.ids;
  if (sample.labels.size() != sample.ids.size()) {
    ThrowInvalidInput("{} input_ids but {} labels; they must be as many", sample.ids.size(),
                      sample.labels.size());
  }
  if (Has(record, "attention_mask")) {
    const Ids mask = Integers(record, "attention_mask");
    if (mask.size() != sample.ids.size() ||
        std::count(mask.begin(), mask.end(), 1) != static_cast<std::ptrdiff_t>(mask.size())) {
      ThrowInvalidInput("attention_mask hides tokens; write the sample without padding");
    }
  }
  if (LooksShifted(sample)) {
    ThrowInvalidInput(
        "labels[t] equals input_ids[t + 1]: the labels are shifted already; write labels[t] = "
        "input_ids[t], the trainer shifts them");
  }
  return encoded;
}

std::vector<std::int32_t> RecordEncoder::EncodeOpen(std::string_view text) const {
  Ids ids = tokenizer_.Encode(text, /*add_special_tokens=*/true);
  if (tokenizer_.adds_eos()) ids.pop_back();
  return ids;
}

void RecordEncoder::AppendEos(Ids& ids) const {
  const bool there = !ids.empty() && IsStop(ids.back());
  if (options_.append_eos && !there) ids.push_back(tokenizer_.eos_id().value());
}

bool RecordEncoder::IsStop(std::int32_t id) const {
  const Ids& listed = tokenizer_.eos_ids();
  return tokenizer_.eos_id() == id || std::find(listed.begin(), listed.end(), id) != listed.end();
}

void RecordEncoder::Check(EncodedRecord& record) const {
  const Sample& sample = record.sample;
  SampleNotes& notes = record.notes;
  for (std::size_t t = 0; t < sample.ids.size(); ++t) {
    const std::int32_t label = sample.labels[t];
    for (const std::int32_t id : {sample.ids[t], label == kIgnoreLabel ? 0 : label}) {
      if (id < 0 || id >= vocab_size_) {
        ThrowInvalidInput(
            "token {} at position {} is outside of the vocabulary of {} tokens; the data or the "
            "tokenizer belongs to another model",
            id, t, vocab_size_);
      }
    }
    notes.foreign_labels += label != kIgnoreLabel && label != sample.ids[t];
  }
  const std::optional<std::int32_t> bos = tokenizer_.bos_id();
  const bool begins = bos.has_value() && !sample.ids.empty() && sample.ids[0] == *bos;
  if (begins && sample.ids.size() > 1 && sample.ids[1] == *bos) {
    ThrowInvalidInput(
        "the sample begins with BOS twice ({} {}); the tokenizer adds one, so take it out of the "
        "text or the template",
        *bos, *bos);
  }
  if (CountSupervised(sample) == 0) {
    ThrowInvalidInput(
        "no token of the sample is trained on ({} tokens, all masked or without a token before "
        "them)",
        sample.ids.size());
  }
  notes.without_bos = tokenizer_.adds_bos() && !begins;
  const auto last = std::find_if(sample.labels.rbegin(), sample.labels.rend(),
                                 [](std::int32_t label) { return label != kIgnoreLabel; });
  const bool is_text = format_ != RecordFormat::kMessages && format_ != RecordFormat::kShareGpt;
  notes.without_eos = is_text && !IsStop(*last);
}

}  // namespace qlora
