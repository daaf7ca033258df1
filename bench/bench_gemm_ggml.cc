#include "bench/bench_gemm_ggml.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/check.h"

namespace qlora::bench {
namespace {

constexpr int kCpu = 0;  // of ggml's kinds of devices
constexpr int kF32 = 0;  // of its types of tensors

// The library that loads the others; "" if the folder has none.
std::string FindLibrary(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("libggml.") && name.ends_with(".so")) found.push_back(entry.path());
  }
  return found.empty() ? "" : std::filesystem::absolute(std::ranges::min(found)).string();
}

}  // namespace

// The functions of ggml that are needed; its objects are opaque.
struct Ggml::Library {
  struct InitParams {
    std::size_t mem_size;
    void* mem_buffer;
    bool no_alloc;
  };

  Library(const std::string& folder, int threads) {
    const std::string path = FindLibrary(folder);
    // Never closed: its threads live as long as the process.
    handle = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    Find("ggml_log_set", &log_set);
    Find("ggml_init", &init);
    Find("ggml_free", &free);
    Find("ggml_tensor_overhead", &tensor_overhead);
    Find("ggml_graph_overhead_custom", &graph_overhead);
    Find("ggml_new_tensor_2d", &new_tensor_2d);
    Find("ggml_mul_mat", &mul_mat);
    Find("ggml_new_graph_custom", &new_graph);
    Find("ggml_build_forward_expand", &build_forward_expand);
    Find("ggml_backend_load_all_from_path", &load_all_from_path);
    Find("ggml_backend_dev_by_type", &dev_by_type);
    Find("ggml_backend_dev_init", &dev_init);
    Find("ggml_backend_dev_backend_reg", &dev_backend_reg);
    Find("ggml_backend_dev_supports_op", &dev_supports_op);
    Find("ggml_backend_dev_buffer_type", &dev_buffer_type);
    Find("ggml_backend_reg_get_proc_address", &reg_get_proc_address);
    Find("ggml_backend_buft_name", &buft_name);
    Find("ggml_backend_alloc_ctx_tensors_from_buft", &alloc_tensors);
    Find("ggml_backend_buffer_free", &buffer_free);
    Find("ggml_backend_tensor_set", &tensor_set);
    Find("ggml_backend_graph_compute", &graph_compute);
    if (complete) {
      // It would report every weight that it interleaves.
      log_set([](int, const char*, void*) {}, nullptr);
      load_all_from_path(folder.c_str());
      device = dev_by_type(kCpu);
    }
    if (device == nullptr) {
      ThrowInvalidInput(
          "ggml: expected a folder with libggml.so, libggml-base.so and libggml-cpu.so (or "
          "libggml-cpu-*.so) of llama.cpp for this processor, found none that works in '{}'",
          folder);
    }
    backend = dev_init(device, nullptr);
    void* of_device = dev_backend_reg(device);
    const auto set_threads = reinterpret_cast<void (*)(void*, int)>(
        reg_get_proc_address(of_device, "ggml_backend_set_n_threads"));
    const auto extra = reinterpret_cast<void** (*)(void*)>(
        reg_get_proc_address(of_device, "ggml_backend_dev_get_extra_bufts"));
    if (set_threads != nullptr) set_threads(backend, threads);
    for (void** type = extra == nullptr ? nullptr : extra(device);
         type != nullptr && *type != nullptr; ++type) {
      if (std::string_view(buft_name(*type)) == "CPU_REPACK") repack = *type;
    }
  }

  template <typename Fn>
  void Find(const char* name, Fn** fn) {
    *fn = reinterpret_cast<Fn*>(handle == nullptr ? nullptr : dlsym(handle, name));
    complete = complete && *fn != nullptr;
  }

  // Room for tensors and a graph of `nodes`, whose memory is a buffer.
  void* Context(std::int64_t tensors, std::int64_t nodes) const {
    const std::size_t bytes = tensor_overhead() * (tensors + nodes) + graph_overhead(nodes, false);
    return init({bytes, nullptr, true});
  }
  // Whether there is a kernel for weights that are allocated.
  bool Multiplies(void* weight, std::int64_t K) const {
    void* context = Context(2, 0);
    const bool supported =
        dev_supports_op(device, mul_mat(context, weight, new_tensor_2d(context, kF32, K, 1)));
    free(context);
    return supported;
  }

  void* handle = nullptr;
  bool complete = true;
  void* device = nullptr;
  void* backend = nullptr;
  void* repack = nullptr;  // the type of buffers of interleaved weights, or null
  void (*log_set)(void (*)(int, const char*, void*), void*);
  void* (*init)(InitParams);
  void (*free)(void*);
  std::size_t (*tensor_overhead)();
  std::size_t (*graph_overhead)(std::size_t, bool);
  void* (*new_tensor_2d)(void*, int, std::int64_t, std::int64_t);
  void* (*mul_mat)(void*, void*, void*);
  void* (*new_graph)(void*, std::size_t, bool);
  void (*build_forward_expand)(void*, void*);
  void (*load_all_from_path)(const char*);
  void* (*dev_by_type)(int);
  void* (*dev_init)(void*, const char*);
  void* (*dev_backend_reg)(void*);
  bool (*dev_supports_op)(void*, void*);
  void* (*dev_buffer_type)(void*);
  void* (*reg_get_proc_address)(void*, const char*);
  const char* (*buft_name)(void*);
  void* (*alloc_tensors)(void*, void*);
  void (*buffer_free)(void*);
  void (*tensor_set)(void*, const void*, std::size_t, std::size_t);
  int (*graph_compute)(void*, void*);
};

Ggml::Ggml(const std::string& folder, int threads)
    : library_(std::make_unique<Library>(folder, threads)) {}
Ggml::~Ggml() = default;

std::function<void()> Ggml::Products(const BlockView& weight, std::int64_t copies,
                                     std::span<const float> x, int calls) const {
  const Library& lib = *library_;
  // Tensors with their contexts and buffers; the function below owns them.
  struct Memory {
    explicit Memory(const Library& l) : lib(l) {}
    Memory(const Memory&) = delete;
    ~Memory() {
      for (void* buffer : buffers) lib.buffer_free(buffer);
      for (void* context : contexts) lib.free(context);
    }
    bool Allocate(void* context, void* type) {
      contexts.push_back(context);
      void* buffer = lib.alloc_tensors(context, type);
      if (buffer != nullptr) buffers.push_back(buffer);
      return buffer != nullptr;
    }
    const Library& lib;
    std::vector<void*> contexts;
    std::vector<void*> buffers;
  };
  auto memory = std::make_shared<Memory>(lib);
  const auto type = static_cast<int>(InfoOf(weight.format).ggml_type);
  std::vector<void*> weights(copies);
  const auto allocate = [&](void* buffer_type) {
    void* context = lib.Context(copies, 0);
    for (void*& w : weights) w = lib.new_tensor_2d(context, type, weight.cols, weight.rows);
    return memory->Allocate(context, buffer_type) && lib.Multiplies(weights[0], weight.cols);
  };
  void* plain = lib.dev_buffer_type(lib.device);
  if ((lib.repack == nullptr || !allocate(lib.repack)) && !allocate(plain)) {
    ThrowRuntime("ggml: expected products with {}, found that it has none",
                 InfoOf(weight.format).name);
  }
  for (void* w : weights) lib.tensor_set(w, weight.data, 0, BytesOf(weight));
  const std::int64_t nodes = calls + copies + 2;
  void* context = lib.Context(1, nodes);
  void* input = lib.new_tensor_2d(context, kF32, weight.cols, std::ssize(x) / weight.cols);
  void* graph = lib.new_graph(context, nodes, false);
  for (int i = 0; i < calls; ++i) {
    lib.build_forward_expand(graph, lib.mul_mat(context, weights[i % copies], input));
  }
  if (!memory->Allocate(context, plain)) ThrowRuntime("ggml: no memory for products");
  lib.tensor_set(input, x.data(), 0, x.size_bytes());
  return [memory, graph] {
    const Library& l = memory->lib;
    const int status = l.graph_compute(l.backend, graph);
    if (status != 0) ThrowRuntime("ggml: a product failed with status {}", status);
  };
}

}  // namespace qlora::bench
