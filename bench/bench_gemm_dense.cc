#include "bench/bench_gemm_dense.h"

#include "machine/simd_target.h"

#ifdef QLORA_BENCH_ONEDNN
#include <dlfcn.h>
#include <dnnl.h>

namespace qlora::bench {
namespace {

// The functions of libdnnl 2 that are needed.
struct Library {
  template <typename Fn>
  void Find(const char* name, Fn** fn) {
    *fn = reinterpret_cast<Fn*>(handle == nullptr ? nullptr : dlsym(handle, name));
    complete = complete && *fn != nullptr;
  }

  // Opened at run time: the library serves comparisons only, and the program must start without it.
  Library() : handle(dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL)) {
    Find("dnnl_set_max_cpu_isa", &set_max_cpu_isa);
    Find("dnnl_engine_create", &engine_create);
    Find("dnnl_stream_create", &stream_create);
    Find("dnnl_stream_wait", &stream_wait);
    Find("dnnl_memory_desc_init_by_tag", &memory_desc_init_by_tag);
    Find("dnnl_memory_desc_get_size", &memory_desc_get_size);
    Find("dnnl_memory_create", &memory_create);
    Find("dnnl_memory_get_data_handle", &memory_get_data_handle);
    Find("dnnl_memory_destroy", &memory_destroy);
    Find("dnnl_matmul_desc_init", &matmul_desc_init);
    Find("dnnl_primitive_desc_create", &primitive_desc_create);
    Find("dnnl_primitive_desc_query_md", &primitive_desc_query_md);
    Find("dnnl_primitive_desc_destroy", &primitive_desc_destroy);
    Find("dnnl_primitive_create", &primitive_create);
    Find("dnnl_primitive_execute", &primitive_execute);
    Find("dnnl_primitive_destroy", &primitive_destroy);
    Find("omp_set_num_threads", &set_threads);  // of the OpenMP library that comes with it
    if (!complete) return;
    // The same instructions on both sides.
    if (ActiveSimdTarget() == SimdTarget::kAvx2) set_max_cpu_isa(dnnl_cpu_isa_avx2);
    if (ActiveSimdTarget() == SimdTarget::kAvx512) set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
    complete = engine_create(&engine, dnnl_cpu, 0) == dnnl_success &&
               stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success;
  }

  void* handle;
  bool complete = true;
  decltype(dnnl_set_max_cpu_isa)* set_max_cpu_isa;
  decltype(dnnl_engine_create)* engine_create;
  decltype(dnnl_stream_create)* stream_create;
  decltype(dnnl_stream_wait)* stream_wait;
  decltype(dnnl_memory_desc_init_by_tag)* memory_desc_init_by_tag;
  decltype(dnnl_memory_desc_get_size)* memory_desc_get_size;
  decltype(dnnl_memory_create)* memory_create;
  decltype(dnnl_memory_get_data_handle)* memory_get_data_handle;
  decltype(dnnl_memory_destroy)* memory_destroy;
  decltype(dnnl_matmul_desc_init)* matmul_desc_init;
  decltype(dnnl_primitive_desc_create)* primitive_desc_create;
  decltype(dnnl_primitive_desc_query_md)* primitive_desc_query_md;
  decltype(dnnl_primitive_desc_destroy)* primitive_desc_destroy;
  decltype(dnnl_primitive_create)* primitive_create;
  decltype(dnnl_primitive_execute)* primitive_execute;
  decltype(dnnl_primitive_destroy)* primitive_destroy;
  void (*set_threads)(int);
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;
};

// Stays loaded for the life of the process, as the library's own thread pool does.
const Library& OneDnn() {
  // A static object of a function: the library is loaded when the first measurement asks for it.
  static const Library library;
  return library;
}

class OneDnnGemm final : public DenseGemm {
 public:
  OneDnnGemm(std::int64_t M, std::int64_t N, std::int64_t K, DType dtype, int threads)
      : threads_(threads) {
    const dnnl_data_type_t type = dtype == DType::kBF16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t dims[3] = {{M, K}, {K, N}, {M, N}};
    // any: the library chooses the order of the weights, and packs them before the timing, as
    // weights of a model are packed once.
    const dnnl_format_tag_t tags[3] = {dnnl_ab, dnnl_format_tag_any, dnnl_ab};
    dnnl_memory_desc_t operands[3];
    for (int i = 0; i < 3; ++i) {
      lib_.memory_desc_init_by_tag(&operands[i], 2, dims[i], type, tags[i]);
    }
    dnnl_matmul_desc_t matmul;
    lib_.matmul_desc_init(&matmul, &operands[0], &operands[1], nullptr, &operands[2]);
    lib_.set_threads(threads);  // the layout of the weights may depend on it
    dnnl_primitive_desc_t plan = nullptr;
    if (lib_.primitive_desc_create(&plan, &matmul, nullptr, lib_.engine, nullptr) != dnnl_success) {
      return;
    }
    const bool created = lib_.primitive_create(&primitive_, plan) == dnnl_success;
    constexpr dnnl_query_t kQueries[3] = {dnnl_query_src_md, dnnl_query_weights_md,
                                          dnnl_query_dst_md};
    for (int i = 0; i < 3; ++i) {
      const dnnl_memory_desc_t* layout = lib_.primitive_desc_query_md(plan, kQueries[i], 0);
      // The layout that the plan asked for.
      lib_.memory_create(&memory_[i], layout, lib_.engine, DNNL_MEMORY_ALLOCATE);
      Fill(memory_[i], dtype, lib_.memory_desc_get_size(layout));
    }
    // The primitive and the memories keep the parts of the plan that they need.
    lib_.primitive_desc_destroy(plan);
    ready_ = created;
  }
  ~OneDnnGemm() override {
    if (primitive_ != nullptr) lib_.primitive_destroy(primitive_);
    for (dnnl_memory_t memory : memory_) {
      if (memory != nullptr) lib_.memory_destroy(memory);
    }
  }

  bool ready() const { return ready_; }

  void Run() override {
    // Each time: another library of the process may have set it.
    lib_.set_threads(threads_);
    const dnnl_exec_arg_t arguments[3] = {
        {DNNL_ARG_SRC, memory_[0]}, {DNNL_ARG_WEIGHTS, memory_[1]}, {DNNL_ARG_DST, memory_[2]}};
    lib_.primitive_execute(primitive_, lib_.stream, 3, arguments);
    // Execution may be asynchronous.
    lib_.stream_wait(lib_.stream);
  }

 private:
  // Values in [0.5, 1).
  void Fill(dnnl_memory_t memory, DType dtype, std::size_t bytes) const {
    void* data = nullptr;
    lib_.memory_get_data_handle(memory, &data);
    for (std::size_t i = 0; i < bytes / BytesOf(dtype, 1); ++i) {
      // 0x3f00 is 0.5 in bfloat16; the seven random bits are the fraction. No value is 0 or
      // subnormal, which some units multiply at another speed.
      const auto bits = static_cast<std::uint16_t>(0x3f00 | (i * 2654435761u >> 25 & 0x7f));
      if (dtype == DType::kBF16) {
        static_cast<BFloat16*>(data)[i] = {bits};
      } else {
        static_cast<float*>(data)[i] = ToFloat(BFloat16{bits});
      }
    }
  }

  const Library& lib_ = OneDnn();
  int threads_;
  bool ready_ = false;
  dnnl_primitive_t primitive_ = nullptr;
  dnnl_memory_t memory_[3] = {};
};

}  // namespace

bool HasDenseGemm() { return OneDnn().complete; }

std::unique_ptr<DenseGemm> MakeDenseGemm(std::int64_t M, std::int64_t N, std::int64_t K,
                                         DType dtype, int threads) {
  if (!HasDenseGemm()) return nullptr;
  auto gemm = std::make_unique<OneDnnGemm>(M, N, K, dtype, threads);
  // The processor lacks the type: the caller then has no such limit.
  if (!gemm->ready()) return nullptr;
  return gemm;
}

}  // namespace qlora::bench

#else

namespace qlora::bench {

bool HasDenseGemm() { return false; }

std::unique_ptr<DenseGemm> MakeDenseGemm(std::int64_t, std::int64_t, std::int64_t, DType, int) {
  return nullptr;
}

}  // namespace qlora::bench

#endif
