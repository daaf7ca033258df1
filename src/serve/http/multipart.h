// Uploads of forms: multipart/form-data (RFC 7578), as browsers, curl and OpenAI's clients send it.
#ifndef QLORA_SERVE_HTTP_MULTIPART_H_
#define QLORA_SERVE_HTTP_MULTIPART_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace qlora {

struct MultipartForm {
  std::map<std::string, std::string> fields = {};
  // Of the part that is a file: the name that the client gave it, which is no path here, and its
  // size; nothing where there is none.
  std::optional<std::string> file_name = {};
  std::int64_t file_bytes = 0;
};

// Reads a body whose Content-Type is `type`. The content of the part `file_field`, which must be a
// file, goes to write_file, in pieces. read_to, unless null, is told how many bytes of the body are
// done with. Errors: ApiError 400 for a form that is malformed, cut off, has a field twice or more
// than 64, a field above 64 KiB, a second file, or text that is not UTF-8 outside of the file;
// whatever write_file throws.
MultipartForm ReadMultipart(std::string_view body, std::string_view type,
                            std::string_view file_field,
                            const std::function<void(std::string_view piece)>& write_file,
                            const std::function<void(std::size_t bytes)>& read_to = nullptr);

// The same of a body in a file, whose file part becomes the new file `output`, whole or not at all;
// without such a part no file is made. Holds a few megabytes at most.
MultipartForm ReadMultipartFile(const std::filesystem::path& body, std::string_view type,
                                std::string_view file_field, const std::filesystem::path& output);

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_MULTIPART_H_
