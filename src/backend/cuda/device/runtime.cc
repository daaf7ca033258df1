// The GPU of CUDA. The CUDA runtime is linked statically, so that a program with this backend
// starts where there is no driver, and says so when the backend is asked for.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "backend/cuda/device/device_runtime.h"
#include "backend/cuda/device/kernel_image.h"
#include "base/check.h"

namespace qlora::cuda {
namespace {

constexpr int kOldestMajor = 8;  // compute capability that kernels are compiled for

class DeviceRuntime final : public Runtime {
 public:
  DeviceRuntime() {
    // Non-blocking: other code of the process that uses the default stream does not make these
    // wait.
    for (cudaStream_t* stream : {&stream_, &copies_, &captured_}) {
      const cudaError_t error = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
      if (error == cudaSuccess) continue;
      DestroyStreams();
      CheckCuda("make a stream", error);
    }
    int reads_host = 0;
    cudaDeviceGetAttribute(&reads_host, cudaDevAttrPageableMemoryAccess, 0);
    reads_host_ = reads_host != 0;
  }
  ~DeviceRuntime() override { DestroyStreams(); }

  Stream stream() const override { return stream_; }
  Stream copies() const override { return copies_; }
  // An event may be destroyed before it has happened.
  Event Record(Stream stream) override {
    cudaEvent_t event = nullptr;
    CheckCuda("make an event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    Event owner(event, [](cudaEvent_t e) { cudaEventDestroy(e); });
    CheckCuda("record an event", cudaEventRecord(event, static_cast<cudaStream_t>(stream)));
    return owner;
  }
  void OrderBehind(Stream stream, const Event& event) override {
    CheckCuda("order streams",
              cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), EventOf(event), 0));
  }
  void WaitFor(const Event& event) override {
    CheckCuda("wait for the device", cudaEventSynchronize(EventOf(event)));
  }

  Graph Capture(const std::function<void(Stream)>& queue, Graph last) override {
    const std::lock_guard lock(capture_mutex_);
    // Relaxed: nothing that this thread does meanwhile is refused.
    CheckCuda("capture", cudaStreamBeginCapture(captured_, cudaStreamCaptureModeRelaxed));
    try {
      queue(captured_);
    } catch (...) {
      EndCapture();
      throw;
    }
    const std::shared_ptr<CUgraph_st> graph = EndCapture();
    if (graph == nullptr) return nullptr;
    cudaGraphExecUpdateResultInfo result = {};
    // Cheaper than a new one, where kernels are the same and only their arguments differ.
    if (last != nullptr && cudaGraphExecUpdate(ExecOf(last), graph.get(), &result) == cudaSuccess) {
      return last;
    }
    cudaGraphExec_t exec = nullptr;
    if (cudaGraphInstantiate(&exec, graph.get(), 0) != cudaSuccess) exec = nullptr;
    cudaGetLastError();  // not an error of the next call
    if (exec == nullptr) return nullptr;
    return Graph(exec, [stream = stream_](cudaGraphExec_t e) {
      cudaStreamSynchronize(stream);  // it may be running
      cudaGraphExecDestroy(e);
    });
  }
  void Launch(const Graph& graph) override {
    CheckCuda("launch captured kernels", cudaGraphLaunch(ExecOf(graph), stream_));
  }

  std::byte* Allocate(std::size_t bytes) override {
    // Not a byte more than is asked for: compute-sanitizer finds accesses behind it.
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not an error of the next call
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("cuda: cannot allocate {} bytes of device memory, {} are free", bytes,
                              Available()));
    }
    CheckCuda("allocate", error);
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data) noexcept override { Release(data, cudaFree); }
  int Multiprocessors() const override {
    int count = 0;
    CheckCuda("read the number of multiprocessors",
              cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return count;
  }
  std::size_t Available() const override {
    std::size_t free = 0;
    std::size_t total = 0;
    CheckCuda("read the free memory", cudaMemGetInfo(&free, &total));
    return free;
  }

  std::byte* AllocateLocked(std::size_t bytes) override {
    void* data = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&data, std::max<std::size_t>(bytes, 1), cudaHostAllocDefault);
    // Too little memory, a limit of the system to the memory that a process may lock, or a system
    // that locks nothing.
    if (error == cudaErrorMemoryAllocation || error == cudaErrorOperatingSystem ||
        error == cudaErrorNotSupported || error == cudaErrorNotPermitted) {
      cudaGetLastError();  // not an error of the next call
      return nullptr;
    }
    CheckCuda("allocate page-locked memory", error);
    std::memset(data, 0, bytes);
    return static_cast<std::byte*>(data);
  }
  void FreeLocked(std::byte* data) noexcept override { Release(data, cudaFreeHost); }

  // Memory that is not page-locked is copied to a staging buffer before the call returns, but where
  // the device itself can read it.
  void CopyIn(void* device, const void* host, std::size_t bytes) override {
    Copy("copy to the device", device, host, bytes, cudaMemcpyHostToDevice, stream_);
    if (reads_host_) CheckCuda("wait for the device", cudaStreamSynchronize(stream_));
  }
  void CopyOut(void* host, const void* device, std::size_t bytes) override {
    Copy("copy from the device", host, device, bytes, cudaMemcpyDeviceToHost, stream_);
    CheckCuda("wait for the device", cudaStreamSynchronize(stream_));
  }
  // With page-locked memory the GPU copies by itself, when the stream gets there.
  void QueueCopyIn(void* device, const void* locked, std::size_t bytes) override {
    Copy("copy to the device", device, locked, bytes, cudaMemcpyHostToDevice, copies_);
  }
  void QueueCopyOut(void* locked, const void* device, std::size_t bytes) override {
    Copy("copy from the device", locked, device, bytes, cudaMemcpyDeviceToHost, copies_);
  }
  void Clear(void* device, std::size_t bytes) override {
    if (bytes > 0) CheckCuda("clear memory", cudaMemsetAsync(device, 0, bytes, stream_));
  }
  // A launch returns before its kernel runs, so an error inside a kernel is first seen here.
  void Synchronize() override {
    for (const cudaStream_t stream : {stream_, copies_}) {
      CheckCuda("wait for the device", cudaStreamSynchronize(stream));
    }
  }

 private:
  void DestroyStreams() {
    for (const cudaStream_t stream : {captured_, copies_, stream_}) {
      if (stream != nullptr) cudaStreamDestroy(stream);
    }
  }
  static cudaGraphExec_t ExecOf(const Graph& graph) {
    return static_cast<cudaGraphExec_t>(const_cast<void*>(graph.get()));
  }
  // Null where something could not be captured.
  std::shared_ptr<CUgraph_st> EndCapture() {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(captured_, &graph);
    cudaGetLastError();  // not an error of the next call
    if (graph == nullptr) return nullptr;
    return {graph, [](cudaGraph_t g) { cudaGraphDestroy(g); }};
  }
  static cudaEvent_t EventOf(const Event& event) {
    return static_cast<cudaEvent_t>(const_cast<void*>(event.get()));
  }
  static void Copy(const char* what, void* to, const void* from, std::size_t bytes,
                   cudaMemcpyKind kind, cudaStream_t stream) {
    if (bytes > 0) CheckCuda(what, cudaMemcpyAsync(to, from, bytes, kind, stream));
  }
  // Gives an allocation back when all that was queued has run.
  void Release(std::byte* data, cudaError_t (*free)(void*)) noexcept {
    if (data == nullptr) return;
    cudaStreamSynchronize(stream_);
    cudaStreamSynchronize(copies_);
    free(data);
  }

  cudaStream_t stream_ = nullptr;
  cudaStream_t copies_ = nullptr;
  cudaStream_t captured_ = nullptr;  // runs nothing
  bool reads_host_ = false;          // the device reads memory of the host that is not locked
  std::mutex capture_mutex_;
};

// A version as CUDA counts, as text: 13.0 for 13000.
std::string TextOf(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Why the device of these properties cannot be used, or empty.
std::string UnsupportedReason(const cudaDeviceProp& properties) {
  const std::string found =
      fmt::format("{}.{} ({})", properties.major, properties.minor, properties.name);
  // 8.0 is the first with products of bfloat16 in the matrix unit and with asynchronous copies to
  // shared memory (gpu.h).
  if (properties.major < kOldestMajor) {
    return fmt::format("expected compute capability {}.0 or newer, found {}", kOldestMajor, found);
  }
  // Makes the context of the process, as a run would.
  const int error = LoadKernelImage();
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // not an error of the next call
  return fmt::format(
      "this program has kernels for the architectures {}; a device of compute capability {} could "
      "not load them: {} ({})",
      QLORA_CUDA_ARCHITECTURES, found, cudaGetErrorString(static_cast<cudaError_t>(error)), error);
}

}  // namespace

void CheckCuda(const char* what, int error) {
  if (error == cudaSuccess) return;
  const char* text = cudaGetErrorString(static_cast<cudaError_t>(error));
  // A code of its own, by which callers tell too little memory from a broken device.
  if (error == cudaErrorMemoryAllocation) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("cuda: {}: {}", what, text));
  }
  ThrowRuntime("cuda: {}: {} ({})", what, text, error);
}

void CheckLaunch(const char* name, int error) { CheckCuda(name, static_cast<cudaError_t>(error)); }

CudaReport DescribeDevice() {
  int driver = 0;  // the newest CUDA that it knows; 0: there is no driver
  cudaDriverGetVersion(&driver);
  int count = 0;
  cudaDeviceProp properties = {};
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();  // not an error of the next call
    // A machine without a GPU is a choice of the user; a driver that does not work is not.
    return {
        .problem = fmt::format(
            "expected an NVIDIA GPU and a driver for CUDA {} or newer, found {} ({})",
            TextOf(CUDART_VERSION), driver == 0 ? "none" : "a driver for CUDA " + TextOf(driver),
            error == cudaSuccess ? "no device" : cudaGetErrorString(error)),
        .code = driver == 0 || error == cudaErrorNoDevice ? ErrorCode::kInvalidInput
                                                          : ErrorCode::kRuntime};
  }
  CudaReport report = {.problem = UnsupportedReason(properties),
                       .name = properties.name,
                       .memory_total = properties.totalGlobalMem,
                       .driver = "CUDA " + TextOf(driver)};
  if (!report.problem.empty()) report.code = ErrorCode::kRuntime;
  return report;
}

std::unique_ptr<Runtime> MakeDeviceRuntime() {
  const CudaReport report = DescribeDevice();
  if (!report.problem.empty()) throw Error(report.code, "device cuda: " + report.problem);
  return std::make_unique<DeviceRuntime>();
}

}  // namespace qlora::cuda
