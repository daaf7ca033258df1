// Model::Load on backends of the caller's choice.
#ifndef QLORA_INFERENCE_MODEL_LOADER_H_
#define QLORA_INFERENCE_MODEL_LOADER_H_

#include <cstdint>
#include <functional>

#include "backend/backend.h"
#include "qlora/model.h"

namespace qlora {

struct ModelLoader {
  static Model Load(
      Context& context, const ModelOptions& options, const BackendMaker& make_backend,
      const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_MODEL_LOADER_H_
