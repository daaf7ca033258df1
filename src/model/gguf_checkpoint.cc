#include "model/gguf_checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "config/families.h"
#include "config/gguf_keys.h"
#include "config/gguf_names.h"
#include "model/gguf_rows.h"
#include "model/tensor_list.h"
#include "model/tensor_views.h"

namespace qlora {
namespace {

constexpr const char* kDecoder = "model.";

std::vector<std::int64_t> Inverse(const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> inverse(order.size());
  for (std::int64_t i = 0; i < std::ssize(order); ++i) inverse[order[i]] = i;
  return inverse;
}

class Builder {
 public:
  Builder(const GgufReader& file, const DecoderConfig& config) : file_(file), config_(config) {}

  std::vector<TensorView> Run() {
    for (const DecoderTensor& row : DecoderTensors(config_)) {
      if (row.is_head() && config_.tie_word_embeddings) continue;
      TensorView& view = Whole(row, 0, (row.is_head() ? "" : kDecoder) + row.name);
      // llama.cpp scales no embedding, and a head of this type alone.
      if (row.is_head() && view.info.dtype == BlockFormat::kNVFP4) {
        view.SetFactor(ScaleOf(row.gguf[0][0].tensor, 0, 1));
      }
    }
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      for (const LayerTensor& row : LayerTensors(config_, l)) {
        if (row.gguf.empty()) continue;
        if (row.kind == TensorKind::kLinear && !row.is_stacked) {
          Linear(row, l);
        } else {
          Whole(row, l, row.TensorIn(kDecoder, l), row.matrices());
        }
      }
    }
    CheckAllRead();
    return std::move(views_);
  }

 private:
  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }

  // The tensor of these dimensions; those of 1 in front do not count.
  const TensorInfo& Get(const std::string& name, std::vector<std::int64_t> shape) {
    const TensorInfo* tensor = file_.Find(name);
    if (tensor == nullptr) {
      ThrowInvalidInput("{}: tensor '{}' is missing, which a {} of {} layers has", file_.where(),
                        name, config_.model_type, config_.num_hidden_layers);
    }
    read_.insert(name);
    if (!tensor->dtype.is_blocks() && !IsFloat(tensor->dtype)) {
      ThrowInvalidInput("{}: tensor '{}' is {}, expected F32, F16, BF16 or blocks",
                        file_.FileOf(*tensor), name, NameOf(tensor->dtype));
    }
    const auto stripped = [](std::vector<std::int64_t> sizes) {
      while (sizes.size() > 1 && sizes.front() == 1) sizes.erase(sizes.begin());
      return sizes;
    };
    if (stripped(tensor->shape) != stripped(shape)) {
      ThrowInvalidInput("{}: tensor '{}' has the shape [{}], its keys expect [{}]",
                        file_.FileOf(*tensor), name, fmt::join(tensor->shape, ", "),
                        fmt::join(stripped(shape), ", "));
    }
    return *tensor;
  }

  // The same of what llama.cpp adds and multiplies element by element, which it does in F32 alone.
  const TensorInfo& GetValues(const std::string& name, std::vector<std::int64_t> shape) {
    const TensorInfo& tensor = Get(name, std::move(shape));
    if (tensor.dtype == DType::kF32) return tensor;
    ThrowInvalidInput(
        "{}: tensor '{}' is {}, expected F32: llama.cpp reads norms, biases and the like in no "
        "other type; convert the model once more",
        file_.FileOf(tensor), name, NameOf(tensor.dtype));
  }

  // The number that products with matrix `expert` of `experts` of a weight are multiplied by. One
  // that llama.cpp ignores is not read, and so refused (CheckAllRead).
  float ScaleOf(const std::string& weight, std::int64_t expert, std::int64_t experts) {
    const std::string name = StemOf(weight) + ".scale";
    const bool is_head = weight == kGgufHead;
    if (!Has(name) || !(is_head || IsGgufScaled(GgufFamilyOf(config_.model_type), weight))) {
      return 1;
    }
    const std::int64_t count = file_.Find(name)->elements();
    const TensorInfo& tensor = GetValues(name, {count == experts ? experts : 1});
    float scale = 0;
    const std::int64_t place = count == 1 ? 0 : expert;
    std::memcpy(&scale, file_.Bytes(tensor).data() + place * sizeof(scale), sizeof(scale));
    if (scale == 0 || !std::isfinite(scale)) {
      ThrowInvalidInput("{}: tensor '{}': expected numbers of F32 other than 0",
                        file_.FileOf(tensor), name);
    }
    return scale;
  }

  // A tensor that files have as it is, of one matrix, or of several that are read together.
  TensorView& Whole(const ListedTensor& row, std::int64_t l, const std::string& name,
                    std::int64_t matrices = 1) {
    const std::string& stored = row.gguf[0][0].tensor;
    const auto [rows, cols] = row.shape;
    const bool is_matrix = row.kind == TensorKind::kLinear || row.kind == TensorKind::kTable;
    const TensorInfo& tensor = is_matrix                       ? Get(stored, {matrices, rows, cols})
                               : row.kind == TensorKind::kConv ? GetValues(stored, {rows, cols})
                                                               : GetValues(stored, {rows * cols});
    TensorView view{{name, tensor.dtype, {rows * cols}}, {{&tensor, 0, tensor.elements()}}};
    if (row.kind == TensorKind::kLinear) view.info.shape = {matrices, rows, cols};
    if (row.kind == TensorKind::kTable) view.info.shape = {rows, cols};
    if (row.kind == TensorKind::kConv) view.info.shape = {rows, 1, cols};
    if (row.kind == TensorKind::kRate) view.info.name = RateName(name);
    view.pieces[0].rows = Inverse(GgufRowsOf(config_, l, row, stored).order);
    return views_.emplace_back(std::move(view));
  }

  // The first spelling that the file has.
  const GgufSpelling& SpellingOf(const LayerTensor& row) const {
    const auto has = [&](const GgufSpelling& one) { return Has(one[0].tensor); };
    const auto found = std::ranges::find_if(row.gguf, has);
    return found == row.gguf.end() ? row.gguf[0] : *found;
  }

  void Linear(const LayerTensor& row, std::int64_t l) {
    const GgufSpelling& spelling = SpellingOf(row);
    for (std::int64_t e = 0; e < row.matrices(); ++e) {
      const std::string module = row.ModuleIn(kDecoder, l, e);
      Weight(row, l, spelling, e, module + ".weight");
      if (row.has_bias) Bias(row, l, spelling, e, module + ".bias");
    }
  }

  // One piece after the other. Pieces of different types become F32.
  void Weight(const LayerTensor& row, std::int64_t l, const GgufSpelling& spelling, std::int64_t e,
              const std::string& name) {
    const auto [rows, cols] = row.shape;
    TensorView view{{name, DType::kF32, {rows, cols}}, {}};
    for (const GgufPiece& piece : spelling) {
      const TensorInfo& tensor = Get(piece.tensor, {row.matrices(), piece.of, cols});
      view.pieces.push_back({&tensor, (e * piece.of + piece.first) * cols, piece.rows * cols});
      const float scale = ScaleOf(piece.tensor, e, row.matrices());
      if (spelling.size() > 1 && scale != 1) {
        ThrowInvalidInput("{}: tensor '{}' is a part of one weight of a {} and needs no scale",
                          file_.FileOf(tensor), piece.tensor, config_.model_type);
      }
      view.factor = scale / row.gguf_factor;
    }
    TakeType(view);
    view.SetFactor(view.factor);
    if (spelling.size() == 1) {
      const LinearRows moved = GgufRowsOf(config_, l, row, row.gguf[0][0].tensor);
      view.pieces[0].rows = Inverse(moved.order);
      view.columns = Inverse(moved.columns);
      // A block holds values of neighbouring columns.
      if (!view.columns.empty()) view.info.dtype = DType::kF32;
    }
    views_.push_back(std::move(view));
  }

  // llama.cpp takes a bias that a file does not have for 0.
  void Bias(const LayerTensor& row, std::int64_t l, const GgufSpelling& spelling, std::int64_t e,
            const std::string& name) {
    TensorView view{{name, DType::kF32, {row.shape.out}}, {}};
    if (row.may_lack_bias && !Has(BiasOf(spelling[0]))) {
      views_.push_back(std::move(view));
      return;
    }
    for (const GgufPiece& piece : spelling) {
      const bool is_stack = row.experts > 0;
      const TensorInfo& tensor = GetValues(BiasOf(piece), {is_stack ? row.experts : 1, piece.of});
      view.pieces.push_back({&tensor, e * piece.of + piece.first, piece.rows});
    }
    TakeType(view);
    if (spelling.size() == 1) {
      const std::string& weight = row.gguf[0][0].tensor;
      view.pieces[0].rows = Inverse(GgufRowsOf(config_, l, row, weight).order);
      const float scale = ScalesGgufBias(weight) ? ScaleOf(weight, e, row.matrices()) : 1;
      view.SetFactor(scale / row.gguf_factor);
    }
    views_.push_back(std::move(view));
  }

  // The type of all pieces, where they have one.
  static void TakeType(TensorView& view) {
    const TensorType type = view.pieces[0].source->dtype;
    const bool agree = std::ranges::all_of(
        view.pieces, [&](const TensorPiece& piece) { return piece.source->dtype == type; });
    if (agree) view.info.dtype = type;
  }

  static std::string BiasOf(const GgufPiece& piece) { return StemOf(piece.tensor) + ".bias"; }

  // The blocks of the file, drafts included.
  std::int64_t BlockCount() const {
    const auto& architecture = file_.Require<std::string>(kGgufArchitecture);
    return GgufKeys(file_, architecture).Int(gguf_key::kBlocks);
  }

  // Of activations that are rounded: one number for each matrix of a weight that is read, where
  // llama.cpp loads it. Elsewhere it calls the file broken.
  bool IsInputScale(const TensorInfo& tensor) const {
    constexpr std::string_view kEnd = ".input_scale";
    if (!tensor.name.ends_with(kEnd)) return false;
    const std::string weight = tensor.name.substr(0, tensor.name.size() - kEnd.size()) + ".weight";
    if (!read_.contains(weight)) return false;
    const TensorInfo& of = *file_.Find(weight);
    const bool is_nvfp4_head = weight == kGgufHead && of.dtype == BlockFormat::kNVFP4;
    if (!is_nvfp4_head && !HasGgufScales(weight)) return false;
    return tensor.elements() == (of.shape.size() == 3 ? of.shape.front() : 1);
  }

  void CheckAllRead() const {
    const RopeConfig& rope = config_.ropes[0];
    const std::int64_t blocks = BlockCount();
    const bool has_divisors = GgufFamilyOf(config_.model_type).divisors != GgufDivisors::kUnread &&
                              rope.type != RopeType::kLongrope;
    for (const TensorInfo& tensor : file_.tensors()) {
      const std::string& name = tensor.name;
      if (read_.contains(name)) continue;
      if (name == kGgufDivisors && has_divisors) continue;
      const std::int64_t block = GgufBlockOf(name);
      if (IsUnreadKv(config_, block, name)) continue;
      if (name.starts_with("rope_factors_") && rope.type == RopeType::kLongrope) continue;
      // Drafts of several tokens, and scales of activations, which llama.cpp does not use either.
      const bool is_draft = block >= config_.num_hidden_layers && block < blocks;
      if (is_draft || IsInputScale(tensor)) continue;
      ThrowInvalidInput(
          "{}: tensor '{}' is none of a {} of {} layers that is supported; without it, the model "
          "would be another one",
          file_.FileOf(tensor), name, config_.model_type, config_.num_hidden_layers);
    }
  }

  const GgufReader& file_;
  const DecoderConfig& config_;
  std::vector<TensorView> views_;
  std::set<std::string> read_;
};

}  // namespace

std::unique_ptr<TensorReader> OpenGgufCheckpoint(std::unique_ptr<GgufReader> file,
                                                 const DecoderConfig& config) {
  std::vector<TensorView> views = Builder(*file, config).Run();
  return std::make_unique<TensorViews>(std::move(file), std::move(views),
                                       std::vector<UnreadTensor>());
}

}  // namespace qlora
