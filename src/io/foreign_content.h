// What is often found under the name of a file of a model: the stand-in of Git LFS, and the answer
// of a server that did not have the file.
#ifndef QLORA_IO_FOREIGN_CONTENT_H_
#define QLORA_IO_FOREIGN_CONTENT_H_

#include <filesystem>
#include <string>
#include <string_view>

namespace qlora {

// Returns "; it is a Git LFS pointer ..." or "; it looks like a web page ..." with the remedy, for
// the end of a message about a file that cannot be parsed; "" for other content.
std::string ForeignContent(std::string_view content);

// Returns a text file that is not parsed, such as a template. Errors: InvalidInput for the above.
std::string ReadOwnText(const std::filesystem::path& path);

}  // namespace qlora

#endif  // QLORA_IO_FOREIGN_CONTENT_H_
