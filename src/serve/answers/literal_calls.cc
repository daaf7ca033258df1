// f(a=1, b='x') as Python writes it, in a list or alone; call:f{a:1,b:<|"|>x<|"|>} of Gemma.
#include <optional>

#include "base/text.h"
#include "serve/answers/call_reader.h"

namespace qlora {
namespace {

using Match = AnswerInput::Match;

// Finds the end of a literal: what follows it at the depth of the call.
class LiteralEnd {
 public:
  // Looks at what is new; nothing while the end may still come.
  std::optional<std::size_t> Find(const AnswerInput& in, char call_end) {
    const std::string_view view = in.view();
    while (at_ < view.size()) {
      const char c = view[at_];
      if (c == '<' && (quote_ == 0 || quote_ == kInGemmaQuote)) {
        const Match match = in.Begins(kGemmaQuote, at_);
        if (match == Match::kPart) return std::nullopt;
        if (match == Match::kYes) {
          quote_ = quote_ == 0 ? kInGemmaQuote : '\0';
          at_ += kGemmaQuote.size();
          continue;
        }
      }
      if (quote_ != 0) {
        if (c == '\\' && quote_ != kInGemmaQuote) ++at_;
        if (c == quote_) quote_ = 0;
      } else if (c == '"' || c == '\'') {
        quote_ = c;
      } else if (depth_ == 0 && (c == ',' || c == call_end)) {
        return at_;
      } else if (c == '(' || c == '[' || c == '{') {
        ++depth_;
      } else if (c == ')' || c == ']' || c == '}') {
        --depth_;
      }
      ++at_;
    }
    return std::nullopt;
  }

 private:
  static constexpr char kInGemmaQuote = 1;

  std::size_t at_ = 0;
  char quote_ = 0;
  int depth_ = 0;
};

class LiteralCalls : public CallReader {
 public:
  using CallReader::CallReader;

 private:
  enum class Place { kList, kName, kKeys, kKey, kValue };

  Result Step(AnswerInput& in, CallSink& out) override {
    switch (place_) {
      case Place::kList:
        return ReadList(in);
      case Place::kName:
        return ReadNameOf(in);
      case Place::kKeys:
        return ReadKeys(in, out);
      case Place::kKey:
        return ReadKey(in, out);
      case Place::kValue:
        break;
    }
    return ReadValue(in, out);
  }

  Result ReadList(AnswerInput& in) {
    if (!in.TakeSpace()) return State::kMore;
    if (const Result closes = TakeClose(in)) return closes;
    const char c = in.view()[0];
    if (c == '[' && calls() == 0 && !in_list_) {
      in_list_ = true;
      in.Take(1);
      return std::nullopt;
    }
    if ((c == ',' || c == ']') && calls() > 0) {
      in.Take(1);
      if (c == ']') in.Keep();
      return std::nullopt;
    }
    if (calls() > 0 && form().close.empty() && !in_list_) return State::kDone;
    const Match begins = in.TakeMark(form().name_begin);
    if (begins == Match::kPart) return State::kMore;
    if (begins == Match::kNo) return End();
    place_ = Place::kName;
    return std::nullopt;
  }

  Result ReadNameOf(AnswerInput& in) {
    const Result result = ReadName(in);
    if (result) return result;
    has_arguments_ = false;
    place_ = Place::kKeys;
    return std::nullopt;
  }

  Result ReadKeys(AnswerInput& in, CallSink& out) {
    if (!in.TakeSpace()) return State::kMore;
    const char c = in.view()[0];
    if (c == ',' && has_arguments_) {
      in.Take(1);
      return std::nullopt;
    }
    if (c != form().call_end[0]) {
      place_ = Place::kKey;
      return std::nullopt;
    }
    in.Take(1);
    return EndCall(in, out);
  }

  Result ReadKey(AnswerInput& in, CallSink& out) {
    const std::string_view view = in.view();
    const std::size_t end = view.find(form().key_end);
    const std::size_t stop = view.find_first_of(" \t\r\n,(){}[]\"'<");
    const bool is_long = IsTooLong(view, end, form().key_end);
    if (end == view.npos && stop == view.npos && !is_long) return State::kMore;
    // An argument without a name belongs to a call that nobody here can make.
    if (end >= stop || is_long) {
      if (!has_arguments_) return End();
      in.Restore();
      return EndCall(in, out);
    }
    key_ = view.substr(0, end);
    in.Take(end + form().key_end.size());
    end_ = {};
    place_ = Place::kValue;
    return std::nullopt;
  }

  Result ReadValue(AnswerInput& in, CallSink& out) {
    const std::optional<std::size_t> end = end_.Find(in, form().call_end[0]);
    if (!end) return State::kMore;
    const std::string_view text = Trim(in.view().substr(0, *end));
    if (!has_arguments_) out.Begin(name());
    out.Arguments((has_arguments_ ? ", " : "{") + QuotedText(key_) + ": " +
                  JsonOfLiteral(text).value_or(QuotedText(text)));
    has_arguments_ = true;
    in.Take(*end);
    in.Keep();
    place_ = Place::kKeys;
    return std::nullopt;
  }

  Result EndCall(AnswerInput& in, CallSink& out) {
    if (!has_arguments_) {
      out.Begin(name());
      out.Arguments("{");
    }
    out.Arguments("}");
    CloseCall(in, out);
    place_ = Place::kList;
    return std::nullopt;
  }

  Place place_ = Place::kList;
  bool in_list_ = false;
  bool has_arguments_ = false;
  std::string key_;
  LiteralEnd end_;
};

}  // namespace

std::unique_ptr<CallReader> MakeLiteralCalls(const CallForm& form, const ArgumentTypes& types) {
  return std::make_unique<LiteralCalls>(form, types);
}

}  // namespace qlora
