#include "export/export_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <variant>

#include "adapter/combined_adapter.h"
#include "base/check.h"
#include "convert/config_json.h"
#include "convert/gguf_base.h"
#include "convert/model_folder.h"
#include "export/gguf/export_gguf.h"
#include "export/gguf/export_gguf_adapter.h"
#include "export/gguf/gguf_limits.h"
#include "gguf/gguf.h"
#include "hub/hub_cache.h"
#include "io/gguf_path.h"
#include "model/checkpoint.h"
#include "tokenizer/adapter_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Chooses the base that the adapter is merged into.
BaseRecord ChooseBase(const ExportOptions& options, const AdapterSet& adapters) {
  std::optional<BaseRecord> trained;
  if (!adapters.empty()) trained = LoadBaseRecord(adapters.first());
  if (options.merge_base == "nf4") {
    if (trained && trained->load_in_4bit) return *trained;
    return {};
  }
  BaseRecord original;
  original.load_in_4bit = false;
  if (options.merge_base == "original") return original;
  // An adapter has learned to correct the error of the 4-bit weights that it was trained on. Merged
  // into the 16-bit weights, it corrects an error that is not there. Rounding the sum to few bits
  // loses more (docs/gguf.md).
  const GgufFileType* type = FindGgufFileType(options.outtype);
  const bool rounds = options.format == "gguf" && type != nullptr && BitsOf(*type) < 8;
  return trained && !rounds ? *trained : original;
}

// Returns the last part of a path or of org/name@revision.
std::string NameOf(std::string model) {
  model = model.substr(0, model.find('@'));
  while (model.size() > 1 && model.back() == '/') model.pop_back();
  return fs::absolute(model).lexically_normal().filename().string();
}

// Returns org/name of a model that was found in the cache of the hub; "" of a folder or file.
std::string RepositoryOf(const std::string& model) {
  return fs::exists(model) ? "" : ParseHubRepository(model).name;
}

}  // namespace

ExportSource::ExportSource(Context& context, Backend& backend, const ExportOptions& options,
                           const AdapterSet& adapters, const ProgressFn& progress)
    : context_(context),
      backend_(backend),
      options_(options),
      adapters_(adapters),
      progress_(progress),
      model_dir_(ResolveModelDir(options.model_name_or_path)),
      config_(options.format == "hf" ? LoadForCheckpoint(model_dir_)
                                     : LoadDecoderConfig(model_dir_)) {
  // A GGUF file may hold what no checkpoint can: found before minutes of work.
  if (options.format == "hf") config_json_ = CheckpointConfig(model_dir_);
  if (adapters.empty()) return;
  if (writes_values()) {
    values_ = LoadAdapterValues(adapters, config_, progress_);
    adapter_ = ToLoraAdapter(values_, config_, backend.memory());
    if (values_.base_model_name_or_path.empty()) {
      values_.base_model_name_or_path = RepositoryOf(options.model_name_or_path);
    }
  } else {
    adapter_ = LoadAdapters(adapters, config_, backend.memory(), progress_);
  }
  table_changes_ = adapter_->changes();
}

void ExportSource::CheckAdapterOnly() const {
  if (!adapter_) ThrowInvalidInput("--format {} needs --adapter", options_.format);
  if (writes_values()) return;
  if (adapter_->replaced() != nullptr) {
    ThrowInvalidInput(
        "{} brings '{}', which is not written in a GGUF adapter; merge it into the model: "
        "--format gguf",
        fmt::join(options_.adapter, ","), adapter_->replaced()->begin()->first);
  }
  CheckGgufAdapter(config_, *adapter_, table_changes_,
                   fmt::format("{}", fmt::join(options_.adapter, ",")));
  if (const auto gguf = FindGguf(model_dir_)) CheckFitsGguf(*gguf, config_, *adapter_);
}

std::vector<std::string> ExportSource::Load(bool compares) {
  const BaseRecord base = ChooseBase(options_, adapters_);
  std::vector<std::string> notes;
  if (!adapter_only() || compares) {
    LoadBase(base);
    notes = weights_.sizes.notes;
  }
  if (options_.format.starts_with("gguf")) notes.push_back(TakeGgufYarn(config_));
  if (adapter_) notes.insert(notes.end(), adapter_->notes().begin(), adapter_->notes().end());
  if (adapter_ && !adapter_only()) {
    notes.push_back(NoteOtherTokenizer(model_dir_, adapters_.first()));
    config_.vocab_size = adapter_->vocab_size();
    const bool quantized = base.load_in_4bit || weights_.sizes.stored_4bit;
    merge_base_ = quantized ? "nf4" : "original";
    if (!weights_.sizes.block_formats.empty()) merge_base_ = "blocks";
  }
  std::erase(notes, "");
  return notes;
}

// The blocks of a GGUF file are the one base that there is.
void ExportSource::CheckMergeBase() const {
  const std::vector<std::string>& formats = weights_.sizes.block_formats;
  if (!formats.empty() && options_.merge_base != "auto") {
    ThrowInvalidInput(
        "--merge-base {} has no meaning for {}, which holds its linears in blocks of {}; leave it "
        "out{}",
        options_.merge_base, model_dir_.string(), fmt::join(formats, ", "),
        is_published_form() ? "" : ", or give the checkpoint that the file was made from");
  }
  if (options_.merge_base == "original" && weights_.sizes.stored_4bit) {
    ThrowInvalidInput(
        "{} holds its linears in 4 bits only; --merge-base original needs the checkpoint that "
        "they were quantized from",
        model_dir_.string());
  }
}

void ExportSource::LoadBase(const BaseRecord& base) {
  LoadOptions load = LoadOptionsOf(base);
  load.progress = progress_;
  if (adapter_) load.replaced = adapter_->replaced();
  weights_ = LoadWeights(context_, backend_, model_dir_, config_, load);
  CheckMergeBase();
  if (!adapter_) return;
  adapter_->FoldTables(weights_);
  if (adapter_only()) return;
  weights_.embed = EmbeddingOf(weights_, adapter());
  weights_.head = HeadOf(weights_, adapter());
}

bool ExportSource::keeps_types() const {
  return options_.outtype == "auto" && options_.format == "gguf" && FindGguf(model_dir_) &&
         !replaces();
}

bool ExportSource::is_published_form() const {
  return std::ranges::count(weights_.sizes.block_formats, "MXFP4") > 0;
}

const GgufFileType& ExportSource::ChooseFileType() const {
  if (options_.outtype != "auto") return ParseOuttype(options_.outtype);
  if (adapter_only()) return ParseOuttype(writes_values() ? "f32" : "f16");
  if (keeps_types()) {
    // A label: its tensors may have any types.
    const GgufMetadata metadata = ReadGgufMetadata(model_dir_);
    const GgufValue* number = metadata.Find("general.file_type");
    const auto* stored = number == nullptr ? nullptr : std::get_if<std::uint32_t>(number);
    for (const GgufFileType& file : GgufFileTypes()) {
      if (stored != nullptr && file.number == *stored) return file;
    }
  }
  // The type of the embedding, which is dense in models of 4 bits too.
  DType type = weights_.embed.dense.dtype;
  if (FindGguf(model_dir_)) {
    const TensorReader& reader = *weights_.reader;
    type = DenseTypeOf(reader.Find(EmbeddingName(reader))->dtype, config_);
  }
  return ParseOuttype(type == DType::kBF16 ? "bf16" : "f16");
}

GgufSource ExportSource::Names() const {
  GgufSource source;
  if (const auto gguf = FindGguf(model_dir_)) source = GgufSourceOf(*OpenGguf(*gguf));
  if (source.name.empty()) source.name = NameOf(options_.model_name_or_path);
  if (source.repository.empty()) source.repository = RepositoryOf(options_.model_name_or_path);
  return source;
}

std::string ExportSource::Fingerprint() const {
  const std::string first = TrainedFingerprint(adapters_.first());
  const bool same = std::ranges::all_of(adapters_.sources, [&](const AdapterSource& adapter) {
    return TrainedFingerprint(adapter.path) == first;
  });
  return same ? first : "";
}

}  // namespace qlora
