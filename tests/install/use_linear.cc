// A project that has a layer of qlora: it starts as x W^T, up to the rounding of W to 4 bits.
#include <cmath>
#include <vector>

#include "qlora/linear.h"

int main() {
  qlora::Context context(1);
  const std::vector<float> ones(64 * 64, 1.0f);
  const qlora::QLoraLinear layer =
      qlora::QLoraLinear::FromWeight(context, qlora::MakeView(ones.data(), 64, 64));
  std::vector<float> weight(64 * 64);
  layer.DequantizeWeight(qlora::MakeView(weight.data(), 64, 64));
  return std::abs(weight[0] - 1) < 0.01f ? 0 : 1;
}
