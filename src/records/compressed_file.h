// Data files that are compressed with gzip or zstd: train.jsonl.gz, data.csv.zst.
#ifndef QLORA_RECORDS_COMPRESSED_FILE_H_
#define QLORA_RECORDS_COMPRESSED_FILE_H_

#include <cstdint>
#include <filesystem>

#include "records/file_bytes.h"
#include "records/reading_limits.h"

namespace qlora {

// The limit of a file's content: `bytes` in any case, or `growth` times the bytes of the file where
// that is more. Texts become 5 to 20 times smaller; a file that grows beyond this was made to fill
// a disk.
struct ContentLimits {
  std::uint64_t bytes = std::uint64_t{256} << 20;
  std::uint64_t growth = 100;
  ReadingLimits reading = {};
};

// Returns the content of a file that begins as gzip or zstd does, written once as MakeText
// (derived_text.h) does, under the name of the file; any other file as it is. Memory does not grow
// with the file. Errors: InvalidInput for a file that is damaged, cut, or beyond the limits, such
// as one of zstd that refers farther back than may be kept; Runtime when the content cannot be
// written.
FileBytes Decompressed(const FileBytes& file, const std::filesystem::path& folder,
                       const ContentLimits& limits = {});

}  // namespace qlora

#endif  // QLORA_RECORDS_COMPRESSED_FILE_H_
