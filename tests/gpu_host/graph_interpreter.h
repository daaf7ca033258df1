// Operation graphs of cuDNN, computed in float64 as NVIDIA's documents describe the operations.
#ifndef QLORA_TESTS_GPU_HOST_GRAPH_INTERPRETER_H_
#define QLORA_TESTS_GPU_HOST_GRAPH_INTERPRETER_H_

#include <cstdint>
#include <map>

#include "gpu_host/host_cudnn.h"

namespace gpu_host {

// data: where the operands of the graph are, by their ids. Operations that the graphs of attention
// do not have are failures of the test.
void RunGraph(const Node& graph, const std::map<std::int64_t, void*>& data,
              const qlora::cuda::AttentionPlanShape& shape);

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_GRAPH_INTERPRETER_H_
