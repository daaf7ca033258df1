// Questions to a hub about a repository: the commit of a revision, and the files of a commit.
#ifndef QLORA_PULL_HUB_API_H_
#define QLORA_PULL_HUB_API_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hub/hub_cache.h"
#include "io/json_fwd.h"
#include "pull/http.h"
#include "pull/hub_settings.h"
#include "pull/retry.h"

namespace qlora {

struct HubFile {
  std::string path;  // inside the repository; checked, so that it stays in any folder
  std::string oid;   // of the content: sha256 of large files, git's sha1 of others; names the blob
  std::int64_t size = 0;

  bool is_large() const { return oid.size() == 64; }
};

class HubApi {
 public:
  HubApi(const HubSettings& settings, HttpClient& client, const RetryOptions& retry,
         HubRepository repository);

  // The commit that repository.revision names. Errors: InvalidInput for a repository or a revision
  // that is missing, private or gated, saying what to do; Runtime for a server that fails or makes
  // no sense.
  std::string Commit();
  // All files of a commit. Errors: as Commit, and for names and hashes that cannot be right.
  std::vector<HubFile> List(const std::string& commit);
  std::string FileUrl(const std::string& commit, const std::string& path) const;

  // Throws for a reply that is neither 200 nor 206: PassingError where another try may help. path:
  // the listed file that was asked for.
  [[noreturn]] void ThrowStatus(const HttpGetReply& reply, const std::string& path = "") const;

 private:
  // A JSON value, and the URL of the next page or "".
  struct Page {
    std::string text;
    std::string next;
  };
  Page GetJson(const std::string& url);

  const HubSettings& settings_;
  HttpClient& client_;
  const RetryOptions& retry_;
  HubRepository repository_;
};

// One page of a listing.
struct HubPage {
  std::vector<HubFile> files;
  std::int64_t others = 0;  // entries that are no files: folders
};
// Errors: Runtime that names the entry, for anything unexpected.
HubPage ParseListing(std::string_view text);
// The URL of `Link: <URL>; rel="next"`, or "".
std::string NextPage(std::string_view link_header);
// Seconds to wait after status 429, from RateLimit or Retry-After; 0: not said.
double WaitOf(const HttpHead& head);
// True when `path` is a relative path of plain names, which stays in the folder that it is put
// into.
bool IsSafePath(std::string_view path);

}  // namespace qlora

#endif  // QLORA_PULL_HUB_API_H_
