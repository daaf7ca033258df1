// Quantizes a matrix in several forms and prints what each costs and loses.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "qlora/error.h"
#include "qlora/nf4.h"

namespace {

constexpr std::int64_t kRows = 1024;
constexpr std::int64_t kCols = 4096;

double Rmse(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> w(kRows * kCols);
  for (float& value : w) value = normal(random);

  struct Form {
    const char* name;
    qlora::QuantizeOptions options;
  };
  using qlora::ScaleType;
  const Form forms[] = {
      {"double quantized, as bitsandbytes does", {}},
      {"float32 scales", {.scale_type = ScaleType::kF32}},
      {"bfloat16 scales", {.scale_type = ScaleType::kBF16}},
      {"double quantized, scale search", {.scale_search = true}},
      {"blocks of 256", {.block_size = 256}},
      {"FP4", {.type = qlora::QuantType::kFp4}},
  };

  qlora::Context context;  // one thread per core
  std::printf("%-40s %8s %9s %9s\n", "N(0, 1) in", "bits", "vs f32", "rmse");
  std::vector<float> back(w.size());
  for (const Form& form : forms) {
    const qlora::QuantizedMatrix q =
        qlora::Quantize(context, qlora::MakeView(w.data(), kRows, kCols), form.options);
    qlora::Dequantize(context, q.view(), qlora::MakeView(back.data(), kRows, kCols));
    std::printf("%-40s %8.4f %8.3fx %9.5f\n", form.name, q.bits_per_weight(), q.compression_ratio(),
                Rmse(w, back));
  }

  w[5000] = NAN;
  try {
    qlora::Quantize(context, qlora::MakeView(w.data(), kRows, kCols), {.name = "my weight"});
  } catch (const qlora::Error& error) {
    std::printf("refused: %s\n", error.what());
  }
}
