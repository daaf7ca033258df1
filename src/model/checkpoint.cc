#include "model/checkpoint.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/matrix.h"
#include "config/families.h"
#include "config/gguf_config.h"
#include "io/bnb.h"
#include "io/checkpoint_names.h"
#include "io/float_encoding.h"
#include "io/fp8.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "io/mxfp4.h"
#include "io/safetensors.h"
#include "model/decoded_bnb.h"
#include "model/gguf_checkpoint.h"
#include "model/joined_experts.h"
#include "model/linear_shapes.h"
#include "model/module_spellings.h"
#include "model/tensor_list.h"
#include "model/tensor_views.h"

namespace qlora {
namespace {

// ---- Names.

// Refuses the weights of a PEFT model that was saved whole: its linears are split into a base and
// an adapter.
void CheckMerged(const std::vector<std::string>& names, const std::filesystem::path& model_dir) {
  for (const std::string& name : names) {
    for (const char* part : {".lora_A.", ".lora_B.", ".lora_embedding_A", ".base_layer.",
                             ".modules_to_save.", ".original_module."}) {
      if (name.find(part) == std::string::npos) continue;
      ThrowInvalidInput(
          "{}: holds a model with an adapter that was not merged (tensor '{}'); save it once in "
          "Python with model.merge_and_unload().save_pretrained(DIR), or give the base model and "
          "the adapter's own folder",
          model_dir.string(), name);
    }
  }
}

// Refuses weights that another program wrote with other values under the same names.
void CheckSavedBy(const TensorReader& stored, const DecoderConfig& config,
                  const std::filesystem::path& model_dir) {
  const auto format = stored.metadata().find("format");
  if (format == stored.metadata().end() || format->second != "mlx") return;
  const bool has_delta = std::ranges::any_of(
      config.layers, [](const LayerConfig& layer) { return layer.mixer == Mixer::kDeltaRule; });
  if (!has_delta) return;
  ThrowInvalidInput(
      "{}: was saved by mlx-lm, which stores norms and convolutions of a {} otherwise than "
      "transformers; give the checkpoint that it was converted from",
      model_dir.string(), config.model_type);
}

// Gives the stored names the form that the header describes.
class Renaming {
 public:
  Renaming(const std::vector<std::string>& stored, const DecoderConfig& config)
      : config_(config), is_mixtral_(config.model_type == "mixtral") {
    std::vector<std::string> names;
    for (const std::string& name : stored) names.push_back(WithoutWrappers(name));
    decoder_ = DecoderPrefixOf(names);
    if (decoder_) head_ = HeadPrefixOf(names, *decoder_);
    renames_ = decoder_ && !IsUsualPrefix(*decoder_);
  }

  std::string operator()(const std::string& stored) const {
    std::string name = WithoutWrappers(stored);
    if (renames_ && name.starts_with(*decoder_)) {
      const std::string rest = "model." + name.substr(decoder_->size());
      if (const auto split = SplitDecoderName(rest); split && split->prefix == "model.") {
        name = rest;
      }
    }
    if (renames_ && head_ && name.starts_with(*head_ + "lm_head.")) name.erase(0, head_->size());
    name = RouterSpelled(config_, std::move(name));
    return is_mixtral_ ? WithMixtralBlock(std::move(name)) : name;
  }

 private:
  // transformers 5 calls the block with router and experts "mlp", as in other families.
  static std::string WithMixtralBlock(std::string name) {
    const std::size_t layers = name.find("layers.");
    if (layers == std::string::npos) return name;
    const std::size_t dot = name.find('.', layers + 7);
    if (dot != std::string::npos && name.compare(dot, 5, ".mlp.") == 0) {
      name.replace(dot + 1, 3, "block_sparse_moe");
    }
    return name;
  }

  const DecoderConfig& config_;
  bool is_mixtral_;
  std::optional<std::string> decoder_;
  std::optional<std::string> head_;
  bool renames_ = false;
};

// The embedding among renamed tensors.
struct EmbeddingPlace {
  std::string prefix;  // of the decoder
  std::string name;
};
template <typename Has>
EmbeddingPlace EmbeddingAmong(const Has& has) {
  for (const std::string_view embedding : kEmbeddingNames) {
    for (const char* prefix : {"model.", "language_model.model.", "model.language_model."}) {
      const std::string name = fmt::format("{}{}.weight", prefix, embedding);
      if (has(name)) return {prefix, name};
    }
  }
  return {"model.", "model.embed_tokens.weight"};  // named in the message about the missing tensor
}

// ---- Weights that are stored in another cut.

// Adds views of the pieces of joined weights, and takes the joined ones away.
class Cutter {
 public:
  Cutter(const DecoderConfig& config, std::vector<TensorView>& views)
      : config_(config), views_(views) {
    for (std::size_t i = 0; i < views.size(); ++i) numbers_.emplace(views[i].info.name, i);
    prefix_ =
        EmbeddingAmong([&](const std::string& name) { return numbers_.count(name) > 0; }).prefix;
  }

  // Returns false where nothing was to be cut or joined.
  bool Run() {
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      layer_ = fmt::format("{}layers.{}.", prefix_, l);
      for (const RecutLinear& recut : RecutLinears(config_, l)) {
        recut.is_cut() ? Cut(recut) : Join(recut);
      }
      if (!config_.has_experts(l) || config_.moe.is_joined) continue;
      CutExperts(LinearNames(config_, l), ShapeLinears(config_, l));
    }
    if (removed_.empty()) return false;
    std::vector<TensorView> kept;
    for (std::size_t i = 0; i < views_.size(); ++i) {
      if (removed_.count(i) == 0) kept.push_back(std::move(views_[i]));
    }
    views_ = std::move(kept);
    return true;
  }

 private:
  // The view of a tensor of this layer, or null.
  const TensorView* Find(const std::string& name) const {
    const auto it = numbers_.find(layer_ + name);
    return it == numbers_.end() ? nullptr : &views_[it->second];
  }

  void Replace(const std::string& old, std::vector<TensorView> by) {
    removed_.insert(numbers_.at(layer_ + old));
    for (TensorView& view : by) views_.push_back(std::move(view));
  }

  // Rows of one weight, or values of one bias, to several linears.
  void Cut(const RecutLinear& recut) {
    const std::int64_t all = std::accumulate(recut.rows.begin(), recut.rows.end(), std::int64_t{0});
    const std::int64_t step = recut.in_turn ? std::ssize(recut.parts) : 1;
    for (const char* kind : {".weight", ".bias"}) {
      const TensorView* whole = Find(recut.whole + kind);
      if (whole == nullptr || whole->pieces.size() != 1 || Find(recut.parts[0] + kind) != nullptr) {
        continue;
      }
      const std::vector<std::int64_t>& shape = whole->info.shape;
      // Another shape is not cut; the linears are then missing. A bare name changes any weight.
      const bool renames = recut.parts.size() == 1;
      if (!renames && (shape.empty() || shape[0] != all || !IsFloat(whole->info.dtype))) continue;
      const std::int64_t width = whole->info.elements() / std::max<std::int64_t>(1, all);
      std::vector<TensorView> parts;
      std::int64_t row = 0;
      for (std::size_t i = 0; i < recut.parts.size(); ++i) {
        TensorView part = *whole;
        part.info.name = layer_ + recut.parts[i] + kind;
        if (!renames) part.info.shape[0] = recut.rows[i];
        if (step > 1) {
          part.first_line = static_cast<std::int64_t>(i);
          part.line_step = step;
        } else if (!renames) {
          part.pieces[0].first += row * width;
          part.pieces[0].count = recut.rows[i] * width;
        }
        row += recut.rows[i];
        parts.push_back(std::move(part));
      }
      Replace(recut.whole + kind, std::move(parts));
    }
  }

  // Several weights, or biases, to one.
  void Join(const RecutLinear& recut) {
    for (const char* kind : {".weight", ".bias"}) {
      if (Find(recut.whole + kind) != nullptr) continue;
      TensorView whole;
      for (const std::string& name : recut.parts) {
        const TensorView* part = Find(name + kind);
        if (part == nullptr || part->info.shape.empty() || !IsFloat(part->info.dtype)) return;
        if (whole.pieces.empty()) {
          whole.info = part->info;
          whole.info.shape[0] = 0;
        }
        // Parts of different widths are no rows of one matrix; the joined linear is then missing.
        std::vector<std::int64_t> shape = part->info.shape;
        shape[0] = whole.info.shape[0];
        if (part->info.dtype != whole.info.dtype || shape != whole.info.shape) return;
        whole.info.shape[0] += part->info.shape[0];
        whole.pieces.push_back({part->pieces[0].source, 0, part->info.elements()});
      }
      whole.info.name = layer_ + recut.whole + kind;
      for (const std::string& name : recut.parts) Replace(name + kind, {});
      views_.push_back(std::move(whole));
    }
  }

  // The stored experts of a layer under one of the usual names, or null.
  const TensorView* FindStack(const std::string& block, const std::string& name,
                              std::string* found) {
    for (const char* group : {".experts.", ".switch_mlp."}) {
      for (const char* end : {"", ".weight"}) {
        *found = block + group + name + end;
        const TensorView* stack = Find(*found);
        if (stack != nullptr && stack->info.shape.size() == 3) return stack;
      }
    }
    return nullptr;
  }

  void CutExperts(const PerLinear<std::string>& names, const PerLinear<LinearShape>& shapes) {
    if (Find(names.down[0] + ".weight") != nullptr) return;
    const std::string router = RouterName(config_);
    const std::string block = router.substr(0, router.rfind('.'));
    const std::int64_t f = shapes.down[0].in;
    const std::int64_t d = shapes.down[0].out;
    // names.gate_up: gate 0, up 0, gate 1 ...
    std::vector<std::string> gate;
    std::vector<std::string> up;
    for (std::size_t i = 0; i < names.gate_up.size(); i += 2) {
      gate.push_back(names.gate_up[i]);
      up.push_back(names.gate_up[i + 1]);
    }
    const auto last = [](const std::string& path) { return path.substr(path.rfind('.') + 1); };
    std::string found;
    std::optional<bool> transposed;
    // Both matrices of a file have one layout; where hidden_size makes one of them square, the
    // other tells.
    const auto layout_of = [&](const TensorView& stack, std::int64_t out, std::int64_t in) {
      const std::vector<std::int64_t>& s = stack.info.shape;
      const bool rows_first = s[1] == out && s[2] == in;
      const bool columns_first = s[1] == in && s[2] == out;
      if (s[0] != config_.moe.num_experts || (!rows_first && !columns_first)) {
        ThrowInvalidInput(
            "tensor '{}' has shape [{}], config.json expects [{}, {}, {}] or [{}, {}, {}]",
            stack.info.name, fmt::join(s, ", "), config_.moe.num_experts, out, in,
            config_.moe.num_experts, in, out);
      }
      if (rows_first != columns_first) transposed = columns_first;
    };
    const TensorView* joined = FindStack(block, "gate_up_proj", &found);
    const std::string joined_name = found;
    const TensorView* down = FindStack(block, "down_proj", &found);
    if (down == nullptr) down = FindStack(block, last(names.down[0]), &found);
    const std::string down_name = found;
    if (joined != nullptr) layout_of(*joined, 2 * f, d);
    if (down != nullptr) layout_of(*down, d, f);
    const bool columns_first = transposed.value_or(false);
    if (joined != nullptr) {
      // Gate and up are halves of the rows, which are columns of a transposed matrix.
      const TensorView stack = *joined;
      Slice(stack, joined_name, gate, 2 * f, d, 0, f, columns_first);
      Slice(stack, joined_name, up, 2 * f, d, f, f, columns_first);
    } else {
      for (const auto& [linears, plain] :
           {std::pair(&gate, "gate_proj"), std::pair(&up, "up_proj")}) {
        const TensorView* stack = FindStack(block, plain, &found);
        if (stack == nullptr) stack = FindStack(block, last((*linears)[0]), &found);
        if (stack == nullptr) continue;
        layout_of(*stack, f, d);
        const TensorView copy = *stack;
        Slice(copy, found, *linears, f, d, 0, f, columns_first);
      }
    }
    if (down != nullptr) {
      const TensorView stack = *Find(down_name);
      Slice(stack, down_name, names.down, d, f, 0, d, columns_first);
    }
  }

  // Rows [first, first + rows) of each of the matrices (out, in) of a stack become linears.
  void Slice(const TensorView& stack, const std::string& name,
             const std::vector<std::string>& linears, std::int64_t out, std::int64_t in,
             std::int64_t first, std::int64_t rows, bool transposed) {
    std::vector<TensorView> parts;
    for (std::size_t e = 0; e < linears.size(); ++e) {
      const std::int64_t begin = static_cast<std::int64_t>(e) * out * in;
      TensorView part;
      part.info = {layer_ + linears[e] + ".weight", stack.info.dtype, {rows, in}};
      part.transposed = transposed;
      if (transposed) {
        part.pieces = {{stack.pieces[0].source, begin, out * in}};
        part.first_line = first;
      } else {
        part.pieces = {{stack.pieces[0].source, begin + first * in, rows * in}};
      }
      parts.push_back(std::move(part));
    }
    Replace(name, std::move(parts));
  }

  const DecoderConfig& config_;
  std::vector<TensorView>& views_;
  std::string prefix_;
  std::string layer_;
  std::map<std::string, std::size_t> numbers_;
  std::set<std::size_t> removed_;
};

// ---- 4 bits.

// The weights in 4 bits that layers do not read in this form: tables, routers, and what is in other
// pieces than their linears. Names are those of the file.
std::set<std::string> WeightsToDecode(const TensorReader& stored, const Renaming& renamed,
                                      const DecoderConfig& config) {
  std::set<std::string> decoded;
  if (!HoldsBnb(stored)) return decoded;
  std::set<std::string> names;
  for (const TensorInfo& tensor : stored.tensors()) names.insert(renamed(tensor.name));
  const auto place = EmbeddingAmong([&](const std::string& name) { return names.contains(name); });
  std::set<std::string> linears;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ForEachLinear(LayerTensors(config, l), [&](const LayerTensor& row, std::int64_t expert) {
      if (row.group == LinearGroup::kSideRouter || row.is_stacked) return;
      linears.insert(row.ModuleIn(place.prefix, l, expert) + ".weight");
    });
  }
  for (const TensorInfo& tensor : stored.tensors()) {
    const std::string name = renamed(tensor.name);
    const bool is_ours = SplitDecoderName(name) || name.ends_with("lm_head.weight");
    if (is_ours && !linears.contains(name) && HasQuantState(stored, tensor.name)) {
      decoded.insert(tensor.name);
    }
  }
  return decoded;
}

// ---- Spellings.

// Sets the names that this checkpoint has of those that its family may have.
void ChooseSpellings(const TensorReader& stored, DecoderConfig& config) {
  const auto has = [&](std::string_view modules) {
    return std::ranges::any_of(stored.tensors(), [&](const TensorInfo& tensor) {
      return ("." + tensor.name).find(fmt::format(".{}.", modules)) != std::string::npos;
    });
  };
  const Family& family = FamilyOf(config.model_type, "");
  config.names = SpelledNames(family, has);
  if (!family.may_lack_post_norms) return;
  config.post_norms = has(config.names.post_attn_norm) || has(config.names.post_mlp_norm);
}

// ---- The head.

// Rows [first, first + count) of a table as float32.
std::vector<float> RowsOf(const TensorReader& reader, const TensorInfo& table, std::int64_t first,
                          std::int64_t count) {
  const std::int64_t cols = table.shape[1];
  std::vector<float> values(static_cast<std::size_t>(count * cols));
  DecodeFloats(table.dtype,
               reader.Bytes(table).subspan(BytesOf(table.dtype, first * cols),
                                           BytesOf(table.dtype, count * cols)),
               values);
  return values;
}

bool AreEqual(const TensorReader& reader, const TensorInfo& a, const TensorInfo& b) {
  if (a.shape != b.shape || a.shape.size() != 2) return false;
  const std::int64_t cols = std::max<std::int64_t>(1, a.shape[1]);
  const std::int64_t step = std::max<std::int64_t>(1, (1 << 20) / cols);
  for (std::int64_t row = 0; row < a.shape[0]; row += step) {
    const std::int64_t count = std::min(step, a.shape[0] - row);
    // The same values may be stored in two types.
    if (RowsOf(reader, a, row, count) != RowsOf(reader, b, row, count)) return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<TensorReader> OpenStoredTensors(const std::filesystem::path& model_dir) {
  if (const auto gguf = FindGguf(model_dir)) return OpenGguf(*gguf);
  return OpenSafetensorsInPart(model_dir);
}

std::unique_ptr<TensorReader> OpenCheckpoint(const std::filesystem::path& model_dir,
                                             const DecoderConfig& config) {
  if (const auto gguf = FindGguf(model_dir)) return OpenGgufCheckpoint(OpenGguf(*gguf), config);
  std::unique_ptr<TensorReader> stored =
      WithMxfp4Blocks(WithDecodedFp8(OpenSafetensorsInPart(model_dir), config.fp8_blocks));
  CheckSavedBy(*stored, config, model_dir);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : stored->tensors()) names.push_back(tensor.name);
  for (const UnreadTensor& tensor : stored->unread()) names.push_back(tensor.name);
  CheckMerged(names, model_dir);
  const Renaming renamed(names, config);
  const std::set<std::string> to_decode = WeightsToDecode(*stored, renamed, config);
  stored = WithDecodedBnb(std::move(stored), to_decode);
  std::vector<TensorView> views;
  bool is_changed = false;
  for (const TensorInfo& tensor : stored->tensors()) {
    TensorView view{tensor, {{&tensor, 0, tensor.elements()}}};
    view.info.name = renamed(tensor.name);
    is_changed = is_changed || view.info.name != tensor.name;
    views.push_back(std::move(view));
  }
  if (config.moe.is_joined) {
    const auto place = EmbeddingAmong([&](const std::string& name) {
      return std::ranges::any_of(views,
                                 [&](const TensorView& view) { return view.info.name == name; });
    });
    CutJoinedExperts(config, place.prefix, views);
    is_changed = true;
  }
  is_changed = Cutter(config, views).Run() || is_changed;
  // A checkpoint as transformers writes it needs no views.
  if (!is_changed) return stored;
  std::vector<UnreadTensor> unread = stored->unread();
  for (UnreadTensor& tensor : unread) tensor.name = renamed(tensor.name);
  return std::make_unique<TensorViews>(std::move(stored), std::move(views), std::move(unread));
}

std::string DecoderPrefix(const TensorReader& reader) {
  const auto has = [&](const std::string& name) { return reader.Find(name) != nullptr; };
  return EmbeddingAmong(has).prefix;
}

std::string EmbeddingName(const TensorReader& reader) {
  const auto has = [&](const std::string& name) { return reader.Find(name) != nullptr; };
  return EmbeddingAmong(has).name;
}

std::string HeadName(const TensorReader& reader) {
  // A multimodal checkpoint keeps the head next to its language model.
  const std::string nested = "language_model.lm_head.weight";
  return reader.Find(nested) != nullptr ? nested : "lm_head.weight";
}

bool HoldsOwnHead(const TensorReader& reader) {
  const TensorInfo* head = reader.Find(HeadName(reader));
  const TensorInfo* embedding = reader.Find(EmbeddingName(reader));
  if (head == nullptr || embedding == nullptr) return false;
  // Leftovers of other programs, such as packed integers, are no head.
  if (!IsFloat(head->dtype) || !IsFloat(embedding->dtype)) return false;
  const bool equal = AreEqual(reader, *head, *embedding);
  reader.Release(*head);
  reader.Release(*embedding);
  return !equal;
}

DecoderConfig LoadDecoderConfig(const std::filesystem::path& model_dir) {
  if (const auto gguf = FindGguf(model_dir)) return ParseGgufConfig(*OpenGguf(*gguf));
  const std::filesystem::path path = model_dir / "config.json";
  DecoderConfig config = ParseDecoderConfig(ReadJsonFile(path), path.string());
  const bool has_spellings = HasSpellings(FamilyOf(config.model_type, ""));
  const bool is_tied = config.tie_word_embeddings;
  if ((!is_tied && !has_spellings) || !HoldsModel(model_dir)) return config;
  try {
    if (has_spellings) ChooseSpellings(*OpenStoredTensors(model_dir), config);
    config.has_own_head = is_tied && HoldsOwnHead(*OpenCheckpoint(model_dir, config));
  } catch (const Error& error) {
    // A checkpoint that cannot be opened is reported by whoever needs the weights.
    if (error.code() != ErrorCode::kInvalidInput) throw;
  }
  config.tie_word_embeddings = is_tied && !config.has_own_head;
  return config;
}

}  // namespace qlora
