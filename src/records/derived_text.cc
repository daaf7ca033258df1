#include "records/derived_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "base/check.h"
#include "base/file.h"
#include "records/index_array.h"

namespace qlora {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

FileBytes WriteUnnamed(const FileBytes& file, const std::function<void(const TextSink&)>& write) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) ThrowRuntime("{}: no folder for temporary files: {}", file.name(), error.message());
  std::string path = (folder / "qlora-rows-XXXXXX").string();
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) ThrowRuntime("{}: cannot be created: {}", path, std::strerror(errno));
  // Without a name the file ends with its last descriptor, even if the program is killed.
  ::unlink(path.c_str());
  try {
    std::string pieces;
    const auto flush = [&] {
      internal::WriteAll(fd, path, /*offset=*/-1, std::as_bytes(std::span(pieces)));
      pieces.clear();
    };
    write([&](std::string_view piece) {
      // A write for each line would be a system call for some hundred bytes.
      if (pieces.size() + piece.size() > kBufferBytes) flush();
      pieces += piece;
    });
    flush();
  } catch (...) {
    ::close(fd);
    throw;
  }
  return FileBytes::MadeOf(file, fd);
}

}  // namespace

FileBytes MakeText(const FileBytes& file, std::string_view what,
                   const std::filesystem::path& folder,
                   const std::function<void(const TextSink&)>& write) {
  if (folder.empty()) return WriteUnnamed(file, write);
  const std::string name = std::filesystem::path(file.name()).filename().string();
  const std::string key = fmt::format("{}: {}", what, file.key());
  std::filesystem::path path = IndexPlace::In(folder, name, key).path;
  path.replace_extension(".jsonl");
  std::error_code ignored;
  // The key holds size and time of the file, so an existing text is the text of it.
  if (!std::filesystem::is_regular_file(path, ignored)) {
    // The file gets its name only when complete: a run that is stopped, or one at the same time,
    // never leaves half of the text for a later run.
    AtomicFile out(path);
    write([&](std::string_view piece) { out.Write(piece); });
    out.Commit();
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) ThrowRuntime("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  return FileBytes::MadeOf(file, fd);
}

}  // namespace qlora
