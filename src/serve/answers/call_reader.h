// Reads calls in one of the forms of answer_forms.h.
#ifndef QLORA_SERVE_ANSWERS_CALL_READER_H_
#define QLORA_SERVE_ANSWERS_CALL_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "serve/answer_parts.h"
#include "serve/answers/answer_forms.h"
#include "serve/answers/answer_input.h"
#include "serve/answers/argument_text.h"

namespace qlora {

// Where calls go, one after the other.
class CallSink {
 public:
  using Add = std::function<void(AnswerPart part)>;
  explicit CallSink(Add add) : add_(std::move(add)) {}

  void Begin(std::string_view name);
  // JSON text, the next piece of it.
  void Arguments(std::string_view json);
  void End(bool is_cut = false);

  bool is_open() const { return is_open_; }
  std::int64_t calls() const { return calls_; }

 private:
  Add add_;
  bool is_open_ = false;
  std::int64_t calls_ = 0;  // that have begun
};

// Reads form.open, and then step by step what the kind of the form has.
class CallReader {
 public:
  // kFailed: what the input gives back is no call. What follows kDone is no part of calls.
  enum class State { kMore, kDone, kFailed };

  // types: of the tools that may be called. Both must outlive this.
  CallReader(const CallForm& form, const ArgumentTypes& types) : form_(form), types_(types) {}
  virtual ~CallReader() = default;

  // Reads what has come: always from where the last one stopped.
  State Read(AnswerInput& in, CallSink& out);

 protected:
  // Nothing: it goes on.
  using Result = std::optional<State>;
  virtual Result Step(AnswerInput& in, CallSink& out) = 0;

  const CallForm& form() const { return form_; }
  const ArgumentTypes& types() const { return types_; }
  std::int64_t calls() const { return calls_; }  // that were read
  const std::string& name() const { return name_; }

  // Takes form.close, and ends.
  Result TakeClose(AnswerInput& in) const;
  // Takes form.name_begin, which is no beginning of form.close, or form.close and ends.
  Result FindCall(AnswerInput& in) const;
  // Reads a name up to form.name_end.
  Result ReadName(AnswerInput& in);
  void CloseCall(AnswerInput& in, CallSink& out);
  State End() const { return calls_ > 0 ? State::kDone : State::kFailed; }

 private:
  const CallForm& form_;
  const ArgumentTypes& types_;
  bool is_open_ = false;
  std::int64_t calls_ = 0;
  std::string name_;
};

// form and types must outlive it. The input begins with form.open, or without one with
// form.name_begin.
std::unique_ptr<CallReader> MakeCallReader(const CallForm& form, const ArgumentTypes& types);

// One for each kind, in a file of its own.
std::unique_ptr<CallReader> MakeJsonCalls(const CallForm& form, const ArgumentTypes& types);
std::unique_ptr<CallReader> MakeNamedCalls(const CallForm& form, const ArgumentTypes& types);
std::unique_ptr<CallReader> MakeTaggedCalls(const CallForm& form, const ArgumentTypes& types);
std::unique_ptr<CallReader> MakeLiteralCalls(const CallForm& form, const ArgumentTypes& types);

// Finds the end of a JSON value that comes in pieces.
class JsonEnd {
 public:
  // Returns how many bytes of the next piece are of the value.
  std::size_t Add(std::string_view piece);
  bool is_there() const { return is_there_; }

 private:
  int depth_ = 0;
  bool in_text_ = false;
  bool is_escaped_ = false;
  bool has_begun_ = false;
  bool is_there_ = false;
};

// True for what tools may be named.
bool IsToolName(std::string_view name);

// Names, keys and headers are not longer.
inline constexpr std::size_t kMaxNameBytes = 256;
// `text` begins with one that `mark` ends, at `end`; npos: the mark has not come yet. However the
// text comes, the answer is the same.
inline bool IsTooLong(std::string_view text, std::size_t end, std::string_view mark) {
  return end != text.npos ? end > kMaxNameBytes : text.size() > kMaxNameBytes + mark.size();
}

}  // namespace qlora

#endif  // QLORA_SERVE_ANSWERS_CALL_READER_H_
