// Texts that are made once of a data file which cannot be read by position itself.
#ifndef QLORA_RECORDS_DERIVED_TEXT_H_
#define QLORA_RECORDS_DERIVED_TEXT_H_

#include <filesystem>
#include <functional>
#include <string_view>

#include "records/file_bytes.h"

namespace qlora {

using TextSink = std::function<void(std::string_view piece)>;

// Returns what `write` writes, under the name of `file`. In `folder`, where a later call for a file
// with the same bytes and the same `what` finds it again; if `folder` is empty, in a file without a
// name in the system's folder for temporary files (TMPDIR, or /tmp), which disappears with the last
// reader. Errors: Runtime when the text cannot be written; those of `write`.
//
// In a folder the text stands for the file from then on, so that nothing else would find that it is
// of other bytes: a hash of them is its key. (Size and time are alike in two archives with fixed
// times.) Reading takes a small part of the time in which the text is made and encoded.
FileBytes MakeText(const FileBytes& file, std::string_view what,
                   const std::filesystem::path& folder,
                   const std::function<void(const TextSink&)>& write);

}  // namespace qlora

#endif  // QLORA_RECORDS_DERIVED_TEXT_H_
