#include "base/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/file.h"

namespace qlora {

FolderLock::~FolderLock() {
  if (fd_ >= 0) close(fd_);
}

bool FolderLock::Take(const std::filesystem::path& folder) {
  if (fd_ >= 0) return true;
  // The lock belongs to the open descriptor: the system releases it when the process ends in any
  // way.
  fd_ = AboveStandardDescriptors(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Only a lock that another process holds refuses. A file system without locks must not stop a
  // run.
  if (fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
  close(std::exchange(fd_, -1));
  return false;
}

}  // namespace qlora
