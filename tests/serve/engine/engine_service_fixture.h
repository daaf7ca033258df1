// An EngineService over a tiny model, and what its listeners are told.
#ifndef QLORA_TESTS_SERVE_ENGINE_ENGINE_SERVICE_FIXTURE_H_
#define QLORA_TESTS_SERVE_ENGINE_ENGINE_SERVICE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "prompt/prompt_renderer.h"
#include "serve/api_error.h"
#include "serve/engine/engine_service.h"
#include "serve/loaded_models.h"
#include "serve/metrics.h"
#include "serve/tiny_model.h"

namespace qlora {

// What a listener was told.
struct Told {
  std::string text = {};
  std::vector<AnswerToken> tokens = {};
  std::vector<AnswerToken> prompt = {};
  GenerationEnd end = {};

  std::vector<double> logprobs() const {
    std::vector<double> all;
    for (const AnswerToken& token : tokens) all.push_back(token.logprob);
    return all;
  }
};

// Of the tiny model.
inline std::string TinyAdapter() {
  return (SourceDir() / "tests/golden/llama-tiny/adapter").string();
}

class EngineServiceTest : public testing::Test {
 protected:
  // adapter_dir: of adapters that come later.
  explicit EngineServiceTest(const std::vector<std::string>& adapters = {"ada=" + TinyAdapter()},
                             const std::string& adapter_dir = "") {
    options_.adapter_dir = adapter_dir;
    options_.model.model_name_or_path = folder_.path().string();
    options_.model.compute_dtype = "float32";
    options_.model.adapter = adapters;
    options_.served_model_name = "tiny";
    models_.emplace(context_, options_, "1", ProgressFn());
    Start({.sequences = 3, .queue = 8, .positions = 64, .rows = 64});
  }

  void Start(const EngineLimits& limits) {
    service_.reset();
    service_.emplace(models_->base(), models_->planned_adapters(), metrics_, limits);
  }

  GenerationRequest Request(const std::string& prompt, std::int64_t tokens = 12,
                            const std::string& model = "") const {
    GenerationRequest request{.model = models_->Find(model)};
    request.prompt = EncodePrompt(*models_->Find("")->tokenizer, {.text = prompt});
    request.options.max_new_tokens = tokens;
    request.top_logprobs = 2;
    return request;
  }

  std::future<Told> Begin(GenerationRequest request) {
    auto promise = std::make_shared<std::promise<Told>>();
    auto told = std::make_shared<Told>();
    service_->Submit(std::move(request), {.on_piece =
                                              [told](GenerationPiece piece) {
                                                told->text += piece.text;
                                                for (AnswerToken& token : piece.tokens)
                                                  told->tokens.push_back(token);
                                                for (AnswerToken& token : piece.prompt)
                                                  told->prompt.push_back(token);
                                              },
                                          .on_end =
                                              [told, promise](const GenerationEnd& end) {
                                                told->end = end;
                                                promise->set_value(*told);
                                              }});
    return promise->get_future();
  }
  Told Write(GenerationRequest request) { return Begin(std::move(request)).get(); }

  int StatusOf(GenerationRequest request) {
    try {
      Begin(std::move(request)).get();
    } catch (const ApiError& error) {
      return error.status;
    }
    return 200;
  }

  int StatusOfModel(const std::string& name) const {
    try {
      models_->Find(name);
    } catch (const ApiError& error) {
      return error.status;
    }
    return 200;
  }

  TestModelFolder folder_;
  Context context_{2};
  ServeOptions options_;
  std::optional<LoadedModels> models_;
  Metrics metrics_;
  std::optional<EngineService> service_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_ENGINE_ENGINE_SERVICE_FIXTURE_H_
