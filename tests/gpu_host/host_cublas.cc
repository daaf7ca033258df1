#include "gpu_host/host_cublas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "backend/cuda/planned_backend.h"

// The library's types are opaque; these are behind them here.
struct cublasLtContext {};

namespace gpu_host {
namespace {

using qlora::BFloat16;
using qlora::ToBFloat16;

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
  EXPECT_EQ(workspace_bytes, qlora::cuda::kBlasBytes);
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
  EXPECT_EQ(p.workspace, qlora::cuda::kBlasBytes);
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

}  // namespace

qlora::cuda::Cublas HostCublas() {
  qlora::cuda::Cublas l;
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

}  // namespace gpu_host
