// Draws a layout in which a program may save a checkpoint, and stores a model plainly and so.
#ifndef QLORA_TESTS_MODEL_LAYOUT_REWRITER_H_
#define QLORA_TESTS_MODEL_LAYOUT_REWRITER_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/matrix.h"
#include "io/bnb.h"
#include "io/fp8.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/checkpoint.h"
#include "model/module_spellings.h"
#include "model/tensor_list.h"
#include "qlora/nf4.h"

namespace qlora {

// An element of a tensor of the plain checkpoint.
struct Place {
  const std::string* tensor = nullptr;
  std::int64_t element = 0;
};
// A tensor in the layout: where its elements are in the plain checkpoint.
struct Laid {
  std::vector<std::int64_t> shape;
  std::vector<Place> places;
};
using Layout = std::map<std::string, Laid>;

class Rewriter {
 public:
  Rewriter(const Json& json, unsigned seed) : json_(json), config_(Parse(json)), random_(seed) {
    for (const DecoderTensor& row : DecoderTensors(config_)) {
      if (row.is_head() && config_.tie_word_embeddings) continue;
      AddPlain(row, (row.is_head() ? "" : "model.") + row.name);
    }
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      for (const LayerTensor& row : LayerTensors(config_, l)) {
        if (row.kind != TensorKind::kLinear) {
          AddPlain(row, row.TensorIn("model.", l));
          continue;
        }
        for (std::int64_t e = 0; e < row.matrices(); ++e) {
          const std::string path = row.ModuleIn("model.", l, e);
          AddPlain(row, path + ".weight");
          if (row.has_bias) Add(path + ".bias", {row.shape.out});
        }
      }
    }
    // As the class has them.
    if (config_.moe.is_joined) Experts("published");
    plain_layout_ = layout_;
  }

  const std::string& story() const { return story_; }

  // Draws a layout.
  void Rewrite() {
    if (config_.moe.is_joined) {
      layout_ = separate_;
      Experts(Choice({"published", "unsloth", "mlx"}));
    } else if (config_.moe.num_experts > 0 && Coin()) {
      Experts(Choice({"fused", "transposed", "switch_mlp"}));
    }
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      for (const RecutLinear& recut : RecutLinears(config_, l)) {
        if (!config_.moe.is_joined && recut.parts.size() > 1 && Coin()) Recut(l, recut);
      }
    }
    Prefix(Choice({"model.", "", "module.model.", "model.language_model.", "language_model.model.",
                   "transformer.", "_orig_mod.model.", "text_model."}));
    Leftovers();
  }

  // Writes both checkpoints with new values.
  void Write(const std::filesystem::path& plain, const std::filesystem::path& rewritten) {
    for (const auto& [name, laid] : plain_layout_) {
      for (const Place& place : laid.places) Value(place) = Uniform();
    }
    Json json = json_;
    const std::string form = Choice({"f32", "fp8", "bnb"});
    story_ += " " + form;
    if (form == "fp8") {
      fp8_ = {1 + Draw(15), 1 + Draw(15)};
      json["quantization_config"] = {{"quant_method", "fp8"}};
      // Otherwise only blocks of a power of two, or an even division, can be told.
      json["quantization_config"]["weight_block_size"] = {fp8_.rows, fp8_.cols};
      scale_name_ = Choice({"_scale_inv", "_scale"});
    }
    std::vector<TensorInfo> infos;
    std::vector<std::vector<std::byte>> bytes;
    const auto add = [&](TensorInfo info, std::span<const std::byte> data) {
      infos.push_back(std::move(info));
      bytes.emplace_back(data.begin(), data.end());
    };
    for (const auto& [name, laid] : layout_) {
      const bool is_matrix =
          laid.shape.size() >= 2 && laid.shape.back() > 1 && laid.shape[laid.shape.size() - 2] > 1;
      if (form == "fp8" && is_matrix && name.find("embed") == std::string::npos && Coin()) {
        StoreFp8(name, laid, add);
      } else if (form == "bnb" && is_matrix && Coin()) {
        StoreBnb(name, laid, add);
      } else {
        std::vector<float> values;
        for (const Place& place : laid.places)
          values.push_back(place.tensor == nullptr ? 0 : Value(place));
        add({name, DType::kF32, laid.shape}, std::as_bytes(std::span(values)));
      }
    }
    WriteFolder(rewritten, json, infos, bytes);
    infos.clear();
    bytes.clear();
    for (const auto& [name, laid] : plain_layout_) {
      std::vector<float> values;
      for (const Place& place : laid.places) values.push_back(Value(place));
      add({name, DType::kF32, laid.shape}, std::as_bytes(std::span(values)));
    }
    WriteFolder(plain, json_, infos, bytes);
  }

 private:
  static DecoderConfig Parse(const Json& json) { return ParseDecoderConfig(json, "config.json"); }

  std::int64_t Draw(std::int64_t below) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint32_t>(below));
  }
  bool Coin() { return Draw(2) == 0; }
  float Uniform() { return static_cast<float>(Draw(2001) - 1000) / 1024.0f; }
  std::string Choice(const std::vector<std::string>& of) { return of[Draw(std::ssize(of))]; }
  float& Value(const Place& place) { return values_[*place.tensor][place.element]; }

  void AddPlain(const ListedTensor& row, const std::string& name) {
    std::vector<std::int64_t> shape = {row.shape.out, row.shape.in};
    if (row.kind == TensorKind::kConv) shape = {row.shape.out, 1, row.shape.in};
    if (row.kind != TensorKind::kLinear && row.kind != TensorKind::kTable &&
        row.kind != TensorKind::kConv) {
      shape = {row.shape.out * row.shape.in};
    }
    Add(name, std::move(shape));
  }

  void Add(const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    const std::string& key = values_.emplace(name, std::vector<float>(count)).first->first;
    Laid laid{std::move(shape), {}};
    for (std::int64_t i = 0; i < count; ++i) laid.places.push_back({&key, i});
    layout_[name] = laid;
    separate_[name] = std::move(laid);
  }

  Laid Take(const std::string& name) {
    Laid laid = std::move(layout_.at(name));
    layout_.erase(name);
    return laid;
  }

  // ---- Pieces.

  // Rows of several tensors as one, one after the other or in turn.
  static Laid Rows(const std::vector<Laid>& parts, bool in_turn) {
    Laid out{parts[0].shape, {}};
    out.shape[0] = 0;
    for (const Laid& part : parts) out.shape[0] += part.shape[0];
    if (!in_turn) {
      for (const Laid& part : parts) {
        out.places.insert(out.places.end(), part.places.begin(), part.places.end());
      }
      return out;
    }
    const std::int64_t width = std::ssize(parts[0].places) / parts[0].shape[0];
    for (std::int64_t row = 0; row < parts[0].shape[0]; ++row) {
      for (const Laid& part : parts) {
        const auto begin = part.places.begin() + row * width;
        out.places.insert(out.places.end(), begin, begin + width);
      }
    }
    return out;
  }

  static Laid Turned(const Laid& matrix) {
    Laid out{{matrix.shape[1], matrix.shape[0]}, {}};
    for (std::int64_t c = 0; c < matrix.shape[1]; ++c) {
      for (std::int64_t r = 0; r < matrix.shape[0]; ++r) {
        out.places.push_back(matrix.places[r * matrix.shape[1] + c]);
      }
    }
    return out;
  }

  static Laid Stack(const std::vector<Laid>& parts) {
    Laid out{{std::ssize(parts)}, {}};
    out.shape.insert(out.shape.end(), parts[0].shape.begin(), parts[0].shape.end());
    for (const Laid& part : parts) {
      out.places.insert(out.places.end(), part.places.begin(), part.places.end());
    }
    return out;
  }

  void Recut(std::int64_t l, const RecutLinear& recut) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    for (const char* kind : {".weight", ".bias"}) {
      if (recut.is_cut()) {
        if (!layout_.contains(layer + recut.parts[0] + kind)) continue;
        std::vector<Laid> parts;
        for (const std::string& part : recut.parts) parts.push_back(Take(layer + part + kind));
        layout_[layer + recut.whole + kind] = Rows(parts, recut.in_turn);
      } else if (layout_.contains(layer + recut.whole + kind)) {
        Cut(Take(layer + recut.whole + kind), layer, recut, kind);
      }
    }
    story_ += " " + recut.whole;
  }

  // Into q, k and v of 16, 8 and 8 rows, or halves.
  void Cut(const Laid& whole, const std::string& layer, const RecutLinear& recut,
           const char* kind) {
    const std::int64_t all = whole.shape[0];
    std::vector<std::int64_t> rows(recut.parts.size(), all / std::ssize(recut.parts));
    if (rows.size() == 3) rows = {all / 2, all / 4, all / 4};
    const std::int64_t width = std::ssize(whole.places) / all;
    auto begin = whole.places.begin();
    for (std::size_t p = 0; p < rows.size(); ++p) {
      Laid part{whole.shape, {begin, begin + rows[p] * width}};
      part.shape[0] = rows[p];
      begin += rows[p] * width;
      layout_[layer + recut.parts[p] + kind] = std::move(part);
    }
  }

  void Experts(const std::string& form) {
    story_ += " " + form;
    for (std::int64_t l = 0; l < config_.num_hidden_layers; ++l) {
      if (config_.has_experts(l)) ExpertsOf(l, form);
    }
  }

  void ExpertsOf(std::int64_t l, const std::string& form) {
    const std::string mlp = fmt::format("model.layers.{}.{}.", l, config_.names.mlp);
    std::map<std::string, std::vector<Laid>> all;  // by linear and kind
    for (std::int64_t e = 0; e < config_.moe.num_experts; ++e) {
      for (const std::string_view linear :
           {config_.names.gate, config_.names.up, config_.names.down}) {
        for (const char* kind : {".weight", ".bias"}) {
          const std::string name = fmt::format("{}experts.{}.{}{}", mlp, e, linear, kind);
          if (layout_.contains(name)) all[std::string(linear) + kind].push_back(Take(name));
        }
      }
    }
    const std::string gate(config_.names.gate);
    const std::string up(config_.names.up);
    const std::string down(config_.names.down);
    const bool in_turn = config_.moe.is_joined;
    for (const char* kind : {".weight", ".bias"}) {
      if (!all.contains(gate + kind)) continue;
      const bool is_bias = std::string(kind) == ".bias";
      std::vector<Laid> both;
      for (std::size_t e = 0; e < all[gate + kind].size(); ++e) {
        both.push_back(Rows({all[gate + kind][e], all[up + kind][e]}, in_turn));
      }
      const auto put = [&](const std::string& name, std::vector<Laid> matrices, bool turns) {
        for (Laid& matrix : matrices) {
          if (turns && !is_bias) matrix = Turned(matrix);
        }
        layout_[mlp + name] = Stack(matrices);
      };
      const std::string suffix = is_bias ? "_bias" : "";
      if (form == "published" || form == "transposed" || form == "fused") {
        put("experts.gate_up_proj" + suffix, both, form != "fused");
        put("experts.down_proj" + suffix, all[down + kind], form != "fused");
      } else if (form == "unsloth") {
        for (std::size_t e = 0; e < both.size(); ++e) {
          layout_[fmt::format("{}experts.gate_up_projs.{}{}", mlp, e, kind)] = both[e];
          layout_[fmt::format("{}experts.down_projs.{}{}", mlp, e, kind)] = all[down + kind][e];
        }
      } else {
        const std::string group = form == "mlx" ? "experts." : "switch_mlp.";
        put(group + "gate_proj" + kind, all[gate + kind], false);
        put(group + "up_proj" + kind, all[up + kind], false);
        put(group + "down_proj" + kind, all[down + kind], false);
      }
    }
    if (form != "unsloth") return;
    for (const char* kind : {"weight", "bias"}) {
      layout_[mlp + "router.linear." + kind] = Take(mlp + "router." + kind);
    }
  }

  // ---- Names.

  void Prefix(const std::string& prefix) {
    story_ += " '" + prefix + "'";
    Layout renamed;
    for (auto& [name, laid] : layout_) {
      const bool is_decoder = name.starts_with("model.");
      std::string head = prefix.starts_with("language_model.") ? "language_model." : "";
      if (prefix.ends_with("mod.model.")) head = "_orig_mod.";
      renamed[is_decoder ? prefix + name.substr(6) : head + name] = std::move(laid);
    }
    layout_ = std::move(renamed);
  }

  // What models have beside the decoder.
  void Leftovers() {
    for (const char* name : {"mtp.fc.weight", "model.visual.merger.weight", "kv_scale"}) {
      if (Coin()) layout_[name] = {{2}, std::vector<Place>(2)};
    }
  }

  // ---- Numbers.

  template <typename AddTensor>
  void StoreFp8(const std::string& name, const Laid& laid, const AddTensor& add) {
    const std::size_t dims = laid.shape.size();
    const std::int64_t rows = laid.shape[dims - 2];
    const std::int64_t cols = laid.shape[dims - 1];
    const std::int64_t matrices = std::ssize(laid.places) / (rows * cols);
    const std::int64_t kind = Draw(3);  // one scale, one for each row, blocks
    const std::int64_t block_rows = kind == 0 ? rows : kind == 1 ? 1 : fp8_.rows;
    const std::int64_t block_cols = kind < 2 ? cols : fp8_.cols;
    const std::int64_t down = (rows + block_rows - 1) / block_rows;
    const std::int64_t across = (cols + block_cols - 1) / block_cols;
    std::vector<std::int64_t> shape;
    if (dims == 3) shape.push_back(matrices);
    shape.push_back(down);
    shape.push_back(across);
    std::vector<float> scales(matrices * down * across);
    for (float& scale : scales) scale = 0.25f + static_cast<float>(Draw(100)) / 64.0f;
    std::vector<std::uint8_t> codes(laid.places.size());
    for (std::int64_t i = 0; i < std::ssize(codes); ++i) {
      codes[i] = static_cast<std::uint8_t>(Draw(2) * 128 + Draw(127));
      const std::int64_t row = i / cols % rows;
      const std::int64_t block = row / block_rows * across + i % cols / block_cols;
      const float scale = scales[i / (rows * cols) * down * across + block];
      Value(laid.places[i]) = FromE4M3(codes[i]) * scale;
    }
    add({name, Float8::kE4M3, laid.shape}, std::as_bytes(std::span(codes)));
    add({name + scale_name_, DType::kF32, shape}, std::as_bytes(std::span(scales)));
  }

  template <typename AddTensor>
  void StoreBnb(const std::string& name, const Laid& laid, const AddTensor& add) {
    const std::int64_t cols = laid.shape.back();
    const std::int64_t rows = std::ssize(laid.places) / cols;
    std::vector<float> values;
    for (const Place& place : laid.places) values.push_back(Value(place));
    QuantizeOptions options;
    options.scale_type = Coin() ? ScaleType::kDoubleBnb : ScaleType::kF32;
    Context context(1);
    const QuantizedMatrix matrix = Quantize(context, MakeView(values.data(), rows, cols), options);
    Dequantize(context, matrix.view(), MakeView(values.data(), rows, cols));
    for (std::size_t i = 0; i < values.size(); ++i) Value(laid.places[i]) = values[i];
    const BnbLayout layout{.type = options.type,
                           .dtype = DType::kF32,
                           .shape = laid.shape,
                           .block_size = options.block_size,
                           .double_quant = options.scale_type == ScaleType::kDoubleBnb};
    Pieces pieces;
    WriteBnb(pieces, layout, matrix.view());
    std::vector<TensorInfo> infos = BnbTensors(name, layout);
    for (std::size_t i = 0; i < infos.size(); ++i) {
      if (infos[i].upper_bound) infos[i].shape = {std::ssize(pieces.bytes[i])};
      infos[i].upper_bound = false;
      add(infos[i], pieces.bytes[i]);
    }
  }

  // Keeps what is written.
  struct Pieces : TensorWriter {
    void Write(std::span<const std::byte> data) override {
      bytes.emplace_back(data.begin(), data.end());
    }
    void Shrink(std::int64_t) override {}
    void Finish() override {}
    std::vector<std::vector<std::byte>> bytes;
  };

  static void WriteFolder(const std::filesystem::path& dir, const Json& json,
                          const std::vector<TensorInfo>& infos,
                          const std::vector<std::vector<std::byte>>& bytes) {
    std::filesystem::create_directories(dir);
    WriteTextFile(dir / "config.json", json.dump());
    const auto writer = CreateSafetensors(dir / "model.safetensors", infos, {});
    for (const std::vector<std::byte>& data : bytes) writer->Write(data);
    writer->Finish();
  }

  Json json_;
  DecoderConfig config_;
  std::mt19937 random_;
  std::map<std::string, std::vector<float>> values_;  // of the plain checkpoint's pieces
  Layout separate_;                                   // each linear alone
  Layout plain_layout_;
  Layout layout_;
  Fp8Blocks fp8_;
  std::string scale_name_;
  std::string story_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_MODEL_LAYOUT_REWRITER_H_
