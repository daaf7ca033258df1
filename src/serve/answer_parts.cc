#include "serve/answer_parts.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "base/text.h"
#include "serve/answers/answer_forms.h"
#include "serve/answers/answer_input.h"
#include "serve/answers/argument_text.h"
#include "serve/answers/call_reader.h"

namespace qlora {
namespace {

using Kind = AnswerPart::Kind;
using Match = AnswerInput::Match;

constexpr std::string_view kBlank = " \t\r\n";

}  // namespace

// Types of members, which have a name outside of this file for that.
namespace answer_marks {

// A text that makes another part begin, or end.
struct Mark {
  enum class Action { kCall, kThought, kHeader, kPass };

  std::string_view text;
  Action action = Action::kPass;
  const CallForm* call = nullptr;
  const ThoughtForm* thought = nullptr;
};

// What of a text is certain: up to the first mark, or to where one may begin.
struct Scan {
  std::size_t bytes = 0;
  const Mark* mark = nullptr;  // that follows these; null: more is needed
};

}  // namespace answer_marks

namespace {

using answer_marks::Mark;
using answer_marks::Scan;

// marks: longer ones first.
Scan FindMark(const AnswerInput& in, const std::vector<Mark>& marks) {
  const std::string_view view = in.view();
  std::string firsts;
  for (const Mark& mark : marks) firsts += mark.text[0];
  for (std::size_t at = view.find_first_of(firsts); at < view.size();
       at = view.find_first_of(firsts, at + 1)) {
    for (const Mark& mark : marks) {
      const Match match = in.Begins(mark.text, at);
      if (match == Match::kYes) return {at, &mark};
      if (match == Match::kPart) return {at};
    }
  }
  return {view.size()};
}

void SortMarks(std::vector<Mark>& marks) {
  std::ranges::stable_sort(
      marks, [](const Mark& a, const Mark& b) { return a.text.size() > b.text.size(); });
}

}  // namespace

class AnswerParts::Impl {
 public:
  Impl(std::shared_ptr<const AnswerForm> form, bool begins_with_thought, bool reads_calls,
       std::shared_ptr<const ArgumentTypes> types, bool only_one)
      : form_(std::move(form)),
        types_(types ? std::move(types) : std::make_shared<const ArgumentTypes>("")),
        reads_calls_(reads_calls),
        only_one_(only_one),
        calls_([this](AnswerPart part) { AddPart(std::move(part)); }) {
    AddMarks();
    const bool follows_call = std::ranges::any_of(
        form_->calls, [](const CallForm* call) { return call->follows_prompt; });
    if (begins_with_thought) {
      BeginThought(form_->thoughts.empty() ? nullptr : form_->thoughts.front());
    } else if (form_->has_channels) {
      mode_ = Mode::kHeader;
    } else if (follows_call) {
      skips_space_ = true;
      BeginBehindPrompt();
    } else {
      BeginText();
    }
  }

  std::vector<AnswerPart> Add(std::string_view piece) {
    in_.Add(piece);
    while (Step()) {
    }
    return std::exchange(parts_, {});
  }

  std::vector<AnswerPart> Finish() {
    in_.Finish();
    while (Step()) {
    }
    if (mode_ == Mode::kCalls) CutCalls();
    calls_.End(/*is_cut=*/true);
    // White space at the end of a text is a part of it; behind a thought or a call it is none.
    if (text_kind_ == Kind::kText && !space_.empty()) AddPart({Kind::kText, std::move(space_)});
    return std::exchange(parts_, {});
  }

 private:
  // kBegin: where a call without a mark may be.
  enum class Mode { kBegin, kText, kThought, kCalls, kHeader, kChannelCall };

  void AddMarks() {
    if (!form_->has_marks) return;
    for (const std::string_view idle : form_->idle) text_marks_.push_back({.text = idle});
    for (const ThoughtForm* thought : form_->thoughts) {
      text_marks_.push_back(
          {.text = thought->begin, .action = Mark::Action::kThought, .thought = thought});
    }
    for (const CallForm* call : form_->calls) {
      if (!reads_calls_ || call->is_whole_answer) continue;
      for (const std::string_view text : {call->open, call->name_begin}) {
        // Calls of another kind are not known by how their names begin.
        const bool tells =
            text == call->open || call->open.empty() || call->kind == CallKind::kTagged;
        if (text.empty() || !tells) continue;
        text_marks_.push_back({.text = text, .action = Mark::Action::kCall, .call = call});
      }
    }
    if (form_->has_channels) {
      text_marks_.push_back({.text = ChannelForm::kStart, .action = Mark::Action::kHeader});
      for (const std::string_view end : ChannelForm::kEnds) text_marks_.push_back({.text = end});
    }
    SortMarks(text_marks_);
  }

  // ---- Parts.

  void AddPart(AnswerPart part) {
    if (is_whole_) return;
    is_whole_ = only_one_ && part.kind == Kind::kCallEnd;
    if (part.kind == Kind::kCallBegin) {
      space_.clear();
      skips_space_ = true;
    }
    if (!parts_.empty() && parts_.back().kind == part.kind && part.kind != Kind::kCallEnd &&
        part.kind != Kind::kCallBegin) {
      parts_.back().text += part.text;
    } else {
      parts_.push_back(std::move(part));
    }
  }

  // Adds text, or a thought; white space at its end once more of it comes.
  void AddText(Kind kind, std::string_view text) {
    if (kind != text_kind_) {
      space_.clear();
      skips_space_ = true;
      text_kind_ = kind;
    }
    if (skips_space_) text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
    if (text.empty()) return;
    skips_space_ = false;
    std::string whole = std::exchange(space_, {}) + std::string(text);
    const std::size_t end = whole.find_last_not_of(kBlank) + 1;
    space_ = whole.substr(end);
    whole.resize(end);
    if (!whole.empty()) AddPart({kind, std::move(whole)});
  }

  // ---- Modes.

  // False when more is needed.
  bool Step() {
    switch (mode_) {
      case Mode::kBegin:
        return StepBegin();
      case Mode::kText:
        return StepText();
      case Mode::kThought:
        return StepThought();
      case Mode::kCalls:
        return StepCalls();
      case Mode::kHeader:
        return StepHeader();
      case Mode::kChannelCall:
        break;
    }
    return StepChannelCall();
  }

  void BeginText() {
    const bool may_call =
        reads_calls_ && std::ranges::any_of(form_->calls, [](const CallForm* call) {
          return call->is_whole_answer;
        });
    mode_ = may_call ? Mode::kBegin : Mode::kText;
  }

  void BeginThought(const ThoughtForm* thought) {
    thought_marks_.clear();
    if (form_->has_channels) {
      for (const std::string_view end : ChannelForm::kEnds) thought_marks_.push_back({.text = end});
      thought_marks_.push_back({.text = ChannelForm::kStart, .action = Mark::Action::kHeader});
    }
    if (thought != nullptr) thought_marks_.push_back({.text = thought->end});
    SortMarks(thought_marks_);
    mode_ = Mode::kThought;
  }

  // The text that the prompt ends with is read as if the answer began with it.
  void BeginBehindPrompt() {
    for (const CallForm* call : form_->calls) {
      if (!call->follows_prompt) continue;
      in_.Add(call->name_begin);
      prompt_bytes_ = call->name_begin.size();
      break;
    }
    mode_ = Mode::kText;
  }

  bool StepBegin() {
    const std::string_view view = in_.view();
    const std::size_t at = view.find_first_not_of(kBlank);
    if (at == view.npos && !in_.is_finished()) return false;
    mode_ = Mode::kText;
    if (at == view.npos || (view[at] != '{' && view[at] != '[')) return true;
    candidates_.clear();
    for (const CallForm* call : form_->calls) {
      if (call->is_whole_answer) candidates_.push_back(call);
    }
    mark_ = {};
    BeginCalls();
    return true;
  }

  bool StepText() {
    const Scan scan = FindMark(in_, text_marks_);
    TakeText(Kind::kText, scan.bytes);
    if (scan.mark == nullptr) return false;
    const Mark& mark = *scan.mark;
    switch (mark.action) {
      case Mark::Action::kCall:
        candidates_.clear();
        for (const Mark& other : text_marks_) {
          if (other.text == mark.text && other.call != nullptr) candidates_.push_back(other.call);
        }
        mark_ = mark.text;
        BeginCalls();
        return true;
      case Mark::Action::kThought:
        BeginThought(mark.thought);
        break;
      case Mark::Action::kHeader:
        mode_ = Mode::kHeader;
        break;
      case Mark::Action::kPass:
        break;
    }
    TakeMark(mark.text.size());
    return true;
  }

  bool StepThought() {
    const Scan scan = FindMark(in_, thought_marks_);
    TakeText(Kind::kThought, scan.bytes);
    if (scan.mark == nullptr) return false;
    TakeMark(scan.mark->text.size());
    space_.clear();
    skips_space_ = true;
    text_kind_ = Kind::kText;
    if (scan.mark->action == Mark::Action::kHeader) {
      mode_ = Mode::kHeader;
    } else {
      BeginText();
    }
    return true;
  }

  void TakeText(Kind kind, std::size_t bytes) {
    std::string_view text = in_.view().substr(0, bytes);
    const std::size_t of_prompt = std::min(prompt_bytes_, text.size());
    prompt_bytes_ -= of_prompt;
    AddText(kind, text.substr(of_prompt));
    in_.Take(bytes);
    in_.Keep();
  }
  void TakeMark(std::size_t bytes) {
    prompt_bytes_ = 0;
    in_.Take(bytes);
    in_.Keep();
  }

  // ---- Calls.

  void BeginCalls() {
    reader_ = MakeCallReader(*candidates_.front(), *types_);
    candidates_.pop_front();
    calls_before_ = calls_.calls();
    mode_ = Mode::kCalls;
  }

  bool StepCalls() {
    const CallReader::State state = reader_->Read(in_, calls_);
    if (state == CallReader::State::kMore) return false;
    in_.Restore();
    EndCalls();
    return true;
  }

  // What the reader took gives no call: it is read in another form, or it is text.
  void EndCalls() {
    if (calls_.calls() > calls_before_) {
      prompt_bytes_ = 0;
      mode_ = Mode::kText;
    } else if (!candidates_.empty()) {
      BeginCalls();
    } else {
      mode_ = Mode::kText;
      TakeText(Kind::kText, mark_.size());
      prompt_bytes_ = 0;
    }
  }

  // The answer ends within calls.
  void CutCalls() {
    const bool is_open = calls_.is_open();
    calls_.End(/*is_cut=*/true);
    in_.Restore();
    // Brackets behind the last call say nothing.
    const bool is_rest = in_.view().find_first_not_of(" \t\r\n,;[]{}()") == in_.view().npos;
    if (calls_.calls() > calls_before_ && (is_open || is_rest)) return;
    candidates_.clear();
    EndCalls();
    while (mode_ != Mode::kCalls && Step()) {
    }
    if (mode_ == Mode::kCalls) CutCalls();
  }

  // ---- Channels.

  bool StepHeader() {
    const std::string_view view = in_.view();
    const std::size_t begin = std::min(view.find_first_not_of(' '), view.size());
    bool may_be = false;
    for (const std::string_view part : ChannelForm::kHeaderBegins) {
      may_be = may_be || in_.Begins(part, begin) != Match::kNo;
    }
    const std::size_t end = view.find(ChannelForm::kBody);
    if (!may_be || IsTooLong(view, end, ChannelForm::kBody) ||
        (end == view.npos && in_.is_finished())) {
      mode_ = Mode::kText;
      return true;
    }
    if (end == view.npos) return false;
    BeginChannel(view.substr(0, end));
    TakeMark(end + ChannelForm::kBody.size());
    return true;
  }

  void BeginChannel(std::string_view header) {
    const std::size_t call = header.find(ChannelForm::kCall);
    if (call != header.npos && reads_calls_) {
      const std::string_view rest = header.substr(call + ChannelForm::kCall.size());
      const std::string_view name = rest.substr(0, rest.find_first_of(" <"));
      if (IsToolName(name)) {
        calls_.Begin(name);
        mode_ = Mode::kChannelCall;
        return;
      }
    }
    const bool thinks = std::ranges::any_of(ChannelForm::kThoughts, [&](std::string_view thought) {
      return header.find(thought) != header.npos;
    });
    mode_ = Mode::kText;
    if (thinks) BeginThought(nullptr);
  }

  bool StepChannelCall() {
    channel_marks_.clear();
    for (const std::string_view end : ChannelForm::kEnds) channel_marks_.push_back({.text = end});
    channel_marks_.push_back({.text = ChannelForm::kStart});
    SortMarks(channel_marks_);
    const Scan scan = FindMark(in_, channel_marks_);
    calls_.Arguments(in_.view().substr(0, scan.bytes));
    in_.Take(scan.bytes);
    in_.Keep();
    if (scan.mark == nullptr) return false;
    calls_.End();
    mode_ = Mode::kText;
    return true;
  }

  const std::shared_ptr<const AnswerForm> form_;
  const std::shared_ptr<const ArgumentTypes> types_;
  const bool reads_calls_;
  const bool only_one_;
  CallSink calls_;
  bool is_whole_ = false;  // the one call has ended
  AnswerInput in_;
  std::vector<AnswerPart> parts_;
  Mode mode_ = Mode::kText;
  std::vector<Mark> text_marks_;
  std::vector<Mark> thought_marks_;
  std::vector<Mark> channel_marks_;
  std::size_t prompt_bytes_ = 0;  // of the input, which belong to the prompt

  Kind text_kind_ = Kind::kText;
  std::string space_;  // at the end of the text so far
  bool skips_space_ = false;

  std::unique_ptr<CallReader> reader_;
  std::deque<const CallForm*> candidates_;  // further forms with the same beginning
  std::string_view mark_;                   // that beginning
  std::int64_t calls_before_ = 0;
};

AnswerParts::AnswerParts(std::shared_ptr<const AnswerForm> form, bool begins_with_thought,
                         bool reads_calls, std::shared_ptr<const ArgumentTypes> types,
                         bool only_one)
    : impl_(std::make_unique<Impl>(std::move(form), begins_with_thought, reads_calls,
                                   std::move(types), only_one)) {}
AnswerParts::~AnswerParts() = default;
AnswerParts::AnswerParts(AnswerParts&&) noexcept = default;

std::vector<AnswerPart> AnswerParts::Add(std::string_view piece) { return impl_->Add(piece); }
std::vector<AnswerPart> AnswerParts::Finish() { return impl_->Finish(); }

}  // namespace qlora
