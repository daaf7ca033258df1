// How products are given to cuBLASLt, on a column-major library that multiplies at once.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/random.h"
#include "gpu_host/host_cublas.h"
#include "qlora/error.h"

namespace qlora::cuda {
namespace {

std::unique_ptr<Blas> RecordingBlas() {
  static char workspace;
  return MakeBlasOf(gpu_host::HostCublas(), {&workspace, [](void*) {}});
}

// A row-major matrix with aligned rows and NaN between them.
struct Operand {
  Operand(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed,
          bool aligned = true)
      : stride((cols + 7) / 8 * 8 + (aligned ? 8 : 3)),
        bytes(BytesOf(dtype, rows * stride) + 64, std::byte{0xff}) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    view = {bytes.data() + (64 - address % 64) % 64, dtype, rows, cols, stride};
    const RandomKey key = MakeKey(seed, RandomPlace::kTest);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        // Small integers: sums are exact in every order.
        const auto value =
            static_cast<float>(RandomBelow(key, static_cast<std::uint64_t>(r * cols + c), 9)) - 4;
        if (dtype == DType::kF32) {
          view.Row<float>(r)[c] = value;
        } else {
          view.Row<BFloat16>(r)[c] = ToBFloat16(value);
        }
      }
    }
  }
  float At(std::int64_t r, std::int64_t c) const {
    return view.dtype == DType::kF32 ? view.Row<float>(r)[c] : ToFloat(view.Row<BFloat16>(r)[c]);
  }

  std::int64_t stride;
  std::vector<std::byte> bytes;
  MatrixView view;
};

struct Case {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  DType operand, result;
  float alpha, beta;
};

// apart: what is added to is not the result.
void ExpectProduct(Blas& blas, const Case& c, std::uint64_t seed, bool apart) {
  const auto make = [&](std::int64_t rows, std::int64_t cols, bool transpose, std::uint64_t s) {
    return transpose ? Operand(c.operand, cols, rows, s) : Operand(c.operand, rows, cols, s);
  };
  const Operand a = make(c.m, c.k, c.transpose_a, seed);
  const Operand b = make(c.k, c.n, c.transpose_b, seed + 1);
  const Operand old(c.result, c.m, c.n, seed + 2, false);
  const Operand result(c.result, c.m, c.n, seed + (apart ? 3 : 2), apart);
  blas.Run(nullptr, {.a = a.view,
                     .b = b.view,
                     .transpose_a = c.transpose_a,
                     .transpose_b = c.transpose_b,
                     .alpha = c.alpha,
                     .beta = c.beta,
                     .c = result.view,
                     .base = apart ? old.view : MatrixView{}});
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        sum +=
            (c.transpose_a ? a.At(k, i) : a.At(i, k)) * (c.transpose_b ? b.At(j, k) : b.At(k, j));
      }
      float expected = c.alpha * sum + c.beta * old.At(i, j);
      if (c.result == DType::kBF16) expected = ToFloat(ToBFloat16(expected));
      ASSERT_EQ(result.At(i, j), expected) << i << " " << j;
    }
  }
}

const std::vector<Case> kCases = {
    {5, 7, 9, false, false, DType::kBF16, DType::kBF16, 1, 0},
    {5, 7, 9, false, true, DType::kBF16, DType::kBF16, 1, 0},
    {5, 7, 9, true, false, DType::kBF16, DType::kF32, 2, 0},
    {5, 7, 9, true, true, DType::kBF16, DType::kF32, 1, 1},
    {1, 17, 3, false, true, DType::kF32, DType::kF32, 1, 1},
    {16, 1, 8, true, false, DType::kF32, DType::kF32, 0.5f, 2},
};

TEST(DeviceBlas, GivesRowMajorProductsToAColumnMajorLibrary) {
  const std::unique_ptr<Blas> blas = RecordingBlas();
  std::uint64_t seed = 0;
  for (const Case& c : kCases) {
    SCOPED_TRACE(seed);
    ExpectProduct(*blas, c, seed += 10, true);
    ExpectProduct(*blas, c, seed += 10, false);
    ExpectProduct(*blas, c, seed += 10, false);  // with the algorithm that is known by now
  }
}

// Products that differ in nothing but where the result, or what it is added to, is in memory: none
// runs with the algorithm of another, which Multiply checks.
TEST(DeviceBlas, KeepsAlgorithmsByAddressesAndStrides) {
  const std::unique_ptr<Blas> blas = RecordingBlas();
  const Operand a(DType::kBF16, 4, 8, 1);
  const Operand b(DType::kBF16, 8, 6, 2);
  const Operand results(DType::kBF16, 4, 40, 3);
  const Operand bases(DType::kBF16, 4, 40, 4);
  const auto at = [](const Operand& m, std::int64_t begin, std::int64_t stride) {
    return MatrixView{m.view.Row<BFloat16>(0) + begin, DType::kBF16, 4, 6, stride};
  };
  for (const std::int64_t stride : {std::int64_t{48}, std::int64_t{40}}) {
    for (const std::int64_t begin : {0, 1, 2, 4, 8}) {
      for (const std::int64_t base_begin : {8, 1, 0}) {
        blas->Run(nullptr, {.a = a.view,
                            .b = b.view,
                            .beta = 1,
                            .c = at(results, begin, stride),
                            .base = at(bases, base_begin, 48)});
      }
    }
  }
}

TEST(DeviceBlas, HasNothingToDoWithoutRows) {
  const Operand a(DType::kF32, 1, 8, 1);
  const Operand b(DType::kF32, 8, 4, 2);
  Operand c(DType::kF32, 1, 4, 3);
  c.view.rows = 0;
  RecordingBlas()->Run(nullptr, {.a = a.view, .b = b.view, .c = c.view});
}

TEST(DeviceBlas, ServesSeveralThreads) {
  const std::unique_ptr<Blas> blas = RecordingBlas();
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&blas, t] {
      for (std::int64_t n = 1; n < 20; ++n) {
        ExpectProduct(*blas, {4, n, 8, false, true, DType::kF32, DType::kF32, 1, 0}, 100 * t,
                      false);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

// A device without memory is another error than one that is lost.
TEST(DeviceBlas, TellsTooLittleMemoryFromOtherErrors) {
  const auto code_of = [](const Cublas& library) {
    try {
      MakeBlasOf(library, {nullptr, [](void*) {}});
    } catch (const Error& error) {
      return error.code();
    }
    ADD_FAILURE() << "expected an error";
    return ErrorCode::kInvalidInput;
  };
  Cublas library = gpu_host::HostCublas();
  library.create = [](cublasLtHandle_t*) { return CUBLAS_STATUS_ALLOC_FAILED; };
  EXPECT_EQ(code_of(library), ErrorCode::kOutOfMemory);
  library.create = [](cublasLtHandle_t*) { return CUBLAS_STATUS_NOT_INITIALIZED; };
  EXPECT_EQ(code_of(library), ErrorCode::kRuntime);
}

}  // namespace
}  // namespace qlora::cuda
