// The layer: its parts in host memory, where the caller sees them, passes through a backend, and
// merging.
#include "qlora/linear.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "backend/backend_factory.h"
#include "base/arena.h"
#include "base/check.h"
#include "base/matrix.h"
#include "base/random.h"
#include "base/shape.h"
#include "linear/host_operands.h"
#include "linear/linear_file.h"
#include "quant/first_non_finite.h"
#include "quant/layout.h"

namespace qlora {
namespace {

// ---- Checks of arguments. Errors: InvalidInput.

// A NaN fails these tests too.
void CheckConfig(const QLoraConfig& config) {
  if (config.r < 1) ThrowInvalidInput("QLoraLinear: expected a rank r >= 1, found {}", config.r);
  if (!(config.lora_alpha > 0) || std::isinf(config.lora_alpha)) {
    ThrowInvalidInput("QLoraLinear: expected lora_alpha > 0, found {}", config.lora_alpha);
  }
  if (!(config.lora_dropout >= 0 && config.lora_dropout < 1)) {
    ThrowInvalidInput("QLoraLinear: expected lora_dropout in [0, 1), found {}",
                      config.lora_dropout);
  }
  if (config.compute != DType::kF32 && config.compute != DType::kBF16 &&
      config.compute != DType::kI8) {
    ThrowInvalidInput("QLoraLinear: expected compute F32, BF16 or I8, found {}",
                      NameOf(config.compute));
  }
  if (config.int8_backward && config.compute != DType::kI8) {
    ThrowInvalidInput(
        "QLoraLinear: int8_backward would have no effect with compute_dtype {}: expected "
        "compute_dtype int8, or int8_backward left out",
        config.compute == DType::kBF16 ? "bfloat16" : "float32");
  }
}

// A weight that is decoded before use has no codes, so products of 8 bits would be none.
void CheckDecoded(const QLoraConfig& config, const compat::View& weight) {
  if (config.compute != DType::kI8) return;
  ThrowInvalidInput(
      "QLoraLinear: compute_dtype int8 would have no effect with {}, whose weight is decoded "
      "before use: expected compute_dtype bfloat16 or float32, or a weight without",
      weight.shifts != nullptr ? "zero_point" : "row_blocks that do not divide a row");
}

Compute ComputeOf(const QLoraConfig& config) {
  if (config.compute != DType::kI8) return config.compute;
  return {DType::kBF16,
          config.int8_backward ? FrozenProducts::kInt8 : FrozenProducts::kInt8Forward};
}

void CheckShape(const char* name, const ConstMatrixView& m, std::int64_t rows, std::int64_t cols) {
  if (m.rows != rows || m.cols != cols) {
    ThrowInvalidInput("QLoraLinear: expected {} of shape ({}, {}), found ({}, {})", name, rows,
                      cols, m.rows, m.cols);
  }
}

// An operand of a pass: float32 or bfloat16.
void CheckActivation(const char* name, const ConstMatrixView& m, std::int64_t rows,
                     std::int64_t cols) {
  CheckShape(name, m, rows, cols);
  if (m.dtype != DType::kF32 && m.dtype != DType::kBF16) {
    ThrowInvalidInput("QLoraLinear: expected {} of F32 or BF16, found {}", name, NameOf(m.dtype));
  }
}

// w += scale * b A, the update summed in double and rounded once.
void AddUpdate(const float* b, const ConstMatrixView& a, double scale, std::span<float> w) {
  std::vector<double> update(w.size(), 0.0);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const double factor = double{b[r]} * scale;
    const float* row = a.Row<float>(r);
    for (std::size_t i = 0; i < update.size(); ++i) update[i] += factor * row[i];
  }
  for (std::size_t i = 0; i < update.size(); ++i) w[i] = static_cast<float>(w[i] + update[i]);
}

// to (1, n) = from, rounded to its dtype.
void StoreRow(std::span<const float> from, MatrixView to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (to.dtype == DType::kBF16) {
      to.Row<BFloat16>(0)[i] = ToBFloat16(from[i]);
    } else if (to.dtype == DType::kF16) {
      to.Row<Float16>(0)[i] = ToFloat16(from[i]);
    } else {
      to.Row<float>(0)[i] = from[i];
    }
  }
}

}  // namespace

// ---- The layer.

// Keeps up to two copies of the given weight: `read_weight_`, or `dense_` where no layout of
// bitsandbytes holds the weight, in host memory; and `adopted_`, made for the first pass, in the
// memory of the backend. A backend that computes on the host adopts without a copy.
class QLoraLinear::Impl {
 public:
  Impl(Context& context, compat::Matrix weight, const QLoraConfig& config,
       std::span<const float> bias)
      : context_(context),
        weight_(std::move(weight)),
        config_(config),
        bias_(bias.begin(), bias.end()) {
    CheckConfig(config);
    CountValues("QLoraLinear: the adapter", std::array{config.r, std::max(in(), out())});
    if (in() < 1 || out() < 1) {
      ThrowInvalidInput("QLoraLinear: a weight of shape ({}, {}) is empty", out(), in());
    }
    if (!bias_.empty() && std::ssize(bias_) != out()) {
      ThrowInvalidInput("QLoraLinear: expected {} values of bias, one per row, found {}", out(),
                        bias_.size());
    }
    // Nothing for forms that bitsandbytes cannot hold; HostWeight decodes these forms.
    read_weight_ = compat::ConvertToBnb(weight_);
    if (!read_weight_) CheckDecoded(config, weight_.view());
    backend_ = BackendFactory::ForJob(context, "auto")->Make(context, ComputeOf(config));
    // A, B and their gradients share one arena: laid out once to count, once to place.
    const auto layout = [&](Carver& carver) {
      a_ = carver.Matrix(DType::kF32, config_.r, in());
      b_ = carver.Matrix(DType::kF32, out(), config_.r);
      da_ = carver.Matrix(DType::kF32, config_.r, in());
      db_ = carver.Matrix(DType::kF32, out(), config_.r);
    };
    Carver plan;
    layout(plan);
    adapter_ = Arena(plan.bytes());
    Carver carver(adapter_);
    layout(carver);
    const RandomKey key = MakeKey(config_.seed, RandomPlace::kLoraInit);
    // B is zero, as all of a new arena: the layer starts as x W^T + bias.
    std::ranges::copy(KaimingUniform(key, config_.r, in()), a_.Row<float>(0));
  }

  // I and O.
  std::int64_t in() const { return weight_.cols(); }
  std::int64_t out() const { return weight_.rows(); }
  double scale() const {
    const auto r = static_cast<double>(config_.r);
    return config_.lora_alpha / (config_.use_rslora ? std::sqrt(r) : r);
  }

  // A and B, their gradients, and merged or not, are copied from a layer of the same shape.
  void CopyState(const Impl& other) {
    const auto copy = [](const MatrixView& from, const MatrixView& to) {
      std::copy_n(from.Row<float>(0), from.rows * from.cols, to.Row<float>(0));
    };
    copy(other.a_, a_);
    copy(other.b_, b_);
    copy(other.da_, da_);
    copy(other.db_, db_);
    // Merged again from the same values, which gives the same bits.
    if (other.merged_) Merge();
  }

  // Copies A or B, widened to float32.
  void Set(const char* name, ConstMatrixView from, MatrixView to) {
    // The merged weight would not follow a new A or B.
    if (merged_) ThrowInvalidInput("QLoraLinear: unmerge before setting {}", name);
    CheckShape(name, from, to.rows, to.cols);
    if (const std::int64_t bad = FirstNonFinite(context_, from); bad >= 0) {
      ThrowInvalidInput("QLoraLinear: {} holds a NaN or Inf at row {}, column {}", name,
                        bad / from.cols, bad % from.cols);
    }
    for (std::int64_t r = 0; r < to.rows; ++r) {
      ConvertToWide(Rows(from, r, 1).data, from.dtype, 0, Rows(to, r, 1));
    }
  }

  // w = W + s B A, a row at a time: w[r] = W[r] + s sum over k of B[r, k] A[k].
  void MergedWeight(MatrixView w) const {
    CheckShape("the merged weight", w, out(), in());
    if (!IsFloat(w.dtype)) {
      ThrowInvalidInput("QLoraLinear: the merged weight cannot be {}", NameOf(w.dtype));
    }
    context_.ParallelFor(out(), [&](std::int64_t r, int) {
      std::vector<float> row(in());
      const MatrixView w_row = MakeView(row.data(), 1, in());
      if (read_weight_) {
        DequantizeRows(read_weight_->view(), r, w_row);
      } else {
        compat::DequantizeRows(weight_.view(), r, w_row);
      }
      AddUpdate(b_.Row<float>(r), a_, scale(), row);
      StoreRow(row, Rows(w, r, 1));
    });
  }

  // y = x W^T + bias + s u B^T, u = drop(x) A^T; merged: y = x (W + s B A)^T + bias.
  void Forward(ConstMatrixView x, MatrixView y, std::optional<std::uint64_t> step) {
    CheckActivation("x", x, x.rows, in());
    CheckActivation("y", y, x.rows, out());
    if (x.rows == 0) return;
    // Nothing of the backend is allocated during a pass.
    Reserve(x.rows);
    HostOperands host(backend_->memory());
    const LinearView linear = View(step, host);
    const LinearOutput output = {host.Write(y), merged_ ? MatrixView{} : Rows(u_, 0, x.rows)};
    backend_->Run(ops::Linear{{&linear, 1}, host.Read(x), {&output, 1}, Store::kSet});
    host.Finish();
  }

  // With du = s dy B:  db += s dy^T u,  da += du^T drop(x),  dx = dy W + drop'(du A).
  void Backward(ConstMatrixView x, ConstMatrixView dy, MatrixView dx,
                std::optional<std::uint64_t> step) {
    // A merged layer has no adapter to train.
    if (merged_) ThrowInvalidInput("QLoraLinear: unmerge before the backward pass");
    CheckActivation("x", x, x.rows, in());
    CheckActivation("dy", dy, x.rows, out());
    if (!dx.empty()) CheckActivation("dx", dx, x.rows, in());
    if (x.rows == 0) return;
    Reserve(x.rows);
    HostOperands host(backend_->memory());
    const LinearView linear = View(step, host);
    const ConstMatrixView in = host.Read(x);
    // The gradients of A and B need u = drop(x) A^T, which Forward does not keep. It is computed
    // again through a linear with a weight of zeros (1, I), whose output nobody reads.
    const MatrixView u = Rows(u_, 0, x.rows);
    LinearView probe = linear;
    probe.weight = zeros_;
    probe.bias = {};
    probe.lora.b = Rows(linear.lora.b, 0, 1);
    const LinearOutput output = {Rows(probe_, 0, x.rows), u};
    backend_->Run(ops::Linear{{&probe, 1}, in, {&output, 1}, Store::kSet});
    const LinearGradient gradient = {host.Read(dy), u, host.Update(da_), host.Update(db_)};
    backend_->Run(
        ops::LinearBackward{{&linear, 1}, in, {&gradient, 1}, host.Write(dx), Store::kSet});
    host.Finish();
  }

  void ZeroGradients() {
    Zero(HostMemory(), da_);
    Zero(HostMemory(), db_);
  }

  // The 4-bit weight stays as it is, so Unmerge has nothing to compute.
  void Merge() {
    if (merged_) ThrowInvalidInput("QLoraLinear: merged already");
    dense_ = Arena(BytesOf(DType::kF32, out() * in()));
    MergedWeight(Dense());
    merged_ = true;
    // The next pass adopts the merged weight.
    adopted_ = {};
  }

  void Unmerge() {
    if (!merged_) ThrowInvalidInput("QLoraLinear: not merged");
    dense_ = Arena();
    merged_ = false;
    adopted_ = {};
  }

  LinearParts Parts() const { return {weight_, config_, bias_, a_, b_, nullptr}; }

  Context& context_;
  compat::Matrix weight_;  // as it was given
  QLoraConfig config_;
  std::vector<float> bias_;
  MatrixView a_, b_, da_, db_;
  bool merged_ = false;

 private:
  MatrixView Dense() { return {dense_.data(), DType::kF32, out(), in(), in()}; }

  // The weight in host memory. Forms that have no layout of bitsandbytes are decoded first.
  WeightView HostWeight() {
    if (merged_) return Dense();
    if (read_weight_) return read_weight_->view();
    if (dense_.data() == nullptr) {
      dense_ = Arena(BytesOf(DType::kF32, out() * in()));
      compat::Dequantize(context_, weight_.view(), Dense());
    }
    return Dense();
  }

  // The weight as the backend reads it.
  const WeightView& Weight() {
    if (adopted_.rows() > 0) return adopted_;
    const WeightView host = HostWeight();
    Carver plan;
    Adopt(host, plan);
    adopted_arena_ = Arena(plan.bytes(), backend_->memory());
    Carver carver(adopted_arena_);
    adopted_ = Adopt(host, carver);
    return adopted_;
  }

  // Each array of the weight in the memory of the backend, or in place. With a carver that counts,
  // the result is not used.
  WeightView Adopt(WeightView weight, Carver& carver) {
    ForEachPart(weight, [&]<typename T>(const T*& data, std::size_t bytes) {
      data = static_cast<const T*>(backend_->Adopt(data, bytes, WeightUse::kTraining, carver));
    });
    return weight;
  }

  // The layer as the backend sees it; without a step nothing is dropped.
  LinearView View(std::optional<std::uint64_t> step, HostOperands& host) {
    LinearView view = {Weight(), {}, {}};
    if (!bias_.empty()) view.bias = host.Read(MakeView(std::as_const(bias_).data(), 1, out()));
    if (merged_) return view;
    view.lora.a = host.Read(a_);
    view.lora.b = host.Read(b_);
    // The mask belongs to seed and step, so Backward with the same step drops the same elements as
    // Forward.
    view.lora.scale = static_cast<float>(scale());
    if (step) {
      view.lora.dropout = static_cast<float>(config_.lora_dropout);
      view.lora.dropout_key = MakeKey(config_.seed, RandomPlace::kLoraDropout, *step);
    }
    return view;
  }

  // Memory for passes of at least `rows` rows: it grows and never shrinks. zeros_ is never written,
  // so it stays zero.
  void Reserve(std::int64_t rows) {
    if (rows <= reserved_rows_) return;
    BackendLimits limits;
    limits.rows = limits.gradient_rows = rows;
    limits.features = std::max(in(), out());
    limits.lora_rank = config_.r;
    backend_->Reserve(limits);
    const auto layout = [&](Carver& carver) {
      u_ = carver.Matrix(DType::kF32, rows, config_.r);
      probe_ = carver.Matrix(DType::kF32, rows, 1);
      zeros_ = carver.Matrix(DType::kF32, 1, in());
    };
    Carver plan;
    layout(plan);
    pass_ = Arena(plan.bytes(), backend_->memory());
    Carver carver(pass_);
    layout(carver);
    reserved_rows_ = rows;
  }

  std::optional<QuantizedMatrix> read_weight_;  // weight_ in the layout of bitsandbytes
  std::unique_ptr<Backend> backend_;
  Arena adapter_;  // a, b, da, db
  Arena dense_;    // (O, I) float32 while merged, and for forms that are decoded before use
  Arena pass_;     // u (N, R), probe (N, 1), zeros (1, I); in the memory of the backend
  Arena adopted_arena_;
  WeightView adopted_;  // the weight as the backend reads it, or empty
  MatrixView u_, probe_, zeros_;
  std::int64_t reserved_rows_ = 0;
};

// ---- The face: construction, queries, passes. Forwards to Impl.

QLoraLinear::QLoraLinear(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
QLoraLinear::~QLoraLinear() = default;
QLoraLinear::QLoraLinear(QLoraLinear&& other) noexcept = default;
QLoraLinear& QLoraLinear::operator=(QLoraLinear&& other) noexcept = default;

QLoraLinear QLoraLinear::FromWeight(Context& context, ConstMatrixView w, const QLoraConfig& config,
                                    std::span<const float> bias) {
  // The weight is quantized on the host; a backend adopts the result.
  return FromQuantized(context, Quantize(context, w, config.quantize), config, bias);
}

QLoraLinear QLoraLinear::FromQuantized(Context& context, compat::Matrix weight,
                                       const QLoraConfig& config, std::span<const float> bias) {
  return QLoraLinear(std::make_unique<Impl>(context, std::move(weight), config, bias));
}

QLoraLinear QLoraLinear::Clone() const {
  QLoraLinear clone = FromQuantized(impl_->context_, impl_->weight_, impl_->config_, impl_->bias_);
  // The compat::Matrix is shared, not copied.
  clone.impl_->CopyState(*impl_);
  return clone;
}

std::int64_t QLoraLinear::in_features() const { return impl_->in(); }
std::int64_t QLoraLinear::out_features() const { return impl_->out(); }
const QLoraConfig& QLoraLinear::config() const { return impl_->config_; }
double QLoraLinear::scaling() const { return impl_->scale(); }
const compat::Matrix& QLoraLinear::weight() const { return impl_->weight_; }
std::span<const float> QLoraLinear::bias() const { return impl_->bias_; }
std::int64_t QLoraLinear::group_size() const { return weight().view().block_size; }
std::span<const float> QLoraLinear::zero_point() const {
  const compat::View& w = weight().view();
  if (w.shifts == nullptr) return {};
  return {w.shifts, static_cast<std::size_t>(w.blocks())};
}

std::int64_t QLoraLinear::trainable_params() const {
  return config().r * (in_features() + out_features());
}
std::int64_t QLoraLinear::total_params() const {
  return trainable_params() + weight().view().size() + std::ssize(bias());
}
std::size_t QLoraLinear::size_bytes() const {
  return weight().bytes() + sizeof(float) * (bias().size() + trainable_params());
}
std::int64_t QLoraLinear::memory_saved_bytes() const {
  return 4 * weight().view().size() - static_cast<std::int64_t>(weight().bytes());
}

ConstMatrixView QLoraLinear::a() const { return impl_->a_; }
ConstMatrixView QLoraLinear::b() const { return impl_->b_; }
void QLoraLinear::SetA(ConstMatrixView a) { impl_->Set("A", a, impl_->a_); }
void QLoraLinear::SetB(ConstMatrixView b) { impl_->Set("B", b, impl_->b_); }

void QLoraLinear::DequantizeWeight(MatrixView out) const {
  compat::Dequantize(impl_->context_, weight().view(), out);
}
void QLoraLinear::MergedWeight(MatrixView out) const { impl_->MergedWeight(out); }

void QLoraLinear::Forward(ConstMatrixView x, MatrixView y,
                          std::optional<std::uint64_t> dropout_step) {
  impl_->Forward(x, y, dropout_step);
}
void QLoraLinear::Backward(ConstMatrixView x, ConstMatrixView dy, MatrixView dx,
                           std::optional<std::uint64_t> dropout_step) {
  impl_->Backward(x, dy, dx, dropout_step);
}
MatrixView QLoraLinear::da() { return impl_->da_; }
MatrixView QLoraLinear::db() { return impl_->db_; }
void QLoraLinear::ZeroGradients() { impl_->ZeroGradients(); }

void QLoraLinear::Merge() { impl_->Merge(); }
void QLoraLinear::Unmerge() { impl_->Unmerge(); }
bool QLoraLinear::merged() const { return impl_->merged_; }

void QLoraLinear::Save(const std::filesystem::path& file) const {
  SaveLinear(file, impl_->Parts());
}

QLoraLinear QLoraLinear::Load(Context& context, const std::filesystem::path& file) {
  const LinearParts stored = LoadLinear(file);
  QLoraLinear layer = FromQuantized(context, stored.weight, stored.config, stored.bias);
  // Copies, so that the file is kept open by the weight alone.
  layer.SetA(stored.a);
  layer.SetB(stored.b);
  return layer;
}

}  // namespace qlora
