#include "model/checkpoint_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "config/families.h"
#include "io/checkpoint_names.h"
#include "io/mxfp4.h"
#include "model/checkpoint.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

// Replaces the files of a checkpoint when only its shape is known.
class NoFiles : public TensorReader {
 public:
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(std::string_view) const override { return nullptr; }
  std::span<const std::byte> Bytes(const TensorInfo&) const override { return {}; }
  // As WithMxfp4Blocks.
  bool IsCopied(const TensorInfo& tensor) const override { return tensor.dtype.is_blocks(); }
  void Release(const TensorInfo&) const override {}
  std::string FileOf(const TensorInfo&) const override { return ""; }
  const StringMap& metadata() const override { return metadata_; }

 private:
  std::vector<TensorInfo> tensors_;
  StringMap metadata_;
};

// True if the checkpoint has linears in blocks. Its tables may be in blocks without that, and norms
// and biases never are.
bool HoldsBlocks(const TensorReader& reader, const DecoderConfig& config) {
  const std::string prefix = DecoderPrefix(reader);
  std::set<std::string> tables;
  for (const DecoderTensor& row : DecoderTensors(config)) {
    tables.insert(row.is_head() ? HeadName(reader) : prefix + row.name);
  }
  return std::ranges::any_of(reader.tensors(), [&](const TensorInfo& tensor) {
    return tensor.dtype.is_blocks() && !tables.contains(tensor.name);
  });
}

// True for k_proj, v_proj or k_norm of a layer that attends to the keys and values of another.
bool IsOfSharedKv(const std::string& name, const DecoderConfig& config) {
  const std::optional<DecoderPlace> place = PlaceInDecoder(name);
  return place && IsUnreadKv(config, place->layer, place->rest);
}

// Who wrote files with such tensors, in a form that is not read; "" where nothing tells.
std::string SavedByWhom(const TensorReader& reader) {
  constexpr std::pair<std::string_view, std::string_view> kMarks[] = {
      {".weight_packed", "llm-compressor, in integers"},
      {".weight_scale_2", "NVIDIA ModelOpt, in NVFP4"},
      {".qweight", "GPTQ or AWQ, in integers"},
      {".bitmask", "llm-compressor, without their zeros"},
      {".W_q", "HQQ, in integers"},
      {".weight._data", "Quanto, in integers"},
      {".SCB", "bitsandbytes, in 8 bits"},
      {".biases", "mlx-lm, in integers"}};
  const auto has = [&](std::string_view mark) {
    const auto ends = [&](const auto& tensor) { return tensor.name.ends_with(mark); };
    return std::ranges::any_of(reader.tensors(), ends) ||
           std::ranges::any_of(reader.unread(), ends);
  };
  for (const auto& [mark, writer] : kMarks) {
    if (has(mark)) {
      return fmt::format(
          "; its linears were saved by {}, which is not read here: use the checkpoint that it was "
          "made from",
          writer);
    }
  }
  const auto format = reader.metadata().find("format");
  const bool is_mlx = format != reader.metadata().end() && format->second == "mlx";
  return is_mlx ? "; it was saved by mlx-lm" : "";
}

// One line for many: a checkpoint may have such a tensor in each layer.
void Shorten(std::vector<std::string>& notes) {
  constexpr std::size_t kMost = 4;
  if (notes.size() <= kMost) return;
  const std::size_t more = notes.size() - kMost;
  notes.resize(kMost);
  notes.back() += fmt::format(" (and {} more tensors)", more);
}

}  // namespace

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

CheckpointTensors::CheckpointTensors(const TensorReader& reader, const DecoderConfig& config)
    : config_(config),
      reader_(reader),
      prefix_(DecoderPrefix(reader)),
      is_quantized_(HoldsBnb(reader) || reader.shows_decoded_4bit() ||
                    HoldsBlocks(reader, config)) {}

CheckpointTensors::CheckpointTensors(const DecoderConfig& config)
    : config_(config),
      no_files_(std::make_unique<NoFiles>()),
      reader_(*no_files_),
      prefix_(DecoderPrefix(reader_)),
      is_quantized_(config.moe.is_joined),
      imagines_mxfp4_(config.moe.is_joined) {}

void CheckpointTensors::Begin(Progress progress) {
  progress_ = std::move(progress);
  parameters_ = 0;
  total_ = std::exchange(done_, 0);
}

void CheckpointTensors::Count(const std::string& name, std::int64_t values) {
  used_.insert(name);
  parameters_ += values;
  ++done_;
  if (progress_) progress_(done_, total_);
}

const TensorInfo& CheckpointTensors::Get(const std::string& name,
                                         const std::vector<std::int64_t>& shape) {
  if (no_files_ != nullptr) {
    imagined_ = {.name = name, .dtype = DType::kBF16, .shape = shape};
    if (imagines_mxfp4_ && shape.size() == 2 && name.find(".experts.") != std::string::npos) {
      imagined_.dtype = Mxfp4Type();
    }
    Count(name, imagined_.elements());
    return imagined_;
  }
  const TensorInfo* tensor = reader_.Find(name);
  if (tensor == nullptr) ThrowMissing(name, shape);
  if (tensor->shape != shape) {
    ThrowInvalidInput("{}: tensor '{}' has shape {}, config.json expects {}{}",
                      reader_.FileOf(*tensor), name, ShapeText(tensor->shape), ShapeText(shape),
                      SavedByWhom(reader_));
  }
  if (!IsFloat(tensor->dtype) && !tensor->dtype.is_blocks()) {
    ThrowInvalidInput("{}: tensor '{}' is {}, expected F32, F16 or BF16{}", reader_.FileOf(*tensor),
                      name, NameOf(tensor->dtype), SavedByWhom(reader_));
  }
  Count(name, tensor->elements());
  return *tensor;
}

BnbMatrix CheckpointTensors::GetFourBit(const std::string& name, std::int64_t rows,
                                        std::int64_t cols) {
  BnbMatrix stored = ReadBnb(reader_, name);
  const QuantizedView& view = stored.matrix.view();
  Count(name, view.size());
  if (view.rows == rows && view.cols == cols) return stored;
  ThrowInvalidInput("{}: the 4-bit tensor '{}' has shape [{}, {}], config.json expects [{}, {}]",
                    reader_.FileOf(*reader_.Find(name)), name, view.rows, view.cols, rows, cols);
}

void CheckpointTensors::ThrowMissing(const std::string& name,
                                     const std::vector<std::int64_t>& shape) const {
  // All experts of a layer may be in one tensor, which has another name.
  constexpr std::string_view kExperts = ".experts.";
  const std::size_t at = name.find(kExperts);
  for (const UnreadTensor& tensor : reader_.unread()) {
    const bool holds_it =
        at != std::string::npos && tensor.name.starts_with(name.substr(0, at + kExperts.size()));
    if (holds_it || tensor.name == name) {
      ThrowInvalidInput("{}; the model needs it{}", tensor.reason, SavedByWhom(reader_));
    }
  }
  if (const std::string writer = SavedByWhom(reader_); !writer.empty()) {
    ThrowInvalidInput("tensor '{}' is missing from the checkpoint, expected with shape {}{}", name,
                      ShapeText(shape), writer);
  }
  if (name == HeadName(reader_)) {
    ThrowInvalidInput(
        "tensor '{}' is missing from the checkpoint: a model without an output head makes "
        "embeddings and predicts no tokens; take the one that generates, or complete the download, "
        "or write \"tie_word_embeddings\": true into config.json if its embedding is its head",
        name);
  }
  const std::string role = RoleOf(config_, name);
  ThrowInvalidInput(
      "tensor '{}'{} is missing from the checkpoint, expected with shape {}; is config.json of "
      "the same model, and the download complete?{}",
      name, role.empty() ? "" : fmt::format(" ({})", role), ShapeText(shape), Neighbours(name));
}

std::string CheckpointTensors::Neighbours(const std::string& name) const {
  const auto& tensors = reader_.tensors();
  const std::size_t layers = name.find("layers.");
  const std::size_t end =
      layers == std::string::npos ? std::string::npos : name.find('.', layers + 7);
  std::vector<std::string> near;
  for (const TensorInfo& tensor : tensors) {
    const bool is_near =
        end != std::string::npos && tensor.name.starts_with(name.substr(0, end + 1));
    if (is_near) near.push_back(tensor.name.substr(end + 1));
  }
  constexpr std::size_t kMost = 24;
  const std::size_t more = near.size() > kMost ? near.size() - kMost : 0;
  near.resize(near.size() - more);
  if (!near.empty()) {
    return fmt::format(" Tensors of {} that it has: {}{}", name.substr(0, end),
                       fmt::join(near, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
  }
  return tensors.empty() ? "" : fmt::format(" A tensor that it has: '{}'", tensors.front().name);
}

std::vector<std::string> CheckpointTensors::Notes() const {
  std::vector<std::string> notes = config_.notes;
  if (config_.has_own_head) {
    notes.push_back(
        fmt::format("config.json says tie_word_embeddings, but '{}' of the checkpoint differs from "
                    "'{}': the head of the checkpoint is used, as transformers 5 does",
                    HeadName(reader_), EmbeddingName(reader_)));
  }
  std::vector<std::string> unused;
  for (const TensorInfo& tensor : reader_.tensors()) {
    if (!tensor.name.starts_with(prefix_) || !SplitDecoderName(tensor.name)) continue;
    const std::string_view weight = BnbWeightOf(tensor.name);
    const bool used = used_.contains(weight.empty() ? tensor.name : std::string(weight));
    // The frequencies of old Llama checkpoints follow from config.json, and published files of
    // Gemma 4 hold keys and values of layers that attend to others'.
    if (!used && !tensor.name.ends_with("rotary_emb.inv_freq") &&
        !IsOfSharedKv(tensor.name, config_)) {
      unused.push_back(tensor.name);
    }
  }
  if (!unused.empty()) {
    if (HasSpellings(FamilyOf(config_.model_type, ""))) {
      ThrowInvalidInput(
          "{}: tensor '{}' is none of a {} that is known here; without it, the model "
          "would be another one",
          reader_.FileOf(*reader_.Find(unused.front())), unused.front(), config_.model_type);
    }
    const std::size_t shown = std::min<std::size_t>(unused.size(), 3);
    notes.push_back(fmt::format(
        "the model does not use {} tensors of the checkpoint: {}{}", unused.size(),
        fmt::join(unused.begin(), unused.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        unused.size() > shown ? " ..." : ""));
  }
  for (const UnreadTensor& tensor : reader_.unread()) {
    if (reader_.Find(tensor.name) != nullptr) continue;
    notes.push_back("not read, and not needed: " + tensor.reason);
  }
  Shorten(notes);
  return notes;
}

}  // namespace qlora
