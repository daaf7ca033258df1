// Downloads a model or a data set from a hub into the Hugging Face cache, where org/name finds it.
// This is the only code of qlora that opens connections to other machines.
//
//   hub_settings.h      endpoint, token: the variables of Hugging Face's own programs
//   hub_api.h           revision -> commit -> list of files with sizes and hashes
//   selection.h         the files that a trainer needs
//   repository_cache.h  blobs, links, refs, the lock
//   blob_download.h     one file: continue, receive, check the hash, name
//   http.h, retry.h     requests; curl_library.h opens libcurl
#ifndef QLORA_PULL_PULL_H_
#define QLORA_PULL_PULL_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/hub_cache.h"
#include "pull/hub_settings.h"
#include "pull/selection.h"

namespace qlora {

struct PullProgress {
  std::int64_t files = 0;  // of the selection
  std::int64_t files_done = 0;
  std::int64_t bytes = 0;           // of the selection, each content once
  std::int64_t bytes_done = 0;      // on the disk
  std::int64_t bytes_received = 0;  // over the network, in this run
};

// Called from several threads, one at a time.
struct PullEvents {
  std::function<void(const PullProgress&)> progress = [](const PullProgress&) {};
  std::function<void(const std::string&)> note = [](const std::string&) {};
  // Called several times a second; throws to end the pull, which a later pull continues.
  std::function<void()> check = [] {};
};

struct PullOptions {
  HubRepository repository;
  SelectionOptions selection = {};
  bool force_download = false;  // also what is in the cache, which may be damaged
  std::string user_agent = "qlora";
};

struct PullResult {
  std::string commit;
  std::filesystem::path snapshot;  // the folder of the files
  PullProgress progress;
  std::int64_t left_out = 0;  // files of the repository that were not wanted
  std::int64_t left_out_bytes = 0;
};

// Errors: InvalidInput when the repository cannot be had (missing, private, gated, no weights);
// Runtime when the server, the connection or the disk fails. Received bytes are kept, and the next
// pull continues there.
PullResult Pull(const HubSettings& settings, const PullOptions& options, const PullEvents& events);

}  // namespace qlora

#endif  // QLORA_PULL_PULL_H_
