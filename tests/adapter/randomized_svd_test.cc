// The low-rank approximation behind PiSSA and LoftQ.
#include "adapter/randomized_svd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "io/test_util.h"

namespace qlora {
namespace {

// W (O, I) = sum over k of s[k] u_k v_k^T with random orthonormal u, v.
struct Known {
  Known(std::int64_t o, std::int64_t i, std::vector<double> values) : out(o), in(i), s(values) {
    const auto count = static_cast<std::int64_t>(s.size());
    u = Rows(count, out, 1);
    v = Rows(count, in, 2);
    w.assign(out * in, 0);
    for (std::int64_t k = 0; k < count; ++k) {
      for (std::int64_t r = 0; r < out; ++r) {
        for (std::int64_t c = 0; c < in; ++c) {
          w[r * in + c] += s[k] * u[k * out + r] * v[k * in + c];
        }
      }
    }
  }
  static std::vector<float> Rows(std::int64_t count, std::int64_t n, std::uint64_t seed) {
    std::vector<float> rows(count * n);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = static_cast<float>(RandomNormal(MakeKey(seed, RandomPlace::kTest), i));
    }
    Orthonormalize(rows, count, n);
    return rows;
  }
  MatrixProducts Products() const {
    return {out, in,
            [this](const std::vector<float>& x, std::vector<float>& y) {
              for (std::size_t k = 0; k < x.size() / static_cast<std::size_t>(in); ++k) {
                for (std::int64_t r = 0; r < out; ++r) {
                  double sum = 0;
                  for (std::int64_t c = 0; c < in; ++c) sum += At(r, c) * x[Index(k, in, c)];
                  y[Index(k, out, r)] = static_cast<float>(sum);
                }
              }
            },
            [this](const std::vector<float>& y, std::vector<float>& x) {
              for (std::size_t k = 0; k < y.size() / static_cast<std::size_t>(out); ++k) {
                for (std::int64_t c = 0; c < in; ++c) {
                  double sum = 0;
                  for (std::int64_t r = 0; r < out; ++r) sum += At(r, c) * y[Index(k, out, r)];
                  x[Index(k, in, c)] = static_cast<float>(sum);
                }
              }
            }};
  }
  double At(std::int64_t r, std::int64_t c) const { return w[r * in + c]; }
  static std::size_t Index(std::size_t row, std::int64_t cols, std::int64_t col) {
    return row * static_cast<std::size_t>(cols) + static_cast<std::size_t>(col);
  }

  std::int64_t out, in;
  std::vector<double> s;
  std::vector<float> u, v;
  std::vector<double> w;
};

TEST(LowRank, FindsTheLargestSingularValues) {
  for (const auto& [out, in] : {std::pair{40, 60}, std::pair{60, 40}, std::pair{12, 12}}) {
    std::vector<double> values;
    for (int k = 0; k < 12; ++k) values.push_back(5.0 * std::pow(0.7, k));
    const Known known(out, in, values);
    const std::int64_t rank = 3;
    const LowRank found = LargestSingular(known.Products(), rank, 9);
    for (std::int64_t k = 0; k < rank; ++k) {
      const auto index = static_cast<std::size_t>(k);
      EXPECT_NEAR(found.s[index], values[index], 1e-4 * values[index]);
      double along_u = 0;
      double along_v = 0;
      for (std::int64_t i = 0; i < out; ++i) {
        along_u += found.u[Known::Index(index, out, i)] * known.u[Known::Index(index, out, i)];
      }
      for (std::int64_t i = 0; i < in; ++i) {
        along_v += found.v[Known::Index(index, in, i)] * known.v[Known::Index(index, in, i)];
      }
      EXPECT_NEAR(along_u * along_v, 1, 1e-3);  // both or none with the other sign
    }
  }
}

TEST(LowRank, RowsThatDependOnOthersAreReplaced) {
  const std::int64_t n = 5;
  std::vector<float> rows = {0, 0, 0, 0, 0, -2, 0, 0, 0, 0, -4, 0, 0, 0, 0, 1, 1, 1, 1, 1};
  Orthonormalize(rows, 4, n);
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double dot = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        dot += double{rows[Known::Index(a, n, i)]} * double{rows[Known::Index(b, n, i)]};
      }
      EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-6) << a << ' ' << b;
    }
  }
}

TEST(LowRank, OfProductsThatOverflow) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto fill = [inf](const std::vector<float>&, std::vector<float>& to) {
    std::fill(to.begin(), to.end(), inf);
  };
  ExpectRefused([&] { LargestSingular({20, 30, fill, fill}, 2, 1); }, "overflow");
}

TEST(LowRank, OfAMatrixOfLowerRank) {
  const Known known(10, 20, {2.0});
  const LowRank found = LargestSingular(known.Products(), 4, 1);
  EXPECT_NEAR(found.s[0], 2, 1e-4);
  for (std::size_t k = 1; k < 4; ++k) EXPECT_NEAR(found.s[k], 0, 1e-4);
  for (const float value : found.u) EXPECT_TRUE(std::isfinite(value));
  for (const float value : found.v) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace qlora
