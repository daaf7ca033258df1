// Files: read-only mappings, and writes that either appear whole or not at all.
#ifndef QLORA_BASE_FILE_H_
#define QLORA_BASE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "qlora/error.h"

namespace qlora {

// A descriptor that is closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  // The caller closes it from now on.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A read-only mapping of a whole file. Errors: InvalidInput when it is missing or unreadable.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Tells the system that bytes [begin, begin + count) will not be read again, so that they do not
  // count against memory. Whole pages only; reading them again is correct but slow.
  void Release(std::size_t begin, std::size_t count) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// False also when the path cannot be looked up.
bool Exists(const std::filesystem::path& path);

// Where the running program is; "" when the system does not say.
std::filesystem::path ProgramFolder();

// The absolute path without links, "..", and a slash at the end, as far as the path exists.
std::filesystem::path WithoutLinks(const std::filesystem::path& path);

// True when `inner` is `outer` or a path below it, by their names alone: resolve links before.
bool Contains(const std::filesystem::path& outer, const std::filesystem::path& inner);

// Bytes of a text, a configuration or a tokenizer, at most.
inline constexpr std::int64_t kMaxTextFileBytes = std::int64_t{1} << 28;

// Returns the whole file as text, of at most `max_bytes`. A pipe is read to its end, if a program
// writes to it; nothing else is waited for. Errors: InvalidInput when the file is missing,
// unreadable, longer or a device other than a terminal, or a pipe that nothing writes to.
std::string ReadTextFile(const std::filesystem::path& path,
                         std::int64_t max_bytes = kMaxTextFileBytes);

// Opens a regular file, and nothing else, for reading, without waiting. Errors: InvalidInput.
int OpenRegularFile(const std::filesystem::path& path);

// Calls take(line, whole) with each line of such a file from byte `offset` on, without its line
// feed, which the last one may lack: then it is not whole. A line of more than max_bytes, cut
// behind them and not whole, is the last that is read.
void ForEachLine(const std::filesystem::path& path, std::int64_t offset, std::size_t max_bytes,
                 const std::function<void(std::string_view line, bool whole)>& take);

enum class OpenMode : std::uint8_t {
  kCreate,   // the path must not exist, not even as a link to nothing
  kReplace,  // an existing file of the name is removed first
  kAppend,   // the file is made when it is missing
  kUpdate,   // the same, for reading too, and with writes at any place
};

// Opens a file for writing. All files are opened for writing here: symbolic links are not followed,
// only regular files are written, and the descriptor is never 0, 1 or 2, so that a message to a
// closed standard output cannot end up in the file. Errors, with path and reason: InvalidInput
// where the path allows no file (no such folder, no permission), otherwise Runtime.
int OpenForWriting(const std::filesystem::path& path, OpenMode mode);

// The same for the C library's streams.
struct CloseStream {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using Stream = std::unique_ptr<std::FILE, CloseStream>;
Stream OpenStream(const std::filesystem::path& path, OpenMode mode);

// Returns `fd`, or a duplicate of `fd` above the standard descriptors, with `fd` closed. Passes -1
// on.
int AboveStandardDescriptors(int fd);

// A file that appears whole or not at all. Until Commit() it has no name where the file system can
// do so, otherwise the name "<path>.tmp-<random>"; Commit() syncs it and gives it the name `path`.
// Without Commit(), nothing stays. Under kCreate, a path that exists is InvalidInput at once, and
// Commit() replaces nothing that has appeared since: InvalidInput, too. kAppend is not for this
// class. Errors: as OpenForWriting; Runtime (disk full ...).
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path, OpenMode mode = OpenMode::kReplace);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Sets disk space aside for a file of `bytes`, so that a full disk is an error now and not after
  // hours of work. Does nothing on file systems that cannot.
  void Reserve(std::uint64_t bytes);
  // Appends; small pieces are collected in memory.
  void Write(std::span<const std::byte> bytes);
  void Write(std::string_view text);
  // Writes at a place of the file without moving its end, unless it reaches beyond it.
  void WriteAt(std::uint64_t offset, std::span<const std::byte> bytes);
  std::uint64_t size() const { return size_; }  // where the next Write appends
  void Commit();

 private:
  void Flush();
  void PutInPlace();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  OpenMode mode_;
  int fd_ = -1;
  bool named_ = false;      // the file has the name temporary_
  std::uint64_t size_ = 0;  // buffered bytes included
  std::uint64_t reserved_ = 0;
  std::string buffer_;  // the last bytes of the file, not yet written
};

void WriteTextFile(const std::filesystem::path& path, std::string_view text,
                   OpenMode mode = OpenMode::kReplace);

// Adds a text to a file, which is made where it is missing, as a whole or not at all. False where
// the file would have more than max_bytes. For one thread at a time. Errors: as OpenForWriting;
// Runtime (disk full ...).
bool AppendWhole(const std::filesystem::path& path, std::string_view text,
                 std::int64_t max_bytes = std::numeric_limits<std::int64_t>::max());

// Makes a directory and its parents. Errors: Runtime.
void MakeDirectories(const std::filesystem::path& path);
// Makes the renames in a folder survive a power failure. Errors: Runtime.
void SyncFolder(const std::filesystem::path& folder);
// Syncs everything in the folder.
void SyncTree(const std::filesystem::path& folder);
// Removes a file when it is there. Errors: Runtime.
void RemoveFile(const std::filesystem::path& path);

namespace internal {
// Writes all bytes at `offset` of `fd`, or throws Runtime naming `path`, the reason, how many bytes
// were still to be written, and how much space is free. offset < 0: at the descriptor's position.
void WriteAll(int fd, const std::filesystem::path& path, std::int64_t offset,
              std::span<const std::byte> bytes);
}  // namespace internal

// The kind of failure that an unusable path is: the user's mistake, or a failure of the machine.
ErrorCode CodeOf(const std::filesystem::filesystem_error& error);

}  // namespace qlora

#endif  // QLORA_BASE_FILE_H_
