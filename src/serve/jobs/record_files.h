// Ids that the server makes, of files and jobs, and the records of a folder: one file, ID.json, for
// each thing that is kept there.
#ifndef QLORA_SERVE_JOBS_RECORD_FILES_H_
#define QLORA_SERVE_JOBS_RECORD_FILES_H_

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "io/json_fwd.h"

namespace qlora {

// Returns "file-" with 24 letters and digits that nobody can guess. Errors: Runtime.
std::string NewId(std::string_view prefix);
// True for what NewId(prefix) can return: it names a file and leads nowhere.
bool IsId(std::string_view text, std::string_view prefix);

// Calls take with each record whose id NewId(prefix) has made; where: names the file in errors.
// One that cannot be read, or that take refuses by an exception, is left out and stays: log gets a
// line with the file, the reason and what to do. Makes the folder. Errors: Runtime.
void ReadRecords(const std::filesystem::path& folder, std::string_view prefix,
                 const std::function<void(const std::string& line)>& log,
                 const std::function<void(const Json& record, const std::string& id,
                                          const std::string& where)>& take);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_RECORD_FILES_H_
