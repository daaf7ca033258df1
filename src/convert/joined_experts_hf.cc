#include "convert/joined_experts_hf.h"

#include <numeric>
#include <string>

#include "base/matrix.h"
#include "convert/merged_linear.h"
#include "model/linear_shapes.h"

namespace qlora {
namespace {

// The linears of one parameter: `step` for each expert, whose outputs take turns.
struct Stack {
  std::span<const FrozenLinear> linears;
  std::span<const LoraLinear> loras;  // empty without an adapter
  std::int64_t step = 1;

  std::int64_t experts() const { return std::ssize(linears) / step; }
  std::int64_t in() const { return linears.front().weight.cols(); }
  std::int64_t out() const { return step * linears.front().weight.rows(); }
};

// (in, out) of one expert after the other, which are the columns of the linears.
JoinedTensor Weights(Context& context, Memory& memory, const std::string& name, DType dtype,
                     const Stack& stack) {
  return {{name, dtype, {stack.experts(), stack.in(), stack.out()}},
          [&context, &memory, stack](const auto& write) {
            const std::int64_t in = stack.in();
            const std::int64_t out = stack.out();
            const std::int64_t rows = out / stack.step;
            std::vector<std::int64_t> order(rows);
            std::iota(order.begin(), order.end(), 0);
            std::vector<float> linear(rows * in);
            std::vector<float> matrix(in * out);
            for (std::int64_t i = 0; i < std::ssize(stack.linears); ++i) {
              const LoraLinear* lora = stack.loras.empty() ? nullptr : &stack.loras[i];
              const MergedLinear merged(memory, stack.linears[i].weight, lora);
              merged.Read(context, order, linear.data());
              const std::int64_t part = i % stack.step;
              for (std::int64_t r = 0; r < rows; ++r) {
                for (std::int64_t c = 0; c < in; ++c) {
                  matrix[c * out + r * stack.step + part] = linear[r * in + c];
                }
              }
              if (part == stack.step - 1) write(matrix);
            }
          }};
}

JoinedTensor Biases(Memory& memory, const std::string& name, DType dtype, const Stack& stack) {
  return {{name, dtype, {stack.experts(), stack.out()}}, [&memory, stack](const auto& write) {
            const std::int64_t out = stack.out();
            std::vector<float> values(stack.experts() * out);
            for (std::int64_t i = 0; i < std::ssize(stack.linears); ++i) {
              const std::vector<double> bias = DownloadReal(memory, stack.linears[i].bias);
              float* row = values.data() + i / stack.step * out + i % stack.step;
              for (const double value : bias) {
                *row = static_cast<float>(value);
                row += stack.step;
              }
            }
            write(values);
          }};
}

}  // namespace

std::vector<JoinedTensor> JoinedExpertTensors(Context& context, Memory& memory,
                                              const DecoderConfig& config,
                                              const DecoderWeights& weights,
                                              const LoraAdapter* adapter, DType dtype) {
  std::vector<JoinedTensor> tensors;
  for (std::int64_t l = 0; config.moe.is_joined && l < config.num_hidden_layers; ++l) {
    const PerLinear<FrozenLinear>& linears = weights.layers[l].linears;
    const PerLinear<LoraLinear>* loras = adapter == nullptr ? nullptr : &adapter->layers()[l];
    const auto add = [&](LinearGroup group, const char* parameter, std::int64_t step) {
      const Stack stack{GroupOf(linears, group),
                        loras == nullptr ? std::span<const LoraLinear>() : GroupOf(*loras, group),
                        step};
      const std::string& path = stack.linears.front().path;
      const std::string name = path.substr(0, path.find(".experts.") + 9) + parameter;
      tensors.push_back(Weights(context, memory, name, dtype, stack));
      tensors.push_back(Biases(memory, name + "_bias", dtype, stack));
    };
    add(LinearGroup::kGateUp, "gate_up_proj", 2);
    add(LinearGroup::kDown, "down_proj", 1);
  }
  return tensors;
}

}  // namespace qlora
