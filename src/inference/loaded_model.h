// A model in memory, with its adapters and all that its passes and prompts need.
#ifndef QLORA_INFERENCE_LOADED_MODEL_H_
#define QLORA_INFERENCE_LOADED_MODEL_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/combined_adapter.h"
#include "backend/backend_factory.h"
#include "dist/rank_place.h"
#include "inference/decision_source.h"
#include "inference/generation_memory.h"
#include "inference/served_prompts.h"
#include "model/base_record.h"
#include "pass/decoder.h"
#include "qlora/context.h"
#include "qlora/model_options.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Members are initialized in the order of their declaration, and later ones need earlier ones: the
// tokenizer before the prompts. Moved nowhere: they refer to one another.
struct LoadedModel {
  // Errors: InvalidInput naming the file and a remedy.
  LoadedModel(Context& of_job, const ModelOptions& given, const AdapterSet& adapters,
              const BackendFactory& backends,
              const std::function<void(std::int64_t done, std::int64_t total)>& progress);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  // The adapter of a pass, or null for the base alone.
  const LoraAdapter* AdapterFor(bool without_adapter) const {
    return without_adapter || !adapter ? nullptr : &*adapter;
  }
  // The configuration of a pass with an adapter, null for the base alone, whose own tables may have
  // fewer rows, or more, than those of the adapter.
  DecoderConfig ConfigFor(const LoraAdapter* of_pass) const;
  // Computes the row lengths that DoRA divides by. Once: neither base nor adapter changes.
  void UseNorms();
  RankPlace place() const;
  // The options that load the base alone in the form in which it is held here.
  ModelOptions BaseOptions() const;

  std::filesystem::path dir;
  Context& context;
  ModelOptions options;
  DecoderConfig config;
  Tokenizer tokenizer;
  Precision precision;
  std::unique_ptr<Backend> backend;
  ServedPrompts prompts;
  std::string adapter_folder;  // of the one adapter, or ""
  std::optional<DecisionSource> decisions;
  std::optional<LoraAdapter> adapter;
  BaseRecord base;  // the form that was asked for
  DecoderWeights weights;
  std::optional<GenerationMemory> memory;
  std::vector<std::string> notes;  // for people
  bool has_norms = false;

 private:
  void LoadBase(const AdapterSet& adapters,
                const std::function<void(std::int64_t done, std::int64_t total)>& progress);
  void AddNotes(const AdapterSet& adapters);
};

// Errors: InvalidInput for a token that tables of `vocab_size` rows lack.
void CheckToken(std::int32_t id, std::int64_t vocab_size, const Tokenizer& tokenizer);

}  // namespace qlora

#endif  // QLORA_INFERENCE_LOADED_MODEL_H_
