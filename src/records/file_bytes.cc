#include "records/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/spelling.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1}
                                 << 20;  // bytes of one read, when lines are counted

std::int64_t Nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

// Shared by the copies of a FileBytes; closes with the last one.
struct FileBytes::Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() { ::close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  const int fd;
};

FileBytes::FileBytes(const std::filesystem::path& path) : name_(path.string()) {
  // Without O_NONBLOCK, opening a pipe waits until another program writes to it. Regular files, the
  // only ones that are accepted, do not know the flag.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int problem = errno;
    std::string advice;
    if (path == "-") {
      advice = "; standard input is not read: write the data to a file";
    } else if (problem == ENOENT) {
      advice = SuggestPath(path);
      if (advice.empty()) {
        advice =
            "; data sets are local files: qlora pull --dataset org/name downloads those of a "
            "hub and prints their folder";
      }
    }
    ThrowInvalidInput("{}: cannot open the data file: {}{}", name_, std::strerror(problem), advice);
  }
  Adopt(fd);
  MakeKey();
}

FileBytes FileBytes::FromDescriptor(std::string name, int descriptor) {
  FileBytes file;
  file.name_ = std::move(name);
  file.Adopt(descriptor);
  file.MakeKey();
  return file;
}

FileBytes FileBytes::MadeOf(const FileBytes& source, int descriptor) {
  FileBytes file;
  file.name_ = source.name_;
  file.key_ = source.key_;
  file.Adopt(descriptor);
  return file;
}

// A file that was written again has another time of change, even if its size is the same.
void FileBytes::MakeKey() {
  key_ = fmt::format("records of {}, {} bytes of {}\n", std::filesystem::absolute(name_).string(),
                     size_, modified_);
}

void FileBytes::Adopt(int descriptor) {
  // First of all, so that the descriptor is closed when a check below throws.
  descriptor_ = std::make_shared<const Descriptor>(descriptor);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) {
    ThrowInvalidInput("{}: cannot examine the data file: {}", name_, std::strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    ThrowInvalidInput("{}: is a directory; name the data files inside it one by one", name_);
  }
  if (!S_ISREG(status.st_mode)) {
    ThrowInvalidInput("{}: is not a regular file; write the data to a file first", name_);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
  modified_ = Nanoseconds(status.st_mtim);
}

FileBytes FileBytes::FromMemory(std::string name, std::string bytes) {
  FileBytes file;
  file.name_ = std::move(name);
  file.size_ = bytes.size();
  file.bytes_ = std::make_shared<const std::string>(std::move(bytes));
  file.MakeKey();
  return file;
}

// Size and time tell most changes; a sample that differs all the same is found by its hash.
void FileBytes::CheckUnchanged() const {
  if (bytes_ != nullptr) return;
  struct stat status;
  if (::fstat(descriptor_->fd, &status) != 0 || Nanoseconds(status.st_mtim) != modified_ ||
      static_cast<std::uint64_t>(status.st_size) != size_) {
    ThrowInvalidInput("{}: the file was changed while it was in use; start again", name_);
  }
}

std::string FileBytes::Read(std::uint64_t begin, std::uint64_t count) const {
  QLORA_DCHECK(begin <= size_);
  // Callers read fixed pieces; the last one is short.
  count = std::min(count, size_ - begin);
  if (bytes_ != nullptr) return bytes_->substr(begin, count);
  CheckUnchanged();
  std::string bytes(count, '\0');
  std::uint64_t done = 0;
  while (done < count) {  // pread may return less than it was asked for
    // pread has no position: threads read one descriptor at the same time.
    const ssize_t got = ::pread(descriptor_->fd, bytes.data() + done, count - done,
                                static_cast<off_t>(begin + done));
    // A signal that the program handles may interrupt a read of a network file system.
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      ThrowRuntime("{}: cannot read byte {}: {}", name_, begin + done,
                   got == 0 ? "the file ends there" : std::strerror(errno));
    }
    done += static_cast<std::uint64_t>(got);
  }
  return bytes;
}

void FileBytes::CheckUtf8(std::uint64_t offset, std::string_view bytes) const {
  for (std::size_t at = 0; at < bytes.size();) {
    // The scan stops at the first ill-formed byte, whose place the error names: otherwise a file in
    // Latin-1 would train the model on U+FFFD.
    const Utf8Step step = StepUtf8(bytes.substr(at));
    if (!step.valid) {
      ThrowInvalidInput("{}: the text is not UTF-8; convert it, for example with iconv",
                        PositionOf(offset + at));
    }
    at += step.length;
  }
}

// Lines are counted only for an error, so nothing is kept to count them faster.
std::int64_t FileBytes::LineAt(std::uint64_t offset) const {
  std::int64_t line = 1;
  for (std::uint64_t at = 0; at < offset; at += kChunk) {
    const std::string chunk = Read(at, std::min(kChunk, offset - at));
    line += std::count(chunk.begin(), chunk.end(), '\n');
  }
  return line;
}

std::int64_t FileBytes::ColumnAt(std::uint64_t offset) const {
  std::uint64_t end = offset;  // backwards: lines are short, files are long
  while (end > 0) {
    const std::uint64_t begin = end - std::min(end, kChunk);
    const std::string chunk = Read(begin, end - begin);
    const std::size_t newline = chunk.rfind('\n');
    if (newline != std::string::npos) {
      return static_cast<std::int64_t>(offset - (begin + newline));
    }
    end = begin;
  }
  return static_cast<std::int64_t>(offset) + 1;
}

std::string FileBytes::LineOf(std::uint64_t offset) const {
  return fmt::format("{}:{}", name_, LineAt(offset));
}

std::string FileBytes::PositionOf(std::uint64_t offset) const {
  return fmt::format("{}:{}", LineOf(offset), ColumnAt(offset));
}

}  // namespace qlora
