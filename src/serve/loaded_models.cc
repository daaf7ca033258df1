#include "serve/loaded_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <utility>

#include "adapter/combined_adapter.h"
#include "adapter/mlx_adapter.h"
#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/file.h"
#include "base/printable.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "hub/hub_adapter.h"
#include "hub/hub_cache.h"
#include "inference/generation_config.h"
#include "io/peft/adapter_source.h"
#include "io/peft/peft.h"
#include "model/model_fingerprint.h"
#include "model/shared_options.h"
#include "pass/dora.h"
#include "qlora/machine.h"
#include "qlora/options.h"
#include "serve/adapter_checks.h"
#include "serve/api_error.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// The last part of "models/name/", "org/name" and "org/name@revision", as a name for models.
std::string NameOfFolder(const std::string& folder) {
  std::error_code ignored;
  const fs::path path =
      fs::exists(folder, ignored) ? fs::absolute(folder, ignored) : fs::path(folder);
  std::string name = (path / "").lexically_normal().parent_path().filename().string();
  name = name.substr(0, name.find('@'));
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) == 0 && c != '.' && c != '_' && c != '-') c = '-';
  }
  name.erase(0, std::min(name.find_first_not_of("._-"), name.size()));
  return name.substr(0, 64);
}

// The form of the base: that of the training, where options leave it open.
ModelOptions BaseOptionsOf(const ServeOptions& options, const std::vector<NamedAdapter>& adapters) {
  ModelOptions base = options.model;
  base.adapter.clear();
  base.adapter_rank = 0;
  std::error_code ignored;
  const bool has_own_form = fs::is_regular_file(ResolveModelDir(base.model_name_or_path), ignored);
  if (base.load_in_4bit != "auto" || has_own_form) return base;
  for (const NamedAdapter& adapter : adapters) {
    const std::optional<BaseRecord> record = LoadBaseRecord(adapter.folder);
    if (!record || !record->block_formats.empty()) continue;
    base.load_in_4bit = record->load_in_4bit ? "true" : "false";
    if (record->load_in_4bit) base.quantization = record->quantization;
    break;
  }
  return base;
}

// Sets how answers to the prompts of the model are read.
void SetAnswerForms(ServedModel& model) {
  const ChatTemplate* chat = model.prompts->chat();
  model.answers = FindAnswerForm(chat == nullptr ? "" : chat->text());
  model.tool_answers = chat == nullptr ? nullptr : FindAnswerForm(chat->tool_text());
}

// The hash of the files that an adapter is read from.
std::uint64_t HashOfFiles(const fs::path& adapter) {
  std::vector<fs::path> files = {adapter};
  if (fs::is_directory(adapter)) {
    const bool is_mlx = FormatOfAdapter(adapter) == AdapterFormat::kMlx;
    files = {adapter / kAdapterConfig, adapter / (is_mlx ? kMlxWeights : kPeftWeights)};
  }
  std::uint64_t hash = 0;
  for (const fs::path& path : files) {
    const MappedFile file(path);
    const std::span<const std::byte> bytes = file.bytes();
    hash = MixBits(hash ^ HashBytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  return hash;
}

}  // namespace

bool IsModelName(std::string_view name) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  return !name.empty() && name.size() <= 64 && is_letter(name.front()) &&
         std::ranges::all_of(
             name, [&](char c) { return is_letter(c) || c == '.' || c == '_' || c == '-'; });
}

NamedAdapter ParseNamedAdapter(const std::string& text) {
  NamedAdapter adapter;
  const std::size_t equals = text.find('=');
  std::error_code ignored;
  // A folder may have the sign in its own name.
  if (equals == std::string::npos || fs::exists(text, ignored)) {
    adapter = {NameOfFolder(text), text};
  } else {
    adapter = {text.substr(0, equals), ExpandHome(text.substr(equals + 1))};
  }
  if (!IsModelName(adapter.name)) {
    ThrowInvalidInput(
        "adapter: '{}' is no name for a model; write NAME=FOLDER, a name of letters, digits, '.', "
        "'_' and '-', at most 64 of them, which begins with a letter or digit",
        adapter.name);
  }
  adapter.folder = ResolveAdapterDir(adapter.folder);
  return adapter;
}

LoadedModels::LoadedModels(Context& context, const ServeOptions& options,
                           const std::string& version, const ProgressFn& progress)
    : version_(version) {
  std::vector<NamedAdapter> adapters;
  for (const std::string& text : options.model.adapter) adapters.push_back(ParseNamedAdapter(text));
  base_name_ = options.served_model_name.empty() ? NameOfFolder(options.model.model_name_or_path)
                                                 : options.served_model_name;
  if (!IsModelName(base_name_)) {
    ThrowInvalidInput(
        "served_model_name: '{}' is no name for a model: use letters, digits, '.', '_' "
        "and '-'",
        base_name_);
  }
  std::vector<std::string> names = {base_name_};
  for (const NamedAdapter& adapter : adapters) {
    if (std::ranges::count(names, adapter.name) > 0) {
      ThrowInvalidInput(
          "adapter: two models would have the name '{}'; write NAME=FOLDER, or give "
          "the base another name with --served_model_name",
          adapter.name);
    }
    names.push_back(adapter.name);
  }
  const ModelOptions base = BaseOptionsOf(options, adapters);
  const BackendFactory::Ptr backends = BackendFactory::ForJob(context, base.device);
  base_ = std::make_unique<LoadedModel>(context, base, AdapterSet(), *backends, progress);
  notes_ = base_->notes;
  models_.push_back(MakeBase(options));
  for (const NamedAdapter& adapter : adapters) {
    models_.push_back(MakeAdapter(adapter.name, adapter.folder));
    const std::vector<std::string>& notes = models_.back()->adapter->notes();
    notes_.insert(notes_.end(), notes.begin(), notes.end());
  }
  if (!options.gets_adapters()) return;
  std::int64_t rank = options.max_lora_rank;
  for (const LoraAdapter* adapter : planned_adapters()) rank = std::max(rank, RankOf(*adapter));
  largest_ = std::make_unique<const LoraAdapter>(
      LargestAdapter(base_->config, base_->backend->memory(), rank));
  for (const ServedModelPtr& model : All()) {
    if (model->adapter != nullptr) CheckRoom(model->folder, *model->adapter, *largest_);
  }
}

Adapters LoadedModels::planned_adapters() const {
  if (largest_ != nullptr) return {largest_.get()};
  Adapters all;
  for (const ServedModelPtr& model : All()) {
    if (model->adapter != nullptr) all.push_back(model->adapter.get());
  }
  return all;
}

ServedModelPtr LoadedModels::Find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  if (name.empty()) return models_.front();
  const auto at = std::ranges::find(
      models_, name, [](const ServedModelPtr& model) -> std::string_view { return model->name; });
  if (at != models_.end()) return *at;
  std::vector<std::string> names;
  for (const ServedModelPtr& model : models_) names.push_back(model->name);
  throw ApiError(404,
                 fmt::format("the model '{}' does not exist; there is {}", FirstBytes(name, 100),
                             fmt::join(names, ", ")),
                 "model", "model_not_found");
}

std::vector<ServedModelPtr> LoadedModels::All() const {
  const std::lock_guard lock(mutex_);
  return models_;
}

void LoadedModels::Load(const std::string& name, const std::string& folder) {
  const auto is_it = [&](const ServedModelPtr& model) { return model->name == name; };
  const std::lock_guard loading(loading_);
  if (std::ranges::any_of(All(), is_it)) {
    throw ApiError(409, fmt::format("the model '{}' is loaded already; unload it first", name),
                   "lora_name");
  }
  ServedModelPtr model;
  try {
    model = MakeAdapter(name, folder);
  } catch (const Error& error) {
    const bool has_room = error.code() != ErrorCode::kOutOfMemory;
    throw ApiError(400, error.what(), "lora_path", has_room ? "" : kNoRoom);
  }
  const std::lock_guard lock(mutex_);
  models_.push_back(std::move(model));
}

void LoadedModels::Unload(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::find_if(models_, [&](const ServedModelPtr& model) {
    return model->name == name && model->adapter != nullptr;
  });
  if (at == models_.end()) {
    throw ApiError(404, fmt::format("there is no adapter '{}'", FirstBytes(name, 100)), "lora_name",
                   "model_not_found");
  }
  std::erase_if(unloaded_, [](const auto& model) { return model.expired(); });
  unloaded_.push_back(*at);
  models_.erase(at);
}

void LoadedModels::SetRoom(std::int64_t positions, std::int64_t decision_length,
                           std::size_t adapter_bytes, std::size_t request_bytes) {
  const std::lock_guard lock(mutex_);
  adapter_bytes_ = adapter_bytes;
  const auto room = std::make_shared<RequestRoom>(request_bytes);
  for (ServedModelPtr& model : models_) {
    ServedModel changed = *model;
    changed.context_length = positions;
    changed.decision_length = decision_length;
    changed.room = room;
    model = std::make_shared<const ServedModel>(std::move(changed));
  }
}

// ---- Models.

ServedModelPtr LoadedModels::MakeBase(const ServeOptions& options) {
  ServedModel model;
  model.name = base_name_;
  model.folder = base_->dir.string();
  model.created = SecondsSince1970();
  model.context_length = base_->config.max_position_embeddings;
  model.decision_length = model.context_length;
  model.vocabulary = base_->config.vocab_size;
  model.decisions = base_->decisions;
  // The base lives as long as its tokenizer is needed.
  model.tokenizer = std::shared_ptr<const Tokenizer>(std::shared_ptr<void>(), &base_->tokenizer);
  model.prompts = std::shared_ptr<const ServedPrompts>(std::shared_ptr<void>(), &base_->prompts);
  SetAnswerForms(model);
  model.sampling = SamplingOf(base_->dir);
  if (options.has_seed) model.seed = options.seed;
  model.fingerprint = Fingerprint("");
  return std::make_shared<const ServedModel>(std::move(model));
}

ServedModelPtr LoadedModels::MakeAdapter(const std::string& name, const std::string& folder) {
  if (const std::optional<BaseRecord> record = LoadBaseRecord(folder)) {
    CheckForm(folder, *record, *base_);
  }
  const std::optional<LoraAdapter> shape =
      ShapeOfAdapter(folder, base_->config, base_->backend->memory());
  if (shape) CheckFits(folder, *shape);
  const std::vector<ServedModelPtr> others = Held();
  ServedModel model = *others.front();
  model.name = name;
  model.parent = base_name_;
  model.folder = folder;
  model.created = SecondsSince1970();
  SetTokenizer(others, model);
  model.decisions = LoadDecisionSource(folder, base_->dir, *model.tokenizer);
  // The tokenizer must outlive the prompts.
  struct WithTokenizer {
    std::shared_ptr<const Tokenizer> tokenizer;
    ServedPrompts prompts;
  };
  const auto prompts = std::make_shared<const WithTokenizer>(WithTokenizer{
      model.tokenizer, ServedPrompts(base_->options.chat, folder, base_->dir, *model.tokenizer)});
  model.prompts = std::shared_ptr<const ServedPrompts>(prompts, &prompts->prompts);
  SetAnswerForms(model);
  const std::uint64_t hash = HashOfFiles(folder);
  model.fingerprint = Fingerprint(fmt::format("{:016x}", hash));
  const auto same = std::ranges::find(others, model.fingerprint, &ServedModel::fingerprint);
  if (same != others.end()) {
    model.adapter = (*same)->adapter;
    CheckMemory(model, 0);
  } else {
    const DType operands = base_->precision.activation;
    CheckMemory(model, shape ? shape->bytes() + shape->PackedBytes(operands) : 0);
    model.adapter = LoadValues(folder);
    CheckMemory(model, 0);
    if (HashOfFiles(folder) != hash) {
      ThrowInvalidInput("{}: its files have changed while they were read; load it again", folder);
    }
  }
  return std::make_shared<const ServedModel>(std::move(model));
}

void LoadedModels::CheckFits(const std::string& folder, const LoraAdapter& adapter) const {
  CheckParts(folder, adapter, *base_);
  if (largest_ != nullptr) CheckRoom(folder, adapter, *largest_);
}

std::shared_ptr<const LoraAdapter> LoadedModels::LoadValues(const std::string& folder) {
  auto adapter = std::make_shared<LoraAdapter>(
      LoadAdapters({.sources = {{.path = folder}}}, base_->config, base_->backend->memory()));
  CheckFits(folder, *adapter);
  adapter->Pack(base_->precision.activation);
  const auto refresh = [&] { RefreshNorms(*base_->backend, base_->weights, *adapter); };
  if (run_alone_) {
    run_alone_(refresh);
  } else {
    refresh();
  }
  return adapter;
}

void LoadedModels::SetTokenizer(const std::vector<ServedModelPtr>& others,
                                ServedModel& model) const {
  if (!HasOwnTokenizerFiles(base_->dir, model.folder)) return;
  auto own = std::make_shared<const Tokenizer>(Tokenizer::Load(base_->dir, model.folder));
  const auto same = std::ranges::find_if(
      others, [&](const ServedModelPtr& other) { return other->tokenizer->IsSameAs(*own); });
  if (same != others.end()) {
    model.tokenizer = (*same)->tokenizer;
    model.token_texts = (*same)->token_texts;
    return;
  }
  if (own->vocab_size() > base_->config.vocab_size) {
    ThrowInvalidInput("{}: its tokenizer has {} tokens, and the base has rows for {}", model.folder,
                      own->vocab_size(), base_->config.vocab_size);
  }
  model.tokenizer = std::move(own);
  model.token_texts = std::make_shared<const TokenTextsOnce>();
}

std::vector<ServedModelPtr> LoadedModels::Held() const {
  const std::lock_guard lock(mutex_);
  std::vector<ServedModelPtr> held = models_;
  for (const auto& unloaded : unloaded_) {
    if (ServedModelPtr model = unloaded.lock()) held.push_back(std::move(model));
  }
  return held;
}

void LoadedModels::CheckMemory(const ServedModel& model, std::size_t more) const {
  std::vector<ServedModelPtr> all = Held();
  all.emplace_back(std::shared_ptr<void>(), &model);
  const std::size_t bytes = BytesOfAdapters(all) + more;
  if (bytes <= adapter_bytes_) return;
  throw Error(ErrorCode::kOutOfMemory,
              fmt::format("{}: adapters would take {}, and the server has room for {} of them; "
                          "unload others, wait for the answers of those that are unloaded, or "
                          "give it more memory",
                          model.folder, FormatBytes(bytes), FormatBytes(adapter_bytes_)));
}

// Answers are drawn, as clients of this interface expect, unless the model's file says otherwise.
GenerateOptions LoadedModels::SamplingOf(const fs::path& model_dir) const {
  GenerateOptions sampling;
  sampling.do_sample = true;
  OptionTable table;
  sampling.Declare(table);
  TakeGenerationConfig(model_dir, table);
  return sampling;
}

// Equal fingerprints promise equal bits for equal tokens: program, kernels, weights, their form,
// adapter.
std::string LoadedModels::Fingerprint(const std::string& adapter) const {
  // Short prompts are read in another order where weights are prepacked.
  const WeightView& first = base_->weights.layers.front().linears.qkv.front().weight;
  const std::string all =
      fmt::format("{} {} {:016x} {} {} {} {}", version_, DescribeMachine().simd_target,
                  ModelFingerprint(base_->dir), DescribeForm(base_->base),
                  ComputeTypeOf(base_->precision), first.is_reordered(), adapter);
  return fmt::format("qlora-{}-{:016x}", version_, HashBytes(all));
}

}  // namespace qlora
