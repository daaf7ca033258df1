#include "pass/product_rates.h"

#include <algorithm>
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
  std::vector<MatrixView> views;
  const auto carve = [&](Carver& carver) {
    views = {carver.Matrix(precision.activation, rows, in),
             carver.Matrix(precision.activation, rows, out),
             carver.Matrix(precision.activation, rows, in),
             carver.Matrix(precision.activation, rows, out),
             shape.quantized ? carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes))
                             : carver.Matrix(DType::kBF16, out, in)};
  };
  Carver sizes;
  carve(sizes);
  Arena memory(sizes.bytes(), backend->memory());
  Carver carver(memory);
  carve(carver);
  for (const MatrixView& view : views) {
    if (view.dtype != DType::kU8) backend->Run(ops::Zero{view});
  }
  LinearView linear;
  if (shape.quantized) {
    const std::vector<float> values(static_cast<std::size_t>(out * in), 1.0f);
    linear.weight =
        WeightView(backend->Quantize(MakeView(values.data(), out, in), options, views[4]));
  } else {
    linear.weight = WeightView(ConstMatrixView(views[4]));
  }
  const LinearOutput y{views[1], {}};
  const LinearGradient dy{.dy = views[3], .u = {}, .da_acc = {}, .db_acc = {}};
  const auto forward = [&] { backend->Run(ops::Linear{{&linear, 1}, views[0], {&y, 1}}); };
  const auto backward = [&] {
    backend->Run(ops::LinearBackward{{&linear, 1}, views[0], {&dy, 1}, views[2], Store::kSet});
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
