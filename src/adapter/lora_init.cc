#include "adapter/lora_init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "adapter/randomized_svd.h"
#include "base/check.h"

namespace qlora {
namespace {

constexpr auto kInitNames =
    std::to_array<std::pair<std::string_view, LoraInit>>({{"default", LoraInit::kDefault},
                                                          {"pissa", LoraInit::kPissa},
                                                          {"olora", LoraInit::kOlora},
                                                          {"loftq", LoraInit::kLoftq}});

// Products with W, or with W - minus, in float32. Their operands are host vectors of at most `rows`
// rows, which are staged in the memory of the backend.
class Products {
 public:
  Products(Backend& backend, const WeightView& weight, const WeightView* minus, std::int64_t rows)
      : backend_(backend), weight_(weight), minus_(minus) {
    const auto layout = [&](Carver& carver) {
      x_ = carver.Matrix(DType::kF32, rows, weight.cols());
      y_ = carver.Matrix(DType::kF32, rows, weight.rows());
      unread_ = carver.Matrix(DType::kF32, rows, weight.cols());
    };
    Carver plan;
    layout(plan);
    arena_ = Arena(plan.bytes(), backend.memory());
    Carver carver(arena_);
    layout(carver);
  }

  // The result refers to this object. For W - minus the two products are subtracted on the host, so
  // that the difference is never a matrix in memory.
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
  // The rows of a staged matrix that hold `values`.
  static MatrixView RowsFor(const std::vector<float>& values, const MatrixView& m) {
    return Rows(m, 0, std::ssize(values) / m.cols);
  }
  // values -= the vector of the same size that `compute` writes.
  template <typename Fn>
  static void Subtract(std::vector<float>& values, const Fn& compute) {
    std::vector<float> other(values.size());
    compute(other);
    std::transform(values.begin(), values.end(), other.begin(), values.begin(), std::minus<>());
  }
  // y = x W^T, as the forward pass of a linear without adapter.
  void Forward(const WeightView& weight, const std::vector<float>& x, std::vector<float>& y) {
    const MatrixView in = RowsFor(x, x_);
    const LinearView linear{weight, {}, {}};
    const LinearOutput out{RowsFor(y, y_), {}};
    Upload(backend_.memory(), std::span(x), in);
    backend_.Run(ops::Linear{{&linear, 1}, in, {&out, 1}, Store::kSet});
    y = Download<float>(backend_.memory(), out.y);
  }
  // x = y W, as the gradient of the input of that linear.
  void Backward(const WeightView& weight, const std::vector<float>& y, std::vector<float>& x) {
    const MatrixView dy = RowsFor(y, y_);
    const MatrixView dx = RowsFor(x, x_);
    const LinearView linear{weight, {}, {}};
    const LinearGradient gradient{dy, {}, {}, {}};
    Upload(backend_.memory(), std::span(y), dy);
    // The input is read for gradients of an adapter only, and there is no adapter.
    backend_.Run(ops::LinearBackward{
        {&linear, 1}, Rows(unread_, 0, dx.rows), {&gradient, 1}, dx, Store::kSet});
    x = Download<float>(backend_.memory(), dx);
  }

  Backend& backend_;
  const WeightView& weight_;
  const WeightView* minus_;
  Arena arena_;
  MatrixView x_;       // (rows, I)
  MatrixView y_;       // (rows, O)
  MatrixView unread_;  // (rows, I)
};

// The matrices of an adapter while the host computes them.
struct Factors {
  explicit Factors(const LoraLinear& of)
      : lora(of), a(lora.rank * lora.in), b(lora.out * lora.rank) {}

  // Row r of A and column r of B.
  void Set(std::int64_t r, double factor_a, const float* a_row, double factor_b,
           const float* b_column) {
    for (std::int64_t i = 0; i < lora.in; ++i) {
      a[r * lora.in + i] = static_cast<float>(factor_a * a_row[i]);
    }
    for (std::int64_t o = 0; o < lora.out; ++o) {
      b[o * lora.rank + r] = static_cast<float>(factor_b * b_column[o]);
    }
  }

  const LoraLinear& lora;
  std::vector<float> a;  // (R, I)
  std::vector<float> b;  // (O, R)
};

// s B A = the largest `rank` singular values of the matrix.
void SetSingular(const MatrixProducts& w, std::int64_t rank, std::uint64_t seed, Factors& factors) {
  const LowRank low = LargestSingular(w, rank, seed);
  for (std::int64_t r = 0; r < rank; ++r) {
    // A = sqrt(S / s) V^T and B = U sqrt(S / s), so that the scale s of the adapter cancels.
    const double root = std::sqrt(low.s[r] / double{factors.lora.scale});
    factors.Set(r, root, low.v.data() + r * w.in, root, low.u.data() + r * w.out);
  }
}

// B = the first columns of Q, A = the first rows of R = Q^T W.
void SetOrthonormal(const MatrixProducts& w, std::int64_t rank, Factors& factors) {
  // Rows of the identity select columns of W. Q needs no more than the first `rank` of them,
  // because Gram-Schmidt never looks ahead.
  std::vector<float> unit(rank * w.in, 0.0f);
  for (std::int64_t r = 0; r < rank; ++r) unit[r * w.in + r] = 1;
  std::vector<float> q(rank * w.out);
  w.times_transposed(unit, q);  // the first columns of W
  Orthonormalize(q, rank, w.out);
  std::vector<float> r_rows(unit.size());
  w.times(q, r_rows);
  for (std::int64_t r = 0; r < rank; ++r) {
    factors.Set(r, 1, r_rows.data() + r * w.in, 1, q.data() + r * w.out);
  }
}

// The second half: A0 as the first half is now, B0 with the other sign, so that the adapter adds
// nothing before the first step. A is (2R, I) and B is (O, 2R):
//
//   A = [A0]   B = [B0, -B0]   B A = B0 A0 - B0 A0 = 0
//       [A0]
void FreezeNegative(Factors& factors) {
  const std::int64_t rank = factors.lora.trained_rank;
  std::copy_n(factors.a.begin(), rank * factors.lora.in,
              factors.a.begin() + rank * factors.lora.in);
  for (std::int64_t o = 0; o < factors.lora.out; ++o) {
    float* row = factors.b.data() + o * factors.lora.rank;
    for (std::int64_t r = 0; r < rank; ++r) row[rank + r] = -row[r];
  }
}

// The weight as the checkpoint has it, before it was quantized.
class OriginalWeight {
 public:
  OriginalWeight(Backend& backend, const FrozenLinear& frozen, TensorReader& reader)
      : reader_(reader), tensor_(*reader.Find(frozen.path + ".weight")) {
    // Adopt with an empty carver measures; with an arena behind the carver it copies. On the host
    // it may use the mapped bytes as they are.
    const void* host = reader.Bytes(tensor_).data();
    Carver plan;
    backend.Adopt(host, tensor_.bytes(), WeightUse::kTraining, plan);
    arena_ = Arena(plan.bytes(), backend.memory());
    Carver carver(arena_);
    const void* data = backend.Adopt(host, tensor_.bytes(), WeightUse::kTraining, carver);
    const std::int64_t cols = frozen.weight.cols();
    weight_ = ConstMatrixView{data, tensor_.dtype, frozen.weight.rows(), cols, cols};
  }
  ~OriginalWeight() { reader_.Release(tensor_); }
  OriginalWeight(const OriginalWeight&) = delete;
  OriginalWeight& operator=(const OriginalWeight&) = delete;

  const WeightView& view() const { return weight_; }

 private:
  TensorReader& reader_;
  const TensorInfo& tensor_;
  Arena arena_;
  WeightView weight_;
};

}  // namespace

std::vector<std::string> LoraInitNames() {
  std::vector<std::string> names;
  for (const auto& [name, init] : kInitNames) names.emplace_back(name);
  return names;
}

LoraInit ParseLoraInit(std::string_view name) {
  for (const auto& [known, init] : kInitNames) {
    if (known == name) return init;
  }
  ThrowInvalidInput("unknown init_lora_weights '{}'", name);
}

void CheckLoraInit(LoraInit init, const LoraAdapter& adapter, bool quantizes_on_load) {
  if (init == LoraInit::kDefault) return;
  if (init == LoraInit::kLoftq && !quantizes_on_load) {
    ThrowInvalidInput(
        "init_lora_weights loftq compensates for the error of quantizing on load, but this run "
        "quantizes nothing; use a 16-bit checkpoint with load_in_4bit");
  }
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) {
      const bool is_beside_mlp =
          adapter.decoder().side_moe.num_experts > 0 &&
          (IsRouter(lora.path) || IsJoinedExpert(adapter.decoder(), lora.path));
      if (init == LoraInit::kLoftq && lora.rank > 0 && is_beside_mlp) {
        ThrowInvalidInput(
            "init_lora_weights loftq reads the weight of each linear from the checkpoint, which "
            "has "
            "'{}' in another form or unquantized; leave the experts and their router out",
            lora.path);
      }
      if (lora.shares_a) {
        ThrowInvalidInput(
            "init_lora_weights other than default gives each linear an A of its own, and gate and "
            "up of the experts of this model have one for both ('{}'); leave the experts out",
            lora.path);
      }
      if (lora.trained_rank <= std::min(lora.in, lora.out)) return;
      ThrowInvalidInput("init_lora_weights: the rank {} of '{}' exceeds its {} x {} weight",
                        lora.trained_rank, lora.path, lora.out, lora.in);
    });
  }
}

void InitializeFromWeights(Backend& backend, LoraInit init, const DecoderWeights& weights,
                           std::uint64_t seed,
                           const std::function<void(std::int64_t, std::int64_t)>& progress,
                           LoraAdapter& adapter) {
  BackendLimits limits;
  std::int64_t total = 0;
  std::int64_t done = 0;
  for (const PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](const LoraLinear& lora) {
      if (lora.rank > 0) ++total;
      limits.rows = std::max(limits.rows, lora.rank + kOversample);
      limits.features = std::max({limits.features, lora.in, lora.out});
    });
  }
  limits.gradient_rows = limits.rows;
  backend.Reserve(limits);
  // LoftQ approximates the error of quantization, W - NF4(W). It needs no second half: the base
  // keeps NF4(W), and the adapter brings it closer to W.
  const auto compute = [&](const FrozenLinear& frozen, Factors& factors) {
    const std::int64_t rank = factors.lora.trained_rank;
    if (init == LoraInit::kLoftq) {
      const OriginalWeight original(backend, frozen, *weights.reader);
      Products products(backend, original.view(), &frozen.weight, rank + kOversample);
      return SetSingular(products.Get(), rank, seed, factors);
    }
    Products products(backend, frozen.weight, nullptr, rank + kOversample);
    if (init == LoraInit::kPissa) SetSingular(products.Get(), rank, seed, factors);
    if (init == LoraInit::kOlora) SetOrthonormal(products.Get(), rank, factors);
    FreezeNegative(factors);
  };
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    if (!weights.layers[l].is_here()) continue;
    ForEachPair(weights.layers[l].linears, adapter.layers()[l],
                [&](const FrozenLinear& frozen, LoraLinear& lora) {
                  if (lora.rank == 0) return;
                  Factors factors(lora);
                  compute(frozen, factors);
                  Upload(adapter.memory(), std::span<const float>(factors.a), lora.a);
                  Upload(adapter.memory(), std::span<const float>(factors.b), lora.b);
                  progress(++done, total);
                });
  }
}

}  // namespace qlora
