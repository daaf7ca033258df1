#include "records/parquet_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "base/file.h"
#include "parquet/parquet.h"
#include "records/index_array.h"

namespace qlora {
namespace {

constexpr std::size_t kLineBufferBytes = std::size_t{1} << 20;

parquet::Source SourceOf(const FileBytes& file) {
  return {.name = file.name(), .size = file.size(), .read = [&file](auto begin, auto count) {
            return file.Read(begin, count);
          }};
}

// `path` must exist.
FileBytes OpenLines(const std::filesystem::path& path, const std::string& name) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) ThrowRuntime("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  return FileBytes::FromDescriptor(name, fd);
}

FileBytes WriteUnnamed(const FileBytes& file) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) ThrowRuntime("{}: no folder for temporary files: {}", file.name(), error.message());
  std::string path = (folder / "qlora-rows-XXXXXX").string();
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) ThrowRuntime("{}: cannot be created: {}", path, std::strerror(errno));
  // Without a name the file ends with its last descriptor, even if the program is killed.
  ::unlink(path.c_str());
  try {
    std::string lines;
    const auto flush = [&] {
      internal::WriteAll(fd, path, /*offset=*/-1, std::as_bytes(std::span(lines)));
      lines.clear();
    };
    parquet::WriteJsonLines(SourceOf(file), [&](std::string_view line) {
      // A write for each line would be a system call for some hundred bytes.
      if (lines.size() + line.size() > kLineBufferBytes) flush();
      lines += line;
    });
    flush();
  } catch (...) {
    ::close(fd);
    throw;
  }
  return FileBytes::FromDescriptor(file.name(), fd);
}

}  // namespace

FileBytes ParquetAsText(const FileBytes& file, const std::filesystem::path& folder,
                        const std::string& key) {
  if (folder.empty()) return WriteUnnamed(file);
  const std::string name = std::filesystem::path(file.name()).filename().string();
  std::filesystem::path path = IndexPlace::In(folder, name, "rows as lines: " + key).path;
  path.replace_extension(".jsonl");
  std::error_code ignored;
  // The key holds size and time of the Parquet file, so an existing file has its rows.
  if (!std::filesystem::is_regular_file(path, ignored)) {
    // The file gets its name only when complete: a run that is stopped, or one at the same time,
    // never leaves half of the rows for a later run.
    AtomicFile out(path);
    parquet::WriteJsonLines(SourceOf(file), [&](std::string_view line) { out.Write(line); });
    out.Commit();
  }
  return OpenLines(path, file.name());
}

}  // namespace qlora
