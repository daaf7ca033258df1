// The base and its adapters by name, with all that a request needs of one. Adapters come and go
// while others answer.
#ifndef QLORA_SERVE_SERVED_MODELS_H_
#define QLORA_SERVE_SERVED_MODELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/lora.h"
#include "inference/decision_source.h"
#include "inference/served_prompts.h"
#include "qlora/model.h"
#include "serve/answer_parts.h"
#include "serve/request_room.h"
#include "serve/structured/token_texts.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

struct ServedModel {
  std::string name = {};
  std::string parent = {};       // the base's name, of an adapter
  std::string folder = {};       // of the adapter, or of the model
  std::string fingerprint = {};  // version, kernels, hash of base and adapter
  std::int64_t created = 0;      // seconds since 1970
  std::int64_t context_length = 0;
  std::int64_t decision_length = 0;                 // tokens of a question with its state
  std::shared_ptr<const LoraAdapter> adapter = {};  // null: the base
  std::optional<DecisionSource> decisions = {};     // nothing where it was not made to decide
  std::shared_ptr<const ServedPrompts> prompts = {};
  std::shared_ptr<const AnswerForm> answers = {};
  // Where a request has tools, for which the model has a template of its own; null: the same.
  std::shared_ptr<const AnswerForm> tool_answers = {};
  // An adapter may bring its own, with other ends or another template.
  std::shared_ptr<const Tokenizer> tokenizer = {};
  std::shared_ptr<const TokenTextsOnce> token_texts = std::make_shared<const TokenTextsOnce>();
  std::int64_t vocabulary = 0;            // tokens that have logits
  GenerateOptions sampling = {};          // of requests that say nothing of it
  std::optional<std::int64_t> seed = {};  // likewise; nothing: each draws its own
  // Of requests to all models.
  std::shared_ptr<RequestRoom> room = std::make_shared<RequestRoom>(std::size_t{64} << 20);
};
using ServedModelPtr = std::shared_ptr<const ServedModel>;

// The code of the refusal of an adapter for which there is no room.
inline constexpr const char* kNoRoom = "insufficient_memory";

// What adapters take beside the base, the first of the models: values, and tokenizers of their own.
// What several share counts once.
std::size_t BytesOfAdapters(const std::vector<ServedModelPtr>& models);

class ServedModels {
 public:
  virtual ~ServedModels() = default;
  // "" and null mean the base. Errors: ApiError 404 model_not_found.
  virtual ServedModelPtr Find(std::string_view name) const = 0;
  // The base first.
  virtual std::vector<ServedModelPtr> All() const = 0;
  // Errors: ApiError 400 with what the adapter lacks, or kNoRoom; 409 for a name that is there.
  virtual void Load(const std::string& name, const std::string& folder) = 0;
  // New requests get 404 at once; running ones end. Errors: ApiError 404.
  virtual void Unload(const std::string& name) = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_SERVED_MODELS_H_
