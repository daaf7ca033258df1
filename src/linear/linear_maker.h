// QLoraLinear on backends of the caller's choice.
#ifndef QLORA_LINEAR_LINEAR_MAKER_H_
#define QLORA_LINEAR_LINEAR_MAKER_H_

#include <span>

#include "backend/backend.h"
#include "qlora/linear.h"

namespace qlora {

struct LinearMaker {
  // QLoraLinear::FromQuantized.
  static QLoraLinear Make(Context& context, const BackendMaker& make_backend, compat::Matrix weight,
                          const QLoraConfig& config, std::span<const float> bias);
};

}  // namespace qlora

#endif  // QLORA_LINEAR_LINEAR_MAKER_H_
