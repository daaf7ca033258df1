// Tells a model that was moved from another model, and from one that was changed.
#ifndef QLORA_CHECKPOINT_MODEL_FINGERPRINT_H_
#define QLORA_CHECKPOINT_MODEL_FINGERPRINT_H_

#include <cstdint>
#include <filesystem>

#include "qlora/context.h"

namespace qlora {

// A hash of the name, type, shape and first bytes of every tensor in the checkpoint of `model_dir`.
// It does not depend on the names of files. Errors: as OpenSafetensors.
std::uint64_t ModelFingerprint(const std::filesystem::path& model_dir);

// A hash of the name and all bytes of every tensor. Each rank of the context hashes a part of its
// copy, so all ranks make the call, and get the same. Errors: as OpenSafetensors.
std::uint64_t HashWeights(Context& context, const std::filesystem::path& model_dir);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_MODEL_FINGERPRINT_H_
