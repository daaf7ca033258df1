// The ops of layers that carry a state from token to token: short convolutions (LFM2) and the gated
// delta rule (Qwen3.5, Qwen3-Next; Yang et al., arXiv:2412.06464). Part of the contract in ops.h,
// which includes this file and explains the letters and types. docs/math/gated_delta_rule.md and
// causal_conv.md derive the formulas.
//
// Sequences are packed: their rows are one after the other, and nothing crosses the start of one.
// A sequence begins in the state 0. With an operand for states, it begins where that says, and its
// state at the end is written there, so that a later call goes on: the next part of a prompt, or
// one more token. Token by token, in parts or at once, the results are the same up to rounding; in
// parts that begin at multiples of kRecurrentPart, and at once, they are the same bits.
//
// The rest of such layers is made of other ops:
//   short block       y = C * conv(B * X): GatedActivation with kIdentity before and after
//   gated norm        y = rms(o) w * silu(z): RmsNorm over (N * H, V), then GatedActivation
//   output gate       y = o * sigmoid(gate): GatedActivation with kSigmoid over (N * H, K), where
//                     query and gate are columns of q_proj's rows of 2 K
#ifndef QLORA_BACKEND_RECURRENT_OPS_H_
#define QLORA_BACKEND_RECURRENT_OPS_H_

#include <cstdint>
#include <span>

#include "qlora/tensor.h"

namespace qlora {

enum class Activation : std::uint8_t {
  kSilu,
  kGeluTanh,
  kGelu,  // by erf
  kSigmoid,
  kIdentity,
  kClampedSwiglu,  // also of `up`; see ops::GatedActivation
};

// The rows [begin, begin + rows) of one sequence, or of its next part.
struct SequenceSpan {
  std::int64_t begin = 0;
  std::int64_t rows = 0;
  std::int64_t state = 0;  // which state it begins and ends in, where the op is given states
};

// A sequence has the same bits however it is cut at multiples of so many tokens.
inline constexpr std::int64_t kRecurrentPart = 64;

// Taps of a convolution; models have 3 to 7.
inline constexpr std::int64_t kMostTaps = 64;

struct DeltaRuleShape {
  std::int64_t heads = 0;      // H: of values
  std::int64_t key_heads = 0;  // G, divides H: H / G value heads read one head of queries and keys
  std::int64_t key_dim = 0;    // K
  std::int64_t value_dim = 0;  // V
  // Value head h reads key head h mod G (llama.cpp), not h / (H / G) (Hugging Face).
  bool tiled = false;

  std::int64_t key_head(std::int64_t h) const {
    return tiled ? h % key_heads : h / (heads / key_heads);
  }
  // Value head number i of the H / G that read key head g.
  std::int64_t value_head(std::int64_t g, std::int64_t i) const {
    return tiled ? i * key_heads + g : g * (heads / key_heads) + i;
  }

  bool operator==(const DeltaRuleShape&) const = default;
};
// Queries and keys are x (sum of x^2 over a head + this)^-1/2.
inline constexpr double kDeltaRuleEpsilon = 1e-6;

namespace ops {

// h(t, c) = bias(c) + the sum over i < K of weight(c, i) * x(t - K + 1 + i, c);  y = act(h).
// Every row is in exactly one span. An x before the start of its sequence is 0, or comes from the
// window: the last K - 1 rows of x before the call. The window becomes the last K - 1 rows then.
struct CausalConv {
  static constexpr const char* kName = "CausalConv";
  Activation activation = Activation::kIdentity;
  std::span<const SequenceSpan> spans;  // in host memory
  ConstMatrixView x;                    // (N, C)
  ConstMatrixView weight;               // (C, K) wide
  ConstMatrixView bias;                 // (1, C) wide, or empty
  MatrixView y;                         // (N, C)
  MatrixView window_inout = {};         // (states * (K - 1), C) of the type of x, or empty
};

// dh = dy * act'(h);  dx(t, c) = the sum over i < K of weight(c, i) * dh(t + K - 1 - i, c), over
// tokens of the same sequence, all of which began in the state 0. h is computed again.
struct CausalConvBackward {
  static constexpr const char* kName = "CausalConvBackward";
  Activation activation = Activation::kIdentity;
  std::span<const SequenceSpan> spans;  // in host memory
  ConstMatrixView dy;                   // (N, C)
  ConstMatrixView x;                    // (N, C)
  ConstMatrixView weight;               // (C, K) wide
  ConstMatrixView bias;                 // (1, C) wide, or empty
  MatrixView dx;                        // (N, C)
};

// For each value head, with the state S (K, V) from token to token:
//   q' = q / |q| K^-1/2, k' = k / |k|, where |x|^2 = sum x^2 + kDeltaRuleEpsilon
//   beta = sigmoid(b);  g = rate * softplus(a + dt_bias)
//   P = e^g S;  u = beta (v - P^T k');  S = P + k' u^T;  o = S^T q'
// Every row is in exactly one span. All arithmetic is at least float32, whatever the compute type.
struct GatedDeltaRule {
  static constexpr const char* kName = "GatedDeltaRule";
  DeltaRuleShape shape;
  std::span<const SequenceSpan> spans;  // in host memory
  ConstMatrixView q;                    // (N, G*K)
  ConstMatrixView k;                    // (N, G*K)
  ConstMatrixView v;                    // (N, H*V)
  ConstMatrixView a;                    // (N, H)
  ConstMatrixView b;                    // (N, H)
  ConstMatrixView rate;                 // (1, H) wide: -exp(A_log)
  ConstMatrixView dt_bias;              // (1, H) wide
  MatrixView o;                         // (N, H*V)
  MatrixView state_inout = {};          // (states * H * K, V) wide, or empty
};

// The gradients of sequences that began in the state 0 and whose last state nobody reads. States
// are computed again: nothing is kept but the operands.
struct GatedDeltaRuleBackward {
  static constexpr const char* kName = "GatedDeltaRuleBackward";
  DeltaRuleShape shape;
  std::span<const SequenceSpan> spans;  // in host memory
  ConstMatrixView d_o;                  // (N, H*V)
  ConstMatrixView q;                    // (N, G*K)
  ConstMatrixView k;                    // (N, G*K)
  ConstMatrixView v;                    // (N, H*V)
  ConstMatrixView a;                    // (N, H)
  ConstMatrixView b;                    // (N, H)
  ConstMatrixView rate;                 // (1, H) wide: -exp(A_log)
  ConstMatrixView dt_bias;              // (1, H) wide
  MatrixView dq;                        // (N, G*K)
  MatrixView dk;                        // (N, G*K)
  MatrixView dv;                        // (N, H*V)
  MatrixView da;                        // (N, H)
  MatrixView db;                        // (N, H)
};

}  // namespace ops
}  // namespace qlora

#endif  // QLORA_BACKEND_RECURRENT_OPS_H_
