// A name, and JSON behind it: [TOOL_CALLS]f[ARGS]{"a": 1}.
#include <optional>

#include "serve/answers/call_reader.h"

namespace qlora {
namespace {

using Match = AnswerInput::Match;

class NamedCalls : public CallReader {
 public:
  explicit NamedCalls(const CallForm& form) : form_(form) {}

  State Read(AnswerInput& in, CallSink& out) override {
    while (true) {
      const std::optional<State> state = Step(in, out);
      if (state) return *state;
    }
  }

 private:
  enum class Place { kOpen, kList, kName, kBegin, kArguments, kAfterJson, kCallEnd };

  std::optional<State> Step(AnswerInput& in, CallSink& out) {
    switch (place_) {
      case Place::kOpen:
        if (in.TakeMark(form_.open) != Match::kYes) return State::kFailed;
        place_ = Place::kList;
        return std::nullopt;
      case Place::kList:
        return ReadList(in);
      case Place::kName:
        switch (ReadName(form_, in, name_)) {
          case NameState::kMore:
            return State::kMore;
          case NameState::kFailed:
            return End();
          case NameState::kRead:
            place_ = Place::kBegin;
        }
        return std::nullopt;
      case Place::kBegin:
        if (!in.TakeSpace()) return State::kMore;
        if (in.view()[0] != '{') return End();
        out.Begin(name_);
        in.Keep();
        end_ = {};
        place_ = Place::kArguments;
        return std::nullopt;
      case Place::kArguments:
        return ReadArguments(in, out);
      case Place::kAfterJson:
        return Pass(in, form_.after_json, Place::kCallEnd);
      case Place::kCallEnd:
        break;
    }
    return Pass(in, form_.call_end, Place::kList);
  }

  std::optional<State> ReadList(AnswerInput& in) {
    // Without a text that encloses it, each call stands alone.
    if (calls_ > 0 && form_.close.empty()) return State::kDone;
    if (!in.TakeSpace()) return State::kMore;
    const Match closes = form_.close.empty() ? Match::kNo : in.TakeMark(form_.close);
    if (closes == Match::kYes) {
      if (calls_ > 0) in.Keep();
      return End();
    }
    const Match begins = in.TakeMark(form_.name_begin);
    if (begins == Match::kYes) {
      place_ = Place::kName;
      return std::nullopt;
    }
    return closes == Match::kPart || begins == Match::kPart ? State::kMore : End();
  }

  std::optional<State> ReadArguments(AnswerInput& in, CallSink& out) {
    const std::size_t bytes = end_.Add(in.view());
    out.Arguments(in.view().substr(0, bytes));
    in.Take(bytes);
    in.Keep();
    if (!end_.is_there()) return State::kMore;
    out.End();
    ++calls_;
    place_ = Place::kAfterJson;
    return std::nullopt;
  }

  // Takes a text that may be there.
  std::optional<State> Pass(AnswerInput& in, std::string_view mark, Place next) {
    if (!mark.empty()) {
      if (!in.TakeSpace()) return State::kMore;
      if (in.TakeMark(mark) == Match::kPart) return State::kMore;
      in.Keep();
    }
    place_ = next;
    return std::nullopt;
  }

  State End() const { return calls_ > 0 ? State::kDone : State::kFailed; }

  const CallForm& form_;
  Place place_ = Place::kOpen;
  std::int64_t calls_ = 0;
  std::string name_;
  JsonEnd end_;
};

}  // namespace

std::unique_ptr<CallReader> MakeNamedCalls(const CallForm& form) {
  return std::make_unique<NamedCalls>(form);
}

}  // namespace qlora
