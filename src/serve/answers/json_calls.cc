// {"name": "f", "arguments": {"a": 1}}, alone, in a list, or one behind the other.
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "serve/answers/call_reader.h"

namespace qlora {
namespace {

bool NamesTool(std::string_view key) { return key == "name" || key == "tool_name"; }
bool NamesArguments(std::string_view key) { return key == "arguments" || key == "parameters"; }

class JsonCalls : public CallReader {
 public:
  using CallReader::CallReader;

 private:
  enum class Place { kList, kKey, kColon, kValue, kSkipped, kArguments };

  Result Step(AnswerInput& in, CallSink& out) override {
    if (place_ == Place::kSkipped) return Skip(in);
    if (place_ == Place::kArguments) return ReadArguments(in, out);
    if (!in.TakeSpace()) return State::kMore;
    switch (place_) {
      case Place::kList:
        return ReadList(in);
      case Place::kKey:
        return ReadKey(in, out);
      case Place::kColon:
        if (in.view()[0] != ':') return Fail(in, out);
        in.Take(1);
        place_ = Place::kValue;
        return std::nullopt;
      default:
        return ReadValue(in, out);
    }
  }

  Result ReadList(AnswerInput& in) {
    if (const Result closes = TakeClose(in)) return closes;
    const char c = in.view()[0];
    if (c == '{') {
      object_ = {};
      place_ = Place::kKey;
    } else if (c == '[' && !in_list_ && calls() == 0) {
      in_list_ = true;
    } else if (c == ']' && in_list_) {
      in_list_ = false;
      is_over_ = form().close.empty();
    } else if ((c != ',' && c != ';') || calls() == 0) {
      return End();
    }
    in.Take(1);
    if (c == ']' && calls() > 0) in.Keep();
    if (!is_over_) return std::nullopt;
    return End();
  }

  // Takes a short text in quotes that the input begins with.
  static Result TakeQuoted(AnswerInput& in, std::string& text) {
    constexpr std::size_t kMost = kMaxNameBytes + 2;  // with its quotes
    const std::string_view view = in.view().substr(0, kMost);
    JsonEnd end;
    const std::size_t bytes = end.Add(view);
    if (!end.is_there()) return view.size() < kMost ? State::kMore : State::kFailed;
    OrderedJson value;
    if (TryParseJson(view.substr(0, bytes), value)) return State::kFailed;
    text = value.get<std::string>();
    in.Take(bytes);
    return std::nullopt;
  }

  Result ReadKey(AnswerInput& in, CallSink& out) {
    const char c = in.view()[0];
    if (c == ',' || c == '}') {
      in.Take(1);
      return c == ',' ? std::nullopt : EndObject(in, out);
    }
    if (c != '"') return Fail(in, out);
    if (const Result result = TakeQuoted(in, key_)) {
      return result == State::kMore ? result : Fail(in, out);
    }
    place_ = Place::kColon;
    return std::nullopt;
  }

  Result ReadValue(AnswerInput& in, CallSink& out) {
    const char c = in.view()[0];
    if (c == ',' || c == '}' || c == ']') return Fail(in, out);
    end_ = {};
    if (key_ == "function" && c == '{') {
      in.Take(1);
      ++object_.depth;
      place_ = Place::kKey;
      return std::nullopt;
    }
    const bool names = NamesTool(key_) || key_ == "function";
    if (names && c == '"' && object_.name.empty() && !form().key_is_name) {
      if (const Result result = TakeQuoted(in, object_.name)) return result;
      if (!IsToolName(object_.name)) return State::kFailed;
      place_ = Place::kKey;
      return std::nullopt;
    }
    const bool is_call = form().key_is_name && object_.name.empty() && IsToolName(key_);
    if (is_call) object_.name = key_;
    const bool has_arguments = (is_call || NamesArguments(key_)) && !object_.has_arguments;
    place_ = has_arguments ? Place::kArguments : Place::kSkipped;
    if (has_arguments) {
      object_.has_arguments = true;
      object_.streams = c == '{';
    }
    return std::nullopt;
  }

  Result Skip(AnswerInput& in) {
    in.Take(end_.Add(in.view()));
    if (!end_.is_there()) return State::kMore;
    place_ = Place::kKey;
    return std::nullopt;
  }

  // An object leaves as it comes once its tool is known; others are taken whole.
  Result ReadArguments(AnswerInput& in, CallSink& out) {
    const std::size_t bytes = end_.Add(in.view());
    object_.arguments += in.view().substr(0, bytes);
    in.Take(bytes);
    if (object_.streams || end_.is_there()) SendArguments(in, out);
    if (!end_.is_there()) return State::kMore;
    place_ = Place::kKey;
    return std::nullopt;
  }

  void SendArguments(AnswerInput& in, CallSink& out) {
    if (object_.name.empty()) return;
    if (!object_.has_begun) {
      out.Begin(object_.name);
      object_.has_begun = true;
    }
    if (!object_.streams) TakeText();
    out.Arguments(object_.arguments);
    object_.arguments.clear();
    in.Keep();
  }

  // Arguments that are a text which holds JSON, and null.
  void TakeText() {
    OrderedJson value;
    if (TryParseJson(object_.arguments, value)) return;
    if (value.is_string()) object_.arguments = value.get<std::string>();
    if (value.is_null() || object_.arguments.empty()) object_.arguments = "{}";
  }

  Result EndObject(AnswerInput& in, CallSink& out) {
    place_ = Place::kKey;
    if (object_.depth-- > 0) return std::nullopt;
    if (object_.name.empty()) return State::kFailed;
    if (form().is_whole_answer && !object_.has_arguments) return State::kFailed;
    if (!object_.has_begun) {
      if (!object_.has_arguments) object_.arguments = "{}";
      SendArguments(in, out);
    }
    return EndCall(in, out);
  }

  // Of a call whose end is missing the rest is read as the list goes on.
  Result Fail(AnswerInput& in, CallSink& out) {
    if (!object_.has_begun) return State::kFailed;
    in.Restore();
    return EndCall(in, out);
  }

  Result EndCall(AnswerInput& in, CallSink& out) {
    CloseCall(in, out);
    place_ = Place::kList;
    return std::nullopt;
  }

  struct Object {
    std::string name = {};
    std::string arguments = {};  // that have not left
    bool has_arguments = false;
    bool streams = false;
    bool has_begun = false;
    int depth = 0;  // 1: within "function"
  };

  Place place_ = Place::kList;
  bool in_list_ = false;
  bool is_over_ = false;
  Object object_;
  std::string key_;
  JsonEnd end_;
};

}  // namespace

std::unique_ptr<CallReader> MakeJsonCalls(const CallForm& form, const ArgumentTypes& types) {
  return std::make_unique<JsonCalls>(form, types);
}

}  // namespace qlora
