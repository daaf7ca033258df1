#include "data/conversation_encoder.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "data/audit/stripped_thoughts.h"
#include "data/audit/text_audit.h"
#include "prompt/known_fields.h"
#include "qlora/error.h"

namespace qlora {
namespace {

// True when a text ends in what an answer says behind its thoughts.
bool EndsIn(const OrderedJson& answer, std::string_view text) {
  const OrderedJson& content = answer.at("content");
  if (!content.is_string()) return false;
  constexpr std::string_view kThought = "</think>";
  std::string_view said = Trim(content.get_ref<const std::string&>());
  const std::size_t thought = said.rfind(kThought);
  if (thought != said.npos) said = Trim(said.substr(thought + kThought.size()));
  return !said.empty() && TrimEnd(text).ends_with(said);
}

// True when a template leaves the last answer of a short conversation open.
bool LeavesOpen(const ChatTemplate& chat) {
  const OrderedJson probe = {{{"role", "user"}, {"content", "Hello"}},
                             {{"role", "assistant"}, {"content", "Hi"}}};
  try {
    return EndsIn(probe[1], chat.Render(probe, nullptr).text());
  } catch (const Error&) {
    return false;  // a template that asks for more than the probe has
  }
}

}  // namespace

ConversationEncoder::ConversationEncoder(const EncodingOptions& options, bool everything,
                                         const Tokenizer& tokenizer, const ChatTemplate& chat)
    : options_(options), everything_(everything), tokenizer_(tokenizer), chat_(chat) {}

std::int64_t ConversationEncoder::CountParts(const Conversation& whole) const {
  if (options_.train_turns != TrainTurns::kEach) return 1;
  return std::max<std::int64_t>(1, std::ranges::count(whole.trained, true));
}

// Keeps the trained turns that the option asks for.
void ConversationEncoder::ChooseTurns(Conversation& conversation, std::int64_t part) const {
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

// Text and turns come from the template, with BOS and EOS where the template writes them; the
// tokenizer adds none.
EncodedConversation ConversationEncoder::Encode(Conversation whole, std::int64_t part,
                                                const Source* source) const {
  ChooseTurns(whole, part);
  RenderedConversation chat(chat_, std::move(whole));
  EncodedRecord encoded;
  SampleNotes& notes = encoded.notes;
  notes.readings = chat.readings();
  for (const auto* texts : {&chat.conversation().warnings, &chat.warnings()}) {
    for (const std::string& text : *texts) notes.findings.push_back({text});
  }
  std::vector<ChatSpan> turns = chat.turns();
  const std::vector<std::size_t> stripped = FindStrippedThoughts(chat);
  if (!stripped.empty()) {
    notes.findings.push_back(
        {"earlier answers whose thoughts the chat template leaves out, so that they are not "
         "trained (train_turns: each shows and trains all of them)"});
  }
  std::erase_if(
      turns, [&](const ChatSpan& turn) { return std::ranges::count(stripped, turn.message) > 0; });
  if (source != nullptr) {
    std::ranges::move(
        AuditTexts(source->record, chat, {turns, stripped, everything_}, source->layout),
        std::back_inserter(notes.findings));
  }

  Sample& sample = encoded.sample;
  sample.ids = tokenizer_.Encode(chat.text(), /*add_special_tokens=*/false);
  LossMask mask = FindTurnTokens(tokenizer_, chat.text(), turns, sample.ids);
  notes.split_boundary = mask.split_boundary;
  for (std::size_t t = 0; t < turns.size(); ++t) CheckTurn(chat, turns[t], mask.turns[t], encoded);
  sample.labels = everything_ ? sample.ids : LabelsOf(sample.ids, mask.turns);
  return {std::move(encoded), chat.text()};
}

// Every trained turn must end in a token that ends generation.
void ConversationEncoder::CheckTurn(RenderedConversation& chat, const ChatSpan& span,
                                    TurnTokens& turn, EncodedRecord& encoded) const {
  const auto tokens = std::span(encoded.sample.ids).subspan(turn.begin, turn.end - turn.begin);
  const TurnEnd end = EndOf(tokens, tokenizer_);
  if (span.open_end) return;
  if (end == TurnEnd::kSpecial) encoded.notes.unlisted_stop = true;
  if (end != TurnEnd::kText || CloseLastTurn(chat, span, turn, encoded)) return;
  // Such a template closes an answer with the token that begins the next message, and that of a
  // system message ends no generation.
  const OrderedJson& messages = chat.conversation().messages;
  const std::string next =
      span.message + 1 < messages.size() ? messages[span.message + 1].value("role", "") : "";
  const std::string_view behind = std::string_view(chat.text()).substr(span.end);
  if (RoleOfTemplates(next) == "system" && SpecialTokenAt(behind) && LeavesOpen(chat_)) {
    encoded.notes.findings.push_back(
        {"answers before a system message, whose end the chat template does not show: they are "
         "trained without it"});
    return;
  }
  ThrowOpenTurn(tokens, static_cast<std::int64_t>(span.message), tokenizer_);
}

// Some templates (GLM) end a turn with the token that begins the next message, and so leave the
// last turn open. It is such a turn if nothing but white space follows what the answer says to the
// end of the text. EOS is appended to it, behind calls the token that begins their results, or with
// append_eos: false the turn is trained as it is.
bool ConversationEncoder::CloseLastTurn(RenderedConversation& chat, const ChatSpan& span,
                                        TurnTokens& turn, EncodedRecord& encoded) const {
  if (TrimEnd(chat.text()).size() > span.end) return false;
  const OrderedJson& answer = chat.conversation().messages[span.message];
  const auto calls = answer.find("tool_calls");
  const bool has_calls = calls != answer.end() && !SaysNothing(*calls);
  // Of calls, the template decides how they look.
  const bool open = has_calls ? LeavesOpen(chat_) : EndsIn(answer, chat.text());
  if (!open) return false;
  encoded.notes.without_eos = !options_.append_eos;
  if (!options_.append_eos) return true;
  std::optional<std::int32_t> closing = tokenizer_.eos_id();
  if (has_calls) {
    if (const auto token = EndOfCalls(chat, span)) closing = token;
  }
  if (!closing) return false;
  encoded.notes.closed_turn = true;
  encoded.sample.ids.resize(turn.end);
  encoded.sample.ids.push_back(*closing);
  ++turn.end;
  return true;
}

// Returns the special token that a text begins with, behind white space.
std::optional<std::int32_t> ConversationEncoder::SpecialTokenAt(std::string_view text) const {
  text = Trim(text);
  for (const std::string& token : chat_.special_tokens()) {
    if (text.starts_with(token)) return tokenizer_.IdOf(token);
  }
  return std::nullopt;
}

// Returns the token that ends generation and follows calls when their result does.
std::optional<std::int32_t> ConversationEncoder::EndOfCalls(RenderedConversation& chat,
                                                            const ChatSpan& span) const {
  const std::optional<RenderedConversation> answered = chat.With([](Conversation& other) {
    other.Add({{"role", "tool"}, {"content", "Xylem quartz"}}, false, {});
  });
  const std::string_view said = std::string_view(chat.text()).substr(0, span.end);
  if (!answered || !answered->text().starts_with(said)) return std::nullopt;
  const auto token = SpecialTokenAt(std::string_view(answered->text()).substr(said.size()));
  return token && IsStopToken(tokenizer_, *token) ? token : std::nullopt;
}

}  // namespace qlora
