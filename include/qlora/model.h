// A model that answers: loading, text generation, evaluation.
#ifndef QLORA_MODEL_H_
#define QLORA_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "qlora/chat.h"
#include "qlora/context.h"
#include "qlora/decision.h"
#include "qlora/metrics.h"
#include "qlora/model_options.h"
#include "qlora/prompt.h"

namespace qlora {

enum class StopReason {
  kEos,           // the model wrote a token that ends an answer
  kStopText,      // GenerateOptions::stop
  kMaxNewTokens,  // max_new_tokens are written
  kContext,       // the context of the model is full
  kCaller,        // on_text returned false
};
// "eos", "stop", "max_new_tokens", "context", "caller".
std::string_view StopReasonName(StopReason reason);

struct GenerateReport {
  std::string text;
  std::int64_t prompt_tokens = 0;
  std::int64_t new_tokens = 0;
  bool stopped_at_eos = false;
  StopReason stop_reason = StopReason::kEos;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

struct EvalResult {
  // Mean negative log-likelihood of the supervised tokens, in nats; of decisions, of the answers
  // among their options; of preferences, their loss.
  double loss = 0;
  // exp(loss), and the share of supervised tokens that are the model's first choice; of preferences
  // 0.
  double perplexity = 0;
  double token_accuracy = 0;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  double seconds = 0;
  std::string data;          // the data in words: counts, lengths, dropped and cut samples
  std::string layout;        // of prompts and answers, in words
  std::string warning;       // "" or a remark for the user
  std::int64_t dropped = 0;  // samples that were longer than max_length
  std::int64_t truncated = 0;
  std::vector<double> logprobs;         // per_token: one per supervised token, in file order
  std::vector<std::int32_t> token_ids;  // per_token: the token each of them is about
  // Of records that ask questions. Their tokens above are questions.
  std::optional<DecisionResult> decision;
  // Of preferences: rewards/chosen ..., as training logs them; those that answers have a value of.
  std::vector<MetricValue> metrics;
};

// Continuations of one context, as token ids.
struct ScoreRequest {
  std::vector<std::int32_t> context;                     // at least one
  std::vector<std::vector<std::int32_t>> continuations;  // at least one token each
};
struct ContinuationScore {
  double logprob = 0;      // sum of log p(token), in nats
  bool is_greedy = false;  // every token is the model's first choice
  std::int64_t tokens = 0;
};

// A loaded model. The context must outlive it.
class Model {
 public:
  // Errors: InvalidInput naming the file and a remedy.
  static Model Load(
      Context& context, const ModelOptions& options,
      const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});
  ~Model();
  Model(Model&& other) noexcept;
  Model& operator=(Model&& other) noexcept;

  // Remarks for people on what was loaded otherwise than they may expect: tensors that are not
  // used, settings that the files of the model contradict, the tokenizer of the adapter, parts of
  // it that are left out, weights of a merged adapter that are not quantized.
  std::vector<std::string> notes() const;

  // The folder of the adapter; "" without one, for several, and for a file.
  std::string adapter_folder() const;

  // The options that load the base alone in the form in which it is held here: with the adapter,
  // the form that it was trained on. It reads texts with its own tokenizer, also where the adapter
  // brings another; but for that, figures of both differ by the adapter alone.
  ModelOptions base_options() const;

  // Gives the options that the user did not set the values of the model's generation_config.json.
  // options: declared by GenerateOptions. Returns these options as text, "temperature 0.7, top_p
  // 0.9", or "". Errors: InvalidInput naming file and key.
  std::string TakeGenerationConfig(OptionTable& options) const;

  // The most tokens that the model reads, prompt and answer together.
  std::int64_t context_length() const;
  // Tokens of a prompt, as Generate counts them.
  std::int64_t CountTokens(std::string_view text, bool add_special_tokens = true) const;

  // The token ids of a text, with the special tokens that the tokenizer puts around it or without.
  std::vector<std::int32_t> Tokenize(std::string_view text, bool add_special_tokens = true) const;
  // The text of token ids, with special tokens or without. Errors: InvalidInput for an id that is
  // none.
  std::string Detokenize(std::span<const std::int32_t> ids, bool special_tokens = true) const;

  // The token that stands for the start of a text: BOS, or EOS where there is none.
  std::optional<std::int32_t> start_token() const;

  bool has_chat_template() const;
  // The prompt for the assistant's next turn. messages: a JSON array of objects with role and
  // content; tools: a JSON array, or empty. The prompt has its special tokens already: pass
  // add_special_tokens = false with it. Errors: InvalidInput when the model has no template, the
  // JSON is malformed, or the template refuses it (line and column).
  std::string ChatPrompt(std::string_view messages, std::string_view tools = {}) const;

  // Prompts in the layout of the data that the adapter was trained on, or an adapter that Export
  // merged into the model; without a recorded layout, through the chat template if there is one.
  // With ModelOptions::chat, the template that was given. prompt_layout: the layout in words, and
  // where it comes from; "" when prompts are read as they are and no adapter says so. Errors:
  // InvalidInput when the layout has no place for a part of the prompt, JSON is malformed, or the
  // template refuses the conversation (line and column).
  std::string prompt_layout() const;
  PromptText Prompt(std::string_view user, std::string_view system = {}) const;
  // record: a JSON object with the fields of a record; its answer is ignored.
  PromptText PromptOfRecord(std::string_view record) const;
  // messages, tools: as for ChatPrompt.
  PromptText PromptOfChat(std::string_view messages, std::string_view tools = {}) const;
  // True when PromptOfChat tells the messages of a conversation apart.
  bool has_turns() const;

  // The tokens that end an answer, as text: EOS of tokenizer and generation_config.json, and the
  // end of a turn in the chat template.
  std::vector<std::string> stop_tokens() const;

  // Continues `prompt`; on_text receives pieces of whole characters as they come and may return
  // false to stop. add_special_tokens: BOS as the tokenizer adds it. The answer ends where the
  // context does, whatever max_new_tokens says. The memory of a call is kept for the next one,
  // until Evaluate. Errors: InvalidInput for a prompt that fills the context.
  GenerateReport Generate(std::string_view prompt, const GenerateOptions& options,
                          const std::function<bool(std::string_view piece)>& on_text = {},
                          bool add_special_tokens = true);
  GenerateReport Generate(const PromptText& prompt, const GenerateOptions& options,
                          const std::function<bool(std::string_view piece)>& on_text = {});
  // Continues prompts at the same time, each to the same bits as alone. on_text(i, piece): text of
  // prompt number i; false ends its answer.
  std::vector<GenerateReport> Generate(
      std::span<const PromptText> prompts, const GenerateOptions& options,
      const std::function<bool(std::int64_t i, std::string_view piece)>& on_text = {});
  // The scores of the continuations of each request, whose context is computed once. Of a row that
  // is longer than the context of the model, the last tokens are read. Errors: InvalidInput for an
  // empty context or continuation, and for ids that are none; Runtime when a log-probability is not
  // finite.
  std::vector<std::vector<ContinuationScore>> Score(
      std::span<const ScoreRequest> requests,
      const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});
  // progress: receives the number of samples that are done, and of all samples; reading, before:
  // how many bytes of the data files are read. Errors: InvalidInput with file and line; Runtime
  // when the loss is not finite.
  EvalResult Evaluate(
      const EvalOptions& options,
      const std::function<void(std::int64_t done, std::int64_t total)>& progress = {},
      const std::function<void(std::int64_t done, std::int64_t total)>& reading = {});
  // Answers a request of /v1/systemone or /v1/decisions, JSON, with the body of the answer. Errors:
  // InvalidInput that names the field, and for a prompt beyond the context.
  std::string Decide(std::string_view request, const DecideOptions& options = {});

 private:
  class Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qlora

#endif  // QLORA_MODEL_H_
