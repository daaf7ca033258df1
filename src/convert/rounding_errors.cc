#include "convert/rounding_errors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/matrix.h"
#include "convert/merged_linear.h"

namespace qlora {
namespace {

// Returns "up_proj" for "model.layers.3.mlp.up_proj.weight".
std::string KindOf(const std::string& weight) {
  const std::string path = weight.substr(0, weight.rfind('.'));
  return path.substr(path.rfind('.') + 1);
}

}  // namespace

void RoundingErrors::Add(Context& context, const std::string& name, const ConstMatrixView& original,
                         const QuantizedView& quantized) {
  // One slot a row and a fixed order of summation, so that the report is the same on any number of
  // threads.
  std::vector<Sums> rows(original.rows);
  context.ParallelFor(original.rows, [&](std::int64_t r, int) {
    const auto n = static_cast<std::size_t>(original.cols);
    std::vector<float> w(n);
    std::vector<float> q(n);
    WidenToFloat(Rows(original, r, 1).data, original.dtype, original.cols, w.data());
    DequantizeRows(quantized, r, MakeView(q.data(), 1, original.cols));
    Sums& row = rows[r];
    for (std::size_t i = 0; i < n; ++i) {
      // float64: squares of small errors are added to large sums.
      const double error = std::abs(double{w[i]} - double{q[i]});
      row.squared_error += error * error;
      row.squared_value += double{w[i]} * double{w[i]};
      row.max_error = std::max(row.max_error, error);
    }
  });
  Sums& sums = kinds_[KindOf(name)];
  ++sums.tensors;
  sums.values += original.rows * original.cols;
  for (const Sums& row : rows) {
    sums.squared_error += row.squared_error;
    sums.squared_value += row.squared_value;
    sums.max_error = std::max(sums.max_error, row.max_error);
  }
}

std::vector<QuantizeError> RoundingErrors::Kinds() const {
  std::vector<QuantizeError> kinds;
  for (const auto& [kind, sums] : kinds_) {
    QuantizeError error;
    error.kind = kind;
    error.tensors = sums.tensors;
    error.values = sums.values;
    error.rmse = std::sqrt(sums.squared_error / static_cast<double>(sums.values));
    error.relative_rmse =
        sums.squared_value > 0 ? std::sqrt(sums.squared_error / sums.squared_value) : 0;
    error.max_error = sums.max_error;
    kinds.push_back(std::move(error));
  }
  return kinds;
}

}  // namespace qlora
