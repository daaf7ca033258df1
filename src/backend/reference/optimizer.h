// The definition of the optimizers.
#ifndef QLORA_BACKEND_REFERENCE_OPTIMIZER_H_
#define QLORA_BACKEND_REFERENCE_OPTIMIZER_H_

#include <vector>

#include "backend/reference/elementwise.h"
#include "quant/dynamic_map.h"

namespace qlora::reference {

// The n values of a moment over T, decoded where they are codes.
template <typename T>
class MomentOf {
 public:
  MomentOf(const Moment& moment, std::int64_t n, const DynamicMap& map)
      : moment_(moment), n_(n), map_(map), values_(static_cast<std::size_t>(n)) {
    if (moment.values.empty()) return;
    if (!coded()) {
      std::copy_n(moment.values.template Row<T>(0), n, values_.begin());
      return;
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const float scale = moment.scales.template Row<float>(0)[i / kDynamicBlock];
      float value = 0;
      map.Decode(moment.values.template Row<std::uint8_t>(0) + i, scale, 1, &value);
      values_[i] = static_cast<T>(value);
    }
  }

  Mat<T> values() { return {values_.data(), 1, n_, n_}; }

  // Writes the values back.
  void Store() const {
    if (moment_.values.empty()) return;
    if (!coded()) {
      std::copy_n(values_.begin(), n_, moment_.values.template Row<T>(0));
      return;
    }
    std::vector<float> block;
    for (std::int64_t begin = 0; begin < n_; begin += kDynamicBlock) {
      const std::int64_t count = std::min(kDynamicBlock, n_ - begin);
      block.clear();
      for (std::int64_t i = begin; i < begin + count; ++i) {
        block.push_back(static_cast<float>(std::real(values_[i])));
      }
      moment_.scales.template Row<float>(0)[begin / kDynamicBlock] =
          map_.Encode(block.data(), count, moment_.values.template Row<std::uint8_t>(0) + begin);
    }
  }

 private:
  bool coded() const { return moment_.values.dtype == DType::kU8; }

  const Moment& moment_;
  std::int64_t n_;
  const DynamicMap& map_;
  std::vector<T> values_;
};

// p *= 1 - lr decay;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
// p -= lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
template <typename T>
void AdamW(const UpdateArgs& args, T g, T& p, T& m, T& v) {
  const auto step = static_cast<double>(args.step);
  const T decay = static_cast<T>(1 - args.learning_rate * args.weight_decay);
  const T rate = static_cast<T>(args.learning_rate / (1 - std::pow(args.beta1, step)));
  const T root = static_cast<T>(std::sqrt(1 - std::pow(args.beta2, step)));
  m = static_cast<T>(args.beta1) * m + static_cast<T>(1 - args.beta1) * g;
  v = static_cast<T>(args.beta2) * v + static_cast<T>(1 - args.beta2) * g * g;
  p = decay * p - rate * m / (std::sqrt(v) / root + static_cast<T>(args.epsilon));
}

// p *= 1 - lr decay;  p -= lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
template <typename T>
void Lion(const UpdateArgs& args, T g, T& p, T& m) {
  const T blend = static_cast<T>(args.beta1) * m + static_cast<T>(1 - args.beta1) * g;
  const double sign = (std::real(blend) > 0) - (std::real(blend) < 0);
  p = static_cast<T>(1 - args.learning_rate * args.weight_decay) * p -
      static_cast<T>(args.learning_rate * sign);
  m = static_cast<T>(args.beta2) * m + static_cast<T>(1 - args.beta2) * g;
}

// m = momentum m + g + decay p;  p -= lr m
template <typename T>
void Sgd(const UpdateArgs& args, T g, T& p, T& m) {
  m = static_cast<T>(args.beta1) * m + g + static_cast<T>(args.weight_decay) * p;
  p -= static_cast<T>(args.learning_rate) * m;
}

template <typename T>
void Update(const UpdateArgs& args, Mat<const T> gradient, Mat<T> param_inout, Mat<T> m_inout,
            Mat<T> v_inout) {
  for (std::int64_t i = 0; i < gradient.cols; ++i) {
    const T g = gradient(0, i) * static_cast<T>(args.gradient_scale);
    T& p = param_inout(0, i);
    T& m = m_inout(0, i);
    switch (args.rule) {
      case UpdateRule::kAdamW:
        AdamW(args, g, p, m, v_inout(0, i));
        break;
      case UpdateRule::kLion:
        Lion(args, g, p, m);
        break;
      case UpdateRule::kSgd:
        Sgd(args, g, p, m);
        break;
    }
  }
}

}  // namespace qlora::reference

#endif  // QLORA_BACKEND_REFERENCE_OPTIMIZER_H_
