#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/system.h"

namespace qlora {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;  // Linux moves at most 2^31 - 4096

// ---- Descriptors and errors.

// Without O_NONBLOCK, opening a pipe waits until another program writes to it.
int OpenForReading(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) ThrowInvalidInput("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  return fd;
}

// Throws why `path` cannot be made: the user's mistake, or a failure of the machine.
[[noreturn]] void ThrowCannotCreate(const std::filesystem::path& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EEXIST:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENAMETOOLONG:
      ThrowInvalidInput("{}: cannot be created: {}", path.string(), std::strerror(error));
    case ELOOP:
      ThrowInvalidInput("{}: is a symbolic link, which is not followed; remove the link",
                        path.string());
    default:
      ThrowRuntime("{}: cannot be created: {}", path.string(), std::strerror(error));
  }
}

// Throws when `path` exists and is neither a file nor a link, such as a device or a pipe; under
// kCreate, when it exists at all, also as a link to nothing.
void CheckReplaceable(const std::filesystem::path& path, OpenMode mode) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) return;
  if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
    ThrowInvalidInput("{}: is not a regular file and is not replaced by one", path.string());
  }
  if (mode != OpenMode::kCreate) return;
  ThrowInvalidInput("{}: {} and is not replaced; remove it, or choose another name", path.string(),
                    S_ISLNK(status.st_mode) ? "is a symbolic link" : "exists");
}

// The status of an open file. Errors: InvalidInput for a directory, which can be opened but not
// read.
struct stat StatusOf(int fd, const std::filesystem::path& path) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) {
    ThrowInvalidInput("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    ThrowInvalidInput("{}: is a directory, expected a file", path.string());
  }
  return status;
}

std::filesystem::path FolderOf(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// Throws the error of a write: path, reason, and how much space was missing. A full disk is the
// usual cause.
[[noreturn]] void ThrowWriteError(const std::filesystem::path& path, int error,
                                  std::uint64_t bytes) {
  std::string space;
  struct statvfs volume = {};
  if (statvfs(FolderOf(path).c_str(), &volume) == 0) {
    space = fmt::format(" ({} bytes are free there)",
                        std::uint64_t{volume.f_bavail} * std::uint64_t{volume.f_frsize});
  }
  ThrowRuntime("{}: cannot be written: {}; {} more bytes are needed{}", path.string(),
               std::strerror(error), bytes, space);
}

// Throws the error of a file that is written in full and does not get its name.
[[noreturn]] void ThrowCannotPutInPlace(const std::filesystem::path& path, int error) {
  if (error == EEXIST) {
    ThrowInvalidInput("{}: appeared while its content was being made, and is not replaced",
                      path.string());
  }
  ThrowRuntime("{}: cannot be put in place: {}", path.string(), std::strerror(error));
}

// Errors: InvalidInput when `to` exists.
void RenameToNew(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (RenameToFree(from, to)) return;
  if (errno != EINVAL && errno != ENOSYS) ThrowCannotPutInPlace(to, errno);
  // The file system cannot; a second name is an error, too, where the name is taken.
  if (link(from.c_str(), to.c_str()) == 0) {
    unlink(from.c_str());
    return;
  }
  // EOPNOTSUPP is the same number as ENOTSUP.
  const bool has_links = errno != EPERM && errno != ENOTSUP && errno != ENOSYS;
  if (has_links) ThrowCannotPutInPlace(to, errno);
  // Without links, as on some FUSE drivers, a look comes before the rename: a finished file is
  // worth more than the moment between the two, in which the name may be taken.
  struct stat status = {};
  if (lstat(to.c_str(), &status) == 0) ThrowCannotPutInPlace(to, EEXIST);
  if (rename(from.c_str(), to.c_str()) != 0) ThrowCannotPutInPlace(to, errno);
}

// File systems that cannot sync a directory say EINVAL; there is nothing more to do on them.
void Sync(const std::filesystem::path& path) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 || (fsync(fd.get()) != 0 && errno != EINVAL)) {
    ThrowRuntime("{}: cannot be synced: {}", path.string(), std::strerror(errno));
  }
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

bool Exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::filesystem::path ProgramFolder() { return ProgramFile().parent_path(); }

// ---- Mapped files.

// The mapping outlives the descriptor. An empty file cannot be mapped and has no bytes.
MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor fd(OpenRegularFile(path));
  const struct stat status = StatusOf(fd.get(), path);
  if (status.st_size == 0) return;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) {
    const ErrorCode code = errno == ENOMEM ? ErrorCode::kOutOfMemory : ErrorCode::kInvalidInput;
    throw Error(code, fmt::format("{}: cannot be mapped: {}", path.string(), std::strerror(errno)));
  }
  data_ = static_cast<const std::byte*>(data);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::Release(std::size_t begin, std::size_t count) const {
  QLORA_DCHECK(begin <= size_ && count <= size_ - begin);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  // Rounded inwards: a page at an edge holds bytes of neighbouring tensors.
  const std::size_t first = (begin + page - 1) / page * page;
  // Nobody else uses the page at the end of the file.
  const std::size_t last = begin + count == size_ ? size_ : (begin + count) / page * page;
  if (first < last) {
    madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
  }
}

// ---- Paths and reading.

std::filesystem::path WithoutLinks(const std::filesystem::path& path) {
  // weakly: the path may not exist yet. Dividing by "" and taking the parent removes a slash.
  return (std::filesystem::weakly_canonical(std::filesystem::absolute(path)) / "").parent_path();
}

bool Contains(const std::filesystem::path& outer, const std::filesystem::path& inner) {
  const auto [end, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

int OpenRegularFile(const std::filesystem::path& path) {
  Descriptor fd(OpenForReading(path));
  if (!S_ISREG(StatusOf(fd.get(), path).st_mode)) {
    ThrowInvalidInput("{}: is not a regular file", path.string());
  }
  return fd.release();
}

void ForEachLine(const std::filesystem::path& path, std::int64_t offset, std::size_t max_bytes,
                 const std::function<void(std::string_view line, bool whole)>& take) {
  Descriptor fd(OpenRegularFile(path));
  const Stream file(fdopen(fd.get(), "r"));
  if (file == nullptr) throw std::bad_alloc();
  fd.release();
  if (fseeko(file.get(), offset, SEEK_SET) != 0) ThrowRuntime("{}: cannot seek", path.string());
  std::string chunk(std::size_t{1} << 18, '\0');
  std::string line;
  while (const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    for (std::string_view rest(chunk.data(), count); !rest.empty();) {
      const std::size_t end = rest.find('\n');
      line += rest.substr(0, end);
      if (line.size() > max_bytes) return take(line, false);
      if (end == rest.npos) break;
      take(std::exchange(line, ""), true);
      rest.remove_prefix(end + 1);
    }
  }
  if (!line.empty()) take(line, false);
}

std::string ReadTextFile(const std::filesystem::path& path, std::int64_t max_bytes) {
  const Descriptor fd(OpenForReading(path));
  const struct stat status = StatusOf(fd.get(), path);
  const auto too_long = [&] {
    ThrowInvalidInput("{}: has more than {} bytes, which no file of this kind has", path.string(),
                      max_bytes);
  };
  // The terminal and /dev/null are read; other devices have no end.
  struct stat null = {};
  const bool is_null = stat("/dev/null", &null) == 0 && status.st_rdev == null.st_rdev;
  if (S_ISBLK(status.st_mode) || (S_ISCHR(status.st_mode) && !is_null && isatty(fd.get()) == 0)) {
    ThrowInvalidInput("{}: is a device, expected a file", path.string());
  }
  if (status.st_size > max_bytes) too_long();
  std::string text;
  std::size_t used = 0;
  // From here on, reads wait for a pipe or a terminal. Files that are regular by name alone, such
  // as /proc/kmsg, are not waited for.
  if (!S_ISREG(status.st_mode) && fcntl(fd.get(), F_SETFL, 0) != 0) {
    ThrowInvalidInput("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  // One byte more than the size: a file that has not grown then ends in a read of 0 bytes without
  // another round of growing.
  text.resize(static_cast<std::size_t>(std::max<off_t>(status.st_size, 0)) + 1);
  while (true) {
    if (used == text.size()) text.resize(text.size() + kBufferBytes);  // a pipe, or it has grown
    const std::size_t room = std::min(text.size() - used, kMaxTransfer);
    const ssize_t count = read(fd.get(), text.data() + used, room);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) ThrowInvalidInput("{}: cannot be read: {}", path.string(), std::strerror(errno));
    if (count == 0) break;
    used += static_cast<std::size_t>(count);
    if (static_cast<std::int64_t>(used) > max_bytes) too_long();
  }
  if (used == 0 && S_ISFIFO(status.st_mode)) {
    ThrowInvalidInput("{}: is a pipe that no program writes to", path.string());
  }
  text.resize(used);
  return text;
}

// ---- Opening for writing.

// A process that was started with a closed standard output gets descriptor 1 for the first file
// that it opens; the next message would be written into that file. errno is the error of the
// duplication.
int AboveStandardDescriptors(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(fd);
  errno = error;
  return above;
}

int OpenForWriting(const std::filesystem::path& path, OpenMode mode) {
  int flags = O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  flags |= mode == OpenMode::kUpdate ? O_RDWR | O_NONBLOCK : O_WRONLY;
  if (mode == OpenMode::kAppend) flags |= O_APPEND | O_NONBLOCK;
  if (mode == OpenMode::kCreate || mode == OpenMode::kReplace) flags |= O_EXCL;
  // O_EXCL makes a race with another program an error: nothing that appears in between is
  // overwritten.
  CheckReplaceable(path, mode);
  if (mode == OpenMode::kReplace && unlink(path.c_str()) != 0 && errno != ENOENT) {
    ThrowCannotCreate(path, errno);
  }
  const int fd = AboveStandardDescriptors(open(path.c_str(), flags, 0666));
  if (fd < 0) ThrowCannotCreate(path, errno);
  return fd;
}

Stream OpenStream(const std::filesystem::path& path, OpenMode mode) {
  const int fd = OpenForWriting(path, mode);
  Stream stream(fdopen(fd, mode == OpenMode::kAppend ? "a" : "w"));
  if (stream == nullptr)
    ThrowRuntime("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  return stream;
}

// ---- Files that appear whole or not at all.

namespace {

// "<path>.tmp-<random>", of a name that is nearly as long as a name can be, its beginning. A number
// of the process would not do: in a container each process may have the one of a process that was
// killed, and left its file.
std::filesystem::path TemporaryOf(const std::filesystem::path& path) {
  constexpr std::size_t kLongName = 200;
  std::uint64_t number = 0;
  if (getentropy(&number, sizeof(number)) != 0) ThrowRuntime("the system gives no random bytes");
  const std::string name = path.filename().string().substr(0, kLongName);
  return path.parent_path() / fmt::format("{}.tmp-{:016x}", name, number);
}

}  // namespace

//   O_TMPFILE works   no name -> link <path>.tmp-<random> -> rename to <path>
//   otherwise         <path>.tmp-<random>                 -> rename to <path>
//
// Under kCreate a link, or a rename that replaces nothing, gives the file its name at once.
AtomicFile::AtomicFile(const std::filesystem::path& path, OpenMode mode)
    : path_(path), temporary_(TemporaryOf(path)), mode_(mode) {
  QLORA_DCHECK(mode == OpenMode::kCreate || mode == OpenMode::kReplace);
  CheckReplaceable(path_, mode_);
  fd_ = AboveStandardDescriptors(OpenNameless(FolderOf(path_)));
  if (fd_ >= 0) return;
  named_ = true;
  fd_ = AboveStandardDescriptors(
      open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (fd_ < 0) ThrowCannotCreate(path_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  close(fd_);
  if (named_) unlink(temporary_.c_str());
}

// Sets the space aside without changing the size. Other errors mean that the file system has no
// such call, and writing goes ahead without it.
void AtomicFile::Reserve(std::uint64_t bytes) {
  if (bytes == 0 || SetSpaceAside(fd_, bytes)) {
    reserved_ = std::max(reserved_, bytes);
  } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    ThrowWriteError(path_, errno, bytes);
  }
}

// Collects small pieces. Pieces beyond the buffer are written directly, after the collected bytes.
void AtomicFile::Write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) Flush();
  if (bytes.size() >= kBufferBytes) {
    internal::WriteAll(fd_, path_, static_cast<std::int64_t>(size_), bytes);
  } else {
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  size_ += bytes.size();
}

void AtomicFile::Write(std::string_view text) { Write(std::as_bytes(std::span(text))); }

// The buffer may hold bytes of the same place, so it is written first.
void AtomicFile::WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) {
  Flush();
  internal::WriteAll(fd_, path_, static_cast<std::int64_t>(offset), bytes);
  size_ = std::max(size_, offset + bytes.size());
}

void AtomicFile::Flush() {
  if (buffer_.empty()) return;
  internal::WriteAll(fd_, path_, static_cast<std::int64_t>(size_ - buffer_.size()),
                     std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

// The order makes the file durable: content, then size, then fsync, then the name, then the folder
// that holds the name.
void AtomicFile::Commit() {
  QLORA_DCHECK(fd_ >= 0);
  Flush();
  if (reserved_ > size_ && ftruncate(fd_, static_cast<off_t>(size_)) != 0) {
    ThrowWriteError(path_, errno, 0);
  }
  if (fsync(fd_) != 0) ThrowWriteError(path_, errno, 0);
  PutInPlace();
  close(std::exchange(fd_, -1));
  SyncFolder(FolderOf(path_));
}

// A link gives a file its first name and replaces nothing; only a rename replaces.
void AtomicFile::PutInPlace() {
  const bool is_new = mode_ == OpenMode::kCreate;
  if (!named_) {
    const std::filesystem::path& name = is_new ? path_ : temporary_;
    if (!LinkNameless(fd_, name)) ThrowCannotPutInPlace(path_, errno);
    named_ = !is_new;
    if (is_new) return;
  }
  if (is_new) return RenameToNew(temporary_, path_);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) ThrowCannotPutInPlace(path_, errno);
}

void WriteTextFile(const std::filesystem::path& path, std::string_view text, OpenMode mode) {
  AtomicFile file(path, mode);
  file.Write(text);
  file.Commit();
}

bool AppendWhole(const std::filesystem::path& path, std::string_view text, std::int64_t max_bytes) {
  const Descriptor file(OpenForWriting(path, OpenMode::kAppend));
  const std::int64_t size = lseek(file.get(), 0, SEEK_END);
  if (size > max_bytes - std::ssize(text)) return false;
  try {
    internal::WriteAll(file.get(), path, -1, std::as_bytes(std::span(text)));
  } catch (const Error& error) {
    if (ftruncate(file.get(), size) == 0) throw;
    ThrowRuntime("{}; a part of the text stays at the end of the file", error.what());
  }
  return true;
}

void MakeDirectories(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) ThrowRuntime("{}: cannot be made: {}", path.string(), error.message());
}

void SyncFolder(const std::filesystem::path& folder) { Sync(folder); }

void SyncTree(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    Sync(entry.path());
  }
  Sync(folder);
}

void RemoveFile(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) ThrowRuntime("{}: cannot be removed: {}", path.string(), error.message());
}

namespace internal {

// Writes in parts, because a call moves at most kMaxTransfer bytes here and may move fewer.
void WriteAll(int fd, const std::filesystem::path& path, std::int64_t offset,
              std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), kMaxTransfer);
    const ssize_t count = offset < 0 ? write(fd, bytes.data(), part)
                                     : pwrite(fd, bytes.data(), part, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) ThrowWriteError(path, errno, bytes.size());
    if (offset >= 0) offset += count;
    bytes = bytes.subspan(count);
  }
}

}  // namespace internal

ErrorCode CodeOf(const std::filesystem::filesystem_error& error) {
  constexpr std::array kMistakes = {ENOENT, ENOTDIR, EISDIR, EEXIST,      EACCES,
                                    EPERM,  EROFS,   ELOOP,  ENAMETOOLONG};
  const bool mistake = std::ranges::find(kMistakes, error.code().value()) != kMistakes.end();
  return mistake ? ErrorCode::kInvalidInput : ErrorCode::kRuntime;
}

}  // namespace qlora
