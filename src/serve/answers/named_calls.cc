// A name, and JSON behind it: [TOOL_CALLS]f[ARGS]{"a": 1}.
#include <optional>

#include "serve/answers/call_reader.h"

namespace qlora {
namespace {

using Match = AnswerInput::Match;

class NamedCalls : public CallReader {
 public:
  using CallReader::CallReader;

 private:
  enum class Place { kList, kName, kBegin, kArguments, kAfterJson, kCallEnd };

  Result Step(AnswerInput& in, CallSink& out) override {
    switch (place_) {
      case Place::kList:
        return Then(Place::kName, FindCall(in));
      case Place::kName:
        return Then(Place::kBegin, ReadName(in));
      case Place::kBegin:
        if (!in.TakeSpace()) return State::kMore;
        if (in.view()[0] != '{') return End();
        out.Begin(name());
        in.Keep();
        end_ = {};
        place_ = Place::kArguments;
        return std::nullopt;
      case Place::kArguments:
        return ReadArguments(in, out);
      case Place::kAfterJson:
        return Pass(in, form().after_json, Place::kCallEnd);
      case Place::kCallEnd:
        break;
    }
    return Pass(in, form().call_end, Place::kList);
  }

  Result Then(Place next, const Result& result) {
    if (!result) place_ = next;
    return result;
  }

  Result ReadArguments(AnswerInput& in, CallSink& out) {
    const std::size_t bytes = end_.Add(in.view());
    out.Arguments(in.view().substr(0, bytes));
    in.Take(bytes);
    in.Keep();
    if (!end_.is_there()) return State::kMore;
    CloseCall(in, out);
    place_ = Place::kAfterJson;
    return std::nullopt;
  }

  // Takes a text that may be there.
  Result Pass(AnswerInput& in, std::string_view mark, Place next) {
    if (!mark.empty()) {
      if (!in.TakeSpace()) return State::kMore;
      if (in.TakeMark(mark) == Match::kPart) return State::kMore;
      in.Keep();
    }
    place_ = next;
    return std::nullopt;
  }

  Place place_ = Place::kList;
  JsonEnd end_;
};

}  // namespace

std::unique_ptr<CallReader> MakeNamedCalls(const CallForm& form, const ArgumentTypes& types) {
  return std::make_unique<NamedCalls>(form, types);
}

}  // namespace qlora
