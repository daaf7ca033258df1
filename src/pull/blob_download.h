// One file of a repository, from the hub into its blob: continued where an earlier run ended, and
// checked byte by byte before it gets its name.
#ifndef QLORA_PULL_BLOB_DOWNLOAD_H_
#define QLORA_PULL_BLOB_DOWNLOAD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "pull/content_hash.h"
#include "pull/http.h"
#include "pull/hub_api.h"
#include "pull/repository_cache.h"
#include "pull/retry.h"

namespace qlora {

// The tools of a download. All of them must outlive it.
struct DownloadTools {
  HubApi& api;
  HttpClient& client;
  const RepositoryCache& cache;
  const RetryOptions& retry;
  const std::string& commit;
  // Bytes that were added to the correct bytes on the disk; negative when bytes were thrown away.
  // `received`: they came over the network.
  std::function<void(std::int64_t bytes, bool received)> on_bytes;
};

class BlobDownload {
 public:
  // Opens the partial file, which may not be a link: a cache may come from a stranger. Errors:
  // InvalidInput or Runtime when it cannot be written.
  BlobDownload(const DownloadTools& tools, const HubFile& file);
  ~BlobDownload();
  BlobDownload(const BlobDownload&) = delete;
  BlobDownload& operator=(const BlobDownload&) = delete;

  // Returns when the blob is there. Errors: as HubApi; Runtime when the server does not deliver, or
  // delivers another content twice.
  void Run();

 private:
  bool IsFurther();
  void HashPartial();
  void Fetch();
  void CheckHead(const HttpHead& head);
  void CheckBody(const HttpHead& head);
  void Take(std::string_view bytes);
  void StartOver();
  bool Finish();

  const DownloadTools& tools_;
  const HubFile& file_;
  const std::string url_;
  std::filesystem::path partial_;
  ContentHash hash_;  // of the bytes of the partial file; made first, because its maker may throw
  int fd_ = -1;
  std::int64_t size_ = 0;      // bytes of the partial file
  std::int64_t furthest_ = 0;  // the most that size_ has been in this round
  std::string host_;           // that sent the last of them
};

}  // namespace qlora

#endif  // QLORA_PULL_BLOB_DOWNLOAD_H_
