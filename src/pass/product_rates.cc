#include "pass/product_rates.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/matrix.h"
#include "base/stopwatch.h"
#include "qlora/int8_gain.h"

namespace qlora {
namespace {

// Pseudo-random values in host memory.
struct HostValues {
  HostValues(DType dtype, std::int64_t rows, std::int64_t cols)
      : bytes(BytesOf(dtype, rows * cols)), view{bytes.data(), dtype, rows, cols, cols} {
    FillUniform(view, 0);
  }

  std::vector<std::byte> bytes;
  MatrixView view;
};

// The products of one precision, and the least time that each took.
class TimedProducts {
 public:
  TimedProducts(Context& context, const BackendFactory& backends, const Precision& precision,
                const ProductShape& shape);

  void Run();
  ProductRates rates() const { return {flops_ / forward_, flops_ / backward_}; }

 private:
  void Carve(Carver& carver, const Precision& precision, const ProductShape& shape);
  void Fill(const MatrixView& m);

  std::unique_ptr<Backend> backend_;
  Arena memory_;
  MatrixView x_;   // (rows, in)
  MatrixView y_;   // (rows, out)
  MatrixView dx_;  // (rows, in)
  MatrixView dy_;  // (rows, out)
  MatrixView w_;   // (out, in), or the bytes of NF4
  LinearView linear_;
  double flops_;
  double forward_ = std::numeric_limits<double>::infinity();   // seconds
  double backward_ = std::numeric_limits<double>::infinity();  // seconds
};

TimedProducts::TimedProducts(Context& context, const BackendFactory& backends,
                             const Precision& precision, const ProductShape& shape)
    : backend_(backends.Make(context, precision)),
      flops_(2 * static_cast<double>(shape.rows * shape.in * shape.out)) {
  backend_->Reserve(
      {.rows = shape.rows, .features = std::max(shape.in, shape.out), .gradient_rows = shape.rows});
  Carver sizes;
  Carve(sizes, precision, shape);
  memory_ = Arena(sizes.bytes(), backend_->memory());
  Carver carver(memory_);
  Carve(carver, precision, shape);
  Fill(x_);
  Fill(dy_);
  if (shape.quantized) {
    const HostValues values(DType::kF32, shape.out, shape.in);
    linear_.weight = WeightView(backend_->Quantize(values.view, QuantizeOptions(), w_));
  } else {
    Fill(w_);
    linear_.weight = WeightView(ConstMatrixView(w_));
  }
}

void TimedProducts::Carve(Carver& carver, const Precision& precision, const ProductShape& shape) {
  x_ = carver.Matrix(precision.activation, shape.rows, shape.in);
  y_ = carver.Matrix(precision.activation, shape.rows, shape.out);
  dx_ = carver.Matrix(precision.activation, shape.rows, shape.in);
  dy_ = carver.Matrix(precision.activation, shape.rows, shape.out);
  const std::size_t bytes = StorageBytes(shape.out, shape.in, QuantizeOptions());
  w_ = shape.quantized ? carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes))
                       : carver.Matrix(DType::kBF16, shape.out, shape.in);
}

void TimedProducts::Fill(const MatrixView& m) {
  const HostValues values(m.dtype, m.rows, m.cols);
  backend_->memory().Upload(values.view.data, m.data, values.bytes.size());
}

void TimedProducts::Run() {
  const LinearOutput output{y_, {}};
  const LinearGradient gradient{.dy = dy_, .u = {}, .da_acc = {}, .db_acc = {}};
  const Stopwatch watch;
  backend_->Run(ops::Linear{{&linear_, 1}, x_, {&output, 1}});
  const double forward = watch.seconds();
  backend_->Run(ops::LinearBackward{{&linear_, 1}, x_, {&gradient, 1}, dx_, Store::kSet});
  forward_ = std::min(forward_, forward);
  backward_ = std::min(backward_, watch.seconds() - forward);
}

}  // namespace

std::vector<ProductRates> MeasureProducts(Context& context, const BackendFactory& backends,
                                          std::span<const Precision> precisions,
                                          const ProductShape& shape, double seconds) {
  std::vector<std::unique_ptr<TimedProducts>> products;
  for (const Precision& precision : precisions) {
    products.push_back(std::make_unique<TimedProducts>(context, backends, precision, shape));
  }
  const Stopwatch watch;
  do {
    for (const auto& product : products) product->Run();
  } while (watch.seconds() < seconds);
  std::vector<ProductRates> rates;
  for (const auto& product : products) rates.push_back(product->rates());
  return rates;
}

Int8Gain MeasureInt8Gain(Context& context) {
  constexpr double kSeconds = 0.4;
  constexpr ProductShape kShape = {.rows = 512, .out = 2048, .in = 2048, .quantized = true};
  const BackendFactory::Ptr backends = BackendFactory::Of("auto");
  const Precision precisions[] = {{backends->PreferredActivation(), DType::kF32},
                                  {DType::kBF16, DType::kF32, FrozenProducts::kInt8}};
  const std::vector<ProductRates> rates =
      MeasureProducts(context, *backends, precisions, kShape, kSeconds);
  return {rates[1].forward / rates[0].forward, rates[1].backward / rates[0].backward};
}

}  // namespace qlora
