#include "backend/int8/products.h"

#include <algorithm>
#include <cmath>

namespace qlora::int8 {
namespace {

// The sum over the groups of a row: code(k) of element k of the other operand.
template <typename Code>
float SumOfGroups(const CodedRow& row, const Code& code) {
  const std::int64_t n = std::ssize(row.codes);
  float sum = 0;
  for (std::int64_t g = 0; g * kGroup < n; ++g) {
    int products = 0;
    for (std::int64_t k = g * kGroup; k < std::min(n, (g + 1) * kGroup); ++k) {
      products += row.codes[k] * code(k);
    }
    sum = std::fma(static_cast<float>(products), row.scales[g], sum);
  }
  return sum;
}

// What stays in float32: spikes with the values of the weight, then its excess where there is none.
template <typename At>
float AddFloats(const CodedRow& row, std::span<const float> values, const CodedWeight& weight,
                const At& at, float sum) {
  for (const std::int64_t k : row.spikes) sum = std::fma(values[k], weight.values[at(k)], sum);
  if (weight.excess.empty()) return sum;
  for (std::int64_t k = 0; k < std::ssize(values); ++k) {
    const float excess = weight.excess[at(k)];
    if (excess == 0 || std::ranges::binary_search(row.spikes, k)) continue;
    sum = std::fma(values[k], excess, sum);
  }
  return sum;
}

}  // namespace

CodedWeight::CodedWeight(const WeightView& weight)
    : rows(weight.rows()),
      cols(weight.cols()),
      codes(rows * cols),
      scales(rows),
      values(rows * cols) {
  std::vector<float> block_scales(MostRowBlocks(weight));
  for (std::int64_t n = 0; n < rows; ++n) {
    const RowScale scale = ScaleOfRow(weight, n, block_scales.data());
    scales[n] = scale.codes.scale;
    CodeRow(weight, n, scale.codes, 0, cols, codes.data() + n * cols);
    ReadRow(weight, n, 0, cols, values.data() + n * cols);
    if (!scale.clamps) continue;
    excess.resize(rows * cols);
    ExcessOfRow(weight, n, scale.codes, 0, cols, excess.data() + n * cols);
  }
}

CodedRow::CodedRow(std::span<const float> values) : codes(values.size()) {
  const std::int64_t n = std::ssize(values);
  for (std::int64_t first = 0; first < n; first += kGroup) {
    Spikes found;
    scales.push_back(
        CodeGroup(values.subspan(first, std::min(kGroup, n - first)), codes.data() + first, found));
    for (int i = 0; i < found.count; ++i) spikes.push_back(first + found.columns[i]);
  }
}

void Multiply(const CodedWeight& weight, std::span<const float> x, float* y) {
  const CodedRow row(x);
  for (std::int64_t n = 0; n < weight.rows; ++n) {
    const auto at = [&](std::int64_t k) { return n * weight.cols + k; };
    const float sum = SumOfGroups(row, [&](std::int64_t k) { return weight.codes[at(k)]; });
    y[n] = AddFloats(row, x, weight, at, sum * weight.scales[n]);
  }
}

// The scales of the rows of W lie along this sum, so that dy takes them over before it gets codes.
void MultiplyTransposed(const CodedWeight& weight, std::span<const float> dy, float* dx) {
  std::vector<float> scaled(dy.begin(), dy.end());
  for (std::int64_t n = 0; n < weight.rows; ++n) scaled[n] *= weight.scales[n];
  const CodedRow row(scaled);
  for (std::int64_t i = 0; i < weight.cols; ++i) {
    const auto at = [&](std::int64_t n) { return n * weight.cols + i; };
    const float sum = SumOfGroups(row, [&](std::int64_t n) { return weight.codes[at(n)]; });
    dx[i] = AddFloats(row, dy, weight, at, sum);
  }
}

}  // namespace qlora::int8
