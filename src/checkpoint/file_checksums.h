// Sizes and checksums of the files of a checkpoint, which show that its bytes are those that were
// written.
#ifndef QLORA_CHECKPOINT_FILE_CHECKSUMS_H_
#define QLORA_CHECKPOINT_FILE_CHECKSUMS_H_

#include <filesystem>

#include "io/json_fwd.h"

namespace qlora {

// The key of trainer_state.json under which the record is.
inline constexpr const char* kCheckedFiles = "files";

// The key of its own checksum: of the text of all other keys on one line.
inline constexpr const char* kStateChecksum = "state_crc32";

// Adds both keys to a complete record. Errors: as FileChecksums.
void AddChecksums(const std::filesystem::path& folder, Json& state);

// Every file in the folder: {"optimizer.safetensors": {"bytes": 1234, "crc32": "0a1b2c3d"}, ...}.
// Errors: InvalidInput for a file that cannot be read.
Json FileChecksums(const std::filesystem::path& folder);

// Compares the files of a checkpoint with the record of its trainer_state.json, and that with its
// own checksum. Checkpoints of earlier versions have none, and files that are not in it may be
// there. Errors: InvalidInput for a file that is missing, or has another size or checksum.
void CheckFileChecksums(const std::filesystem::path& checkpoint, const Json& state);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_FILE_CHECKSUMS_H_
