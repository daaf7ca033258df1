// How products are given to cuBLASLt: a table of functions that record what they are given, and
// multiply as the column-major library would.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/cuda/device/cublas.h"
#include "backend/cuda/planned_backend.h"
#include "base/random.h"
#include "qlora/error.h"

// The library's types are opaque; these are behind them here.
struct cublasLtContext {};

namespace qlora::cuda {
namespace {

struct Layout {
  cudaDataType type;
  std::uint64_t rows, cols;
  std::int64_t ld;
};
struct Description {
  cublasComputeType_t compute;
  cudaDataType scale;
  cublasOperation_t op_a = CUBLAS_OP_N;
  cublasOperation_t op_b = CUBLAS_OP_N;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = 0;
  std::uint32_t align_a = 0, align_b = 0, align_c = 0, align_d = 0;
};
template <typename T, typename Opaque>
T& Behind(Opaque* opaque) {
  return *reinterpret_cast<T*>(opaque);
}

float At(const void* data, const Layout& m, std::uint64_t row, std::uint64_t col) {
  const std::uint64_t at = col * static_cast<std::uint64_t>(m.ld) + row;
  return m.type == CUDA_R_32F ? static_cast<const float*>(data)[at]
                              : ToFloat(static_cast<const BFloat16*>(data)[at]);
}
void Put(void* data, const Layout& m, std::uint64_t row, std::uint64_t col, float value) {
  const std::uint64_t at = col * static_cast<std::uint64_t>(m.ld) + row;
  if (m.type == CUDA_R_32F) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<BFloat16*>(data)[at] = ToBFloat16(value);
  }
}

cublasStatus_t Set(void* to, std::size_t room, const void* from, std::size_t bytes) {
  if (room != bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// The algorithm that was found for a product of this shape; its number is that of the product.
std::uint64_t NumberOf(const Layout& a, const Layout& b, const Layout& c) {
  return ((a.rows * 1000 + a.cols) * 1000 + b.cols) * 1000 + c.rows;
}

// The largest power of two up to 16 that divides an address.
std::uint64_t AlignmentOf(const void* data) {
  std::uint64_t alignment = 16;
  while (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) alignment /= 2;
  return alignment;
}

// D = alpha op(A) op(B) + beta C, all column-major, D (m, n).
cublasStatus_t Multiply(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                        const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                        cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                        cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                        const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                        std::size_t workspace_bytes, cudaStream_t) {
  const auto& how = Behind<Description>(description);
  const auto& la = Behind<Layout>(layout_a);
  const auto& lb = Behind<Layout>(layout_b);
  const auto& lc = Behind<Layout>(layout_c);
  const auto& ld = Behind<Layout>(layout_d);
  const bool ta = how.op_a == CUBLAS_OP_T;
  const bool tb = how.op_b == CUBLAS_OP_T;
  const std::uint64_t k = ta ? la.rows : la.cols;
  EXPECT_EQ(k, tb ? lb.cols : lb.rows);
  EXPECT_EQ(ta ? la.cols : la.rows, ld.rows);
  EXPECT_EQ(tb ? lb.rows : lb.cols, ld.cols);
  for (const Layout& m : {la, lb, lc, ld}) EXPECT_GE(m.ld, static_cast<std::int64_t>(m.rows));
  EXPECT_EQ(how.compute, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(how.scale, CUDA_R_32F);
  EXPECT_EQ(la.type, lb.type);
  EXPECT_EQ(algorithm->data[0], NumberOf(la, lb, ld));
  EXPECT_EQ(AlignmentOf(c), algorithm->data[1]);
  EXPECT_EQ(AlignmentOf(d), algorithm->data[2]);
  EXPECT_EQ(static_cast<std::uint64_t>(ld.ld), algorithm->data[3]);
  EXPECT_NE(workspace, nullptr);
  EXPECT_EQ(workspace_bytes, kBlasBytes);
  const float old = *static_cast<const float*>(beta);
  for (std::uint64_t i = 0; i < ld.rows; ++i) {
    for (std::uint64_t j = 0; j < ld.cols; ++j) {
      float sum = 0;
      for (std::uint64_t n = 0; n < k; ++n) {
        sum += (ta ? At(a, la, n, i) : At(a, la, i, n)) * (tb ? At(b, lb, j, n) : At(b, lb, n, j));
      }
      sum *= *static_cast<const float*>(alpha);
      Put(d, ld, i, j, old == 0 ? sum : sum + old * At(c, lc, i, j));
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t SetPreference(cublasLtMatmulPreference_t made,
                             cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                             std::size_t bytes) {
  auto& p = Behind<Preference>(made);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Set(&p.workspace, sizeof(p.workspace), value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Set(&p.reductions, sizeof(p.reductions), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Set(&p.align_a, sizeof(p.align_a), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Set(&p.align_b, sizeof(p.align_b), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Set(&p.align_c, sizeof(p.align_c), value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Set(&p.align_d, sizeof(p.align_d), value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t FindAlgorithm(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t a,
                             cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                             cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                             int most, cublasLtMatmulHeuristicResult_t results[], int* found) {
  const auto& p = Behind<Preference>(preference);
  EXPECT_EQ(p.workspace, kBlasBytes);
  EXPECT_EQ(p.reductions, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  // Results, and what they are added to, may begin anywhere; operands begin at multiples of 16
  // bytes.
  EXPECT_GE(std::min(p.align_a, p.align_b), 16u);
  EXPECT_GE(most, 1);
  results[0].algo.data[0] = NumberOf(Behind<Layout>(a), Behind<Layout>(b), Behind<Layout>(d));
  results[0].algo.data[1] = p.align_c;
  results[0].algo.data[2] = p.align_d;
  results[0].algo.data[3] = static_cast<std::uint64_t>(Behind<Layout>(d).ld);
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

Cublas RecordingLibrary() {
  Cublas l;
  l.create = [](cublasLtHandle_t* handle) {
    *handle = new cublasLtContext;
    return CUBLAS_STATUS_SUCCESS;
  };
  l.destroy = [](cublasLtHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
  };
  l.status_string = [](cublasStatus_t) { return "refused"; };
  l.desc_create = [](cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType scale) {
    *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, scale});
    return CUBLAS_STATUS_SUCCESS;
  };
  l.desc_destroy = [](cublasLtMatmulDesc_t made) {
    delete &Behind<Description>(made);
    return CUBLAS_STATUS_SUCCESS;
  };
  l.desc_set = [](cublasLtMatmulDesc_t made, cublasLtMatmulDescAttributes_t attribute,
                  const void* value, std::size_t bytes) {
    auto& d = Behind<Description>(made);
    cublasOperation_t& op = attribute == CUBLASLT_MATMUL_DESC_TRANSA ? d.op_a : d.op_b;
    return Set(&op, sizeof(op), value, bytes);
  };
  l.layout_create = [](cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                       std::uint64_t cols, std::int64_t ld) {
    *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, ld});
    return CUBLAS_STATUS_SUCCESS;
  };
  l.layout_destroy = [](cublasLtMatrixLayout_t made) {
    delete &Behind<Layout>(made);
    return CUBLAS_STATUS_SUCCESS;
  };
  l.preference_create = [](cublasLtMatmulPreference_t* made) {
    *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
  };
  l.preference_destroy = [](cublasLtMatmulPreference_t made) {
    delete &Behind<Preference>(made);
    return CUBLAS_STATUS_SUCCESS;
  };
  l.preference_set = SetPreference;
  l.heuristic = FindAlgorithm;
  l.matmul = Multiply;
  return l;
}

std::unique_ptr<Blas> RecordingBlas() {
  static char workspace;
  return MakeBlasOf(RecordingLibrary(), {&workspace, [](void*) {}});
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

// Algorithms that were asked for, one number for each question.
std::vector<int>& Asked() {
  static std::vector<int> asked;
  return asked;
}

// A large product is timed, but for those that are deterministic, whoever asked first; and the
// first algorithm is taken, without a new error of CUDA, where there is no room for trials.
TEST(DeviceBlas, ChoosesByTimeOnlyForCallersThatAllowIt) {
  Cublas library = RecordingLibrary();
  library.heuristic = [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                         cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                         cublasLtMatmulPreference_t, int most, cublasLtMatmulHeuristicResult_t*,
                         int* found) {
    Asked().push_back(most);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
  };
  library.matmul = [](auto...) { return CUBLAS_STATUS_SUCCESS; };
  static char workspace;
  const std::unique_ptr<Blas> blas = MakeBlasOf(library, {&workspace, [](void*) {}});
  const Operand a(DType::kBF16, 648, 648, 1);
  Asked().clear();
  const cudaError_t before = cudaPeekAtLastError();  // an error where there is no driver
  for (const bool deterministic : {false, true, false, true}) {
    for (const float beta : {0.0f, 1.0f}) {
      blas->Run(
          nullptr,
          {.a = a.view, .b = a.view, .beta = beta, .c = a.view, .deterministic = deterministic});
      EXPECT_EQ(cudaPeekAtLastError(), before);
    }
  }
  ASSERT_EQ(Asked().size(), 2u);
  EXPECT_GT(Asked()[0], 1);
  EXPECT_EQ(Asked()[1], 1);
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
  Cublas library = RecordingLibrary();
  library.create = [](cublasLtHandle_t*) { return CUBLAS_STATUS_ALLOC_FAILED; };
  EXPECT_EQ(code_of(library), ErrorCode::kOutOfMemory);
  library.create = [](cublasLtHandle_t*) { return CUBLAS_STATUS_NOT_INITIALIZED; };
  EXPECT_EQ(code_of(library), ErrorCode::kRuntime);
}

}  // namespace
}  // namespace qlora::cuda
