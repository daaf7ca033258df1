#include "pass/product_rates.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "base/arena.h"
#include "base/matrix.h"
#include "base/stopwatch.h"
#include "qlora/int8_gain.h"

namespace qlora {
namespace {

// Seconds of one call, the least of some.
double LeastSeconds(const std::function<void()>& run, double seconds) {
  const Stopwatch all;
  double least = 0;
  do {
    const Stopwatch watch;
    run();
    const double once = watch.seconds();
    least = least == 0 ? once : std::min(least, once);
  } while (all.seconds() < seconds);
  return least;
}

// Pseudo-random values in host memory.
struct HostValues {
  HostValues(DType dtype, std::int64_t rows, std::int64_t cols)
      : bytes(BytesOf(dtype, rows * cols)), view{bytes.data(), dtype, rows, cols, cols} {
    FillUniform(view, 0);
  }

  std::vector<std::byte> bytes;
  MatrixView view;
};

}  // namespace

ProductRates MeasureProducts(Context& context, const BackendFactory& backends,
                             const Precision& precision, const ProductShape& shape,
                             double seconds) {
  const std::unique_ptr<Backend> backend = backends.Make(context, precision);
  const std::int64_t rows = shape.rows;
  const std::int64_t out = shape.out;
  const std::int64_t in = shape.in;
  backend->Reserve({.rows = rows, .features = std::max(in, out), .gradient_rows = rows});
  const QuantizeOptions options;
  const std::size_t bytes = StorageBytes(out, in, options);
  MatrixView x;
  MatrixView y;
  MatrixView dx;
  MatrixView dy;
  MatrixView w;
  const auto carve = [&](Carver& carver) {
    x = carver.Matrix(precision.activation, rows, in);
    y = carver.Matrix(precision.activation, rows, out);
    dx = carver.Matrix(precision.activation, rows, in);
    dy = carver.Matrix(precision.activation, rows, out);
    w = shape.quantized ? carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes))
                        : carver.Matrix(DType::kBF16, out, in);
  };
  Carver sizes;
  carve(sizes);
  Arena memory(sizes.bytes(), backend->memory());
  Carver carver(memory);
  carve(carver);
  const auto fill = [&](const MatrixView& m) {
    const HostValues values(m.dtype, m.rows, m.cols);
    backend->memory().Upload(values.view.data, m.data, values.bytes.size());
  };
  fill(x);
  fill(dy);
  LinearView linear;
  if (shape.quantized) {
    const HostValues values(DType::kF32, out, in);
    linear.weight = WeightView(backend->Quantize(values.view, options, w));
  } else {
    fill(w);
    linear.weight = WeightView(ConstMatrixView(w));
  }
  const LinearOutput output{y, {}};
  const LinearGradient gradient{.dy = dy, .u = {}, .da_acc = {}, .db_acc = {}};
  const auto forward = [&] { backend->Run(ops::Linear{{&linear, 1}, x, {&output, 1}}); };
  const auto backward = [&] {
    backend->Run(ops::LinearBackward{{&linear, 1}, x, {&gradient, 1}, dx, Store::kSet});
  };
  const double flops = 2 * static_cast<double>(rows * in * out);
  return {flops / LeastSeconds(forward, seconds), flops / LeastSeconds(backward, seconds)};
}

Int8Gain MeasureInt8Gain(Context& context) {
  constexpr double kSeconds = 0.05;
  constexpr ProductShape kShape = {.rows = 512, .out = 2048, .in = 2048, .quantized = true};
  const BackendFactory::Ptr backends = BackendFactory::Of("auto");
  const Precision plain = {backends->PreferredActivation(), DType::kF32};
  const Precision coded = {DType::kBF16, DType::kF32, FrozenProducts::kInt8};
  const ProductRates before = MeasureProducts(context, *backends, plain, kShape, kSeconds);
  const ProductRates after = MeasureProducts(context, *backends, coded, kShape, kSeconds);
  return {after.forward / before.forward, after.backward / before.backward};
}

}  // namespace qlora
