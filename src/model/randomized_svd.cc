#include "model/randomized_svd.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace qlora {
namespace {

// Products of float32 are exact in float64, and the sum has a fixed order: every machine computes
// the same bits.
double Dot(const float* a, const float* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

// The eigenvalues of a symmetric matrix (k, k), which is destroyed, on its diagonal; the rows of
// the result are the eigenvectors. Cyclic Jacobi rotations (Golub and Van Loan, section 8.5).
std::vector<double> Eigenvectors(std::vector<double>& m, std::int64_t k) {
  const auto at = [&](std::vector<double>& x, std::int64_t r, std::int64_t c) -> double& {
    return x[r * k + c];
  };
  std::vector<double> vectors(m.size(), 0.0);
  for (std::int64_t i = 0; i < k; ++i) at(vectors, i, i) = 1;
  constexpr int kMostSweeps = 30;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    // Sums of squares below and on the diagonal. A sweep lowers `off` quadratically near the end;
    // 30 sweeps are never needed in practice and bound the time.
    double off = 0;
    double on = 0;
    for (std::int64_t r = 0; r < k; ++r) {
      on += at(m, r, r) * at(m, r, r);
      for (std::int64_t c = 0; c < r; ++c) off += at(m, r, c) * at(m, r, c);
    }
    if (off <= 1e-26 * on) break;
    for (std::int64_t p = 0; p < k; ++p) {
      for (std::int64_t q = p + 1; q < k; ++q) {
        const double apq = at(m, p, q);
        if (apq == 0) continue;
        // The rotation by the smaller angle that makes element (p, q) zero:
        //
        //   t = tan = sign(theta) / (|theta| + sqrt(theta^2 + 1)),  c = cos,  s = sin
        const double theta = (at(m, q, q) - at(m, p, p)) / (2 * apq);
        const double t = std::copysign(1 / (std::abs(theta) + std::hypot(theta, 1)), theta);
        const double c = 1 / std::hypot(t, 1);
        const double s = t * c;
        for (std::int64_t i = 0; i < k; ++i) {  // columns p and q
          const double x = at(m, i, p);
          const double y = at(m, i, q);
          at(m, i, p) = c * x - s * y;
          at(m, i, q) = s * x + c * y;
        }
        for (std::int64_t i = 0; i < k; ++i) {  // rows p and q, of the vectors too
          for (std::vector<double>* matrix : {&m, &vectors}) {
            const double x = at(*matrix, p, i);
            const double y = at(*matrix, q, i);
            at(*matrix, p, i) = c * x - s * y;
            at(*matrix, q, i) = s * x + c * y;
          }
        }
      }
    }
  }
  return vectors;
}

}  // namespace

void Orthonormalize(std::vector<float>& rows, std::int64_t count, std::int64_t n) {
  for (std::int64_t r = 0; r < count; ++r) {
    float* row = rows.data() + r * n;
    // A row that loses all but a millionth of its length is a combination of earlier rows; what is
    // left of it is rounding, which must not be scaled up to length 1.
    const double before = std::sqrt(Dot(row, row, n));
    for (int pass = 0; pass < 2; ++pass) {  // the second removes what rounding left
      for (std::int64_t q = 0; q < r; ++q) {
        const float* other = rows.data() + q * n;
        const double along = Dot(row, other, n);
        for (std::int64_t i = 0; i < n; ++i) row[i] -= static_cast<float>(along * other[i]);
      }
    }
    const double length = std::sqrt(Dot(row, row, n));
    const double factor = length > 1e-6 * before ? 1 / length : 0;
    for (std::int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(factor * row[i]);
  }
}

LowRank LargestSingular(const MatrixProducts& w, std::int64_t rank, std::uint64_t seed) {
  constexpr int kIterations = 4;
  // More rows than asked for: the subspace of the largest values converges faster with room to
  // spare.
  const std::int64_t k = std::min(rank + kOversample, std::min(w.out, w.in));
  std::vector<float> x(k * w.in);
  std::vector<float> y(k * w.out);
  // A key beyond those of the linears' own random values, so that the two share no numbers.
  const RandomKey key = MakeKey(seed, RandomPlace::kLoraInit, std::uint64_t{1} << 40);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(RandomNormal(key, i));
  // Y = orth(X W^T), X = Y W, again and again. Rows are made orthonormal on the way, because
  // repeated products would turn all of them into the largest direction. The last X keeps its
  // lengths: they are the singular values.
  for (int iteration = 0; iteration <= kIterations; ++iteration) {
    w.times_transposed(x, y);
    Orthonormalize(y, k, w.out);
    w.times(y, x);
    if (iteration < kIterations) Orthonormalize(x, k, w.in);
  }
  // W ~ Y^T X with orthonormal rows of Y; X X^T = E^T diag(s^2) E gives the factors.
  std::vector<double> gram(k * k);
  for (std::int64_t r = 0; r < k; ++r) {
    for (std::int64_t c = 0; c <= r; ++c) {
      const double dot = Dot(x.data() + r * w.in, x.data() + c * w.in, w.in);
      gram[r * k + c] = gram[c * k + r] = dot;
    }
  }
  // Eigenvalues are on the diagonal of gram afterwards, in no order.
  const std::vector<double> vectors = Eigenvectors(gram, k);
  std::vector<std::int64_t> order(k);
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](std::int64_t i) { return gram[i * k + i]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return value(a) > value(b); });

  LowRank out;
  out.u.assign(rank * w.out, 0.0f);
  out.v.assign(rank * w.in, 0.0f);
  for (std::int64_t r = 0; r < rank; ++r) {
    const std::int64_t e = order[r];
    const double s = std::sqrt(std::max(0.0, value(e)));
    out.s.push_back(s);
    // to += factor * (row e of E) * rows: for Y the left vectors, for X the right ones times s.
    const auto combine = [&](const std::vector<float>& rows, std::int64_t n, double factor,
                             float* to) {
      for (std::int64_t j = 0; j < k; ++j) {
        const double weight = factor * vectors[e * k + j];
        for (std::int64_t i = 0; i < n; ++i) to[i] += static_cast<float>(weight * rows[j * n + i]);
      }
    };
    combine(y, w.out, 1, out.u.data() + r * w.out);
    combine(x, w.in, s > 0 ? 1 / s : 0, out.v.data() + r * w.in);
  }
  return out;
}

}  // namespace qlora
