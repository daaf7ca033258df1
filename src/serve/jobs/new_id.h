// Names that the server makes: of files and jobs, never those of a client.
#ifndef QLORA_SERVE_JOBS_NEW_ID_H_
#define QLORA_SERVE_JOBS_NEW_ID_H_

#include <string>
#include <string_view>

namespace qlora {

// Returns "file-" with 24 letters and digits that nobody can guess. Errors: Runtime.
std::string NewId(std::string_view prefix);
// True for what NewId(prefix) can return: it names a file and leads nowhere.
bool IsId(std::string_view text, std::string_view prefix);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_NEW_ID_H_
