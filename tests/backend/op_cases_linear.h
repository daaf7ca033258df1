// Linear and LinearBackward. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_LINEAR_H_
#define QLORA_TESTS_BACKEND_OP_CASES_LINEAR_H_

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_linear.h"
#include "backend/test_rows.h"
#include "pass/pass_shape.h"

namespace qlora::testing_util {

inline std::vector<LinearCase> LinearCases() {
  using enum WeightKind;
  std::vector<LinearCase> cases = {
      {"one_value", 1, 1, {1}, kF32},
      {"decode", 1, 256, {96}, kNf4, 8},
      {"decode_group", 1, 192, {64, 33, 1}, kNf4, 4, true},
      {"few_rows", 3, 100, {37}, kBF16, 3, true},
      {"tall", 67, 64, {48}, kF16, 16},
      {"tiles", 33, 320, {160}, kBF16, 8, false, 0.1f},
      {"deep", 5, 1000, {24}, kF32, 5, true, 0.5f},
      {"group_nf4", 17, 128, {96, 32, 32}, kNf4, 8, true, 0.25f},
      {"group_bf16", 9, 64, {40, 24}, kBF16, 2},
      {"nf4_rows_cross_blocks", 6, 90, {35}, kNf4, 4},
      {"nf4_odd", 4, 33, {7}, kNf4, 3},
      {"nf4_whole_chunks", 8, 128, {64}, kNf4, 4},
      {"nf4_half_chunk", 8, 96, {64}, kNf4, 4},
      {"nf4_double", 12, 512, {80}, kNf4DoubleBnb, 8},
      {"nf4_double_one", 1, 320, {130, 7}, kNf4DoubleBnb, 4},
      {"nf4_double_long", 1, 4096, {23}, kNf4DoubleBnb, 4},
      {"nf4_double_two", 2, 320, {130, 7}, kNf4DoubleBnb, 4},
      {"nf4_double_seven", 7, 320, {130, 7}, kNf4DoubleBnb, 4},
      {"nf4_double_batches", 20, 320, {130, 7}, kNf4DoubleBnb, 4},
      {"nf4_double_deep", 70, 1088, {130, 7}, kNf4DoubleBnb, 4},
      {"nf4_double_panel", 30, 320, {130, 7}, kNf4DoubleBnb, 4},
      {"nf4_double_many_rows_of_weight", 18, 192, {2305}, kNf4DoubleBnb},
      {"nf4_many_rows", 300, 192, {259}, kNf4, 4, false, 0.25f},
      {"nf4_double_blocks_of_k", 8, 1600, {13}, kNf4DoubleBnb, 4},
      {"nf4_double_blocks_and_batches", 17, 1664, {13}, kNf4DoubleBnb},
      {"nf4_double_two_blocks_of_k", 2, 3136, {14}, kNf4DoubleBnb},
      {"nf4_long", 1, 6208, {14}, kNf4},
      {"nf4_double_100", 7, 320, {130, 7}, kNf4DoubleBnb100, 4},
      {"nf4_large_blocks", 5, 256, {48}, kNf4Block128, 4},
      {"no_adapter", 21, 72, {56}, kNf4},
      {"no_adapter_bias", 2, 72, {56}, kBF16, 0, true},
      {"bias_many_rows", 300, 64, {270}, kNf4, 4, true},
      {"empty_batch", 0, 32, {16}, kNf4, 4},
  };
  LinearCase some_biases = {"some_biases", 66, 64, {24, 40, 16}, kBF16, 4, true};
  some_biases.some_biases = true;
  cases.push_back(some_biases);
  const std::vector<LinearCase> with_base = {
      {"base_few", 6, 128, {96, 32}, kNf4, 4, true},
      {"base_one", 70, 96, {40}, kNf4DoubleBnb, 4},
      {"base_group", 67, 128, {96, 32, 32}, kNf4, 8, true},
      {"base_odd", 66, 72, {37, 24}, kBF16, 3},
      {"base_odd_input", 66, 37, {40}, kBF16, 3, true},
      {"base_dropout", 68, 64, {48, 16}, kNf4, 5, false, 0.25f},
      {"base_many_rows", 300, 192, {130, 62}, kNf4DoubleBnb, 4},
      {"base_bias", 65, 64, {24, 24}, kF32, 0, true},
      {"base_frozen", 80, 64, {24, 8}, kBF16},
  };
  for (LinearCase c : with_base) {
    c.has_base = true;
    cases.push_back(c);
  }
  for (std::int64_t rows = 1; rows <= 17; ++rows) {
    cases.push_back({"nf4_" + std::to_string(rows), rows, 192, {259}, kNf4});
  }
  for (const WeightKind kind : {kBF16, kF16, kF32}) {
    for (const std::int64_t in : {7, 63, 64, 65, 128, 200}) {
      cases.push_back({"dense_" + std::to_string(in), 1 + in % 8, in, {5}, kind, 2});
    }
  }
  const std::size_t plain = cases.size();
  for (std::size_t i = 0; i < plain; ++i) {
    LinearCase add = cases[i];
    add.name += "_add";
    add.store = Store::kAdd;
    add.wide_y = i % 2 == 0;
    add.wide_x = i % 3 == 0;
    cases.push_back(add);
    if (i % 4 != 1) continue;
    LinearCase no_dx = cases[i];
    no_dx.name += "_no_dx";
    no_dx.want_dx = false;
    cases.push_back(no_dx);
  }
  return cases;
}

// Weights in ggml's blocks: few rows and many, panels that end inside a block of 256, parts of k.
inline std::vector<LinearCase> BlockCases() {
  using enum WeightKind;
  std::vector<LinearCase> cases = {
      {"q8_0_one", 1, 96, {40}, kQ8_0, 4},
      {"q8_0_few", 7, 160, {33, 16}, kQ8_0, 4, true},
      {"q8_0_many", 67, 160, {50}, kQ8_0, 4, false, 0.25f},
      {"q4_0_few", 3, 224, {21}, kQ4_0, 4},
      {"iq4_nl_one", 1, 96, {21}, kIq4Nl},
      {"iq4_nl_few", 12, 64, {40}, kIq4Nl, 4},
      {"mxfp4_few", 7, 160, {33}, kMxfp4, 3},
      {"q6_k_one", 1, 512, {24}, kQ6_K},
      {"q6_k_few", 20, 768, {24, 9}, kQ6_K, 2, true},
      {"mxfp4_many", 33, 1120, {50}, kMxfp4, 3},
      {"q4_k_one", 1, 512, {40}, kQ4_K, 4},
      {"q4_k_few", 9, 768, {33, 16}, kQ4_K, 4, true},
      {"q4_k_many", 70, 1280, {60, 7}, kQ4_K, 4},
      {"q4_k_many_rows", 300, 256, {259}, kQ4_K},
      {"q6_k_many", 130, 768, {24}, kQ6_K, 2, true},
  };
  // Rows of the weight are multiplied a few at a time; the last block of 32 may be alone.
  for (const WeightKind kind : {kQ4_0, kIq4Nl, kMxfp4, kQ8_0, kQ4_K, kQ6_K}) {
    const std::int64_t in = kind == kQ4_K || kind == kQ6_K ? 768 : 416;
    for (const std::int64_t rows : {1, 2, 3, 4, 8}) {
      const std::string name = fmt::format("blocks_{}_{}", static_cast<int>(kind), rows);
      cases.push_back({name, rows, in, {11, 4}, kind, 2});
    }
  }
  for (std::size_t i = 0; i < cases.size(); i += 2) cases[i].store = Store::kAdd;
  return cases;
}

// Groups of chunks that are not full; nested blocks that end within a row, between two chunks of a
// group; several batches of rows of x; panels of x, one and several; a weight that cannot be
// prepacked beside one that can. Prepacked beforehand, or on the way by backends that do so.
inline std::vector<LinearCase> PrepackedCases() {
  using enum WeightKind;
  std::vector<LinearCase> cases = {
      {"one", 1, 1088, {48, 112}, kNf4DoubleBnb, 4},
      {"one_chunk", 1, 64, {16}, kNf4DoubleBnb},
      {"two", 2, 1088, {48}, kNf4, 4, true},
      {"three", 3, 576, {64}, kNf4DoubleBnb, 4},
      {"batches", 30, 320, {32, 16}, kNf4DoubleBnb, 4, true, 0, Store::kAdd},
      {"one_panel_of_x", 20, 576, {112}, kNf4DoubleBnb, 4, false, 0.5f},
      {"panels_of_x", 200, 1088, {32}, kNf4DoubleBnb, 4},
      {"float32_scales", 100, 320, {64}, kNf4, 4},
      {"beside_others", 7, 320, {32, 23}, kNf4DoubleBnb, 4},
      {"many_beside_others", 40, 320, {32, 23}, kNf4, 4},
      {"tasks", 1, 1088, {272}, kNf4DoubleBnb, 4},
      {"tasks_and_batches", 26, 1088, {272}, kNf4DoubleBnb, 4},
      {"odd_ranks", 5, 192, {32, 48, 23}, kNf4DoubleBnb, 3, true},
      {"rank_beyond_a_tile", 6, 128, {144}, kNf4, 130},
  };
  for (const std::int64_t rows : {96, 97, 192, 193}) {
    cases.push_back({"rows_" + std::to_string(rows), rows, 64, {16}, kNf4DoubleBnb, 4});
  }
  for (std::int64_t rows = 4; rows <= 25; ++rows) {
    cases.push_back({"rows_" + std::to_string(rows), rows, 192, {48}, kNf4DoubleBnb});
  }
  for (const std::int64_t chunks : {1, 2, 3, 4, 5, 13, 15, 16, 17, 66, 70}) {
    for (const WeightKind kind : {kNf4, kNf4DoubleBnb}) {
      cases.push_back({"chunks_" + std::to_string(chunks), 5, 64 * chunks, {16}, kind, 4});
    }
  }
  const std::size_t count = cases.size();
  for (std::size_t i = 0; i < count; ++i) {
    cases.push_back(cases[i]);
    cases.back().name += "_on_the_way";
    cases[i].prepacked = true;
  }
  return cases;
}

inline Matrix Hadamard(const Matrix& a, const Matrix& b) {
  Matrix out = Convert(a, DType::kF64);
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    for (std::int64_t c = 0; c < a.cols(); ++c) out.Set(r, c, a(r, c) * b(r, c));
  }
  return out;
}

// In the bounds below, weight_error is the rounding of a decoded 4-bit weight to the compute type,
// and `rounding` that of u and du, the results of the first product with the adapter.

TEST_P(OpTest, Linear) {
  std::uint64_t seed = 100;
  std::vector<LinearCase> cases = LinearCases();
  std::ranges::copy(PrepackedCases(), std::back_inserter(cases));
  std::ranges::copy(BlockCases(), std::back_inserter(cases));
  for (std::size_t i = 0, count = cases.size(); i < count; ++i) {
    if (cases[i].dropout > 0) continue;
    const std::string name = cases[i].name;
    cases.push_back(cases[i]);
    cases.back().name = name + "_many";
    cases.back().order = SumOrder::kMany;
    if (cases[i].rows > kMostFewRows) continue;
    cases.push_back(cases[i]);
    cases.back().name = name + "_few";
    cases.back().order = SumOrder::kFew;
  }
  for (const LinearCase& c : cases) {
    SCOPED_TRACE(c.name);
    LinearGroup group = MakeLinearGroup(c, GetParam().precision, precise(), ++seed);
    for (Matrix& u : group.u) u = Poisoned(u);
    LinearGroup expected = group.In(DType::kF64);
    LinearGroup frozen = group.FrozenMagnitudes();
    if (c.prepacked) group.Prepack(backend());
    backend().Reserve(LimitsOf(c));
    group.Forward(backend(), c.store);
    expected.Forward(reference(), c.store);
    frozen.Forward(reference(), c.store);

    const double unit = UnitRoundoff(wide());
    const double weight_error = group.weights[0].quantized() ? compute_unit() : 0;
    const double rounding = 1.1 * compute_unit();
    const double sums = Gamma(c.in + c.rank + 8, unit);
    for (std::size_t l = 0; l < c.out.size(); ++l) {
      Matrix bound = Scaled(sums + weight_error, frozen.y[l]);
      if (c.rank > 0) {
        const Matrix dropped = Abs(Hadamard(group.x, group.DropFactors(l)));
        const Matrix u_error =
            Scaled(Gamma(c.in + 4, unit), Product(dropped, Transposed(Abs(group.a[l]))));
        ExpectWithin(group.u[l], expected.u[l], u_error, "u");
        const Matrix second = Sum(u_error, Scaled(sums + rounding, Abs(expected.u[l])));
        bound = Sum(bound, Scaled(group.scale, Product(second, Transposed(Abs(group.b[l])))));
      }
      ExpectWithin(group.y[l], expected.y[l], bound, "y");
    }
  }
}

TEST_P(OpTest, LinearBackward) {
  std::uint64_t seed = 200;
  std::vector<LinearCase> cases = LinearCases();
  std::ranges::copy(BlockCases(), std::back_inserter(cases));
  for (const LinearCase& c : cases) {
    SCOPED_TRACE(c.name);
    LinearGroup group = MakeLinearGroup(c, GetParam().precision, precise(), ++seed);
    const LinearGroup before = group;
    LinearGroup expected = group.In(DType::kF64);
    LinearGroup frozen = group.FrozenMagnitudes();
    backend().Reserve(LimitsOf(c));
    group.Backward(backend(), c.store);
    expected.Backward(reference(), c.store);
    frozen.Backward(reference(), c.store);

    const double unit = UnitRoundoff(wide());
    const double weight_error = group.weights[0].quantized() ? compute_unit() : 0;
    const double rounding = 1.1 * compute_unit();
    const double rows = Gamma(c.rows + 8, unit);
    std::int64_t terms = 8;  // of a sum that makes an element of dx
    for (const std::int64_t O : c.out) terms += O + c.rank;
    Matrix dx_bound = Scaled(Gamma(terms, unit) + weight_error, frozen.dx);
    for (std::size_t l = 0; l < c.out.size() && c.rank > 0; ++l) {
      const Matrix dy = Abs(group.dy[l]);
      const Matrix factors = group.DropFactors(l);
      const Matrix du = Abs(Scaled(group.scale, Product(group.dy[l], group.b[l])));
      const Matrix du_error =
          Sum(Scaled(Gamma(c.out[l] + 4, unit) * group.scale, Product(dy, Abs(group.b[l]))),
              Scaled(rounding, du));

      const Matrix da =
          Product(Transposed(Sum(du_error, Scaled(rows, du))), Abs(Hadamard(group.x, factors)));
      ExpectWithin(group.da[l], expected.da[l], Sum(da, Scaled(rows, Abs(before.da[l]))), "da");
      const Matrix db = Scaled(group.scale, Product(Transposed(dy), Abs(group.u[l])));
      ExpectWithin(group.db[l], expected.db[l], Scaled(rows, Sum(db, Abs(before.db[l]))), "db");

      const Matrix du_terms = Sum(du_error, Scaled(Gamma(terms, unit), du));
      if (c.want_dx) {
        dx_bound = Sum(dx_bound, Hadamard(Product(du_terms, Abs(group.a[l])), factors));
      }
    }
    ExpectWithin(group.dx, expected.dx, dx_bound, "dx");
  }
}

TEST_P(OpTest, WeightGradient) {
  struct Shape {
    std::int64_t rows, out, in;
  };
  std::uint64_t seed = 300;
  for (const Shape& s : {Shape{1, 1, 1}, {5, 23, 16}, {33, 49, 65}, {300, 100, 130}, {0, 8, 8}}) {
    for (const bool wide_dy : {false, true}) {
      Random random(++seed);
      const DType activation = GetParam().precision.activation;
      const Matrix dy = random.Normal(wide_dy ? wide() : activation, s.rows, s.out, 1, precise());
      const Matrix x = random.Normal(activation, s.rows, s.in, 1, precise());
      Matrix dw = random.Normal(wide(), s.out, s.in, 1);
      Matrix dw64 = Convert(dw, DType::kF64);
      const Matrix before = Abs(dw64);
      backend().Reserve(
          {.rows = s.rows, .features = std::max(s.in, s.out), .gradient_rows = s.rows});
      backend().Run(ops::WeightGradient{dy.view(), x.view(), dw.view()});
      reference().Run(ops::WeightGradient{Convert(dy, DType::kF64).view(),
                                          Convert(x, DType::kF64).view(), dw64.view()});
      const Matrix size = Sum(Product(Transposed(Abs(dy)), Abs(x)), before);
      ExpectWithin(dw, dw64, Scaled(Gamma(s.rows + 8, UnitRoundoff(wide())), size), "dw");
    }
  }
}

TEST_P(OpTest, RowNorms) {
  std::uint64_t seed = 350;
  const WeightKind kinds[] = {WeightKind::kF32, WeightKind::kF16,          WeightKind::kBF16,
                              WeightKind::kNf4, WeightKind::kNf4DoubleBnb, WeightKind::kQ8_0};
  for (const WeightKind kind : kinds) {
    for (const std::int64_t in : {1, 33, 64, 320, 2100}) {
      if (kind == WeightKind::kQ8_0 && in % 32 != 0) continue;
      for (const std::int64_t rank : {0, 3}) {
        constexpr std::int64_t kOut = 9;
        constexpr float kScale = 0.7f;
        Random random(++seed);
        const TestWeight weight(kind, wide(), kOut, in, DType::kF64, random);
        Matrix a = random.Normal(wide(), rank, rank == 0 ? 0 : in, 0.3);
        Matrix b = random.Normal(wide(), rank == 0 ? 0 : kOut, rank, 0.3);
        Matrix norm(wide(), 1, kOut);
        Matrix inverse(wide(), 1, kOut);
        Matrix norm64(DType::kF64, 1, kOut);
        Matrix inverse64(DType::kF64, 1, kOut);
        const Matrix a64 = Convert(a, DType::kF64);
        const Matrix b64 = Convert(b, DType::kF64);
        backend().Reserve({.rows = kOut, .features = in});
        LoraView lora;
        lora.a = std::as_const(a).view();
        lora.b = std::as_const(b).view();
        lora.scale = kScale;
        LoraView lora64 = lora;
        lora64.a = a64.view();
        lora64.b = b64.view();
        backend().Run(ops::RowNorms{weight.view(), lora, norm.view(), inverse.view()});
        reference().Run(ops::RowNorms{weight.view(), lora64, norm64.view(), inverse64.view()});
        // | |v + e| - |v| | <= |e|, with an error e of each value v = w + scale b a.
        const Matrix values = Abs(weight.Values());
        const Matrix low_rank = rank == 0 ? Matrix() : Scaled(kScale, Product(Abs(b), Abs(a)));
        const double unit = UnitRoundoff(wide());
        const Matrix error = Bound(norm64, [&](std::int64_t, std::int64_t o) {
          double squares = 0;
          for (std::int64_t i = 0; i < in; ++i) {
            const double size = values(o, i) + (rank == 0 ? 0 : low_rank(o, i));
            squares += size * size;
          }
          return Gamma(rank + 4, unit) * std::sqrt(squares) + Gamma(in + 4, unit) * norm64(0, o);
        });
        ExpectWithin(norm, norm64, error, "norm");
        ExpectWithin(inverse, inverse64,
                     Bound(norm64,
                           [&](std::int64_t, std::int64_t o) {
                             const double length = norm64(0, o);
                             return length == 0 ? 0 : 1.1 * error(0, o) / (length * length);
                           }),
                     "inverse");
      }
    }
  }
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_LINEAR_H_
