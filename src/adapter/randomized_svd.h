// The best low-rank approximation of a matrix that is known by its products.
#ifndef QLORA_ADAPTER_RANDOMIZED_SVD_H_
#define QLORA_ADAPTER_RANDOMIZED_SVD_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace qlora {

// A matrix W (O, I) as two products with K rows of float32 at a time.
struct MatrixProducts {
  std::int64_t out = 0;  // O
  std::int64_t in = 0;   // I
  // y = x W^T
  std::function<void(const std::vector<float>& x, std::vector<float>& y)> times_transposed;
  // x = y W
  std::function<void(const std::vector<float>& y, std::vector<float>& x)> times;
};

// W ~ U diag(s) V with s descending.
struct LowRank {
  std::vector<float> u;   // (rank, O): row r is the left singular vector r
  std::vector<double> s;  // (rank)
  std::vector<float> v;   // (rank, I)
};

// Rows of a product beyond the rank.
inline constexpr std::int64_t kOversample = 8;

// The rank largest singular values and their vectors, by subspace iteration from random rows
// (Halko, Martinsson and Tropp, arXiv:0909.4061): `rank` + kOversample rows, four iterations.
// rank <= min(O, I). Errors: InvalidInput when the products are not finite.
LowRank LargestSingular(const MatrixProducts& w, std::int64_t rank, std::uint64_t seed);

// Makes the first `count` rows (n values each) orthonormal, in order, as the Gram-Schmidt process
// does. A row that depends on earlier rows becomes a row that is orthogonal to all others.
// count <= n.
void Orthonormalize(std::vector<float>& rows, std::int64_t count, std::int64_t n);

}  // namespace qlora

#endif  // QLORA_ADAPTER_RANDOMIZED_SVD_H_
