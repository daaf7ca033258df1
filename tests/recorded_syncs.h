// What a program synced to the disk, and when it gave names to what. One source of a test program
// includes this header, whose functions stand in for those of the C library: they do the same and
// keep notes. So a test shows, without a power failure, what would be left after one.
#ifndef QLORA_TESTS_RECORDED_SYNCS_H_
#define QLORA_TESTS_RECORDED_SYNCS_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace qlora {

// Notes from the construction to the end of the object, of which there is one at a time, of all
// threads. What it notes is read when they have ended.
class RecordedSyncs {
 public:
  RecordedSyncs() { Current() = this; }
  ~RecordedSyncs() { Current() = nullptr; }
  RecordedSyncs(const RecordedSyncs&) = delete;
  RecordedSyncs& operator=(const RecordedSyncs&) = delete;

  static RecordedSyncs*& Current() {
    static RecordedSyncs* current = nullptr;
    return current;
  }

  // Files have a name from the beginning, as on file systems that know no others.
  bool no_nameless_files = false;

  // Names that were given, in order.
  const std::vector<std::string>& named() const { return named_; }
  // Files and folders that got a name, or whose folder did, before what is in them was synced.
  const std::vector<std::string>& unsynced() const { return unsynced_; }
  // Names that are there now, and would be gone after a power failure: their folder was not synced.
  std::vector<std::string> UnsyncedNames() const {
    std::vector<std::string> names;
    for (const std::filesystem::path path : named_) {
      if (!std::filesystem::exists(path)) continue;
      const auto folder = synced_.find(InodeOf(path.parent_path()));
      const std::string line = path.filename().string() + "\n";
      if (folder == synced_.end() || ("\n" + folder->second).find("\n" + line) == std::string::npos)
        names.push_back(path.string());
    }
    return names;
  }

  void OnSync(int fd) {
    const std::lock_guard lock(mutex_);
    const std::filesystem::path path = "/proc/self/fd/" + std::to_string(fd);
    synced_[InodeOf(path)] = Content(path);
  }
  void OnName(const std::filesystem::path& path) {
    namespace fs = std::filesystem;
    if (fs::is_symlink(path)) return;
    const std::lock_guard lock(mutex_);
    named_.push_back(path.string());
    Check(path);
    if (!fs::is_directory(path)) return;
    for (const auto& entry : fs::recursive_directory_iterator(path)) Check(entry.path());
  }

 private:
  static ino_t InodeOf(const std::filesystem::path& path) {
    struct stat status = {};
    return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
  }
  // The bytes of a file; the names in a folder, a line each.
  static std::string Content(const std::filesystem::path& path) {
    if (!std::filesystem::is_directory(path)) {
      std::ifstream file(path, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    }
    std::string names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      names += entry.path().filename().string() + "\n";
    }
    return names;
  }
  void Check(const std::filesystem::path& path) {
    const auto synced = synced_.find(InodeOf(path));
    if (synced == synced_.end() || synced->second != Content(path))
      unsynced_.push_back(path.string());
  }

  std::mutex mutex_;
  std::map<ino_t, std::string> synced_;  // the content at the last sync
  std::vector<std::string> named_;
  std::vector<std::string> unsynced_;
};

}  // namespace qlora

// Seen by libraries as well, whose calls come here too.
#pragma GCC visibility push(default)
extern "C" {

int fsync(int fd) {
  const auto result = static_cast<int>(syscall(SYS_fsync, fd));
  qlora::RecordedSyncs* notes = qlora::RecordedSyncs::Current();
  if (result == 0 && notes != nullptr) notes->OnSync(fd);
  return result;
}

int renameat2(int from_dir, const char* from, int to_dir, const char* to,
              unsigned int flags) noexcept {
  const auto result = static_cast<int>(syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
  qlora::RecordedSyncs* notes = qlora::RecordedSyncs::Current();
  if (result == 0 && notes != nullptr) notes->OnName(to);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_dir, const char* from, int to_dir, const char* to, int flags) noexcept {
  const auto result = static_cast<int>(syscall(SYS_linkat, from_dir, from, to_dir, to, flags));
  qlora::RecordedSyncs* notes = qlora::RecordedSyncs::Current();
  if (result == 0 && notes != nullptr) notes->OnName(to);
  return result;
}

int open(const char* path, int flags, ...) {
  const qlora::RecordedSyncs* notes = qlora::RecordedSyncs::Current();
  const bool is_nameless = (flags & O_TMPFILE) == O_TMPFILE;
  if (is_nameless && notes != nullptr && notes->no_nameless_files) {
    errno = EOPNOTSUPP;
    return -1;
  }
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 || is_nameless ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

}  // extern "C"
#pragma GCC visibility pop

#endif  // QLORA_TESTS_RECORDED_SYNCS_H_
