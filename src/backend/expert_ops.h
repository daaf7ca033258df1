// The ops that choose the experts of a token, and move rows to and from them. Part of the contract
// in ops.h, which includes this file and explains the letters and types; the products of experts
// are there, beside those of other linears. docs/math/experts.md derives the formulas.
#ifndef QLORA_BACKEND_EXPERT_OPS_H_
#define QLORA_BACKEND_EXPERT_OPS_H_

#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "qlora/tensor.h"

namespace qlora {

// What experts are chosen and weighted by.
enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid };
inline constexpr double kSigmoidSumEpsilon = 1e-6;

// n indices in the memory of the backend. Their values were checked when they were uploaded.
struct IndexView {
  IndexView() = default;
  IndexView(const std::int32_t* indices, std::int64_t count) : data(indices), size(count) {}
  // Indices in host memory, for backends that compute there.
  IndexView(std::span<const std::int32_t> host) : IndexView(host.data(), std::ssize(host)) {}
  IndexView(const std::vector<std::int32_t>& host) : IndexView(host.data(), std::ssize(host)) {}

  const std::int32_t* data = nullptr;
  std::int64_t size = 0;
};
struct IndexSpan {
  std::int32_t* data = nullptr;
  std::int64_t size = 0;
  operator IndexView() const { return {data, size}; }
};

// The slots of a mixture of experts: pair n * k + j is token n and its choice j; slots are the
// pairs in the order of their experts, so that expert e has the slots [begin[e], begin[e + 1]).
struct RoutingView {
  IndexSpan experts;  // (N * k) of each pair
  IndexSpan pairs;    // (S) the pair of each slot
  IndexSpan tokens;   // (S) the token of each slot
  IndexSpan slots;    // (N * k) the slot of each pair
  IndexSpan begin;    // (E + 1) the first slot of each expert
};

namespace ops {

// y(n) = x[rows(n)].
struct GatherRows {
  static constexpr const char* kName = "GatherRows";
  ConstMatrixView x;  // (N, D)
  IndexView rows;     // (n) in [0, N)
  MatrixView y;       // (n, D)
};

// y_acc[rows(n)] += x(n); equal rows are added in the order of n.
struct ScatterAddRows {
  static constexpr const char* kName = "ScatterAddRows";
  ConstMatrixView x;  // (n, D)
  IndexView rows;     // (n) in [0, N)
  MatrixView y_acc;   // (N, D)
};

// Mixture of experts. p = softmax(logits) or sigmoid(logits); experts(N * k) are the k largest of
// p + bias in each row in falling order (of equal ones the lower index first), weights(N, k) their
// p times `scale`, when `normalize` divided by its sum over the k, to which kSigmoidSumEpsilon is
// added where p is a sigmoid. The rest of `routing` follows from the experts.
struct RouteExperts {
  static constexpr const char* kName = "RouteExperts";
  ConstMatrixView logits;  // (N, E) wide
  bool normalize = false;
  RoutingView routing;
  MatrixView weights;  // (N, k) wide
  RouterScore score = RouterScore::kSoftmax;
  ConstMatrixView bias = {};  // (1, E) wide, or empty
  float scale = 1;
};

// The logits become their gradient. experts and weights come from RouteExperts.
struct RouteExpertsBackward {
  static constexpr const char* kName = "RouteExpertsBackward";
  ConstMatrixView d_weights;  // (N, k) wide
  IndexView experts;          // (N * k)
  ConstMatrixView weights;    // (N, k) wide
  bool normalize = false;
  MatrixView logits_inout;  // (N, E) wide
  RouterScore score = RouterScore::kSoftmax;
  float scale = 1;
};

// y(n, C) = sigmoid(gate(n)) * x(n, C).  y may be x.
struct GateRows {
  static constexpr const char* kName = "GateRows";
  ConstMatrixView x;     // (n, C)
  ConstMatrixView gate;  // (n, 1)
  MatrixView y;          // (n, C)
};

// d_gate(n) = sigmoid'(gate(n)) * the sum over C of dy * x;  dx = sigmoid(gate(n)) * dy.  d_gate
// may be gate, dx may be dy.
struct GateRowsBackward {
  static constexpr const char* kName = "GateRowsBackward";
  ConstMatrixView dy;    // (n, C)
  ConstMatrixView x;     // (n, C)
  ConstMatrixView gate;  // (n, 1)
  MatrixView d_gate;     // (n, 1)
  MatrixView dx;         // (n, C)
};

}  // namespace ops
}  // namespace qlora

#endif  // QLORA_BACKEND_EXPERT_OPS_H_
