#include "step/optimizer.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "quant/dynamic_map.h"

namespace qlora {
namespace {

// Parameters of one part of an update: 16 MiB of each float32 moment.
constexpr std::int64_t kSlice = std::int64_t{4} << 20;

// Codes of one piece of a state that is filled, in whole pages. No plan counts them: of large
// pieces the allocator keeps the memory after they are freed.
constexpr std::int64_t kFilled = std::int64_t{64} << 10;

// {rule, 8-bit moments, paged}. Several names of Hugging Face mean the same computation here.
constexpr OptimizerType kAdamW32 = {UpdateRule::kAdamW, false, false};
constexpr OptimizerType kAdamW8 = {UpdateRule::kAdamW, true, false};
constexpr OptimizerType kPagedAdamW32 = {UpdateRule::kAdamW, false, true};
constexpr OptimizerType kPagedAdamW8 = {UpdateRule::kAdamW, true, true};

constexpr auto kTypes = std::to_array<std::pair<std::string_view, OptimizerType>>({
    {"adamw", kAdamW32},
    {"adamw_torch", kAdamW32},
    {"adamw_torch_fused", kAdamW32},
    {"adamw_8bit", kAdamW8},
    {"adamw_bnb_8bit", kAdamW8},
    {"paged_adamw", kPagedAdamW32},
    {"paged_adamw_32bit", kPagedAdamW32},
    {"paged_adamw_8bit", kPagedAdamW8},
    {"lion", {UpdateRule::kLion, false, false}},
    {"lion_8bit", {UpdateRule::kLion, true, false}},
    {"sgd", {UpdateRule::kSgd, false, false}},
});

// Columns [begin, begin + count) of a (1, n) view; an empty view of an empty view.
MatrixView Part(const MatrixView& m, std::int64_t begin, std::int64_t count) {
  if (m.empty()) return {};
  MatrixView part = m;
  part.data = static_cast<std::byte*>(m.data) + BytesOf(m.dtype, begin);
  part.cols = part.stride = count;
  return part;
}

// The moments of the same parameters. `begin` is a multiple of a block, as each group begins with
// one, so 8-bit codes and the scales of their blocks are cut at the same place.
Moment Part(const Moment& m, std::int64_t begin, std::int64_t count) {
  return {Part(m.values, begin, count),
          Part(m.scales, begin / kDynamicBlock, (count + kDynamicBlock - 1) / kDynamicBlock)};
}

// Returns the parts of both moments that exist, by name. View: MatrixView or ConstMatrixView.
template <typename View>
std::vector<std::pair<std::string, View>> StateOf(const Moment& m, const Moment& v) {
  std::vector<std::pair<std::string, View>> state;
  const auto add = [&](const std::string& name, const Moment& moment) {
    if (!moment.values.empty()) state.emplace_back(name, moment.values);
    if (!moment.scales.empty()) state.emplace_back(name + "_absmax", moment.scales);
  };
  add("exp_avg", m);
  add("exp_avg_sq", v);
  return state;
}

}  // namespace

// ---- The optimizer that options describe.

OptimizerType ParseOptimizer(std::string_view name) {
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  ThrowInvalidInput("unknown optim '{}'", name);
}

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const auto& entry : kTypes) names.emplace_back(entry.first);
  return names;
}

OptimizerType OptimizerOf(const TrainOptions& options) {
  OptimizerType type = ParseOptimizer(options.optim);
  type.momentum = options.sgd_momentum > 0;
  return type;
}

UpdateArgs UpdateArgsOf(const TrainOptions& options) {
  UpdateArgs args;
  const bool is_sgd = OptimizerOf(options).rule == UpdateRule::kSgd;
  // UpdateArgs has one field for the factor of the first moment, which SGD calls momentum.
  args.beta1 = is_sgd ? options.sgd_momentum : options.adam_beta1;
  args.beta2 = options.adam_beta2;
  args.epsilon = options.adam_epsilon;
  args.weight_decay = options.weight_decay;
  return args;
}

GroupRates GroupRatesOf(const TrainOptions& options) {
  GroupRates rates;
  rates.b = options.loraplus_lr_ratio;
  if (options.embedding_learning_rate > 0 && options.learning_rate > 0) {
    // A rate of the options becomes a multiple, because one schedule drives all groups.
    rates.embedding = options.embedding_learning_rate / options.learning_rate;
  }
  return rates;
}

// ---- Memory of the moments.

// Carves m (1, n) and v (1, n), as far as the rule has them: float32, or a code of 8 bits for each
// value with a float32 scale for each block of 256. A carver without memory only measures.
void Optimizer::Layout(Carver& carver, const OptimizerType& type, std::int64_t parameters,
                       Moment& m, Moment& v) {
  const auto moment = [&](Moment& out) {
    out.values = carver.Matrix(type.eight_bit ? DType::kU8 : DType::kF32, 1, parameters);
    if (!type.eight_bit) return;
    out.scales = carver.Matrix(DType::kF32, 1, (parameters + kDynamicBlock - 1) / kDynamicBlock);
  };
  if (type.has_m()) moment(m);
  if (type.has_v()) moment(v);
}

Optimizer::Optimizer(const OptimizerType& type, const LoraAdapter& adapter,
                     const std::string& directory)
    : type_(type), memory_(&adapter.memory()) {
  const std::int64_t parameters = adapter.parameters().cols;
  Carver plan;
  Layout(plan, type, parameters, m_, v_);
  arena_ = FileBytes(type, adapter, adapter.memory()) > 0 ? Arena(plan.bytes(), directory)
                                                          : Arena(plan.bytes(), *memory_);
  Carver carver(arena_);
  Layout(carver, type, parameters, m_, v_);
  // In the signed map the code of 0 is not the byte 0.
  if (type.eight_bit && type.has_m()) {
    // Filled piece by piece and released, so that even the start does not hold a paged state. Zeros
    // need no work elsewhere: arenas begin as zeros, and v's unsigned map has code 0 for 0.
    const std::vector<float> zero(1, 0.0f);
    std::uint8_t code = 0;
    DynamicMap::Signed().Encode(zero.data(), 1, &code);
    const std::vector<std::uint8_t> codes(std::min(kFilled, parameters), code);
    for (std::int64_t begin = 0; begin < parameters; begin += kFilled) {
      const MatrixView part = Part(m_.values, begin, std::min(kFilled, parameters - begin));
      Upload(*memory_, std::span(codes).first(part.cols), part);
      Release(part.data, part.cols);
    }
  }
}

std::size_t Optimizer::StateBytes(const OptimizerType& type, const LoraAdapter& adapter) {
  Carver plan;
  Moment m;
  Moment v;
  Layout(plan, type, adapter.parameters().cols, m, v);
  return plan.bytes();
}

std::size_t Optimizer::Bytes(const OptimizerType& type, const LoraAdapter& adapter,
                             const Memory& memory) {
  const std::size_t all = StateBytes(type, adapter);
  if (FileBytes(type, adapter, memory) == 0) return all;
  Carver plan;
  Moment m;
  Moment v;
  Layout(plan, type, kSlice, m, v);
  // A paged state that fits into one slice is held whole.
  return std::min(all, plan.bytes());
}

std::size_t Optimizer::FileBytes(const OptimizerType& type, const LoraAdapter& adapter,
                                 const Memory& memory) {
  return type.paged && IsHost(memory) ? StateBytes(type, adapter) : 0;
}

// ---- Updating.

// Parameters of one kind have one learning rate and one decay. The size of the parts bounds the
// memory of a paged state. All rules are element by element, or block by block in 8 bits, so the
// cuts do not change results.
std::vector<Optimizer::PartOfUpdate> Optimizer::Parts(const UpdateArgs& args,
                                                      const GroupRates& rates,
                                                      const LoraAdapter& adapter) const {
  std::vector<PartOfUpdate> parts;
  for (const ParameterGroup& group : adapter.groups()) {
    UpdateArgs of_group = args;
    if (group.kind == ParameterKind::kModule) of_group.learning_rate *= rates.embedding;
    if (group.kind == ParameterKind::kB || group.kind == ParameterKind::kMagnitude) {
      of_group.learning_rate *= rates.b;
    }
    if (group.kind == ParameterKind::kMagnitude) of_group.weight_decay = 0;
    const std::int64_t end = group.begin + group.count;
    for (std::int64_t begin = group.begin; begin < end; begin += kSlice) {
      parts.push_back({of_group, begin, std::min(kSlice, end - begin)});
    }
  }
  return parts;
}

void Optimizer::Update(Backend& backend, UpdateArgs args, const GroupRates& rates,
                       LoraAdapter& adapter) {
  args.rule = type_.rule;
  for (const PartOfUpdate& part : Parts(args, rates, adapter)) {
    const Moment m = Part(m_, part.begin, part.count);
    const Moment v = Part(v_, part.begin, part.count);
    backend.Run(ops::Update{part.args, Part(adapter.gradients(), part.begin, part.count),
                            Part(adapter.parameters(), part.begin, part.count), m, v});
    for (const MatrixView& stored : {m.values, m.scales, v.values, v.scales}) {
      Release(stored.data, BytesOf(stored.dtype, stored.cols));
    }
  }
}

std::vector<std::pair<std::string, MatrixView>> Optimizer::State() {
  return StateOf<MatrixView>(m_, v_);
}
std::vector<std::pair<std::string, ConstMatrixView>> Optimizer::State() const {
  return StateOf<ConstMatrixView>(m_, v_);
}

void Optimizer::Release(const void* begin, std::size_t bytes) const {
  if (!type_.paged || bytes == 0) return;
  arena_.Release(static_cast<std::size_t>(static_cast<const std::byte*>(begin) - arena_.data()),
                 bytes);
}

}  // namespace qlora
