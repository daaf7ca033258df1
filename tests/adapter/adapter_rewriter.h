// Draws an adapter and a layout in which a trainer may save it, and tells the changes that it
// makes.
#ifndef QLORA_TESTS_ADAPTER_ADAPTER_REWRITER_H_
#define QLORA_TESTS_ADAPTER_ADAPTER_REWRITER_H_

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "config/config.h"
#include "io/json.h"
#include "io/safetensors_writer.h"
#include "model/module_spellings.h"
#include "model/tensor_list.h"

namespace qlora::rewriting {

// A change (out, in).
struct Change {
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::vector<double> values = {};
};
using Changes = std::map<std::string, Change>;  // by path

struct Matrix {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// A random adapter of a model in a random layout.
class AdapterRewriter {
 public:
  AdapterRewriter(const DecoderConfig& config, unsigned seed) : config_(config), random_(seed) {
    rank_ = 1 + Draw(3);
    alpha_ = static_cast<double>(1 + Draw(8));
    is_rslora_ = Coin();
    prefix_ = Choice({"model.", "model.language_model.", "language_model.model.", ""});
    has_adapter_name_ = Coin();
    has_own_ranks_ = Coin();
    is_plain_ = Coin();
    is_bare_ = Coin();
    bias_ = Choice({"none", "all", "lora_only"});
    experts_ =
        Choice(config.moe.is_joined ? std::vector<std::string>{"stack", "unsloth"}
               : config.moe.num_experts > 0
                   ? std::vector<std::string>{"apart", "equal", "stack", "exchanged", "halves"}
                   : std::vector<std::string>{"none"});
    if (experts_ == "apart" && Coin()) experts_ = "named";
    for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) Layer(l);
    story_ = fmt::format("{} experts, prefix '{}', rank {}{}", experts_, prefix_, rank_, story_);
  }

  const Changes& changes() const { return changes_; }
  const Changes& routers() const { return routers_; }
  const std::map<std::string, std::vector<float>>& norms() const { return norms_; }
  const std::string& story() const { return story_; }
  // Gate and up of an expert have one A, which no other form can hold.
  bool shares_a() const { return experts_ == "stack" || experts_ == "exchanged"; }

  void Write(const std::filesystem::path& dir) const {
    std::vector<TensorInfo> infos;
    for (const auto& [name, matrix] : tensors_) infos.push_back({name, DType::kF32, matrix.shape});
    const auto writer = CreateSafetensors(dir / "adapter_model.safetensors", infos, {});
    for (const auto& [name, matrix] : tensors_)
      writer->Write(std::as_bytes(std::span(matrix.values)));
    writer->Finish();
    Json json = {{"peft_type", "LORA"},
                 {"r", rank_},
                 {"lora_alpha", alpha_},
                 {"use_rslora", is_rslora_},
                 {"target_modules", targets_},
                 {"rank_pattern", ranks_},
                 {"alpha_pattern", alphas_},
                 {"modules_to_save", saved_},
                 {"bias", bias_}};
    if (!parameters_.empty()) json["target_parameters"] = parameters_;
    WriteTextFile(dir / "adapter_config.json", json.dump());
  }

 private:
  std::int64_t Draw(std::int64_t below) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint32_t>(below));
  }
  bool Coin() { return Draw(2) == 0; }
  std::string Choice(const std::vector<std::string>& of) { return of[Draw(std::ssize(of))]; }
  std::vector<float> Values(std::int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(Draw(2001) - 1000) / 1024.0f;
    return values;
  }
  double ScaleOf(std::int64_t rank, double alpha) const {
    return alpha / (is_rslora_ ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
  }

  static Change Product(const Matrix& a, const Matrix& b, double scale) {
    const std::int64_t rank = a.shape[0];
    Change change{b.shape[0], a.shape[1], std::vector<double>(b.shape[0] * a.shape[1])};
    for (std::int64_t y = 0; y < change.out; ++y) {
      for (std::int64_t r = 0; r < rank; ++r) {
        for (std::int64_t x = 0; x < change.in; ++x) {
          change.values[y * change.in + x] +=
              scale * double{b.values[y * rank + r]} * a.values[r * change.in + x];
        }
      }
    }
    return change;
  }

  std::string Spelled(const std::string& path) const { return prefix_ + path.substr(6); }
  std::string Stored(const std::string& path) const {
    return (is_bare_ ? "" : "base_model.model.") + Spelled(path);
  }

  void Store(const std::string& path, const Matrix& a, const Matrix& b) {
    const std::string name = Stored(path);
    const char* const end = has_adapter_name_ ? ".default.weight" : ".weight";
    tensors_[name + ".lora_A" + end] = a;
    tensors_[name + ".lora_B" + end] = b;
  }

  struct Rank {
    std::int64_t rank;
    double alpha;
  };
  // Of a module, or of all experts of a layer.
  Rank OwnRank() { return {1 + Draw(4), static_cast<double>(1 + Draw(8))}; }

  // A LoRA of a module of the file, whose rank may be its own.
  Change Module(const std::string& path, std::int64_t out, std::int64_t in) {
    return Module(path, out, in, Draw(4) == 0 ? OwnRank() : Rank{rank_, alpha_});
  }

  Change Module(const std::string& path, std::int64_t out, std::int64_t in, const Rank& own) {
    const auto [rank, alpha] = own;
    SetRank(Spelled(path), own);
    targets_.push_back(Spelled(path));
    const Matrix a{{rank, in}, Values(rank * in)};
    const Matrix b{{out, rank}, Values(out * rank)};
    Store(path, a, b);
    return Product(a, b, ScaleOf(rank, alpha));
  }

  void SetRank(const std::string& pattern, const Rank& own) {
    if (own.rank != rank_) ranks_[pattern] = own.rank;
    if (own.alpha != alpha_) alphas_[pattern] = own.alpha;
  }

  void Layer(std::int64_t l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    std::map<std::string, LinearShape> linears;  // that are not adapted yet
    ForEachPair(LinearNames(config_, l), ShapeLinears(config_, l),
                [&](const std::string& name, const LinearShape& shape) {
                  const bool is_expert = name.find(".experts.") != std::string::npos;
                  // By names alone, which reach no parameter.
                  if (is_expert && experts_ == "named") targets_.push_back(name);
                  if (is_expert && experts_ != "apart") return;
                  linears[name] = shape;
                });
    if (experts_ == "equal") EqualExperts(l);
    if (config_.has_experts(l)) {
      if (experts_ == "stack" || experts_ == "exchanged" || experts_ == "halves") Stacks(l);
      if (experts_ == "unsloth") Unsloth(l);
      Router(l);
    }
    for (const RecutLinear& recut : RecutLinears(config_, l)) {
      const bool is_expert = recut.whole.find("experts") != std::string::npos;
      if (is_expert || Coin()) continue;
      if (recut.is_cut() ? Whole(layer, recut, linears) : Parts(layer, recut, linears)) {
        story_ += " " + recut.whole;
      }
    }
    for (const auto& [name, shape] : linears) {
      if (!is_plain_ && bias_ != "none") Bias(layer + name, shape.out);
      if (Draw(5) == 0) continue;
      changes_[layer + name] = Module(layer + name, shape.out, shape.in);
    }
    if (!is_plain_ && Coin()) Norm(layer + std::string(config_.names.input_norm));
  }

  // A LoRA for each expert, of one rank for gate and up of a layer, and of one for down; some
  // layers have none.
  void EqualExperts(std::int64_t l) {
    std::map<bool, Rank> ranks;  // of down or not
    std::map<bool, bool> has;
    for (const bool down : {false, true}) {
      ranks[down] = has_own_ranks_ ? OwnRank() : Rank{rank_, alpha_};
      has[down] = Draw(5) > 0;
    }
    ForEachPair(LinearPaths(config_, l), ShapeLinears(config_, l),
                [&](const std::string& path, const LinearShape& shape) {
                  const bool down = path.ends_with(config_.names.down);
                  if (path.find(".experts.") == std::string::npos || !has[down]) return;
                  changes_[path] = Module(path, shape.out, shape.in, ranks[down]);
                });
  }

  // One LoRA in the place of several.
  bool Whole(const std::string& layer, const RecutLinear& recut,
             std::map<std::string, LinearShape>& linears) {
    std::int64_t all = 0;
    for (std::size_t p = 0; p < recut.parts.size(); ++p) {
      if (!linears.contains(recut.parts[p])) return false;
      all += recut.rows[p];
    }
    const std::int64_t in = linears[recut.parts[0]].in;
    const Change whole = Module(layer + recut.whole, all, in);
    std::int64_t row = 0;
    for (std::size_t p = 0; p < recut.parts.size(); ++p) {
      const auto begin = whole.values.begin() + row * in;
      changes_[layer + recut.parts[p]] = {recut.rows[p], in, {begin, begin + recut.rows[p] * in}};
      row += recut.rows[p];
      linears.erase(recut.parts[p]);
    }
    return true;
  }

  // Several LoRAs in the place of one; some may lack.
  bool Parts(const std::string& layer, const RecutLinear& recut,
             std::map<std::string, LinearShape>& linears) {
    const auto found = linears.find(recut.whole);
    if (found == linears.end()) return false;
    const auto [out, in] = found->second;
    linears.erase(found);
    std::vector<std::int64_t> rows(recut.parts.size(), out / std::ssize(recut.parts));
    if (rows.size() == 3) {
      const bool attends = recut.whole.starts_with("self_attn");
      rows = attends ? std::vector<std::int64_t>{out / 2, out / 4, out / 4}
                     : std::vector<std::int64_t>{out / 4, out / 4, out / 2};
    }
    Change whole{out, in, std::vector<double>(out * in)};
    std::int64_t row = 0;
    const std::int64_t kept = Draw(std::ssize(rows));
    for (std::int64_t p = 0; p < std::ssize(rows); ++p) {
      if (p == kept || Coin()) {
        const Change part = Module(layer + recut.parts[p], rows[p], in);
        std::copy(part.values.begin(), part.values.end(), whole.values.begin() + row * in);
      }
      row += rows[p];
    }
    changes_[layer + recut.whole] = std::move(whole);
    return true;
  }

  void Norm(const std::string& path) {
    const std::string name = path + ".weight";
    if (!IsReplaceable(config_, name)) return;
    norms_[name] = Values(config_.hidden_size);
    tensors_[Stored(name)] = {{config_.hidden_size}, norms_[name]};
    if (Coin()) saved_.push_back(path.substr(path.rfind('.') + 1));
  }

  // PEFT keeps it under the name that its wrapper has, or that of the base.
  void Bias(const std::string& path, std::int64_t size) {
    const std::string name = path + ".bias";
    if (!IsReplaceable(config_, name)) return;
    norms_[name] = Values(size);
    const char* const end = Coin() ? ".base_layer.bias" : ".bias";
    tensors_[Stored(path) + end] = {{size}, norms_[name]};
  }

  void Router(std::int64_t l) {
    if (is_plain_ || Coin()) return;
    const std::string path = fmt::format("model.layers.{}.{}", l, RouterName(config_));
    const bool wrapped = experts_ == "unsloth";
    routers_[path + ".weight"] =
        Module(wrapped ? path + ".linear" : path, config_.moe.num_experts, config_.hidden_size);
  }

  void Unsloth(std::int64_t l) {
    const std::string mlp = fmt::format("model.layers.{}.mlp.experts.", l);
    const std::int64_t d = config_.hidden_size;
    const std::int64_t f = config_.layer(l).intermediate_size;
    for (std::int64_t e = 0; e < config_.moe.num_experts; ++e) {
      if (Draw(4) > 0) {
        const Change both = Module(fmt::format("{}gate_up_projs.{}", mlp, e), 2 * f, d);
        for (std::int64_t part = 0; part < 2; ++part) {
          Change& change =
              changes_[fmt::format("{}{}.{}", mlp, e, part == 0 ? "gate_proj" : "up_proj")];
          change = {f, d, {}};
          for (std::int64_t y = 0; y < f; ++y) {
            const auto row = both.values.begin() + (2 * y + part) * d;
            change.values.insert(change.values.end(), row, row + d);
          }
        }
      }
      changes_[fmt::format("{}{}.down_proj", mlp, e)] =
          Module(fmt::format("{}down_projs.{}", mlp, e), d, f);
    }
  }

  // The two parameters of a layer.
  void Stacks(std::int64_t l) {
    const std::string block = fmt::format("model.layers.{}.{}.", l, config_.names.mlp);
    const std::int64_t d = config_.hidden_size;
    const std::int64_t f = config_.layer(l).intermediate_size;
    for (const bool down : {false, true}) {
      const std::int64_t in = down ? f : d;
      const std::int64_t out = down ? d : 2 * f;
      const std::int64_t experts = config_.moe.num_experts;
      const bool halves = experts_ == "halves" && !down;
      const char* const parameter = down ? "down_proj" : "gate_up_proj";
      Rank own = has_own_ranks_ ? OwnRank() : Rank{rank_, alpha_};
      const std::int64_t half = own.rank;
      if (halves) own = {2 * own.rank, 2 * own.alpha};
      const auto [rank, alpha] = own;
      SetRank(has_own_ranks_ ? Spelled(fmt::format("{}experts.{}", block, parameter))
                             : fmt::format(R"(.*\.experts\.{})", parameter),
              own);
      if (l == config_.num_hidden_layers - 1) {
        parameters_.push_back(fmt::format("{}.experts.{}", config_.names.mlp, parameter));
      }
      Matrix all_a{{experts * rank, in}, {}};
      Matrix all_b{{out, experts * rank}, std::vector<float>(out * experts * rank)};
      for (std::int64_t e = 0; e < experts; ++e) {
        const Matrix a{{rank, in}, Values(rank * in)};
        Matrix b{{out, rank}, Values(out * rank)};
        for (std::int64_t y = 0; y < out; ++y) {
          for (std::int64_t r = 0; r < rank; ++r) {
            float& value = b.values[y * rank + r];
            if (halves && (y < f) != (r < half)) value = 0;
            all_b.values[y * experts * rank + r * experts + e] = value;
          }
        }
        all_a.values.insert(all_a.values.end(), a.values.begin(), a.values.end());
        const Change both = Product(a, b, ScaleOf(rank, alpha));
        const std::string expert = fmt::format("{}experts.{}.", block, e);
        if (down) {
          changes_[expert + std::string(config_.names.down)] = both;
          continue;
        }
        for (const bool second : {false, true}) {
          Change change{f, d, {}};
          for (std::int64_t y = 0; y < f; ++y) {
            const std::int64_t row = config_.moe.is_joined ? 2 * y + second : y + second * f;
            const auto begin = both.values.begin() + row * d;
            change.values.insert(change.values.end(), begin, begin + d);
          }
          changes_[expert + std::string(second ? config_.names.up : config_.names.gate)] = change;
        }
      }
      const std::string wrapper = block + "experts" + (down ? "" : ".base_layer");
      if (experts_ != "exchanged") {
        Store(wrapper, all_a, all_b);
        continue;
      }
      // A (E R, out), B (in, E R).
      Matrix other_a{{experts * rank, out}, std::vector<float>(experts * rank * out)};
      Matrix other_b{{in, experts * rank}, std::vector<float>(in * experts * rank)};
      for (std::int64_t e = 0; e < experts; ++e) {
        for (std::int64_t r = 0; r < rank; ++r) {
          for (std::int64_t y = 0; y < out; ++y) {
            other_a.values[(e * rank + r) * out + y] =
                all_b.values[y * experts * rank + r * experts + e];
          }
          for (std::int64_t x = 0; x < in; ++x) {
            other_b.values[x * experts * rank + r * experts + e] =
                all_a.values[(e * rank + r) * in + x];
          }
        }
      }
      Store(wrapper, other_a, other_b);
    }
  }

  const DecoderConfig& config_;
  std::mt19937 random_;
  std::int64_t rank_ = 1;
  double alpha_ = 1;
  bool is_rslora_ = false;
  bool has_adapter_name_ = false;
  bool has_own_ranks_ = false;  // of experts
  bool is_bare_ = false;        // names without "base_model.model."
  std::string bias_;
  bool is_plain_ = false;  // without norms and routers, which training does not write
  std::string prefix_;
  std::string experts_;
  std::string story_;
  std::map<std::string, Matrix> tensors_;
  std::vector<std::string> targets_;
  std::vector<std::string> parameters_;
  std::vector<std::string> saved_;
  std::map<std::string, std::int64_t> ranks_;
  std::map<std::string, double> alphas_;
  Changes changes_;
  Changes routers_;
  std::map<std::string, std::vector<float>> norms_;
};

}  // namespace qlora::rewriting

#endif  // QLORA_TESTS_ADAPTER_ADAPTER_REWRITER_H_
