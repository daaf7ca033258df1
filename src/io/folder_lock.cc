#include "io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
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
  // run. Tried again: another process may only be looking whether the folder is free.
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  close(std::exchange(fd_, -1));
  return false;
}

bool FolderLock::IsAt(const std::filesystem::path& folder) const {
  struct stat held = {};
  struct stat named = {};
  if (fd_ < 0 || fstat(fd_, &held) != 0) return true;
  return stat(folder.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

}  // namespace qlora
