// One process at a time in a folder.
#ifndef QLORA_IO_FOLDER_LOCK_H_
#define QLORA_IO_FOLDER_LOCK_H_

#include <filesystem>

namespace qlora {

// Holds a folder for this process while it lives. The lock is the system's (flock) and on the
// folder itself, so that no file is left behind and a killed process frees the folder at once.
class FolderLock {
 public:
  FolderLock() = default;
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Takes the lock, unless this object has it already. False when another process holds the folder;
  // true, without a lock, where the folder does not exist or its file system has no locks.
  bool Take(const std::filesystem::path& folder);

  // False when the folder that was taken is no longer what the path names: it was renamed, removed
  // or replaced.
  bool IsAt(const std::filesystem::path& folder) const;

 private:
  int fd_ = -1;
};

}  // namespace qlora

#endif  // QLORA_IO_FOLDER_LOCK_H_
