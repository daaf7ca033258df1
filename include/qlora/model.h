// A model that answers: loading, text generation, evaluation.
#ifndef QLORA_MODEL_H_
#define QLORA_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "qlora/chat.h"
#include "qlora/context.h"
#include "qlora/data.h"
#include "qlora/options.h"
#include "qlora/prompt.h"
#include "qlora/quantization.h"

namespace qlora {

// Which model, and in which form it is held.
struct ModelOptions {
  std::string model_name_or_path;  // a Hugging Face directory
  std::string adapter;             // a PEFT directory; empty: the base alone
  // true: the linears of the blocks are held in 4 bits; false: as the checkpoint has them; auto: as
  // they were when the adapter was trained, 4 bits without an adapter.
  std::string load_in_4bit = "auto";
  QuantizationFields quantization;
  std::string compute_dtype = "auto";  // bfloat16 where products of it are fastest, else float32
  std::string device = "auto";         // cpu, cuda; auto: cpu
  // Empty: the template, variables and date that the adapter was trained with, else the
  // checkpoint's own.
  ChatFields chat;
  // For generating: copies weights into memory of this process, 4-bit ones in the order in which
  // products with few rows read them fastest, if less than half of the available memory holds the
  // model and the copies. Loading takes a little longer, every token less.
  bool copy_weights = false;

  void Declare(OptionTable& table);
};

struct GenerateOptions {
  std::int64_t max_new_tokens = 256;
  bool do_sample = false;
  double temperature = 1;
  std::int64_t top_k = 0;  // 0: off
  double top_p = 1;
  double min_p = 0;               // of the most likely token's probability; 0: off
  double repetition_penalty = 1;  // as Hugging Face defines it; 1: none
  std::int64_t seed = 42;
  std::string stop;  // a text that ends the answer and is not a part of it; "": none

  void Declare(OptionTable& table);
};

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

struct EvalOptions {
  std::vector<std::string> dataset;  // any format that `train` reads
  ReadingFields reading;
  // Lay the records out as if the adapter had not recorded the layout of its data.
  bool raw = false;
  bool per_token = false;        // keep the log-probability of every supervised token
  bool without_adapter = false;  // evaluate the base alone

  void Declare(OptionTable& table);
};

struct EvalResult {
  double loss = 0;            // mean negative log-likelihood of the supervised tokens, in nats
  double perplexity = 0;      // exp(loss)
  double token_accuracy = 0;  // share of supervised tokens that are the model's first choice
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  double seconds = 0;
  std::string data;          // what was read, in words: counts, lengths, what was dropped or cut
  std::string layout;        // of prompts and answers, in words
  std::string warning;       // "" or a remark for the user
  std::int64_t dropped = 0;  // samples that were longer than max_length
  std::int64_t truncated = 0;
  std::vector<double> logprobs;         // per_token: one per supervised token, in file order
  std::vector<std::int32_t> token_ids;  // per_token: the token each of them is about
};

// A loaded model. The context must outlive it.
class Model {
 public:
  // Errors: InvalidInput naming the file and what to do.
  static Model Load(
      Context& context, const ModelOptions& options,
      const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});
  ~Model();
  Model(Model&& other) noexcept;
  Model& operator=(Model&& other) noexcept;

  // Gives the options that the user did not set the values of the model's generation_config.json.
  // options: declared by GenerateOptions. Returns them as text, "temperature 0.7, top_p 0.9"; ""
  // when there are none. Errors: InvalidInput naming file and key.
  std::string TakeGenerationConfig(OptionTable& options) const;

  // Tokens that the model reads at most, prompt and answer together.
  std::int64_t context_length() const;
  // Tokens of a prompt, as Generate counts them.
  std::int64_t CountTokens(std::string_view text, bool add_special_tokens = true) const;

  bool has_chat_template() const;
  // The prompt for the assistant's next turn. messages: a JSON array of objects with role and
  // content; tools: a JSON array, or empty. The prompt has its special tokens already: pass
  // add_special_tokens = false with it. Errors: InvalidInput when the model has no template, the
  // JSON is malformed, or the template refuses it (line and column).
  std::string ChatPrompt(std::string_view messages, std::string_view tools = {}) const;

  // Prompts in the layout of the data that the adapter was trained on, or an adapter that Export
  // merged into the model; where none is recorded, through the chat template if there is one. With
  // ModelOptions::chat, the template that was given. prompt_layout: the layout in words, and where
  // it comes from; "" when prompts are read as they are and no adapter says so. Errors:
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

  // The tokens that end an answer, as text: EOS of tokenizer and generation_config.json, and what
  // the chat template ends a turn with.
  std::vector<std::string> stop_tokens() const;

  // Continues `prompt`; on_text receives pieces of whole characters as they come and may return
  // false to stop. add_special_tokens: BOS as the tokenizer adds it. The answer ends where the
  // context does, whatever max_new_tokens says. Errors: InvalidInput for a prompt that fills it.
  GenerateReport Generate(std::string_view prompt, const GenerateOptions& options,
                          const std::function<bool(std::string_view piece)>& on_text = {},
                          bool add_special_tokens = true);
  GenerateReport Generate(const PromptText& prompt, const GenerateOptions& options,
                          const std::function<bool(std::string_view piece)>& on_text = {});
  // progress: receives the number of samples that are done, and of all samples. Errors:
  // InvalidInput with file and line; Runtime when the loss is not finite.
  EvalResult Evaluate(
      const EvalOptions& options,
      const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});

 private:
  class Impl;
  friend struct ModelLoader;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace qlora

#endif  // QLORA_MODEL_H_
