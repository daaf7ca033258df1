#include "inference/loaded_model.h"

#include "base/check.h"
#include "hub/hub_cache.h"
#include "model/checkpoint.h"
#include "model/shared_options.h"
#include "qlora/communicator.h"
#include "tokenizer/adapter_files.h"

namespace qlora {
namespace {

// True where the weights are those of a merged adapter, which 4 bits would change again.
bool UsesMerged(const ModelOptions& options, const std::filesystem::path& model_dir) {
  return options.load_in_4bit == "auto" && HoldsMergedWeights(model_dir);
}

// The form in which to hold the base: as the adapter was trained ("auto"), or as the options say.
// The model of the adapter's record is not used, only its form.
BaseRecord BaseOf(const ModelOptions& options, const AdapterSet& adapters,
                  const std::filesystem::path& model_dir) {
  const bool is_auto = options.load_in_4bit == "auto";
  if (is_auto && !adapters.empty()) {
    if (const std::optional<BaseRecord> base = LoadBaseRecord(adapters.first())) return *base;
  }
  const bool as_it_is = options.load_in_4bit == "false" || UsesMerged(options, model_dir);
  return {options.model_name_or_path, !as_it_is, options.quantization};
}

// The folder of the one adapter, or "".
std::string FolderOf(const AdapterSet& adapters) {
  return adapters.is_single() && std::filesystem::is_directory(adapters.first()) ? adapters.first()
                                                                                 : "";
}

}  // namespace

LoadedModel::LoadedModel(Context& of_job, const ModelOptions& given, const AdapterSet& adapters,
                         const BackendFactory& backends,
                         const std::function<void(std::int64_t, std::int64_t)>& progress)
    : dir(ResolveModelDir(given.model_name_or_path)),
      context(of_job),
      options(given),
      config(LoadDecoderConfig(dir)),
      tokenizer(Tokenizer::Load(dir, adapters.first())),
      precision(ParsePrecision(options.compute_dtype, backends)),
      backend(backends.Make(context, precision)),
      prompts(options.chat, adapters.first(), dir, tokenizer),
      adapter_folder(FolderOf(adapters)) {
  if (!adapters.empty()) adapter = LoadAdapters(adapters, config, backend->memory(), progress);
  LoadBase(adapters, progress);
  if (adapter) {
    adapter->FoldTables(weights);
    // The tables of an adapter may have rows for more tokens, or for fewer.
    config.vocab_size = adapter->vocab_size();
  }
  AddNotes(adapters);
  decisions =
      LoadDecisionSource(adapters.empty() ? options.decides_as : adapters.first(), dir, tokenizer);
  // Temperatures are those of the answers of the adapter.
  if (decisions && !options.decides_as.empty()) decisions->file.temperatures = {};
  memory.emplace(*backend, config, weights, precision, AdaptersOf(AdapterFor(false)));
}

void LoadedModel::LoadBase(const AdapterSet& adapters,
                           const std::function<void(std::int64_t, std::int64_t)>& progress) {
  base = BaseOf(options, adapters, dir);
  LoadOptions load = LoadOptionsOf(base);
  load.progress = progress;
  if (adapter) load.replaced = adapter->replaced();
  if (options.copy_weights) {
    load.use = WeightUse::kGeneration;
    // Copies in the order that generation reads fastest, where they take less than half of what
    // is free; otherwise the file is read in place.
    const WeightSizes sizes = PlanWeights(context, *backend, dir, config, load);
    if (sizes.owned + sizes.mapped >= backend->memory().Available() / 2)
      load.use = WeightUse::kTraining;
  }
  weights = LoadWeights(context, *backend, dir, config, load);
  // A form that the adapter's record has, and a file in blocks has not, was not asked for.
  const bool is_asked = options.load_in_4bit != "auto" || adapters.empty();
  BaseRecord stored = base;
  if (is_asked || weights.sizes.block_formats.empty()) AdoptStoredForm(stored, weights.sizes);
}

void LoadedModel::AddNotes(const AdapterSet& adapters) {
  notes = weights.sizes.notes;
  notes.push_back(NoteOtherTokenizer(dir, adapters.first()));
  if (adapter) {
    notes.insert(notes.end(), adapter->notes().begin(), adapter->notes().end());
  }
  if (options.load_in_4bit != "auto" && !weights.sizes.block_formats.empty()) {
    notes.push_back(NoteIdle4bit(weights.sizes));
  }
  notes.push_back(NoteIdleInt8(precision, weights.sizes));
  if (adapters.empty() && UsesMerged(options, dir) && !weights.sizes.stored_4bit) {
    notes.push_back(
        "the weights have an adapter merged in and are used as they are; --load_in_4bit true "
        "rounds them to 4 bits");
  }
  std::erase(notes, "");
}

DecoderConfig LoadedModel::ConfigFor(const LoraAdapter* of_pass) const {
  DecoderConfig result = config;
  result.vocab_size = of_pass != nullptr ? of_pass->vocab_size() : weights.embed.rows();
  return result;
}

void LoadedModel::UseNorms() {
  if (!has_norms && adapter) RefreshNorms(*backend, weights, *adapter);
  has_norms = true;
}

RankPlace LoadedModel::place() const {
  const Communicator& ranks = context.communicator();
  return {.rank = ranks.rank(), .split = {.replicas = ranks.size()}};
}

ModelOptions LoadedModel::BaseOptions() const {
  ModelOptions alone = options;
  alone.adapter.clear();
  alone.adapter_rank = 0;
  const std::filesystem::path source = decisions ? decisions->name : "";
  if (adapter && source.filename() == kDecisionFile && source.parent_path() != dir) {
    alone.decides_as = source.parent_path().string();
  }
  // A file in blocks has its own form, whatever the adapter was trained on.
  const bool has_form = !weights.sizes.block_formats.empty();
  alone.load_in_4bit = has_form ? "auto" : base.load_in_4bit ? "true" : "false";
  alone.quantization = has_form ? QuantizationFields() : base.quantization;
  return alone;
}

void CheckToken(std::int32_t id, std::int64_t vocab_size, const Tokenizer& tokenizer) {
  if (id < vocab_size) return;
  ThrowInvalidInput("token id {} ('{}') is beyond the model's vocabulary of {}", id,
                    tokenizer.TokenText(id), vocab_size);
}

}  // namespace qlora
