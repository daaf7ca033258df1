#include "inference/text_answers.h"

#include <map>
#include <string>
#include <utility>

#include "base/stopwatch.h"
#include "inference/stop_texts.h"

namespace qlora {
namespace {

class TextAnswer {
 public:
  TextAnswer(const EngineRequest& request, const Tokenizer& tokenizer,
             std::function<bool(std::string_view piece)> on_text)
      : stream_(tokenizer, true, request.prompt),
        stops_(request.options.stop.empty() ? std::vector<std::string>()
                                            : std::vector{request.options.stop}),
        on_text_(std::move(on_text)) {
    report_.prompt_tokens = std::ssize(request.prompt);
    report_.stop_reason = StopReason::kMaxNewTokens;  // if nothing else ends the answer
  }

  // Takes the next token. Returns false when the answer ends here.
  bool Add(const EngineToken& token) {
    if (report_.new_tokens++ == 0) report_.prefill_seconds = watch_.seconds();
    if (!token.is_end) return Emit(stops_.Add(stream_.Add(token.token))) && !token.is_last;
    report_.stopped_at_eos = true;
    report_.stop_reason = StopReason::kEos;
    return false;
  }

  GenerateReport Finish() {
    // The text that was held back because a character or a stop text might have followed.
    if (stops_.found().empty() && report_.stop_reason != StopReason::kCaller) {
      std::string held = stops_.Add(stream_.Finish());
      held += stops_.Finish();
      Emit(held);
    }
    report_.decode_seconds = watch_.seconds() - report_.prefill_seconds;
    return std::move(report_);
  }

 private:
  // Hands on text that is certain. Returns false when the answer ends here.
  bool Emit(const std::string& piece) {
    report_.text += piece;
    const bool is_wanted = piece.empty() || !on_text_ || on_text_(piece);
    if (!is_wanted) report_.stop_reason = StopReason::kCaller;
    if (!stops_.found().empty()) report_.stop_reason = StopReason::kStopText;
    return is_wanted && stops_.found().empty();
  }

  Tokenizer::StreamDecoder stream_;
  StopTexts stops_;
  std::function<bool(std::string_view piece)> on_text_;
  GenerateReport report_;
  Stopwatch watch_;
};

}  // namespace

std::vector<GenerateReport> WriteAnswers(Engine& engine, std::vector<EngineRequest> requests,
                                         const Tokenizer& tokenizer, const OnText& on_text) {
  std::vector<TextAnswer> answers;
  std::map<RequestId, std::int64_t> numbers;
  for (EngineRequest& request : requests) {
    const std::int64_t i = std::ssize(answers);
    answers.emplace_back(request, tokenizer, [i, &on_text](std::string_view piece) {
      return !on_text || on_text(i, piece);
    });
    numbers[engine.Submit(std::move(request))] = i;
  }
  std::vector<GenerateReport> reports(answers.size());
  while (!engine.is_idle()) {
    for (const EngineToken& token : engine.Step()) {
      const std::int64_t i = numbers.at(token.request);
      if (answers[i].Add(token)) continue;
      engine.Cancel(token.request);
      reports[i] = answers[i].Finish();
    }
  }
  return reports;
}

}  // namespace qlora
