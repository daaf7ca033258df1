#include "serve/answers/call_reader.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace qlora {
namespace {

using Match = AnswerInput::Match;

constexpr std::string_view kBlank = " \t\r\n";

// Without what models write around a name: "functions.f:0". Names of tools stay whole.
std::string_view NameIn(const CallForm& form, const ArgumentTypes& types, std::string_view text) {
  if (!form.before_name.empty()) {
    const std::size_t at = text.rfind(form.before_name);
    if (at != text.npos) text.remove_prefix(at + form.before_name.size());
  }
  text = Trim(text);
  if (types.HasTool(text)) return text;
  if (!form.after_name.empty()) text = Trim(text.substr(0, text.rfind(form.after_name)));
  const auto without_number = [](std::string_view name) {
    const std::size_t colon = name.rfind(':');
    const bool has_number = colon != name.npos && colon + 1 < name.size() &&
                            name.find_first_not_of("0123456789", colon + 1) == name.npos;
    return has_number ? name.substr(0, colon) : name;
  };
  constexpr std::string_view kNamespace = "functions.";
  const std::string_view rest =
      text.starts_with(kNamespace) ? text.substr(kNamespace.size()) : text;
  for (const std::string_view name : {text, rest, without_number(text)}) {
    if (types.HasTool(name)) return name;
  }
  return without_number(rest);
}

}  // namespace

void CallSink::Begin(std::string_view name) {
  is_open_ = true;
  add_({AnswerPart::Kind::kCallBegin, std::string(name), calls_++});
}

void CallSink::Arguments(std::string_view json) {
  if (!json.empty()) add_({AnswerPart::Kind::kCallArguments, std::string(json), calls_ - 1});
}

void CallSink::End(bool is_cut) {
  if (is_open_) add_({AnswerPart::Kind::kCallEnd, {}, calls_ - 1, is_cut});
  is_open_ = false;
}

std::unique_ptr<CallReader> MakeCallReader(const CallForm& form, const ArgumentTypes& types) {
  switch (form.kind) {
    case CallKind::kJson:
      return MakeJsonCalls(form, types);
    case CallKind::kNamed:
      return MakeNamedCalls(form, types);
    case CallKind::kTagged:
      return MakeTaggedCalls(form, types);
    case CallKind::kLiteral:
      break;
  }
  return MakeLiteralCalls(form, types);
}

std::size_t JsonEnd::Add(std::string_view piece) {
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const char c = piece[i];
    const bool was_escaped = std::exchange(is_escaped_, false);
    if (in_text_) {
      is_escaped_ = c == '\\' && !was_escaped;
      in_text_ = c != '"' || was_escaped;
      is_there_ = !in_text_ && depth_ == 0;
    } else if (c == '"') {
      in_text_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (depth_ > 0) {
      if (c == '}' || c == ']') is_there_ = --depth_ == 0;
    } else if (has_begun_ && (kBlank.find(c) != kBlank.npos || c == ',' || c == '}' || c == ']')) {
      is_there_ = true;  // a number or a word, which ends before this
      return i;
    }
    has_begun_ = true;
    if (is_there_) return i + 1;
  }
  return piece.size();
}

bool IsToolName(std::string_view name) {
  const auto is_part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':' || c == '/' || static_cast<unsigned char>(c) >= 0x80;
  };
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, is_part);
}

CallReader::State CallReader::Read(AnswerInput& in, CallSink& out) {
  // Some models leave out the text that encloses the calls.
  if (!std::exchange(is_open_, true)) in.TakeMark(form_.open);
  while (true) {
    const Result state = Step(in, out);
    if (state) return *state;
  }
}

CallReader::Result CallReader::TakeClose(AnswerInput& in) const {
  const Match closes = form_.close.empty() ? Match::kNo : in.TakeMark(form_.close);
  if (closes == Match::kNo) return std::nullopt;
  if (closes == Match::kPart) return State::kMore;
  if (calls_ > 0) in.Keep();
  return End();
}

CallReader::Result CallReader::FindCall(AnswerInput& in) const {
  // Without a text that encloses it, each call stands alone.
  if (calls_ > 0 && form_.close.empty()) return State::kDone;
  if (!in.TakeSpace()) return State::kMore;
  if (const Result closes = TakeClose(in)) return closes;
  const Match begins = in.TakeMark(form_.name_begin);
  if (begins == Match::kYes) return std::nullopt;
  return begins == Match::kPart ? State::kMore : End();
}

CallReader::Result CallReader::ReadName(AnswerInput& in) {
  const std::string_view text = in.view();
  std::size_t end = 0;
  if (form_.name_end.empty()) {
    end = text.find_first_of(" \t\r\n<");
    if (end == text.npos && in.is_finished()) end = text.size();
  } else {
    end = text.find(form_.name_end);
  }
  // White space and braces are no part of a name, so that a text is held back no longer.
  const std::size_t stop = text.find_first_of(" \t\r\n{}\"");
  const bool goes_on = stop == text.npos ||
                       (!form_.name_end.empty() && in.Begins(form_.name_end, stop) != Match::kNo);
  if (end == text.npos) {
    const bool fails = in.is_finished() || !goes_on || IsTooLong(text, end, form_.name_end);
    return fails ? End() : State::kMore;
  }
  if (stop < end || IsTooLong(text, end, form_.name_end)) return End();
  name_ = NameIn(form_, types_, text.substr(0, end));
  if (!IsToolName(name_)) return End();
  in.Take(end + form_.name_end.size());
  return std::nullopt;
}

void CallReader::CloseCall(AnswerInput& in, CallSink& out) {
  out.End();
  in.Keep();
  ++calls_;
}

}  // namespace qlora
