#include "adapter/fitted_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "adapter/expert_stack.h"
#include "adapter/table_change.h"
#include "io/checkpoint_names.h"
#include "model/linear_shapes.h"

namespace qlora {
namespace {

class StackSplitter {
 public:
  explicit StackSplitter(FittedModules& modules)
      : modules_(modules), peft_(modules.peft()), decoder_(modules.decoder()) {}

  void Run() {
    if (decoder_.joins_experts()) return;
    for (const ExpertStack& stack : peft_.stacks) {
      if (!IsInBlocks(stack)) return;
    }
    for (const ExpertStack& stack : peft_.stacks) Split(stack);
    peft_.stacks.clear();
  }

 private:
  std::string PathOf(const ExpertStack& stack, std::int64_t expert, std::string_view name) const {
    return fmt::format("{}.{}.{}", ExpertsOf(stack), expert, name);
  }
  // As the decoder spells the module: Mixtral's class calls the block otherwise than its files.
  std::string ExpertsOf(const ExpertStack& stack) const {
    const auto place = PlaceInDecoder(stack.experts);
    if (!place) return stack.experts;
    return fmt::format("model.layers.{}.{}.experts", place->layer, decoder_.names.mlp);
  }

  // The first half of A and of the columns of B is of gate, the second of up, which have none of
  // the other's.
  bool IsInBlocks(const ExpertStack& stack) const {
    const std::int64_t experts = decoder_.experts().num_experts;
    if (experts < 1 || stack.a->shape.size() != 2 || stack.b->shape.size() != 2) return false;
    const auto place = PlaceInDecoder(stack.experts);
    if (!place || place->layer >= decoder_.num_hidden_layers ||
        !decoder_.has_experts(place->layer)) {
      return false;
    }
    const std::int64_t f = decoder_.layer(place->layer).intermediate_size;
    const std::int64_t in = stack.is_gate_up() ? decoder_.hidden_size : f;
    const std::int64_t out = stack.is_gate_up() ? 2 * f : decoder_.hidden_size;
    const std::int64_t columns = stack.b->shape[1];
    if (stack.a->shape != std::vector<std::int64_t>{columns, in} || stack.b->shape[0] != out ||
        columns % experts != 0) {
      return false;
    }
    if (!stack.is_gate_up()) return true;
    const std::int64_t rank = columns / experts;
    if (rank % 2 != 0) return false;
    const std::vector<float> b = FiniteValues(peft_, *stack.b);
    for (std::int64_t y = 0; y < out; ++y) {
      // Column i E + e.
      const std::int64_t half = columns / 2;
      const float* others = b.data() + y * columns + (y < f ? half : 0);
      if (std::any_of(others, others + half, [](float value) { return value != 0; })) return false;
    }
    return true;
  }

  void Split(const ExpertStack& stack) {
    const std::int64_t experts = decoder_.experts().num_experts;
    const std::int64_t columns = stack.b->shape[1];
    const std::int64_t rank = columns / experts;
    const std::int64_t in = stack.a->shape[1];
    const std::int64_t out = stack.b->shape[0];
    const std::vector<float> a = FiniteValues(peft_, *stack.a);
    const std::vector<float> b = FiniteValues(peft_, *stack.b);
    const ModuleNames& names = decoder_.names;
    const std::vector<std::string_view> linears =
        stack.is_gate_up() ? std::vector<std::string_view>{names.gate, names.up}
                           : std::vector<std::string_view>{names.down};
    const std::int64_t parts = std::ssize(linears);
    const double scale = ScaleOf(
        peft_.config,
        fmt::format("{}.0.{}", stack.experts, stack.is_gate_up() ? "gate_proj" : "down_proj"));
    for (std::int64_t e = 0; e < experts; ++e) {
      for (std::int64_t p = 0; p < parts; ++p) {
        LoraPair pair{.in = in, .out = out / parts, .rank = rank / parts, .scale = scale};
        const std::int64_t first = p * pair.rank;
        const auto rows = a.begin() + (e * rank + first) * in;
        pair.a.assign(rows, rows + pair.rank * in);
        for (std::int64_t y = 0; y < pair.out; ++y) {
          for (std::int64_t i = 0; i < pair.rank; ++i) {
            pair.b.push_back(b[(p * pair.out + y) * columns + (first + i) * experts + e]);
          }
        }
        modules_.Add(PathOf(stack, e, linears[p]), std::move(pair));
      }
    }
  }

  FittedModules& modules_;
  Adapter& peft_;
  const DecoderConfig& decoder_;
};

class Completer {
 public:
  explicit Completer(FittedModules& modules) : modules_(modules), decoder_(modules.decoder()) {}

  void Run() {
    for (std::int64_t l = 0; l < decoder_.num_hidden_layers; ++l) {
      const PerLinear<std::string> paths = LinearPaths(decoder_, l);
      const PerLinear<LinearShape> shapes = ShapeLinears(decoder_, l);
      if (decoder_.moe.is_joined) {
        Complete(paths.gate_up, shapes.gate_up, 2);
        Complete(paths.down, shapes.down, 1);
      } else {
        Complete(paths.side_in, shapes.side_in, 1);
        Complete(paths.side_out, shapes.side_out, 1);
      }
    }
  }

 private:
  // `step` linears of each expert, which have one A.
  void Complete(const std::vector<std::string>& paths, const std::vector<LinearShape>& shapes,
                std::int64_t step) {
    std::int64_t rank = 0;
    double scale = 0;
    for (const std::string& path : paths) {
      if (modules_.Has(path)) modules_.Made(path) = modules_.Take(path);
      if (modules_.HasMade(path) && scale == 0) scale = modules_.Made(path).scale;
    }
    if (scale == 0) return;
    for (std::int64_t i = 0; i < std::ssize(paths); i += step) {
      std::int64_t of_expert = 0;
      for (const std::int64_t r : RanksOf(paths, i, step)) of_expert += r;
      rank = std::max(rank, of_expert);
    }
    for (std::int64_t i = 0; i < std::ssize(paths); i += step) {
      const std::vector<std::int64_t> ranks = RanksOf(paths, i, step);
      LoraPair joined{.in = shapes[i].in, .out = 0, .rank = rank, .scale = scale};
      for (std::int64_t p = 0; p < step; ++p) {
        if (ranks[p] == 0) continue;
        const LoraPair& part = modules_.Made(paths[i + p]);
        joined.a.insert(joined.a.end(), part.a.begin(), part.a.end());
      }
      joined.a.resize(rank * joined.in);
      std::int64_t column = 0;
      for (std::int64_t p = 0; p < step; ++p) {
        LoraPair whole = joined;
        whole.out = shapes[i + p].out;
        whole.b.resize(whole.out * rank);
        const LoraPair part = modules_.Made(paths[i + p]);  // of rank 0: none
        const bool shares = p > 0 && ranks[p] == 0;
        const std::int64_t first = shares ? column - part.rank : column;
        for (std::int64_t y = 0; y < part.out; ++y) {
          for (std::int64_t r = 0; r < part.rank; ++r) {
            whole.b[y * rank + first + r] = part.Scaled(part.b[y * part.rank + r], scale);
          }
        }
        column += ranks[p];
        modules_.Made(paths[i + p]) = std::move(whole);
      }
    }
  }

  // The ranks that the linears of an expert add to the one A of all of them: 0 of a linear whose A
  // is that of the one before.
  std::vector<std::int64_t> RanksOf(const std::vector<std::string>& paths, std::int64_t first,
                                    std::int64_t step) {
    std::vector<std::int64_t> ranks;
    const LoraPair* before = nullptr;
    for (std::int64_t p = 0; p < step; ++p) {
      const LoraPair& pair = modules_.Made(paths[first + p]);
      const bool shares = before != nullptr && before->a == pair.a;
      ranks.push_back(shares ? 0 : pair.rank);
      before = &pair;
    }
    return ranks;
  }

  FittedModules& modules_;
  const DecoderConfig& decoder_;
};

}  // namespace

void SplitStacks(FittedModules& modules) { StackSplitter(modules).Run(); }

void CompleteJoinedExperts(FittedModules& modules) { Completer(modules).Run(); }

}  // namespace qlora
