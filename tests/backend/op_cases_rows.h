// Embedding, norm, moves and sums of rows and columns. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_ROWS_H_
#define QLORA_TESTS_BACKEND_OP_CASES_ROWS_H_

#include <vector>

#include "backend/op_cases.h"
#include "backend/test_rows.h"
#include "backend/test_util.h"
#include "backend/test_weight.h"
#include "base/matrix.h"

namespace qlora::testing_util {

TEST_P(OpTest, Embed) {
  std::uint64_t seed = 1000;
  for (const RowsShape& s : RowsShapes()) {
    for (const DType table_type : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const DType y_type : {activation(), wide()}) {
        Random random(++seed);
        const Matrix table = random.Normal(table_type, 29, s.cols, 1);
        const std::vector<std::int32_t> ids = RandomIndices(random, s.rows, 29);
        Matrix y(y_type, s.rows, s.cols);
        Matrix expected(DType::kF64, s.rows, s.cols);
        backend().Reserve({.rows = s.rows, .features = s.cols});
        backend().Run(ops::Embed{ids, table.view(), 5.5f, y.view()});
        reference().Run(ops::Embed{ids, table.view(), 5.5f, expected.view()});
        ExpectWithin(y, expected, Scaled(UnitRoundoff(wide()), Abs(expected)), "y");
      }
    }
  }
}

TEST_P(OpTest, EmbedOfBlocks) {
  std::uint64_t seed = 1050;
  for (const WeightKind kind : {WeightKind::kQ8_0, WeightKind::kQ4_K, WeightKind::kNf4DoubleBnb}) {
    for (const std::int64_t cols : {256, 768}) {
      Random random(++seed);
      const TestWeight table(kind, wide(), 29, cols, DType::kF64, random);
      const std::vector<std::int32_t> ids = RandomIndices(random, 7, 29);
      Matrix y(activation(), 7, cols);
      Matrix expected(DType::kF64, 7, cols);
      backend().Reserve({.rows = 7, .features = cols});
      backend().Run(ops::Embed{ids, table.view(), 5.5f, y.view()});
      reference().Run(ops::Embed{ids, table.view(), 5.5f, expected.view()});
      ExpectWithin(y, expected, Scaled(UnitRoundoff(wide()), Abs(expected)), "y");
    }
  }
}

TEST_P(OpTest, RmsNorm) {
  std::uint64_t seed = 1100;
  for (const RowsShape& s : RowsShapes()) {
    for (const double deviation : {1e-4, 1.0, 300.0}) {
      for (const DType x_type : {activation(), wide()}) {
        Random random(++seed);
        const DType y_type = x_type == wide() ? activation() : wide();
        const Matrix x = random.Normal(x_type, s.rows, s.cols, deviation);
        const Matrix w = random.Normal(wide(), 1, s.cols, 1);
        Matrix y(y_type, s.rows, s.cols);
        Matrix rstd(wide(), 1, s.rows);
        Matrix y64 = Convert(y, DType::kF64);
        Matrix rstd64 = Convert(rstd, DType::kF64);
        backend().Reserve({.rows = s.rows, .features = s.cols});
        backend().Run(ops::RmsNorm{x.view(), w.view(), 1e-6f, y.view(), rstd.view()});
        reference().Run(ops::RmsNorm{Convert(x, DType::kF64).view(), Convert(w, DType::kF64).view(),
                                     1e-6f, y64.view(), rstd64.view()});
        const double g = Gamma(s.cols + 8, UnitRoundoff(wide()));
        ExpectWithin(rstd, rstd64, Scaled(g, Abs(rstd64)), "rstd");
        ExpectWithin(y, y64, Scaled(g, Abs(y64)), "y");
      }
    }
  }
}

TEST_P(OpTest, RmsNormBackward) {
  std::uint64_t seed = 1200;
  for (const RowsShape& s : RowsShapes()) {
    for (const Store store : {Store::kSet, Store::kAdd}) {
      for (const bool in_place : {false, true}) {
        for (const DType type : {activation(), wide()}) {
          Random random(++seed);
          const Matrix x = random.Normal(wide(), s.rows, s.cols, 2);
          const Matrix w = random.Normal(wide(), 1, s.cols, 1);
          Matrix dy = random.Normal(type, s.rows, s.cols, 1);
          Matrix dx = store == Store::kAdd ? random.Normal(type, s.rows, s.cols, 1) : Poisoned(dy);
          Matrix rstd(wide(), 1, s.rows);
          Matrix unused(DType::kF64, s.rows, s.cols);
          Matrix rstd64(DType::kF64, 1, s.rows);
          const Matrix x64 = Convert(x, DType::kF64);
          const Matrix w64 = Convert(w, DType::kF64);
          reference().Run(
              ops::RmsNorm{x64.view(), w64.view(), 1e-6f, unused.view(), rstd64.view()});
          rstd = Convert(rstd64, wide());
          rstd64 = Convert(rstd, DType::kF64);

          const Matrix dy64 = Convert(dy, DType::kF64);
          const Matrix& before = in_place ? dy : dx;
          Matrix dx64 = Convert(before, DType::kF64);
          std::vector<double> means(s.rows);
          for (std::int64_t n = 0; n < s.rows; ++n) {
            for (std::int64_t i = 0; i < s.cols; ++i) {
              means[n] +=
                  std::abs(w64(0, i) * dy64(n, i) * x64(n, i)) / static_cast<double>(s.cols);
            }
          }
          const Matrix bound = Bound(dy64, [&](std::int64_t n, std::int64_t d) {
            const double r = rstd64(0, n);
            const double old = store == Store::kAdd ? std::abs(before(n, d)) : 0;
            return Gamma(s.cols + 10, UnitRoundoff(wide())) *
                   (old + r * std::abs(w64(0, d) * dy64(n, d)) +
                    std::abs(x64(n, d)) * r * r * r * means[n]);
          });
          Matrix& out = in_place ? dy : dx;
          backend().Reserve({.rows = s.rows, .features = s.cols});
          backend().Run(
              ops::RmsNormBackward{dy.view(), x.view(), w.view(), rstd.view(), out.view(), store});
          reference().Run(ops::RmsNormBackward{dy64.view(), x64.view(), w64.view(), rstd64.view(),
                                               dx64.view(), store});
          ExpectWithin(out, dx64, bound, "dx");
        }
      }
    }
  }
}

TEST_P(OpTest, AddGatherScatter) {
  std::uint64_t seed = 1600;
  for (const RowsShape& s : RowsShapes()) {
    for (const DType x_type : {activation(), wide()}) {
      for (const DType y_type : {activation(), wide()}) {
        Random random(++seed);
        const Matrix x = random.Normal(x_type, s.rows, s.cols, 1);
        const Matrix x64 = Convert(x, DType::kF64);
        const double unit = UnitRoundoff(wide());
        backend().Reserve({.rows = 2 * s.rows, .features = s.cols});

        Matrix sum = random.Normal(y_type, s.rows, s.cols, 1);
        Matrix sum64 = Convert(sum, DType::kF64);
        backend().Run(ops::Add{x.view(), sum.view()});
        reference().Run(ops::Add{x64.view(), sum64.view()});
        ExpectWithin(sum, sum64, Scaled(unit, Abs(sum64)), "Add");

        const std::vector<std::int32_t> picks = RandomIndices(random, 2 * s.rows, s.rows);
        Matrix gathered(y_type, 2 * s.rows, s.cols);
        Matrix gathered64(DType::kF64, 2 * s.rows, s.cols);
        backend().Run(ops::GatherRows{x.view(), picks, gathered.view()});
        reference().Run(ops::GatherRows{x64.view(), picks, gathered64.view()});
        ExpectEqual(gathered, Convert(gathered64, y_type), "GatherRows");

        std::vector<std::int32_t> rows;  // every other row, backwards
        for (std::int64_t n = 0; n < s.rows; ++n) {
          rows.push_back(static_cast<std::int32_t>(2 * (s.rows - 1 - n)));
        }
        // Equal rows are added in their order.
        if (s.rows > 3 && y_type == wide()) rows[2] = rows[0];
        // Equal rows far from the first, and from each other.
        if (s.rows > 100 && y_type == wide()) rows[50] = rows[100] = rows[40];
        Matrix spread = random.Normal(y_type, 2 * s.rows, s.cols, 1);
        Matrix spread64 = Convert(spread, DType::kF64);
        backend().Run(ops::ScatterAddRows{x.view(), rows, spread.view()});
        reference().Run(ops::ScatterAddRows{x64.view(), rows, spread64.view()});
        ExpectWithin(spread, spread64,
                     Scaled(4 * unit, Filled(DType::kF64, 2 * s.rows, s.cols, 16)),
                     "ScatterAddRows");
      }
    }
  }
}

TEST_P(OpTest, EmbedBackwardAddsInTheOrderOfRows) {
  std::uint64_t seed = 1620;
  for (const RowsShape& s : RowsShapes()) {
    Random random(++seed);
    const Matrix dy = random.Normal(wide(), s.rows, s.cols, 1);
    const std::vector<std::int32_t> ids = RandomIndices(random, s.rows, 5);
    Matrix table = random.Normal(wide(), 5, s.cols, 1);
    Matrix table64 = Convert(table, DType::kF64);
    backend().Run(ops::EmbedBackward{dy.view(), ids, 3.5f, table.view()});
    reference().Run(ops::EmbedBackward{Convert(dy, DType::kF64).view(), ids, 3.5f, table64.view()});
    const double bound = 4 * static_cast<double>(s.rows) * UnitRoundoff(wide());
    ExpectWithin(table, table64, Scaled(bound, Filled(DType::kF64, 5, s.cols, 16)), "d_table");
  }
}

TEST_P(OpTest, CopyAndZero) {
  Random random(1630);
  const Matrix x = random.Normal(activation(), 5, 33, 1);
  Matrix y = random.Normal(activation(), 5, 33, 1);
  backend().Run(ops::Copy{x.view(), y.view()});
  ExpectEqual(y, x, "Copy");
  // Columns of a larger matrix: the others keep their values.
  backend().Run(ops::Zero{Columns(y.view(), 3, 7)});
  for (std::int64_t r = 0; r < 5; ++r) {
    for (std::int64_t c = 0; c < 33; ++c) {
      EXPECT_EQ(y(r, c), c >= 3 && c < 10 ? 0 : x(r, c));
    }
  }
}

TEST_P(OpTest, SumsInFloat64) {
  std::uint64_t seed = 1640;
  for (const RowsShape& s : RowsShapes()) {
    Random random(++seed);
    const Matrix values = random.Normal(wide(), 2, s.cols, 1);
    const Matrix x = random.Normal(activation(), s.rows, s.cols, 1);
    Matrix sums = Filled(DType::kF64, 1, 2, 0.5);
    Matrix squares = Filled(DType::kF64, 1, s.cols, 0.25);
    Matrix sums64 = sums;
    Matrix squares64 = squares;
    backend().Run(ops::SumRows{values.view(), sums.view()});
    backend().Run(ops::ColumnSquares{x.view(), squares.view()});
    reference().Run(ops::SumRows{Convert(values, DType::kF64).view(), sums64.view()});
    reference().Run(ops::ColumnSquares{Convert(x, DType::kF64).view(), squares64.view()});
    ExpectEqual(sums, sums64, "SumRows");
    ExpectEqual(squares, squares64, "ColumnSquares");
  }
}

TEST_P(OpTest, ColumnsAndNoise) {
  std::uint64_t seed = 1650;
  for (const RowsShape& s : RowsShapes()) {
    for (const DType x_type : {activation(), wide()}) {
      for (const Store store : {Store::kSet, Store::kAdd}) {
        Random random(++seed);
        const Matrix x = random.Normal(x_type, s.rows, s.cols, 1);
        const Matrix dy = random.Normal(activation(), s.rows, s.cols, 1);
        const Matrix gain = random.Normal(wide(), 1, s.cols, 1);
        const Matrix bias = store == Store::kAdd ? random.Normal(wide(), 1, s.cols, 1) : Matrix();
        const Matrix x64 = Convert(x, DType::kF64);
        const Matrix dy64 = Convert(dy, DType::kF64);
        backend().Reserve({.rows = s.rows, .features = s.cols});

        Matrix y = random.Normal(activation(), s.rows, s.cols, 1);
        Matrix y64 = Convert(y, DType::kF64);
        const Matrix before = Abs(y64);
        backend().Run(ops::ScaleColumns{x.view(), gain.view(), bias.view(), y.view(), store});
        reference().Run(ops::ScaleColumns{x64.view(), Convert(gain, DType::kF64).view(),
                                          Convert(bias, DType::kF64).view(), y64.view(), store});
        ExpectWithin(y, y64,
                     Bound(y64,
                           [&](std::int64_t n, std::int64_t o) {
                             const double added =
                                 store == Store::kAdd ? std::abs(bias(0, o)) + before(n, o) : 0;
                             return 3 * UnitRoundoff(wide()) *
                                    (std::abs(x64(n, o) * gain(0, o)) + added);
                           }),
                     "ScaleColumns");

        Matrix dots(wide(), 1, s.cols);
        Matrix dots64(DType::kF64, 1, s.cols);
        Matrix size64(DType::kF64, 1, s.cols);
        backend().Run(ops::ColumnDots{x.view(), dy.view(), dots.view()});
        reference().Run(ops::ColumnDots{x64.view(), dy64.view(), dots64.view()});
        reference().Run(ops::ColumnDots{Abs(x64).view(), Abs(dy64).view(), size64.view()});
        ExpectWithin(dots, dots64, Scaled(Gamma(s.rows + 1, UnitRoundoff(wide())), size64),
                     "ColumnDots");

        const Matrix magnitude = random.Normal(wide(), 1, s.rows, 1);
        Matrix noisy = random.Normal(wide(), s.rows, s.cols, 1);
        Matrix noisy64 = Convert(noisy, DType::kF64);
        const RandomKey key = MakeKey(seed, RandomPlace::kNeftune);
        backend().Run(ops::AddNoise{key, magnitude.view(), noisy.view()});
        reference().Run(ops::AddNoise{key, Convert(magnitude, DType::kF64).view(), noisy64.view()});
        ExpectWithin(noisy, noisy64,
                     Bound(noisy64,
                           [&](std::int64_t n, std::int64_t d) {
                             return 3 * UnitRoundoff(wide()) *
                                    (std::abs(noisy64(n, d)) + 2 * std::abs(magnitude(0, n)));
                           }),
                     "AddNoise");
      }
    }
  }
}

TEST_P(OpTest, SumOfSquares) {
  Random random(1800);
  for (const std::int64_t size : {1, 7, 64, 4099, 20000, 1200000}) {
    const Matrix x = random.Normal(wide(), 1, size, 1);
    double expected = 0;
    for (std::int64_t i = 0; i < size; ++i) expected += x(0, i) * x(0, i);
    const double sum = SumOfSquaresOf(backend(), x.view());
    EXPECT_NEAR(sum, expected, 2 * Gamma(size, 0x1p-53) * expected);
    EXPECT_EQ(sum, SumOfSquaresOf(backend(), x.view()));
  }
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_ROWS_H_
