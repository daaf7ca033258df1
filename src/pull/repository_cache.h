// One repository's folder in the Hugging Face cache, as a writer sees it:
//
//   blobs/<oid>                      content, under its hash; <oid>.qlora.incomplete while it comes
//   snapshots/<commit>/<path>        a relative link to the blob
//   refs/<revision>                  the commit, written last: a ref names a snapshot that is whole
//
// A process that ends at any moment leaves a sound cache.
#ifndef QLORA_PULL_REPOSITORY_CACHE_H_
#define QLORA_PULL_REPOSITORY_CACHE_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hub/hub_cache.h"
#include "pull/hub_api.h"

namespace qlora {

class RepositoryCache {
 public:
  // Makes the folders and takes the lock of the repository; waits while another process has it,
  // calling check, and note once. A file system without locks does without. Errors: Runtime when
  // the folders cannot be made; whatever check throws.
  RepositoryCache(const HubRepository& repository, bool symlinks,
                  const std::function<void()>& check,
                  const std::function<void(const std::string&)>& note);
  ~RepositoryCache();
  RepositoryCache(const RepositoryCache&) = delete;
  RepositoryCache& operator=(const RepositoryCache&) = delete;

  std::filesystem::path Blob(const HubFile& file) const { return blobs_ / file.oid; }
  std::filesystem::path Partial(const HubFile& file) const;
  // True when the blob is there with the right size. Its content was checked when it got its name.
  bool HasBlob(const HubFile& file) const;
  // Bytes of the partial file.
  std::int64_t PartialBytes(const HubFile& file) const;

  // Errors: Runtime when the missing bytes of these files do not fit the disk. again: blobs that
  // are there are received once more, beside the old ones.
  void CheckSpace(const std::vector<HubFile>& files, bool again) const;

  // Puts the file into the snapshot, in place of an older one. Where links are not possible, a
  // copy. Errors: Runtime.
  void AddToSnapshot(const std::string& commit, const HubFile& file) const;
  // Nothing for a revision that is the commit itself. Errors: Runtime.
  void WriteRef(const std::string& revision, const std::string& commit) const;
  std::filesystem::path Snapshot(const std::string& commit) const;

 private:
  std::filesystem::path folder_;
  std::filesystem::path blobs_;
  bool symlinks_;
  int lock_ = -1;
};

}  // namespace qlora

#endif  // QLORA_PULL_REPOSITORY_CACHE_H_
