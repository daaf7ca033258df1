#include "serve/http/output_queue.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/file.h"

namespace qlora {

OutputQueue::~OutputQueue() {
  if (file_ >= 0) close(file_);
}

void OutputQueue::Add(std::string bytes) {
  if (bytes.empty()) return;
  held_ += bytes.size();
  texts_.push_back({std::make_shared<const std::string>(std::move(bytes)), false});
}

void OutputQueue::AddShared(std::shared_ptr<const std::string> bytes) {
  if (!bytes->empty()) texts_.push_back({std::move(bytes), true});
}

std::uint64_t OutputQueue::AddFile(const std::string& path) {
  QLORA_DCHECK(file_ < 0);
  file_ = OpenRegularFile(path);
  struct stat status = {};
  if (fstat(file_, &status) != 0) ThrowRuntime("{}: its size cannot be read", path);
  file_bytes_ = static_cast<std::uint64_t>(status.st_size);
  return file_bytes_;
}

std::string_view OutputQueue::Next() {
  if (texts_.empty() && file_ >= 0) ReadFile();
  return texts_.empty() ? std::string_view()
                        : std::string_view(*texts_.front().bytes).substr(sent_);
}

void OutputQueue::Sent(std::size_t bytes) {
  sent_ += bytes;
  if (!texts_.front().is_shared) held_ -= bytes;
  if (sent_ < texts_.front().bytes->size()) return;
  texts_.pop_front();
  sent_ = 0;
}

void OutputQueue::ReadFile() {
  std::string piece(std::min<std::uint64_t>(file_bytes_, kFilePiece), '\0');
  const ssize_t bytes = piece.empty() ? 0 : read(file_, piece.data(), piece.size());
  if (bytes < 0 || (bytes == 0 && !piece.empty())) ThrowRuntime("a file that is sent has changed");
  piece.resize(static_cast<std::size_t>(bytes));
  file_bytes_ -= piece.size();
  Add(std::move(piece));
  if (file_bytes_ > 0) return;
  close(file_);
  file_ = -1;
}

}  // namespace qlora
