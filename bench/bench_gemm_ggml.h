// The products of ggml that ours with its blocks are measured against: its shared libraries,
// opened at run time where the user names their folder, so that nothing depends on them.
#ifndef QLORA_BENCH_BENCH_GEMM_GGML_H_
#define QLORA_BENCH_BENCH_GEMM_GGML_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "backend/weight.h"

namespace qlora::bench {

// ggml's backend for this processor, with float32 activations, and weights in its interleaved
// layout where it has one for their format.
class Ggml {
 public:
  // folder: with libggml.so, or libggml.VERSION.so, and the libraries beside it. Errors:
  // InvalidInput where there are none that work here.
  Ggml(const std::string& folder, int threads);
  ~Ggml();

  // A function that runs y = x W^T `calls` times, with `copies` of the weight in turn; x: (M, K).
  // Errors: Runtime where ggml has no kernel for the format.
  std::function<void()> Products(const BlockView& weight, std::int64_t copies,
                                 std::span<const float> x, int calls) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_GEMM_GGML_H_
