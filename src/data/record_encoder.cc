#include "data/record_encoder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "data/audit/text_audit.h"
#include "data/token_record.h"
#include "io/json.h"
#include "preference/preference_pair.h"
#include "prompt/conversation.h"
#include "prompt/known_fields.h"
#include "prompt/loss_mask.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

// Raised whenever the same record may give another sample than before, so that an index on disk is
// not taken for the samples of an earlier version.
constexpr int kEncodingVersion = 14;

using Ids = std::vector<std::int32_t>;
using Kind = PromptLayout::Kind;

// What is remarked about one of two answers.
SampleNotes JoinNotes(SampleNotes notes, const SampleNotes& other) {
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(notes.findings, other.findings);
  append(notes.other_fields, other.other_fields);
  append(notes.readings, other.readings);
  notes.split_boundary = notes.split_boundary || other.split_boundary;
  notes.empty_completion = notes.empty_completion || other.empty_completion;
  notes.without_eos = notes.without_eos || other.without_eos;
  notes.unlisted_stop = notes.unlisted_stop || other.unlisted_stop;
  notes.closed_turn = notes.closed_turn || other.closed_turn;
  notes.own_bos = notes.own_bos || other.own_bos;
  notes.without_bos = notes.without_bos || other.without_bos;
  notes.foreign_labels += other.foreign_labels;
  return notes;
}

}  // namespace

RecordEncoder::RecordEncoder(PromptLayout layout, const EncodingOptions& options,
                             const Tokenizer& tokenizer, const ChatTemplate* chat)
    : layout_(WithDecisionTemplate(std::move(layout), options.decision, tokenizer, chat)),
      options_(options),
      tokenizer_(tokenizer),
      chat_(chat),
      vocab_size_(options.vocab_size > 0 ? options.vocab_size : tokenizer.vocab_size()) {
  const Kind kind = this->layout().kind;
  // Refused here rather than at the first record, which would read like a fault of that record.
  if (kind == Kind::kChat && chat == nullptr) {
    ThrowInvalidInput(
        "conversations need a chat template and the model has none; set chat_template to "
        "{}, or to a Jinja file",
        TemplatesFor(tokenizer));
  }
  if (kind == Kind::kChat) {
    const bool everything =
        options.train_on_inputs ||
        (!options.assistant_only_loss && IsConversationFormat(this->layout().format));
    conversations_.emplace(options_, everything, tokenizer, *chat);
  }
  if (kind == Kind::kDecision) {
    decisions_.emplace(this->layout().prompt_template, options_.decision, tokenizer);
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
                     {"chat", chat_ == nullptr ? "" : chat_->source()}};
  if (decisions_) {
    const DecisionOptions& o = options_.decision;
    OrderedJson types = OrderedJson::array();
    for (const QuestionType type : o.types) types.push_back(NameOf(type));
    key["decision"] = {
        std::move(types),     o.soft_targets,       o.shuffles_options,   o.seed,
        o.max_options,        o.share_prefix,       o.fields.text_column, o.fields.label_column,
        o.fields.label_names, o.fields.instructions};
    // Not in the keys of before, as what follows.
    if (o.space != PromptSpace::kOfPrompt) key["decision"].push_back(static_cast<int>(o.space));
    if (o.max_options < kMaxOptions) key["decision"].push_back("drawn apart from the order");
  }
  if (options_.preference.form != PreferenceForm::kNone) {
    key["preference"] = {static_cast<int>(options_.preference.form),
                         options_.preference.trains_text, options_.decision.share_prefix};
  }
  // Not in the keys of before: an index of all records is the same without the option.
  if (options_.bad_records == BadRecords::kDrop) key["bad_records"] = "drop";
  if (!options_.ignore_fields.empty()) key["ignore_fields"] = options_.ignore_fields;
  return FormatJson(key);
}

PreferenceRecord RecordEncoder::ReadPreference(const OrderedJson& record) const {
  PreferenceRecord read = ReadPreferenceRecord(record);
  if (options_.preference.form == PreferenceForm::kPairs && !read.is_pair()) {
    ThrowInvalidInput(
        "an answer with a label, and preference_loss compares pairs: expected chosen and rejected; "
        "preference_loss kto trains on labels");
  }
  return read;
}

OrderedJson RecordEncoder::AnswerOf(const OrderedJson& record, std::int64_t part) const {
  if (options_.preference.form == PreferenceForm::kNone) return record;
  return ReadPreference(record).answers.at(part);
}

std::vector<EncodedRecord> RecordEncoder::EncodeAll(const OrderedJson& record) const {
  if (options_.preference.form == PreferenceForm::kNone) return EncodeAnswers(record);
  const PreferenceRecord read = ReadPreference(record);
  std::vector<EncodedRecord> answers;
  for (const OrderedJson& answer : read.answers) {
    answers.push_back(std::move(EncodeAnswers(answer).front()));
    CheckAnswerBegins(answers.back().sample, tokenizer_);
  }
  for (const std::string_view notice : read.notices) {
    answers.front().notes.findings.push_back({std::string(notice)});
  }
  return JoinAnswers(read, std::move(answers));
}

// Pairs are one sample, or a sample for each answer where answers have labels.
std::vector<EncodedRecord> RecordEncoder::JoinAnswers(const PreferenceRecord& record,
                                                      std::vector<EncodedRecord> answers) const {
  if (options_.preference.form == PreferenceForm::kPairs) {
    return {JoinPair(record, std::move(answers))};
  }
  for (std::size_t i = 0; i < answers.size(); ++i) {
    answers[i].sample.desirable = record.label.value_or(i == 0);
  }
  return answers;
}

EncodedRecord RecordEncoder::JoinPair(const PreferenceRecord& record,
                                      std::vector<EncodedRecord> answers) const {
  EncodedRecord pair;
  pair.notes = JoinNotes(answers[0].notes, answers[1].notes);
  Sample& chosen = answers[0].sample;
  Sample& rejected = answers[1].sample;
  pair.supervised = answers[0].supervised + answers[1].supervised;
  pair.length = std::max(answers[0].length, answers[1].length);
  // Of longer answers some tokens are not there to be compared.
  const bool is_whole = pair.length <= options_.max_length + 1;
  pair.identical =
      record.answers[0] == record.answers[1] || (is_whole && chosen.ids == rejected.ids);
  if (pair.identical) return pair;
  if (pair.length > options_.max_length) {
    if (options_.over_long != OverLong::kTruncate) return pair;
    pair.pair_cut = CutPair(chosen, rejected, options_.max_length);
    if (pair.pair_cut != PairCut::kDifferent) return pair;
  }
  for (const EncodedRecord& answer : answers) {
    pair.cut_tokens += std::max<std::int64_t>(0, answer.length - options_.max_length);
  }
  pair.sample = qlora::JoinPair(std::move(chosen), std::move(rejected),
                                {.implicit = record.implicit,
                                 .share_prefix = options_.decision.share_prefix,
                                 .trains_text = options_.preference.trains_text});
  pair.length = LongestSequence(pair.sample);
  pair.supervised = CountSupervised(pair.sample);
  return pair;
}

std::vector<EncodedRecord> RecordEncoder::EncodeAnswers(const OrderedJson& record) const {
  std::vector<EncodedRecord> samples;
  if (conversations_) {
    const Conversation conversation = layout_.WholeConversation(record);
    const ConversationEncoder::Source source = {record, layout_};
    std::string text;  // of the last part, which has all turns
    for (std::int64_t part = 0; part < conversations_->CountParts(conversation); ++part) {
      EncodedConversation encoded = conversations_->Encode(conversation, part, &source);
      samples.push_back(std::move(encoded.encoded));
      Measure(samples.back());
      text = std::move(encoded.text);
    }
    CheckFields(record, conversation.fields, conversation.unused_fields, text,
                samples.back().notes);
  } else {
    samples.push_back(EncodeFields(record));
    std::vector<std::string> used;
    for (const auto& [name, value] : record.items()) {
      if (layout_.Uses(name)) used.push_back(name);
    }
    const bool is_text = layout().kind == Kind::kText;
    CheckFields(record, used, {},
                is_text ? layout_.Prompt(record) + '\n' + layout_.Completion(record)
                : layout().kind == Kind::kWhole ? TextField(record, "text")
                                                : std::string(),
                samples.back().notes);
    // In a conversation the last turn alone decides, which its encoder has looked at.
    samples.back().notes.without_eos =
        !decisions_ && !TrainsStop(samples.back().sample, tokenizer_);
    Measure(samples.back());
  }
  return samples;
}

// Checks and counts the whole sample before it is cut.
void RecordEncoder::Measure(EncodedRecord& encoded) const {
  Sample& sample = encoded.sample;
  CheckSample(sample, tokenizer_, vocab_size_, encoded.notes);
  encoded.length = LongestSequence(sample);
  encoded.supervised = CountSupervised(sample);
  if (encoded.length <= options_.max_length + 1) return;
  for (Ids* tokens : {&sample.ids, &sample.labels}) {
    tokens->resize(options_.max_length + 1);
    tokens->shrink_to_fit();
  }
}

Sample RecordEncoder::Encode(const OrderedJson& record, std::int64_t part) const {
  if (options_.preference.form == PreferenceForm::kNone) return EncodeAnswer(record, part);
  const PreferenceRecord read = ReadPreference(record);
  std::vector<EncodedRecord> answers(read.answers.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    answers[i].sample = EncodeAnswer(read.answers[i], 0);
    answers[i].length = std::ssize(answers[i].sample.ids);
  }
  return std::move(JoinAnswers(read, std::move(answers)).at(part).sample);
}

Sample RecordEncoder::EncodeAnswer(const OrderedJson& record, std::int64_t part) const {
  if (!conversations_) return EncodeFields(record).sample;
  return conversations_->Encode(layout_.WholeConversation(record), part, nullptr).encoded.sample;
}

// Names the fields that are not used. text: what the model reads and learns of the record. unused:
// fields of a known name that hold something else. A part of the conversation that is not in the
// text is refused, unless the user says how to lay the fields out, or the text is not known. A flag
// of the record that says to train says nothing new.
void RecordEncoder::CheckFields(const OrderedJson& record, std::span<const std::string> used,
                                std::span<const std::string> unused, std::string_view text,
                                SampleNotes& notes) const {
  std::vector<std::string> known(used.begin(), used.end());
  known.insert(known.end(), unused.begin(), unused.end());
  const bool decides = layout().format == RecordFormat::kTemplate || layout().kind == Kind::kTokens;
  if (const std::string part = decides ? "" : FindUnusedPart(record, known, text); !part.empty()) {
    const std::string_view usual = NameOfPart(part);
    ThrowInvalidInput(
        "field '{}' reads like a part of the conversation, and nothing of it is used ({}); {}, or "
        "leave the field out with ignore_fields: {}",
        part, DescribeLayout(layout()),
        usual != part && !IsKnownAs(usual, FieldMeaning::kUnclearPart)
            ? fmt::format("write '{}'", usual)
        : IsConversationFormat(layout().format)
            ? "write it into a message"
            : "say how to lay the fields out with prompt_template and completion_template",
        part);
  }
  for (const auto& [name, value] : record.items()) {
    const bool trains = value == true || value == 1;
    if (SaysNothing(value) || std::ranges::count(used, name) > 0) continue;
    if (IsKnownAs(name, FieldMeaning::kFlag) && trains) continue;
    if (layout().kind != Kind::kWhole && IsVerdict(name, value)) {
      notes.findings.push_back(
          {fmt::format("{}: not used: whether the answer is good, and bad ones are trained as good "
                       "ones are; preference_loss kto trains on both",
                       name)});
      continue;
    }
    const KnownField* field = FindKnownField(name);
    const bool is_warned = field != nullptr && field->in_records &&
                           (!IsPartOfConversation(name) || std::ranges::count(unused, name) > 0);
    if (is_warned) {
      notes.findings.push_back({fmt::format("{}: not used: {}", name, field->text)});
    } else {
      notes.other_fields.push_back(name);
    }
  }
}

// By layout, other than of conversations; the checks that all layouts share come after.
EncodedRecord RecordEncoder::EncodeFields(const OrderedJson& record) const {
  switch (layout().kind) {
    case Kind::kText:
      return EncodeCompletion(layout_.Prompt(record), layout_.Completion(record));
    case Kind::kTokens:
      return {.sample = ReadTokenRecord(record), .notes = {}};
    case Kind::kDecision:
      return decisions_->Encode(record);
    case Kind::kChat:
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
