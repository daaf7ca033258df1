#include "pull/pull.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "pull/blob_download.h"
#include "pull/repository_cache.h"

namespace qlora {
namespace {

constexpr std::int64_t kConnections = 4;
constexpr std::int64_t kMaxIndexBytes = std::int64_t{32} << 20;  // the largest models have 9 MB

// One pull. The threads share the list of files; all that they change is behind the mutex.
//
//   Run      revision -> commit -> list of files -> those that are needed -> space on the disk
//   Work     on each thread: next file -> its blob, unless that is there -> link in the snapshot
//   Run      the ref, last: only then does org/name lead to the snapshot
//
// The first error ends all threads at their next Check().
class Puller {
 public:
  Puller(const HubSettings& settings, const PullOptions& options, const PullEvents& events)
      : settings_(settings), options_(options), events_(events) {
    retry_.first_wait_seconds = settings.retry_seconds;
    retry_.check = [this] { Check(); };
    retry_.note = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      events_.note(text);
    };
  }

  PullResult Run() {
    HttpClient client(HttpClientOptionsOf());
    HubApi api(settings_, client, retry_, options_.repository);
    PullResult result;
    result.commit = api.Commit();
    const std::vector<HubFile> listed = api.List(result.commit);
    commit_ = result.commit;
    cache_.emplace(options_.repository, settings_.symlinks, retry_.check, retry_.note);
    files_ = SelectFiles(listed, options_.repository.type, options_.selection,
                         [&](const HubFile& file) { return FetchText(client, api, file); });
    CountBytes(listed, result);
    cache_->CheckSpace(files_, options_.force_download);
    DownloadAll();
    cache_->WriteRef(options_.repository.revision, commit_);
    result.snapshot = cache_->Snapshot(commit_);
    result.progress = progress_;
    return result;
  }

 private:
  // Each thread has a client, because a client serves one thread at a time.
  HttpClientOptions HttpClientOptionsOf() {
    return {.endpoint = settings_.endpoint,
            .token = settings_.token,
            .user_agent = options_.user_agent,
            .idle_seconds = settings_.idle_seconds,
            .check = retry_.check};
  }

  // Files of equal content are one blob, and count once.
  void CountBytes(const std::vector<HubFile>& listed, PullResult& result) {
    std::set<std::string> contents;
    std::int64_t selected_bytes = 0;
    std::int64_t listed_bytes = 0;
    for (const HubFile& file : files_) {
      selected_bytes += file.size;
      if (contents.insert(file.oid).second) progress_.bytes += file.size;
    }
    for (const HubFile& file : listed) listed_bytes += file.size;
    progress_.files = std::ssize(files_);
    result.left_out = std::ssize(listed) - std::ssize(files_);
    result.left_out_bytes = listed_bytes - selected_bytes;
  }

  // A file that decides which others are needed. It is counted when its turn comes.
  std::string FetchText(HttpClient& client, HubApi& api, const HubFile& file) {
    if (file.size > kMaxIndexBytes) {
      ThrowRuntime("{}: {} bytes; an index of weights has at most {}", Abridged(file.path),
                   file.size, kMaxIndexBytes);
    }
    if (!IsThere(file)) {
      const DownloadTools tools{api, client, *cache_, retry_, commit_, [](std::int64_t, bool) {}};
      BlobDownload(tools, file).Run();
      fresh_.insert(file.oid);
    }
    return ReadTextFile(cache_->Blob(file));
  }

  // Several connections, because one seldom fills the line. This thread is one of the workers.
  void DownloadAll() {
    const std::int64_t threads = std::min(kConnections, std::ssize(files_));
    std::vector<std::thread> workers;
    for (std::int64_t t = 1; t < threads; ++t) workers.emplace_back([this] { Work(); });
    Work();
    for (std::thread& worker : workers) worker.join();
    if (error_) std::rethrow_exception(error_);
  }

  void Work() {
    try {
      HttpClient client(HttpClientOptionsOf());
      HubApi api(settings_, client, retry_, options_.repository);
      const DownloadTools tools{
          api,     client,
          *cache_, retry_,
          commit_, [this](std::int64_t bytes, bool received) {
                                  AddBytes(bytes, received); }};
      while (const HubFile* file = NextFile()) {
        if (TakeContent(*file)) {
          BlobDownload(tools, *file).Run();
          const std::lock_guard lock(mutex_);
          fresh_.insert(file->oid);
        }
        WaitForContent(*file);
        cache_->AddToSnapshot(commit_, *file);
        const std::lock_guard lock(mutex_);
        ++progress_.files_done;
        events_.progress(progress_);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  // Null when every file has been taken.
  const HubFile* NextFile() {
    Check();
    const std::lock_guard lock(mutex_);
    return next_ == std::ssize(files_) ? nullptr : &files_[next_++];
  }

  // True for the first file of a content that is not there yet: two files may have the same.
  bool TakeContent(const HubFile& file) {
    const std::lock_guard lock(mutex_);
    if (!taken_.insert(file.oid).second) return false;
    if (!IsThere(file)) return true;
    progress_.bytes_done += file.size;
    return false;
  }
  // Another thread may be receiving the content. A link is made only to a blob that is there.
  void WaitForContent(const HubFile& file) {
    const auto is_there = [&] {
      const std::lock_guard lock(mutex_);
      return IsThere(file);
    };
    while (!is_there()) WaitSeconds(0.05, retry_.check);
  }
  // A blob that may be used: with force_download one that this pull has received.
  bool IsThere(const HubFile& file) const {
    return cache_->HasBlob(file) && (!options_.force_download || fresh_.contains(file.oid));
  }

  void AddBytes(std::int64_t bytes, bool received) {
    const std::lock_guard lock(mutex_);
    progress_.bytes_done += bytes;
    if (received) progress_.bytes_received += bytes;
    events_.progress(progress_);
  }

  // Ends a thread when the user wants it, or when another thread has failed.
  void Check() {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    events_.check();
  }

  const HubSettings& settings_;
  const PullOptions& options_;
  const PullEvents& events_;
  RetryOptions retry_;
  std::optional<RepositoryCache> cache_;
  std::string commit_;
  std::vector<HubFile> files_;

  std::mutex mutex_;
  std::int64_t next_ = 0;        // index of the next file
  std::set<std::string> taken_;  // contents that a thread has taken
  std::set<std::string> fresh_;  // contents that this pull has received
  PullProgress progress_;
  std::exception_ptr error_;  // the first
};

}  // namespace

PullResult Pull(const HubSettings& settings, const PullOptions& options, const PullEvents& events) {
  return Puller(settings, options, events).Run();
}

}  // namespace qlora
