// Tells a model that was moved from another model.
#ifndef QLORA_CHECKPOINT_MODEL_FINGERPRINT_H_
#define QLORA_CHECKPOINT_MODEL_FINGERPRINT_H_

#include <cstdint>
#include <filesystem>

namespace qlora {

// A hash of the name, type, shape and first bytes of every tensor in the checkpoint of `model_dir`.
// It does not depend on the names of files. Errors: as OpenSafetensors.
std::uint64_t ModelFingerprint(const std::filesystem::path& model_dir);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_MODEL_FINGERPRINT_H_
