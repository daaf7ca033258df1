// Quantizes a matrix in several forms and prints what each costs and loses.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "qlora/error.h"
#include "qlora/nf4.h"
#include "qlora/nf4_compat.h"

namespace {

constexpr std::int64_t kRows = 1024;
constexpr std::int64_t kCols = 4096;

double Rmse(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// q: a qlora::QuantizedMatrix, or a qlora::compat::Matrix for the forms of other libraries.
template <typename Matrix>
void Report(const char* name, qlora::Context& context, const Matrix& q,
            const std::vector<float>& w) {
  std::vector<float> back(w.size());
  Dequantize(context, q.view(), qlora::MakeView(back.data(), kRows, kCols));
  std::printf("%-40s %8.4f %8.3fx %9.5f\n", name, q.bits_per_weight(), q.compression_ratio(),
              Rmse(w, back));
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> w(kRows * kCols);
  for (float& value : w) value = normal(random);

  qlora::Context context;  // one thread per core
  const qlora::ConstMatrixView view = qlora::MakeView(w.data(), kRows, kCols);
  const auto report = [&](const char* name, const qlora::QuantizeOptions& options) {
    Report(name, context, qlora::Quantize(context, view, options), w);
  };
  std::printf("%-40s %8s %9s %9s\n", "N(0, 1) in", "bits", "vs f32", "rmse");
  report("double quantized, as bitsandbytes does", {});
  report("float32 scales", {.scale_type = qlora::ScaleType::kF32});
  const qlora::compat::Options halves = {.scale_form = qlora::compat::ScaleForm::kBF16};
  Report("bfloat16 scales", context, qlora::compat::Quantize(context, view, halves), w);
  report("double quantized, scale search", {.scale_search = true});
  report("blocks of 256", {.block_size = 256});
  report("FP4", {.type = qlora::QuantType::kFp4});

  w[5000] = NAN;
  try {
    qlora::Quantize(context, view, {.name = "my weight"});
  } catch (const qlora::Error& error) {
    std::printf("refused: %s\n", error.what());
  }
}
