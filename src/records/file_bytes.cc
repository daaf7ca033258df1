#include "records/file_bytes.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/printable.h"
#include "base/spelling.h"
#include "tokenizer/lookup_tables.h"
#include "unicode/text_encoding.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;  // bytes of one read of a whole file

std::int64_t Nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::int64_t CountLines(std::string_view text) { return std::ranges::count(text, '\n'); }

// True for a descriptor in the upper half of those that a process may have.
bool IsScarce(int fd) {
  rlimit limit = {};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) >= limit.rlim_cur / 2;
}

}  // namespace

// The open file that copies of a FileBytes share. A file with a path is closed between two reads
// when the process has many: so a folder may have more files than a process may keep open.
class FileBytes::Opened {
 public:
  Opened(int fd, const std::filesystem::path& path) : fd_(fd) {
    if (path.empty() || !IsScarce(fd)) return;
    path_ = std::filesystem::absolute(path);
    ::close(std::exchange(fd_, -1));
  }
  ~Opened() {
    if (fd_ >= 0) ::close(fd_);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  // Calls body(fd); fd is -1 where the file cannot be opened again.
  template <typename Body>
  auto With(const Body& body) const {
    if (fd_ >= 0) return body(fd_);
    const Opened again(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), {});
    return body(again.fd_);
  }

 private:
  int fd_;
  std::filesystem::path path_;  // of a file that is opened for each read
};

// Counts line feeds. What is counted once is kept for every 16 KiB, so that the places of many
// records take no more than one walk through the file.
class FileBytes::Lines {
 public:
  std::int64_t Before(const FileBytes& file, std::uint64_t offset) {
    const std::lock_guard lock(mutex_);
    while (before_.size() * kPart <= offset) {
      before_.push_back(before_.back() +
                        CountLines(file.Read((before_.size() - 1) * kPart, kPart)));
    }
    const std::uint64_t part = offset / kPart;
    return before_[part] + CountLines(file.Read(part * kPart, offset % kPart));
  }

 private:
  static constexpr std::uint64_t kPart = std::uint64_t{1} << 14;

  std::mutex mutex_;
  std::vector<std::int64_t> before_ = {0};  // line feeds before byte i * kPart
};

FileBytes::FileBytes() : lines_(std::make_shared<Lines>()) {}

FileBytes::FileBytes(const std::filesystem::path& path) : FileBytes() {
  name_ = path.string();
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
  Adopt(fd, path);
}

FileBytes FileBytes::FromDescriptor(std::string name, int descriptor) {
  FileBytes file;
  file.name_ = std::move(name);
  file.Adopt(descriptor, {});
  return file;
}

FileBytes FileBytes::MadeOf(const FileBytes& source, std::string key, int descriptor,
                            const std::filesystem::path& path) {
  FileBytes file;
  file.name_ = source.name_;
  file.Adopt(descriptor, path);
  file.key_ = std::move(key);
  return file;
}

void FileBytes::Adopt(int descriptor, const std::filesystem::path& path) {
  // Before all checks, so that the descriptor is closed when one throws.
  opened_ = std::make_shared<const Opened>(descriptor, path);
  struct stat status;
  if (opened_->With([&](int fd) { return ::fstat(fd, &status); }) != 0) {
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
  inode_ = status.st_ino;
  key_ = fmt::format("records of {}, {} bytes of {}, inode {} of {}\n",
                     std::filesystem::absolute(name_).string(), size_, modified_, inode_,
                     Nanoseconds(status.st_ctim));
}

FileBytes FileBytes::FromMemory(std::string name, std::string bytes) {
  FileBytes file;
  file.name_ = std::move(name);
  file.size_ = bytes.size();
  file.bytes_ = std::make_shared<const std::string>(std::move(bytes));
  file.key_ = fmt::format("records of {}, {} bytes\n", file.name_, file.size_);
  return file;
}

// Size and time tell most changes; a sample that differs all the same is found by its hash.
void FileBytes::CheckUnchanged() const {
  if (bytes_ != nullptr) return;
  opened_->With([this](int fd) { CheckUnchanged(fd); });
}

void FileBytes::CheckUnchanged(int fd) const {
  if (fd < 0) {
    ThrowInvalidInput("{}: cannot open the data file again: {}", name_, std::strerror(errno));
  }
  struct stat status;
  if (::fstat(fd, &status) != 0 || Nanoseconds(status.st_mtim) != modified_ ||
      status.st_ino != inode_ || static_cast<std::uint64_t>(status.st_size) != size_) {
    ThrowInvalidInput("{}: the file was changed while it was in use; start again", name_);
  }
}

std::string FileBytes::Read(std::uint64_t begin, std::uint64_t count) const {
  QLORA_DCHECK(begin <= size_);
  // Callers read fixed pieces; the last one is short.
  count = std::min(count, size_ - begin);
  if (bytes_ != nullptr) return bytes_->substr(begin, count);
  std::string bytes(count, '\0');
  opened_->With([&](int fd) {
    CheckUnchanged(fd);
    std::uint64_t done = 0;
    while (done < count) {  // pread may return less than it was asked for
      // pread has no position: threads read one descriptor at the same time.
      const ssize_t got =
          ::pread(fd, bytes.data() + done, count - done, static_cast<off_t>(begin + done));
      // A signal that the program handles may interrupt a read of a network file system.
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        ThrowRuntime("{}: cannot read byte {}: {}", name_, begin + done,
                     got == 0 ? "the file ends there" : std::strerror(errno));
      }
      done += static_cast<std::uint64_t>(got);
    }
  });
  return bytes;
}

std::uint64_t FileBytes::HashOfContent() const {
  std::uint64_t hash = size_;
  for (std::uint64_t at = 0; at < size_; at += kChunk) {
    hash = MixBits(hash ^ HashBytes(Read(at, kChunk)));
  }
  return hash;
}

std::uint64_t FileBytes::FirstNotOf(std::string_view blanks) const {
  const bool marked = Read(0, kByteOrderMark.size()) == kByteOrderMark;
  std::uint64_t at = marked ? kByteOrderMark.size() : 0;
  for (std::uint64_t part = 256; at < size_; part = kChunk) {  // seldom are there many
    const std::string bytes = Read(at, part);
    const std::size_t first = bytes.find_first_not_of(blanks);
    if (first != std::string::npos) return at + first;
    at += bytes.size();
  }
  return size_;
}

void FileBytes::CheckUtf8(std::uint64_t offset, std::string_view bytes) const {
  for (std::size_t at = 0; at < bytes.size();) {
    // The scan stops at the first ill-formed byte, whose place the error names: otherwise a file in
    // Latin-1 would train the model on U+FFFD.
    const Utf8Step step = StepUtf8(bytes.substr(at));
    if (!step.valid) ThrowNotUtf8(offset + at);
    at += step.length;
  }
}

void FileBytes::ThrowNotUtf8(std::uint64_t offset) const {
  // From an even byte on, as UTF-16 has its characters.
  constexpr std::uint64_t kSample = std::uint64_t{1} << 16;
  const std::uint64_t begin = offset - std::min(offset, kSample / 8);
  const std::string sample = Read(begin - begin % 2, kSample);
  const auto byte = static_cast<unsigned char>(Read(offset, 1)[0]);
  const std::string path = Printable(name_);
  ThrowInvalidInput(
      "{0}: the text is not UTF-8 (byte {1}, 0x{2:02X}); it reads like {3}: convert the file with "
      "iconv -f {3} -t UTF-8 '{4}' > NEW_FILE, and look at the result",
      PositionOf(offset), offset, byte, GuessEncoding(sample), path);
}

std::int64_t FileBytes::LineAt(std::uint64_t offset) const {
  return lines_->Before(*this, offset) + 1;
}

// Backwards: lines are short, files are long.
std::int64_t FileBytes::ColumnAt(std::uint64_t offset) const {
  std::uint64_t part = 256;
  for (std::uint64_t end = offset; end > 0; part = std::min(2 * part, kChunk)) {
    const std::uint64_t begin = end - std::min(end, part);
    const std::size_t newline = Read(begin, end - begin).rfind('\n');
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
