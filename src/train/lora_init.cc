#include "train/lora_init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "train/low_rank.h"

namespace qlora {
namespace {

constexpr auto kNames =
    std::to_array<std::pair<std::string_view, LoraInit>>({{"default", LoraInit::kDefault},
                                                          {"pissa", LoraInit::kPissa},
                                                          {"olora", LoraInit::kOlora},
                                                          {"loftq", LoraInit::kLoftq}});

// Products with W, or with W - minus, in float32.
class Products {
 public:
  Products(Backend& backend, const WeightView& weight, const WeightView* minus)
      : backend_(backend), weight_(weight), minus_(minus) {}

  MatrixProducts Get() {
    return {weight_.rows(), weight_.cols(),
            [this](const std::vector<float>& x, std::vector<float>& y) {
              Forward(weight_, x, y);
              if (minus_ != nullptr) Subtract(y, [&](auto& out) { Forward(*minus_, x, out); });
            },
            [this](const std::vector<float>& y, std::vector<float>& x) {
              Backward(weight_, y, x);
              if (minus_ != nullptr) Subtract(x, [&](auto& out) { Backward(*minus_, y, out); });
            }};
  }

 private:
  static MatrixView View(std::vector<float>& values, std::int64_t cols) {
    return MakeView(values.data(), static_cast<std::int64_t>(values.size()) / cols, cols);
  }
  static ConstMatrixView View(const std::vector<float>& values, std::int64_t cols) {
    return MakeView(values.data(), static_cast<std::int64_t>(values.size()) / cols, cols);
  }
  template <typename Fn>
  static void Subtract(std::vector<float>& values, const Fn& compute) {
    std::vector<float> other(values.size());
    compute(other);
    std::transform(values.begin(), values.end(), other.begin(), values.begin(), std::minus<>());
  }
  void Forward(const WeightView& weight, const std::vector<float>& x, std::vector<float>& y) {
    const LinearView linear{weight, {}, {}};
    const LinearOutput out{View(y, weight.rows()), {}};
    backend_.Run(ops::Linear{{&linear, 1}, View(x, weight.cols()), {&out, 1}, Store::kSet});
  }
  void Backward(const WeightView& weight, const std::vector<float>& y, std::vector<float>& x) {
    const LinearView linear{weight, {}, {}};
    const LinearGradient gradient{View(y, weight.rows()), {}, {}, {}};
    // The input is read for gradients of an adapter only; there is none.
    const std::vector<float> input(x.size());
    backend_.Run(ops::LinearBackward{{&linear, 1},
                                     View(input, weight.cols()),
                                     {&gradient, 1},
                                     View(x, weight.cols()),
                                     Store::kSet});
  }

  Backend& backend_;
  const WeightView& weight_;
  const WeightView* minus_;
};

// Row r of A and column r of B.
void SetFactor(LoraLinear& lora, std::int64_t r, double factor, const float* a, double factor_b,
               const float* b) {
  for (std::int64_t i = 0; i < lora.in; ++i) {
    lora.a.Row<float>(r)[i] = static_cast<float>(factor * a[i]);
  }
  for (std::int64_t o = 0; o < lora.out; ++o) {
    lora.b.Row<float>(o)[r] = static_cast<float>(factor_b * b[o]);
  }
}

// s B A = the largest `rank` singular values of the matrix.
void SetSingular(const MatrixProducts& w, std::int64_t rank, std::uint64_t seed, LoraLinear& lora) {
  const LowRank factors = LargestSingular(w, rank, seed);
  for (std::int64_t r = 0; r < rank; ++r) {
    const double root = std::sqrt(factors.s[r] / double{lora.scale});
    SetFactor(lora, r, root, factors.v.data() + r * w.in, root, factors.u.data() + r * w.out);
  }
}

// B = the first columns of Q, A = the first rows of R = Q^T W.
void SetOrthonormal(const MatrixProducts& w, std::int64_t rank, LoraLinear& lora) {
  std::vector<float> unit(rank * w.in, 0.0f);
  for (std::int64_t r = 0; r < rank; ++r) unit[r * w.in + r] = 1;
  std::vector<float> q(rank * w.out);
  w.times_transposed(unit, q);  // the first columns of W
  Orthonormalize(q, rank, w.out);
  std::vector<float> r_rows(unit.size());
  w.times(q, r_rows);
  for (std::int64_t r = 0; r < rank; ++r) {
    SetFactor(lora, r, 1, r_rows.data() + r * w.in, 1, q.data() + r * w.out);
  }
}

// The second half: A0 as it is now, B0 with the other sign.
void FreezeNegative(LoraLinear& lora) {
  const std::int64_t rank = lora.trained_rank;
  for (std::int64_t r = 0; r < rank; ++r) {
    std::copy_n(lora.a.Row<float>(r), lora.in, lora.a.Row<float>(rank + r));
  }
  for (std::int64_t o = 0; o < lora.out; ++o) {
    float* row = lora.b.Row<float>(o);
    for (std::int64_t r = 0; r < rank; ++r) row[rank + r] = -row[r];
  }
}

// The weight as the checkpoint has it, before it was quantized.
WeightView OriginalOf(const FrozenLinear& frozen, const TensorReader& reader) {
  const std::string name = frozen.path + ".weight";
  const TensorInfo& tensor = *reader.Find(name);
  return {{reader.Bytes(tensor).data(), tensor.dtype, frozen.weight.rows(), frozen.weight.cols(),
           frozen.weight.cols()},
          {}};
}

}  // namespace

LoraInit ParseLoraInit(std::string_view name) {
  for (const auto& [known, init] : kNames) {
    if (known == name) return init;
  }
  ThrowInvalidInput("unknown init_lora_weights '{}'", name);
}

void CheckLoraInit(LoraInit init, const LoraAdapter& adapter, bool quantizes_on_load) {
  if (init == LoraInit::kDefault) return;
  if (init == LoraInit::kLoftq && !quantizes_on_load) {
    ThrowInvalidInput(
        "init_lora_weights loftq makes up for the error of quantizing on load, but this run "
        "quantizes nothing; use a 16-bit checkpoint with load_in_4bit");
  }
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([](const LoraLinear& lora) {
      if (lora.trained_rank <= std::min(lora.in, lora.out)) return;
      ThrowInvalidInput("init_lora_weights: the rank {} of '{}' exceeds its {} x {} weight",
                        lora.trained_rank, lora.path, lora.out, lora.in);
    });
  }
}

void InitializeFromWeights(Context& context, LoraInit init, const DecoderWeights& weights,
                           std::uint64_t seed,
                           const std::function<void(std::int64_t, std::int64_t)>& progress,
                           LoraAdapter& adapter) {
  if (init == LoraInit::kDefault) return;
  BackendLimits limits;
  std::int64_t total = 0;
  std::int64_t done = 0;
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) {
      if (lora.rank > 0) ++total;
      limits.rows = std::max(limits.rows, lora.rank + 8);
      limits.features = std::max({limits.features, lora.in, lora.out});
    });
  }
  limits.gradient_rows = limits.rows;
  const std::unique_ptr<Backend> backend = MakeCpuBackend(context, DType::kF32);
  backend->Reserve(limits);
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    const auto initialize = [&](const FrozenLinear& frozen, LoraLinear& lora) {
      const std::int64_t rank = lora.trained_rank;
      if (init == LoraInit::kLoftq) {
        const WeightView original = OriginalOf(frozen, *weights.reader);
        SetSingular(Products(*backend, original, &frozen.weight).Get(), rank, seed, lora);
        weights.reader->Release(*weights.reader->Find(frozen.path + ".weight"));
        return;
      }
      Products products(*backend, frozen.weight, nullptr);
      if (init == LoraInit::kPissa) SetSingular(products.Get(), rank, seed, lora);
      if (init == LoraInit::kOlora) SetOrthonormal(products.Get(), rank, lora);
      FreezeNegative(lora);
    };
    Combine(weights.layers[l].linears, adapter.layers()[l],
            [&](const FrozenLinear& frozen, LoraLinear& lora) {
              if (lora.rank == 0) return 0;
              initialize(frozen, lora);
              progress(++done, total);
              return 0;
            });
  }
}

}  // namespace qlora
