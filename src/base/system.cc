#include "base/system.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <system_error>

#if defined(__linux__)
#include <sys/prctl.h>

namespace qlora {

std::filesystem::path ProgramFile() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

void EndWithParent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

// LinkNameless needs /proc.
int OpenNameless(const std::filesystem::path& folder) {
  if (access("/proc/self/fd", X_OK) != 0) return -1;
  return open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

bool LinkNameless(int fd, const std::filesystem::path& name) {
  const std::string nameless = "/proc/self/fd/" + std::to_string(fd);
  return linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

bool RenameToFree(const std::filesystem::path& from, const std::filesystem::path& to) {
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0;
}

bool ExchangeNames(const std::filesystem::path& a, const std::filesystem::path& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

bool OpenPipe(int (&ends)[2]) { return pipe2(ends, O_CLOEXEC) == 0; }

int Extend(int fd, std::uint64_t bytes) {
  return posix_fallocate(fd, 0, static_cast<off_t>(bytes));
}

bool SetSpaceAside(int fd, std::uint64_t bytes) {
  return fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0;
}

void PreferLargePages(std::byte* data, std::size_t bytes) { madvise(data, bytes, MADV_HUGEPAGE); }

}  // namespace qlora
#else
namespace qlora {
namespace {

bool Lacks() {
  errno = ENOSYS;
  return false;
}

}  // namespace

std::filesystem::path ProgramFile() { return {}; }
void EndWithParent() {}
int OpenNameless(const std::filesystem::path&) { return -1; }
bool LinkNameless(int, const std::filesystem::path&) { return Lacks(); }
bool RenameToFree(const std::filesystem::path&, const std::filesystem::path&) { return Lacks(); }
bool ExchangeNames(const std::filesystem::path&, const std::filesystem::path&) { return Lacks(); }
bool OpenPipe(int (&ends)[2]) {
  if (pipe(ends) != 0) return false;
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  return true;
}
int Extend(int fd, std::uint64_t bytes) {
  return ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}
bool SetSpaceAside(int, std::uint64_t) { return Lacks(); }
void PreferLargePages(std::byte*, std::size_t) {}

}  // namespace qlora
#endif
