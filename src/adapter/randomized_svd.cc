#include "adapter/randomized_svd.h"

#include <algorithm>

#include "adapter/portable_eigen.h"
#include "base/check.h"
#include "base/random.h"

namespace qlora {
namespace {

using Eigen::MatrixXd;
// The rows of a matrix, as the columns of the transposed matrix, whose elements lie column by
// column.
using EigenColumns = Eigen::Map<Eigen::MatrixXf>;

}  // namespace

void Orthonormalize(std::vector<float>& rows, std::int64_t count, std::int64_t n) {
  EigenColumns columns(rows.data(), n, count);
  const Eigen::HouseholderQR<MatrixXd> qr(columns.cast<double>());
  MatrixXd q = qr.householderQ() * MatrixXd::Identity(n, count);
  // The Gram-Schmidt process has a positive diagonal of R.
  for (std::int64_t c = 0; c < count; ++c) {
    if (qr.matrixQR()(c, c) < 0) q.col(c) = -q.col(c);
  }
  columns = q.cast<float>();
}

LowRank LargestSingular(const MatrixProducts& w, std::int64_t rank, std::uint64_t seed) {
  constexpr int kIterations = 4;
  // More rows than asked for: the subspace of the largest values converges faster with room to
  // spare.
  const std::int64_t k = std::min(rank + kOversample, std::min(w.out, w.in));
  std::vector<float> x(k * w.in);
  std::vector<float> y(k * w.out);
  // A key beyond the keys of the linears' own random values, so that the two share no numbers.
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
  // W ~ Y^T X with orthonormal rows of Y, and X^T = V diag(s) E^T with k columns of V, so that
  // W^T ~ V diag(s) (Y^T E)^T.
  const MatrixXd x_columns = EigenColumns(x.data(), w.in, k).cast<double>();
  const MatrixXd y_columns = EigenColumns(y.data(), w.out, k).cast<double>();
  const Eigen::JacobiSVD<MatrixXd, Eigen::HouseholderQRPreconditioner> svd(
      x_columns, Eigen::ComputeThinU | Eigen::ComputeThinV);
  if (svd.info() != Eigen::Success) {
    ThrowInvalidInput("products with a weight ({} x {}) overflow float32", w.out, w.in);
  }
  LowRank out;
  out.u.resize(rank * w.out);
  out.s.assign(svd.singularValues().begin(), svd.singularValues().begin() + rank);
  out.v.resize(rank * w.in);
  EigenColumns(out.u.data(), w.out, rank) =
      (y_columns * svd.matrixV().leftCols(rank)).cast<float>();
  EigenColumns(out.v.data(), w.in, rank) = svd.matrixU().leftCols(rank).cast<float>();
  return out;
}

}  // namespace qlora
