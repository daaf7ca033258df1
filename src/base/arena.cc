#include "base/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/system.h"

namespace qlora {
namespace {

constexpr std::size_t kAlignment = 64;  // one cache line, one AVX-512 vector
}  // namespace

Arena::Arena(std::size_t bytes, Memory& memory) : bytes_(bytes), memory_(&memory) {
  // An empty arena has no memory, and no address.
  if (bytes > 0) data_ = memory.Allocate(bytes);
}

Arena::Arena(std::size_t bytes, const std::string& directory) : bytes_(bytes) {
  if (bytes == 0) return;
  std::string path = directory + "/qlora-paged-XXXXXX";
  // The name is removed at once, so that the system frees the file however the process ends.
  const Descriptor fd(AboveStandardDescriptors(mkstemp(path.data())));
  if (fd.get() < 0) ThrowRuntime("cannot create {}: {}", path, std::strerror(errno));
  unlink(path.c_str());
  // With its place: a full disk must be an error here and not a signal later.
  const int error = Extend(fd.get(), bytes);
  if (error != 0) {
    ThrowRuntime("cannot reserve {} bytes in {}: {}", bytes, directory, std::strerror(error));
  }
  // Shared, so that the system writes changed pages to the file and can drop them from memory. The
  // mapping outlives the descriptor.
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("cannot map {} bytes of {}: {}", bytes,
                                                     directory, std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(data);
}

Arena::~Arena() {
  if (data_ == nullptr) return;
  if (memory_ != nullptr) {
    memory_->Free(data_, bytes_);
  } else {
    munmap(data_, bytes_);
  }
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      memory_(other.memory_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(memory_, other.memory_);
  return *this;
}

void Arena::Release(std::size_t begin, std::size_t count) const {
  QLORA_DCHECK(begin <= bytes_ && count <= bytes_ - begin);
  // Rounded inwards to whole pages: a page at an edge may hold values that others use. Nothing
  // follows the end of the arena, so its last page goes too.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t first = (begin + page - 1) / page * page;
  const std::size_t last = begin + count == bytes_ ? bytes_ : (begin + count) / page * page;
  if (memory_ == nullptr && data_ != nullptr && first < last)
    madvise(data_ + first, last - first, MADV_DONTNEED);
}

MatrixView Carver::Matrix(DType dtype, std::int64_t rows, std::int64_t cols) {
  QLORA_DCHECK(rows >= 0 && cols >= 0);
  const std::size_t bytes = BytesOf(dtype, rows * cols);
  const std::size_t begin = used_;
  // The next matrix begins at a multiple of 64 bytes, as the arena does.
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  QLORA_DCHECK(base_ == nullptr || begin + bytes <= limit_);
  return {base_ == nullptr ? nullptr : base_ + begin, dtype, rows, cols, cols};
}

}  // namespace qlora
