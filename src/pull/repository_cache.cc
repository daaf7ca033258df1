#include "pull/repository_cache.h"

#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <set>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/file.h"
#include "base/printable.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr auto kLockPause = std::chrono::milliseconds(200);

// -1 where no lock can be made, as in a cache that may only be read. Errors: InvalidInput for a
// link, which could make a file anywhere.
int OpenLock(const fs::path& path) {
  std::error_code ignored;
  fs::create_directories(path.parent_path(), ignored);
  try {
    return OpenForWriting(path, OpenMode::kUpdate);
  } catch (const Error&) {
    if (fs::is_symlink(path, ignored)) throw;
    return -1;
  }
}

}  // namespace

// The lock is the system's (flock): it ends with the process, however that ends. Its file is in the
// folder of huggingface_hub's locks, which are for single blobs; blobs that both programs download
// at the same time have different partial files and end as the same blob.
RepositoryCache::RepositoryCache(const HubRepository& repository, bool symlinks,
                                 const std::function<void()>& check,
                                 const std::function<void(const std::string&)>& note)
    : folder_(repository.Folder()), blobs_(folder_ / "blobs"), symlinks_(symlinks) {
  MakeDirectories(blobs_);
  lock_ = OpenLock(folder_.parent_path() / ".locks" / folder_.filename() / "qlora.lock");
  bool noted = false;
  while (lock_ >= 0 && flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (!noted) note(fmt::format("another qlora pull of {} is running; waiting", repository.name));
    noted = true;
    check();
    std::this_thread::sleep_for(kLockPause);
  }
}

RepositoryCache::~RepositoryCache() {
  if (lock_ >= 0) close(lock_);
}

// The name says whose partial file it is: huggingface_hub continues its own as <oid>.incomplete.
fs::path RepositoryCache::Partial(const HubFile& file) const {
  return blobs_ / (file.oid + ".qlora.incomplete");
}

// A blob gets its name when its hash is right, so the size alone is checked again.
bool RepositoryCache::HasBlob(const HubFile& file) const {
  std::error_code error;
  const std::uint64_t size = fs::file_size(Blob(file), error);
  return !error && size == std::uint64_t(file.size);
}

std::int64_t RepositoryCache::PartialBytes(const HubFile& file) const {
  std::error_code error;
  const std::uint64_t size = fs::file_size(Partial(file), error);
  return error ? 0 : std::min(static_cast<std::int64_t>(size), file.size);
}

// Counts the missing bytes: each content once, without the bytes of partial files.
void RepositoryCache::CheckSpace(const std::vector<HubFile>& files, bool again) const {
  std::uint64_t needed = 0;
  std::set<std::string> counted;
  for (const HubFile& file : files) {
    if ((HasBlob(file) && !again) || !counted.insert(file.oid).second) continue;
    needed += static_cast<std::uint64_t>(file.size - PartialBytes(file));
  }
  struct statvfs volume = {};
  if (statvfs(blobs_.c_str(), &volume) != 0 || volume.f_blocks == 0) return;
  const std::uint64_t free = std::uint64_t{volume.f_bavail} * std::uint64_t{volume.f_frsize};
  if (needed > free) {
    ThrowRuntime(
        "{}: {} are needed and {} are free on this disk; make room, or set HF_HUB_CACHE to a "
        "folder on another disk",
        blobs_.string(), FormatBytes(needed), FormatBytes(free));
  }
}

fs::path RepositoryCache::Snapshot(const std::string& commit) const {
  return folder_ / "snapshots" / commit;
}

// The link is relative, so that the cache can be moved:
//
//   snapshots/<commit>/a/b.json -> ../../../blobs/<oid>
//
// It is made under another name first, so that no reader sees a gap. Without symbolic links a
// second name of the blob does, otherwise a copy.
void RepositoryCache::AddToSnapshot(const std::string& commit, const HubFile& file) const {
  const fs::path path = Snapshot(commit) / file.path;
  std::error_code error;
  MakeDirectories(path.parent_path());
  const fs::path link = blobs_.lexically_relative(path.parent_path()) / file.oid;
  if (symlinks_ && fs::is_symlink(path, error) && fs::read_symlink(path, error) == link) return;
  // Not an extension of the name, which may be as long as a name can be.
  const fs::path temporary = path.parent_path() / fmt::format(".qlora-{}-{:x}", getpid(),
                                                              std::hash<std::string>()(file.path));
  fs::remove(temporary, error);
  error.clear();
  if (symlinks_) fs::create_symlink(link, temporary, error);
  if (!symlinks_ || error) {
    error.clear();
    fs::create_hard_link(Blob(file), temporary, error);
    if (error) fs::copy_file(Blob(file), temporary, error);
  }
  if (!error) fs::rename(temporary, path, error);
  if (error) {
    const std::string why = error.message();
    fs::remove(temporary, error);
    ThrowRuntime("{}: cannot be written: {}", path.string(), why);
  }
}

void RepositoryCache::WriteRef(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const fs::path path = folder_ / "refs" / revision;
  std::error_code ignored;
  // Nothing to write also where the cache may only be read.
  if (fs::is_regular_file(path, ignored) && ReadTextFile(path) == commit) return;
  MakeDirectories(path.parent_path());
  WriteTextFile(path, commit);  // 40 digits and nothing else: other readers do not trim
}

}  // namespace qlora
