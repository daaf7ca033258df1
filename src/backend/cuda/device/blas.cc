// Products by cuBLASLt.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "backend/cuda/device/cublas.h"
#include "backend/cuda/device/device_runtime.h"
#include "backend/cuda/planned_backend.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

// Algorithms that are timed, the first by the library's own order.
constexpr int kChoices = 8;
// Shapes that are timed, each for about 30 times as long as it runs: a run on packed sequences has
// some 40, one whose batches differ in length has no end of them.
constexpr std::size_t kMostTimedShapes = 96;
// Multiplications of a product that is worth timing. The output head of one row has 2^29 (128k x
// 4096), an adapter of rank 16 as many on 8192 rows of 4096 features.
constexpr double kLeastTimed = 0x1p28;

// The properties of a product that decide which algorithm is fastest.
struct Shape {
  std::int64_t m, n, k, lda, ldb, ldc, ld_base;
  bool transpose_a, transpose_b;
  bool deterministic;
  DType operand, result;
  // A kernel that was chosen for addresses divisible by 16 faults with others, so alignment is part
  // of the key under which an algorithm is kept.
  std::uint32_t align_a, align_b, align_c, align_base;
  auto operator<=>(const Shape&) const = default;
};

// The largest power of two that divides the address, at most the 16 bytes that any kernel asks for.
std::uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(16, address & (~address + 1)));
}

Shape ShapeOf(const Gemm& g) {
  return {.m = g.c.rows,
          .n = g.c.cols,
          .k = g.transpose_a ? g.a.rows : g.a.cols,
          .lda = g.a.stride,
          .ldb = g.b.stride,
          .ldc = g.c.stride,
          .ld_base = g.added().stride,
          .transpose_a = g.transpose_a,
          .transpose_b = g.transpose_b,
          .deterministic = g.deterministic,
          .operand = g.a.dtype,
          .result = g.c.dtype,
          .align_a = AlignmentOf(g.a.data),
          .align_b = AlignmentOf(g.b.data),
          .align_c = AlignmentOf(g.c.data),
          .align_base = AlignmentOf(g.added().data)};
}

// Two events between which a product is timed, and memory for the result where `bytes` is not 0.
struct TrialRoom {
  explicit TrialRoom(std::size_t bytes) {
    is_made = cudaEventCreate(&begin) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess &&
              (bytes == 0 || cudaMalloc(&scratch, bytes) == cudaSuccess);
    if (!is_made) cudaGetLastError();  // not an error of the next call
  }
  ~TrialRoom() {
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
    if (scratch != nullptr) cudaFree(scratch);
  }
  TrialRoom(const TrialRoom&) = delete;
  TrialRoom& operator=(const TrialRoom&) = delete;

  bool is_made = false;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  void* scratch = nullptr;
};

// True where launches are recorded and do not run.
bool IsCaptured(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess) {
    cudaGetLastError();  // not an error of the next call
  }
  return status != cudaStreamCaptureStatusNone;
}

cudaDataType TypeOf(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// The library is column-major, and a row-major matrix is its transpose there. So the library is
// asked for c^T = op(b)^T op(a)^T, with b as its first operand.
class DeviceBlas final : public Blas {
 public:
  DeviceBlas(const Cublas& library, BlasWorkspace workspace)
      : lib_(library), workspace_(std::move(workspace)) {
    Check("cublasLtCreate", lib_.create(&handle_));
  }
  ~DeviceBlas() override { lib_.destroy(handle_); }

  void Run(Stream stream, const Gemm& g) override {
    if (g.c.empty()) return;
    const Description d(*this, g);
    const cublasLtMatmulAlgo_t algorithm = AlgorithmFor(stream, g, d);
    Check("cublasLtMatmul", Multiply(stream, g, d, algorithm, g.c.data));
  }

 private:
  // The library's descriptors of one product.
  struct Description {
    Description(const DeviceBlas& blas, const Gemm& g) : lib(blas.lib_) {
      // Products of float32 operands stay float32: TF32, with 10 bits, is another compute type.
      blas.Check("cublasLtMatmulDescCreate",
                 lib.desc_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
      const cublasOperation_t op_b = g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
      const cublasOperation_t op_a = g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
      blas.Check("transposition",
                 lib.desc_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof(op_b)));
      blas.Check("transposition",
                 lib.desc_set(product, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof(op_a)));
      a = blas.LayoutOf(g.a);
      b = blas.LayoutOf(g.b);
      c = blas.LayoutOf(g.c);
      base = blas.LayoutOf(g.added());
    }
    ~Description() {
      for (cublasLtMatrixLayout_t layout : {a, b, c, base}) {
        if (layout != nullptr) lib.layout_destroy(layout);
      }
      lib.desc_destroy(product);
    }
    Description(const Description&) = delete;
    Description& operator=(const Description&) = delete;

    const Cublas& lib;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, base = nullptr;
  };

  cublasLtMatrixLayout_t LayoutOf(const ConstMatrixView& m) const {
    cublasLtMatrixLayout_t layout = nullptr;
    Check("cublasLtMatrixLayoutCreate",
          lib_.layout_create(&layout, TypeOf(m.dtype), static_cast<std::uint64_t>(m.cols),
                             static_cast<std::uint64_t>(m.rows), m.stride));
    return layout;
  }

  // result: where alpha op(a) op(b) + beta base is stored, laid out as c.
  cublasStatus_t Multiply(Stream stream, const Gemm& g, const Description& d,
                          const cublasLtMatmulAlgo_t& algorithm, void* result) const {
    return lib_.matmul(handle_, d.product, &g.alpha, g.b.data, d.b, g.a.data, d.a, &g.beta,
                       g.added().data, d.base, result, d.c, &algorithm, workspace_.get(),
                       kBlasBytes, static_cast<cudaStream_t>(stream));
  }

  // The algorithm for a shape: the first choice of the library, or the fastest of kChoices. Looked
  // up once.
  cublasLtMatmulAlgo_t AlgorithmFor(Stream stream, const Gemm& g, const Description& d) {
    const Shape shape = ShapeOf(g);
    // The backends of a device may run on several threads.
    const std::lock_guard lock(mutex_);
    // The heuristic takes longer than a small product, and a run repeats few shapes.
    const auto known = algorithms_.find(shape);
    if (known != algorithms_.end()) return known->second;
    cublasLtMatmulPreference_t preference = nullptr;
    Check("cublasLtMatmulPreferenceCreate", lib_.preference_create(&preference));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      Check("cublasLtMatmulPreferenceSetAttribute",
            lib_.preference_set(preference, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kBlasBytes});
    // Parts of a product over K are added in float32, not in the type of the result.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.align_b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.align_a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.align_base);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.align_c);
    const double work = static_cast<double>(shape.m) * static_cast<double>(shape.n * shape.k);
    const bool timed = !shape.deterministic && work >= kLeastTimed &&
                       timed_shapes_ < kMostTimedShapes && !IsCaptured(stream);
    std::array<cublasLtMatmulHeuristicResult_t, kChoices> choices = {};
    int found = 0;
    const cublasStatus_t status =
        lib_.heuristic(handle_, d.product, d.b, d.a, d.base, d.c, preference, timed ? kChoices : 1,
                       choices.data(), &found);
    lib_.preference_destroy(preference);
    // The library says of each choice whether it has an algorithm.
    const auto usable_end =
        std::remove_if(choices.begin(), choices.begin() + found,
                       [](const auto& choice) { return choice.state != CUBLAS_STATUS_SUCCESS; });
    found = static_cast<int>(usable_end - choices.begin());
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
      ThrowRuntime(
          "cuda: cuBLASLt has no algorithm for a product ({}, {}, {}) of {} into {}, strides {}, "
          "{}, {}: {}",
          shape.m, shape.n, shape.k, NameOf(shape.operand), NameOf(shape.result), shape.lda,
          shape.ldb, shape.ldc, lib_.status_string(status));
    }
    timed_shapes_ += timed ? 1 : 0;
    const int best = timed ? Fastest(stream, g, d, {choices.data(), std::size_t(found)}) : 0;
    // A shape that is captured is timed when it is first launched by itself.
    if (IsCaptured(stream)) return choices[best].algo;
    return algorithms_.emplace(shape, choices[best].algo).first->second;
  }

  // The index of the choice that takes least time, by running each of them on the operands. Where c
  // is added to, results go to memory of their own. Without room for trials the first is taken.
  int Fastest(Stream stream, const Gemm& g, const Description& d,
              std::span<const cublasLtMatmulHeuristicResult_t> choices) const {
    const bool adds_to_c = g.beta != 0 && g.added().data == g.c.data;
    const TrialRoom room(adds_to_c ? BytesOf(g.c.dtype, g.c.rows * g.c.stride) : 0);
    if (!room.is_made) return 0;
    const auto queue = static_cast<cudaStream_t>(stream);
    int best = 0;
    float least = std::numeric_limits<float>::infinity();
    for (int i = 0; i < static_cast<int>(choices.size()); ++i) {
      const auto run = [&] {
        return Multiply(stream, g, d, choices[i].algo,
                        room.scratch == nullptr ? g.c.data : room.scratch);
      };
      // The first run loads the code of the kernel.
      if (run() != CUBLAS_STATUS_SUCCESS) continue;
      cudaEventRecord(room.begin, queue);
      for (int repeat = 0; repeat < 3; ++repeat) run();
      cudaEventRecord(room.end, queue);
      float milliseconds = 0;
      if (cudaEventSynchronize(room.end) != cudaSuccess)
        break;  // the caller's next call reports it
      cudaEventElapsedTime(&milliseconds, room.begin, room.end);
      if (milliseconds < least) best = i;
      least = std::min(least, milliseconds);
    }
    return best;
  }

  void Check(const char* what, cublasStatus_t status) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    const ErrorCode code =
        status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kOutOfMemory : ErrorCode::kRuntime;
    throw Error(code, fmt::format("cuda: {}: {}", what, lib_.status_string(status)));
  }

  const Cublas lib_;
  const BlasWorkspace workspace_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
  std::size_t timed_shapes_ = 0;
};

}  // namespace

std::unique_ptr<Blas> MakeBlasOf(const Cublas& library, BlasWorkspace workspace) {
  return std::make_unique<DeviceBlas>(library, std::move(workspace));
}

std::string DescribeBlas() {
  MakeDeviceBlas();
  const Cublas library = LoadCublas();
  return fmt::format("cuBLASLt {}.{}.{}, {}", library.version / 10000, library.version / 100 % 100,
                     library.version % 100, library.file);
}

std::unique_ptr<Blas> MakeDeviceBlas() {
  const Cublas library = LoadCublas();
  void* workspace = nullptr;
  CheckCuda("allocate the workspace of cuBLASLt", cudaMalloc(&workspace, kBlasBytes));
  return MakeBlasOf(library, {workspace, [](void* data) { cudaFree(data); }});
}

}  // namespace qlora::cuda
