// Texts that are made once of a data file which cannot be read by position itself.
#ifndef QLORA_RECORDS_DERIVED_TEXT_H_
#define QLORA_RECORDS_DERIVED_TEXT_H_

#include <filesystem>
#include <functional>
#include <string_view>

#include "records/file_bytes.h"

namespace qlora {

using TextSink = std::function<void(std::string_view piece)>;

// Returns what `write` writes, under the name and the key of `file`. In `folder`, where a later
// call for the same file and `what` finds it again; if `folder` is empty, in a file without a name
// in the system's folder for temporary files (TMPDIR, or /tmp), which disappears with the last
// reader. Errors: Runtime when the text cannot be written; those of `write`.
FileBytes MakeText(const FileBytes& file, std::string_view what,
                   const std::filesystem::path& folder,
                   const std::function<void(const TextSink&)>& write);

}  // namespace qlora

#endif  // QLORA_RECORDS_DERIVED_TEXT_H_
