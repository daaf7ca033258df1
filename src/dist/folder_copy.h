// A folder of rank 0 for all ranks, whether their hosts share a disk or not.
#ifndef QLORA_DIST_FOLDER_COPY_H_
#define QLORA_DIST_FOLDER_COPY_H_

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "qlora/communicator.h"

namespace qlora {

// The folder of rank 0, or a copy of it, which is removed in the end.
class FolderCopy {
 public:
  FolderCopy(std::filesystem::path path, bool is_copy) : path_(std::move(path)), copy_(is_copy) {}
  ~FolderCopy();
  FolderCopy(const FolderCopy&) = delete;
  FolderCopy& operator=(const FolderCopy&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool copy_;
};

// Finds the folder that rank 0 knows as `path`. A rank that has no folder of that name with the
// same file `key`, which identifies the content, receives the files of the folder, without those of
// subfolders, in the folder for temporary files. Errors: Runtime where that is full.
std::shared_ptr<const FolderCopy> ShareFolder(Communicator& communicator, const std::string& path,
                                              const std::string& key);

}  // namespace qlora

#endif  // QLORA_DIST_FOLDER_COPY_H_
