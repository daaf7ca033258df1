// Tells a model that was moved from another model, and from one that was changed.
#ifndef QLORA_MODEL_MODEL_FINGERPRINT_H_
#define QLORA_MODEL_MODEL_FINGERPRINT_H_

#include <cstdint>
#include <filesystem>

#include "qlora/context.h"

namespace qlora {

// A hash of the name, type, shape and first bytes of every tensor in the checkpoint of `model_dir`.
// It does not depend on the names of files. Errors: as OpenSafetensors.
std::uint64_t ModelFingerprint(const std::filesystem::path& model_dir);

// A hash of the names and all bytes of every tensor, or of one of `parts` parts of them, of which
// the sum is the hash of all. Errors: as OpenSafetensors.
std::uint64_t HashWeights(Context& context, const std::filesystem::path& model_dir, int part = 0,
                          int parts = 1);

}  // namespace qlora

#endif  // QLORA_MODEL_MODEL_FINGERPRINT_H_
