#include "adapter/lora_reduce.h"

#include <algorithm>
#include <cmath>

#include "adapter/portable_eigen.h"
#include "base/check.h"

namespace qlora {
namespace {

using Eigen::MatrixXd;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Squares {
  double all = 0;   // |M|^2
  double lost = 0;  // |M - M'|^2
};

// Q (n, k) and R (k, r) of a matrix (n, r), k = min(n, r).
struct Factors {
  MatrixXd q;
  MatrixXd r;
};
Factors Orthogonal(const MatrixXd& matrix) {
  const Eigen::Index k = std::min(matrix.rows(), matrix.cols());
  const Eigen::HouseholderQR<MatrixXd> qr(matrix);
  return {qr.householderQ() * MatrixXd::Identity(matrix.rows(), k),
          qr.matrixQR().topRows(k).triangularView<Eigen::Upper>()};
}

// B A = Qb (Rb Ra^T) Qa^T, so that the small middle has the singular values of the whole.
Squares Reduce(LoraValues& module, std::int64_t rank) {
  const MatrixXd a =
      Eigen::Map<const RowMajor>(module.a.data(), module.rank, module.in).cast<double>();
  const MatrixXd b =
      Eigen::Map<const RowMajor>(module.b.data(), module.out, module.rank).cast<double>();
  const Factors left = Orthogonal(b);
  const Factors right = Orthogonal(a.transpose());
  const MatrixXd middle = left.r * right.r.transpose();
  const Eigen::BDCSVD<MatrixXd> svd(middle, Eigen::ComputeThinU | Eigen::ComputeThinV);
  const auto& values = svd.singularValues();
  Squares squares;
  squares.all = values.squaredNorm() * module.scale * module.scale;
  if (module.rank <= rank) return squares;
  const Eigen::Index kept = std::min<Eigen::Index>(rank, values.size());
  squares.lost = values.tail(values.size() - kept).squaredNorm() * module.scale * module.scale;
  const Eigen::VectorXd roots = values.head(kept).cwiseSqrt();
  const RowMajor new_b = (left.q * svd.matrixU().leftCols(kept) * roots.asDiagonal()).cast<float>();
  const RowMajor new_a =
      (roots.asDiagonal() * svd.matrixV().leftCols(kept).transpose() * right.q.transpose())
          .cast<float>();
  module.rank = kept;
  module.a.assign(new_a.data(), new_a.data() + new_a.size());
  module.b.assign(new_b.data(), new_b.data() + new_b.size());
  return squares;
}

}  // namespace

RankError ReduceRank(AdapterValues& adapter, std::int64_t rank, const ProgressFn& progress) {
  if (rank < 1) ThrowInvalidInput("adapter_rank must be at least 1, found {}", rank);
  RankError error;
  Squares sum;
  std::int64_t done = 0;
  for (LoraValues& module : adapter.modules) {
    const Squares squares = Reduce(module, rank);
    sum.all += squares.all;
    sum.lost += squares.lost;
    const double relative = squares.all > 0 ? std::sqrt(squares.lost / squares.all) : 0;
    if (relative > error.worst || error.worst_path.empty()) {
      error.worst = relative;
      error.worst_path = module.path;
    }
    if (progress) progress(++done, std::ssize(adapter.modules));
  }
  error.all = sum.all > 0 ? std::sqrt(sum.lost / sum.all) : 0;
  return error;
}

}  // namespace qlora
