#include "model/joined_experts.h"

#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "model/linear_shapes.h"

namespace qlora {
namespace {

class Cutter {
 public:
  Cutter(const DecoderConfig& config, std::vector<TensorView>& views)
      : config_(config), experts_(config.moe.num_experts) {
    for (TensorView& view : views) {
      const std::string name = view.info.name;
      if (views_.emplace(name, std::move(view)).second) continue;
      ThrowInvalidInput("the checkpoint holds tensor '{}' twice", name);
    }
  }

  void Layer(const std::string& layer, std::int64_t l) {
    const PerLinear<std::string> names = LinearNames(config_, l);
    const std::int64_t f = config_.layer(l).intermediate_size;
    const std::int64_t d = config_.hidden_size;
    const std::string stem = fmt::format("{}{}.experts.", layer, config_.names.mlp);
    for (std::int64_t e = 0; e < experts_; ++e) {
      const std::string gate = layer + names.gate_up[2 * e];
      const std::string up = layer + names.gate_up[2 * e + 1];
      const std::string down = layer + names.down[e];
      Weight(stem + "gate_up_proj", e, {2 * f, d}, 2, {gate, up});
      Bias(stem + "gate_up_proj_bias", e, 2 * f, 2, {gate, up});
      Weight(stem + "down_proj", e, {d, f}, 1, {down});
      Bias(stem + "down_proj_bias", e, d, 1, {down});
      Apart(stem + "gate_proj", e, {f, d}, gate);
      Apart(stem + "up_proj", e, {f, d}, up);
      Apart(stem + "down_proj", e, {d, f}, down);
    }
  }

  std::vector<TensorView> Take() {
    for (const std::string& name : used_) views_.erase(name);
    std::vector<TensorView> views;
    for (auto& [name, view] : views_) views.push_back(std::move(view));
    return views;
  }

 private:
  const TensorView* Use(const std::string& name) {
    const auto found = views_.find(name);
    if (found == views_.end()) return nullptr;
    used_.push_back(name);
    return &found->second;
  }

  void Expect(const TensorView& view, const std::vector<std::int64_t>& shape) const {
    if (view.info.shape == shape) return;
    ThrowInvalidInput("tensor '{}' has shape [{}], config.json expects [{}]", view.info.name,
                      fmt::join(view.info.shape, ", "), fmt::join(shape, ", "));
  }

  // Rows `first`, first + step ... of the matrix of expert e become the linear `path`, for each of
  // the paths. A parameter that is missing is found missing by who reads its linears.
  void Weight(const std::string& name, std::int64_t e, const LinearShape& shape, std::int64_t step,
              const std::vector<std::string>& paths) {
    const std::int64_t size = shape.out * shape.in;
    const TensorView* matrix = Use(fmt::format("{}.{}", name, e));
    const bool transposed = matrix == nullptr;
    if (transposed) matrix = Use(name);
    if (matrix == nullptr) return;
    if (transposed) {
      Expect(*matrix, {experts_, shape.in, shape.out});
    } else {
      Expect(*matrix, {shape.out, shape.in});
    }
    for (std::size_t i = 0; i < paths.size(); ++i) {
      Add({.info = {paths[i] + ".weight", matrix->info.dtype, {shape.out / step, shape.in}},
           .pieces = {{matrix->pieces[0].source, transposed ? e * size : 0, size}},
           .transposed = transposed,
           .first_line = static_cast<std::int64_t>(i),
           .line_step = step});
    }
  }

  // Matrix e of a stack of one linear's, as mlx-lm has them.
  void Apart(const std::string& name, std::int64_t e, const LinearShape& shape,
             const std::string& path) {
    Bias(name + ".bias", e, shape.out, 1, {path});
    const TensorView* stack = Use(name + ".weight");
    if (stack == nullptr) return;
    Expect(*stack, {experts_, shape.out, shape.in});
    const std::int64_t size = shape.out * shape.in;
    Add({.info = {path + ".weight", stack->info.dtype, {shape.out, shape.in}},
         .pieces = {{stack->pieces[0].source, e * size, size}}});
  }

  void Bias(const std::string& name, std::int64_t e, std::int64_t size, std::int64_t step,
            const std::vector<std::string>& paths) {
    const TensorView* biases = Use(name);
    if (biases == nullptr) return;
    Expect(*biases, {experts_, size});
    for (std::size_t i = 0; i < paths.size(); ++i) {
      Add({.info = {paths[i] + ".bias", biases->info.dtype, {size / step}},
           .pieces = {{biases->pieces[0].source, e * size, size}},
           .first_line = static_cast<std::int64_t>(i),
           .line_step = step});
    }
  }

  void Add(TensorView view) {
    const std::string name = view.info.name;
    if (views_.emplace(name, std::move(view)).second) return;
    ThrowInvalidInput("the checkpoint has '{}' alone and as a part of the experts of its layer",
                      name);
  }

  const DecoderConfig& config_;
  std::int64_t experts_;
  std::map<std::string, TensorView> views_;
  std::vector<std::string> used_;
};

}  // namespace

void CutJoinedExperts(const DecoderConfig& config, const std::string& prefix,
                      std::vector<TensorView>& views) {
  Cutter cutter(config, views);
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    cutter.Layer(fmt::format("{}layers.{}.", prefix, l), l);
  }
  views = cutter.Take();
}

}  // namespace qlora
