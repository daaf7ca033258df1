#include "records/derived_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

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
  Descriptor fd(::mkostemp(path.data(), O_CLOEXEC));
  if (fd.get() < 0) {
    const bool is_many = errno == EMFILE || errno == ENFILE;
    ThrowRuntime("{}: cannot be created: {}{}", path, std::strerror(errno),
                 is_many ? " (see ulimit -n, or set dataset_prepared_path)" : "");
  }
  // Without a name the file ends with its last descriptor, even if the program is killed.
  ::unlink(path.c_str());
  std::string pieces;
  const auto flush = [&] {
    internal::WriteAll(fd.get(), path, /*offset=*/-1, std::as_bytes(std::span(pieces)));
    pieces.clear();
  };
  write([&](std::string_view piece) {
    // A write for each line would be a system call for some hundred bytes.
    if (pieces.size() + piece.size() > kBufferBytes) flush();
    pieces += piece;
  });
  flush();
  return FileBytes::MadeOf(file, file.key(), fd.release());
}

}  // namespace

FileBytes MakeText(const FileBytes& file, std::string_view what,
                   const std::filesystem::path& folder,
                   const std::function<void(const TextSink&)>& write) {
  if (folder.empty()) return WriteUnnamed(file, write);
  const std::string name = std::filesystem::path(file.name()).filename().string();
  std::string key =
      fmt::format("{}: {} bytes with the hash {:016x}\n", what, file.size(), file.HashOfContent());
  std::filesystem::path path = IndexPlace::In(folder, name, key).path;
  path.replace_extension(".jsonl");
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    // The file gets its name only when complete: a run that is stopped, or one at the same time,
    // never leaves half of the text for a later run.
    AtomicFile out(path);
    write([&](std::string_view piece) { out.Write(piece); });
    out.Commit();
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) ThrowRuntime("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  return FileBytes::MadeOf(file, std::move(key), fd, path);
}

}  // namespace qlora
