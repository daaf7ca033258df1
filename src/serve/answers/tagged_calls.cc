// <function=f><parameter=a>1</parameter></function>, with other texts for its tags.
#include <algorithm>
#include <optional>

#include "base/text.h"
#include "serve/answers/call_reader.h"

namespace qlora {
namespace {

using Match = AnswerInput::Match;

constexpr std::string_view kDataBegin = "<![CDATA[";
constexpr std::string_view kDataEnd = "]]>";

// What attributes of an argument say: string="true", type="number".
std::optional<ArgumentType> TypeIn(std::string_view attributes) {
  const auto has = [&](std::string_view part) { return attributes.find(part) != attributes.npos; };
  if (has("string=\"true\"") || has("type=\"string\"")) return ArgumentType::kText;
  if (has("string=\"false\"") || has("type=\"")) return ArgumentType::kValue;
  return std::nullopt;
}

class TaggedCalls : public CallReader {
 public:
  using CallReader::CallReader;

 private:
  enum class Place {
    kList,
    kName,
    kAttributes,
    kKeys,
    kKey,
    kKeyAttributes,
    kValueBegin,
    kValueForm,
    kValue
  };

  Result Step(AnswerInput& in, CallSink& out) override {
    switch (place_) {
      case Place::kList:
        return FindName(in);
      case Place::kName:
        return ReadNameOf(in);
      case Place::kAttributes:
        return ReadAttributes(in, out, form().attributes_end);
      case Place::kKeys:
        return ReadKeys(in, out);
      case Place::kKey:
        return ReadKey(in, out);
      case Place::kKeyAttributes:
        return ReadAttributes(in, out, form().key_attributes_end);
      case Place::kValueBegin:
        return ReadValueBegin(in, out);
      case Place::kValueForm:
        return ReadValueForm(in, out);
      case Place::kValue:
        break;
    }
    return ReadValue(in, out);
  }

  Result FindName(AnswerInput& in) {
    const Result result = FindCall(in);
    if (!result) place_ = Place::kName;
    return result;
  }

  Result ReadNameOf(AnswerInput& in) {
    const Result result = ReadName(in);
    if (result) return result;
    has_begun_ = false;
    has_arguments_ = false;
    place_ = form().attributes_end.empty() ? Place::kKeys : Place::kAttributes;
    return std::nullopt;
  }

  Result ReadAttributes(AnswerInput& in, CallSink& out, std::string_view end_mark) {
    const std::string_view view = in.view();
    const std::size_t end = view.find(end_mark);
    if (IsTooLong(view, end, end_mark)) return BreakCall(in, out);
    if (end == view.npos) return State::kMore;
    if (place_ == Place::kKeyAttributes) type_ = TypeIn(view.substr(0, end)).value_or(type_);
    in.Take(end + end_mark.size());
    place_ = place_ == Place::kAttributes ? Place::kKeys : Place::kValueBegin;
    return std::nullopt;
  }

  // An argument, or the end of the call.
  Result ReadKeys(AnswerInput& in, CallSink& out) {
    if (!in.TakeSpace()) return State::kMore;
    const Match ends = in.TakeMark(form().call_end);
    if (ends == Match::kYes) return EndCall(in, out);
    const Match begins = in.TakeMark(form().key_begin);
    if (begins == Match::kYes) {
      place_ = Place::kKey;
      return std::nullopt;
    }
    const Match closes = form().close.empty() ? Match::kNo : in.Begins(form().close);
    if (ends == Match::kPart || begins == Match::kPart || closes == Match::kPart) {
      return State::kMore;
    }
    return closes == Match::kYes ? EndCall(in, out) : BreakCall(in, out);
  }

  Result ReadKey(AnswerInput& in, CallSink& out) {
    const std::string_view view = in.view();
    const std::size_t end = view.find(form().key_end);
    if (IsTooLong(view, end, form().key_end)) return BreakCall(in, out);
    if (end == view.npos) return State::kMore;
    key_ = Trim(view.substr(0, end));
    type_ = types().Of(name(), key_);
    in.Take(end + form().key_end.size());
    place_ = form().key_attributes_end.empty() ? Place::kValueBegin : Place::kKeyAttributes;
    return std::nullopt;
  }

  Result ReadValueBegin(AnswerInput& in, CallSink& out) {
    if (!form().value_begin.empty()) {
      if (!in.TakeSpace()) return State::kMore;
      const Match begins = in.TakeMark(form().value_begin);
      if (begins == Match::kPart) return State::kMore;
      if (begins == Match::kNo) return BreakCall(in, out);
    }
    Begin(out);
    out.Arguments((has_arguments_ ? ", " : "") + QuotedText(key_) + ": ");
    has_arguments_ = true;
    in.Keep();
    value_.clear();
    value_end_ = form().value_end;
    place_ = Place::kValueForm;
    return std::nullopt;
  }

  // What stands around a value: a line's end, <![CDATA[.
  Result ReadValueForm(AnswerInput& in, CallSink& out) {
    if (form().trims_lines) in.TakeMark("\n");
    const Match data = form().has_data ? in.TakeMark(kDataBegin) : Match::kNo;
    if (data == Match::kPart || (in.view().empty() && !in.is_finished())) {
      in.Restore();
      return State::kMore;
    }
    if (data == Match::kYes) value_end_ = std::string(kDataEnd) + value_end_;
    const bool is_text = data == Match::kYes && type_ != ArgumentType::kValue;
    streams_ = is_text || type_ == ArgumentType::kText;
    if (streams_) out.Arguments("\"");
    in.Keep();
    place_ = Place::kValue;
    return std::nullopt;
  }

  Result ReadValue(AnswerInput& in, CallSink& out) {
    const std::string_view view = in.view();
    const std::size_t end = view.find(value_end_);
    const bool ends = end != view.npos;
    std::string_view text = view.substr(0, ends ? end : HeldFrom(in));
    const std::size_t bytes = text.size();
    if (ends && form().trims_lines && text.ends_with('\n')) text.remove_suffix(1);
    if (streams_) {
      out.Arguments(EscapedText(text));
    } else {
      value_ += text;
    }
    in.Take(ends ? end + value_end_.size() : bytes);
    // Until a value is certain its text is kept here, and not by the input.
    in.Keep();
    if (!ends) {
      if (in.is_finished() && !streams_) out.Arguments(JsonOfArgument(value_, type_));
      return State::kMore;
    }
    out.Arguments(streams_ ? "\"" : JsonOfArgument(value_, type_));
    place_ = Place::kKeys;
    return std::nullopt;
  }

  // Where what may be the end of the value begins.
  std::size_t HeldFrom(const AnswerInput& in) const {
    const std::size_t size = in.view().size();
    if (in.is_finished()) return size;
    const std::size_t most = value_end_.size() + 1;
    for (std::size_t at = size - std::min(size, most); at < size; ++at) {
      const bool breaks = form().trims_lines && in.view()[at] == '\n';
      const bool may_end = in.Begins(value_end_, at) == Match::kPart ||
                           (breaks && in.Begins(value_end_, at + 1) == Match::kPart);
      if (may_end) return at;
    }
    return size;
  }

  void Begin(CallSink& out) {
    if (has_begun_) return;
    out.Begin(name());
    out.Arguments("{");
    has_begun_ = true;
  }

  Result EndCall(AnswerInput& in, CallSink& out) {
    Begin(out);
    out.Arguments("}");
    CloseCall(in, out);
    has_begun_ = false;
    place_ = Place::kList;
    return std::nullopt;
  }

  // Of a call that goes on in another way the rest is given back.
  Result BreakCall(AnswerInput& in, CallSink& out) {
    if (!has_begun_) return End();
    in.Restore();
    return EndCall(in, out);
  }

  Place place_ = Place::kList;
  bool has_begun_ = false;
  bool has_arguments_ = false;
  std::string key_;
  ArgumentType type_ = ArgumentType::kUnknown;
  std::string value_end_;
  std::string value_;  // of one whose JSON is not certain
  bool streams_ = false;
};

}  // namespace

std::unique_ptr<CallReader> MakeTaggedCalls(const CallForm& form, const ArgumentTypes& types) {
  return std::make_unique<TaggedCalls>(form, types);
}

}  // namespace qlora
