#include "pull/hub_api.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "io/json.h"

namespace qlora {
namespace {

// Limits on the sizes that a server may claim, far above any repository.
constexpr std::size_t kMaxPageBytes = std::size_t{16} << 20;
constexpr std::int64_t kMaxPages = 1000;
constexpr std::size_t kMaxListBytes = std::size_t{256} << 20;  // of all pages
constexpr std::int64_t kMaxFiles = 200'000;                    // and as many folders
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 53;  // JSON's integers end there
constexpr std::size_t kMaxPathBytes = 1024;
constexpr std::size_t kMaxNameBytes = 255;
constexpr double kMaxWaitSeconds = 300;

bool IsHex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

const char* ApiName(HubType type) { return type == HubType::kModel ? "models" : "datasets"; }

// Each segment by itself.
std::string EncodePath(std::string_view path) {
  std::string out;
  while (true) {
    const std::size_t slash = path.find('/');
    out += EncodeSegment(path.substr(0, slash));
    if (slash == std::string_view::npos) return out;
    out += '/';
    path.remove_prefix(slash + 1);
  }
}

// The hub's own error message: a header, or {"error": "..."} in the body.
std::string MessageOf(const HttpGetReply& reply) {
  std::string message = reply.head.Find("x-error-message");
  if (message.empty()) {
    OrderedJson body;
    if (!TryParseJson(reply.error_body, body) && body.is_object() && body.contains("error") &&
        body["error"].is_string()) {
      message = body["error"].get<std::string>();
    }
  }
  const std::string request = reply.head.Find("x-request-id");
  return fmt::format("{} says {}{}{}{}", reply.head.host, reply.head.status,
                     message.empty() ? "" : ": ", Abridged(message),
                     request.empty() ? "" : fmt::format(" (request {})", Abridged(request)));
}

// The number behind `key` in "r=0;t=55"; -1: it is not there.
double NumberAfter(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return -1;
  std::int64_t value = -1;
  const std::string_view digits = text.substr(at + key.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return static_cast<double>(value);
}

// An entry of a listing. Large files are stored outside of git: there `oid` and `size` describe a
// pointer, and `lfs` describes the content.
//
//   {"type": "file", "path": "config.json", "oid": sha1, "size": 667}
//   {"type": "file", "path": "model.safetensors", "oid": sha1, "size": 135,
//    "lfs": {"oid": sha256, "size": 988097824}}
HubFile ParseEntry(const Json& entry) {
  constexpr std::string_view kWhere = "file list of the hub";
  HubFile file;
  file.path = JsonGet<std::string>(entry, "path", kWhere);
  const std::string where = fmt::format("{}, '{}'", kWhere, Abridged(file.path));
  if (!IsSafePath(file.path)) ThrowRuntime("{}: this name is refused", where);
  file.size = JsonGet<std::int64_t>(entry, "size", where);
  file.oid = JsonGet<std::string>(entry, "oid", where);
  std::size_t digits = 40;
  if (const Json* lfs = FindJson(entry, "lfs", where)) {
    file.oid = JsonGet<std::string>(*lfs, "oid", where);
    file.size = JsonGet<std::int64_t>(*lfs, "size", where);
    digits = 64;
  }
  if (!IsHex(file.oid, digits)) {
    ThrowRuntime("{}: '{}' is not a hash of {} digits", where, Abridged(file.oid), digits);
  }
  if (file.size < 0 || file.size > kMaxFileBytes) {
    ThrowRuntime("{}: {} bytes are not a size", where, file.size);
  }
  return file;
}

// A server that makes no sense is not a mistake of the user.
template <typename Body>
auto AsServerError(const std::string& host, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    ThrowRuntime("{}: {} (is it a hub? a proxy or a login page may answer instead)", host,
                 Abridged(error.what()));
  }
}

// No path twice, and none both file and folder: only one of the two can be on the disk, and which
// one would depend on the order of the downloads.
void CheckDistinct(const std::vector<HubFile>& files) {
  std::set<std::string_view> paths;
  for (const HubFile& file : files) {
    if (!paths.insert(file.path).second) {
      ThrowRuntime("file list of the hub: '{}' appears twice", Abridged(file.path));
    }
  }
  for (const HubFile& file : files) {
    const std::string_view path = file.path;
    for (std::size_t slash = path.find('/'); slash != std::string_view::npos;
         slash = path.find('/', slash + 1)) {
      if (paths.contains(path.substr(0, slash))) {
        ThrowRuntime("file list of the hub: '{}' is a file and a folder",
                     Abridged(path.substr(0, slash)));
      }
    }
  }
}

// One content has one size, or a download would wait for bytes that never come; and the sizes can
// be added up.
void CheckSizes(const std::vector<HubFile>& files) {
  std::map<std::string_view, std::int64_t> sizes;
  std::int64_t sum = 0;
  for (const HubFile& file : files) {
    const auto [first, is_new] = sizes.emplace(file.oid, file.size);
    if (first->second != file.size) {
      ThrowRuntime("file list of the hub: '{}' has the content {} of {} and of {} bytes",
                   Abridged(file.path), file.oid, first->second, file.size);
    }
    // Each is at most kMaxFileBytes, so that the sum of two cannot overflow.
    sum += file.size;
    if (sum > kMaxFileBytes) {
      ThrowRuntime("file list of the hub: the files claim more than {} bytes", kMaxFileBytes);
    }
  }
}

}  // namespace

// The path of a listing becomes a path on the disk: a server must not choose one outside of the
// snapshot's folder, nor one that a terminal shows as another.
bool IsSafePath(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return false;
  if (path.size() > 1 && path[1] == ':') return false;  // a drive of Windows
  if (path.find('\\') != std::string_view::npos) return false;
  // Control characters, and those that turn the direction of the text around them.
  if (Printable(path) != path || path.find_first_of("\n\t") != std::string_view::npos) return false;
  while (true) {
    const std::size_t slash = path.find('/');
    const std::string_view name = path.substr(0, slash);
    if (name.empty() || name == "." || name == ".." || name.size() > kMaxNameBytes) return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

HubPage ParseListing(std::string_view text) {
  const Json entries = ParseJson(text, "file list of the hub");
  if (!entries.is_array()) ThrowRuntime("file list of the hub: expected a list");
  HubPage page;
  for (const Json& entry : entries) {
    const auto type = JsonGet<std::string>(entry, "type", "file list of the hub");
    if (type == "file") {
      page.files.push_back(ParseEntry(entry));
    } else {
      ++page.others;
    }
  }
  return page;
}

// Link: <https://host/api/...?cursor=...>; rel="next"
std::string NextPage(std::string_view header) {
  const std::size_t rel = header.find("rel=\"next\"");
  const std::size_t end = header.rfind('>', rel);
  const std::size_t begin = header.rfind('<', end);
  if (rel == std::string_view::npos || end == std::string_view::npos ||
      begin == std::string_view::npos) {
    return "";
  }
  return std::string(header.substr(begin + 1, end - begin - 1));
}

// RateLimit: "resolvers";r=0;t=55: r requests remain for t seconds. It counts when none remains;
// otherwise Retry-After: 55, which may also be a date, taken for 0.
double WaitOf(const HttpHead& head) {
  const std::string window = head.Find("ratelimit");
  if (NumberAfter(window, ";r=") == 0) return std::max(0.0, NumberAfter(window, ";t="));
  const std::string after = head.Find("retry-after");
  return after.empty() ? 0 : std::max(0.0, NumberAfter("=" + after, "="));
}

HubApi::HubApi(const HubSettings& settings, HttpClient& client, const RetryOptions& retry,
               HubRepository repository)
    : settings_(settings), client_(client), retry_(retry), repository_(std::move(repository)) {}

// GET /api/models/org/name/revision/main -> {"sha": commit, ...}. A revision with slashes is one
// segment of the path.
std::string HubApi::Commit() {
  const std::string url =
      fmt::format("{}/api/{}/{}/revision/{}", settings_.endpoint, ApiName(repository_.type),
                  repository_.name, EncodeSegment(repository_.revision));
  const Page page = GetJson(url);
  const std::string host = OriginOf(url);
  return AsServerError(host, [&] {
    auto commit = JsonGet<std::string>(ParseJson(page.text, "repository"), "sha", "repository");
    if (!IsHex(commit, 40)) ThrowRuntime("'{}' is not a commit", Abridged(commit));
    return commit;
  });
}

// GET /api/models/org/name/tree/COMMIT, page after page. The next page is of the server's choice,
// so its host and the number of pages are checked.
std::vector<HubFile> HubApi::List(const std::string& commit) {
  std::string url =
      fmt::format("{}/api/{}/{}/tree/{}?recursive=true&expand=false", settings_.endpoint,
                  ApiName(repository_.type), repository_.name, commit);
  const std::string origin = OriginOf(url);
  std::set<std::string> seen;
  std::size_t bytes = 0;
  std::int64_t others = 0;
  std::vector<HubFile> files;
  while (!url.empty()) {
    if (OriginOf(url) != origin) {
      ThrowRuntime("{}: the file list continues on another host, which is refused", origin);
    }
    if (!seen.insert(url).second || std::ssize(seen) > kMaxPages) {
      ThrowRuntime("{}: the file list does not end", origin);
    }
    const Page page = GetJson(url);
    bytes += page.text.size();
    if (bytes > kMaxListBytes) {
      ThrowRuntime("{}: the file list has more than {} bytes", origin, kMaxListBytes);
    }
    const HubPage more = AsServerError(origin, [&] { return ParseListing(page.text); });
    files.insert(files.end(), more.files.begin(), more.files.end());
    others += more.others;
    if (std::ssize(files) > kMaxFiles || others > kMaxFiles) {
      ThrowRuntime("{} has more than {} {}", repository_.name, kMaxFiles,
                   others > kMaxFiles ? "folders" : "files");
    }
    url = page.next.empty() ? "" : ResolveUrl(url, page.next);
  }
  CheckDistinct(files);
  CheckSizes(files);
  return files;
}

// Answers with the content of small files, and for large ones with a redirect to another server.
std::string HubApi::FileUrl(const std::string& commit, const std::string& path) const {
  return fmt::format("{}/{}{}/resolve/{}/{}", settings_.endpoint,
                     repository_.type == HubType::kModel ? "" : "datasets/", repository_.name,
                     commit, EncodePath(path));
}

// The answer is bounded while it comes, because a compressed one can be of any size.
HubApi::Page HubApi::GetJson(const std::string& url) {
  return WithRetries(retry_, [&] {
    Page page;
    HttpGetRequest request{.url = url, .compressed = true};
    request.on_body = [&](const HttpHead& head, std::string_view bytes) {
      if (page.text.size() + bytes.size() > kMaxPageBytes) {
        ThrowRuntime("{}: an answer of more than {} bytes", head.host, kMaxPageBytes);
      }
      page.text += bytes;
    };
    const HttpGetReply reply = client_.Get(request);
    if (reply.head.status != 200) ThrowStatus(reply);
    page.next = NextPage(reply.head.Find("link"));
    return page;
  });
}

// The hub answers 401 both for missing and for private repositories, so as not to tell which;
// x-error-code tells more where the hub wants to. 408, 429 and 5xx may pass: they are tried again.
void HubApi::ThrowStatus(const HttpGetReply& reply, const std::string& path) const {
  const std::string& name = repository_.name;
  const std::string endpoint = WithoutPassword(settings_.endpoint);
  const std::string page = fmt::format(
      "{}/{}{}", endpoint, repository_.type == HubType::kModel ? "" : "datasets/", name);
  const std::string code = reply.head.Find("x-error-code");
  const std::string said = MessageOf(reply);
  const bool has_token = !settings_.token.empty();
  const bool is_model = repository_.type == HubType::kModel;
  const char* const kind = is_model ? "model" : "data set";
  // Both kinds have the same names, so that the other one may be meant.
  const char* const other =
      is_model ? "a data set is pulled with --dataset" : "a model is pulled without --dataset";
  switch (reply.head.status) {
    case 401:
      if (code == "GatedRepo") {
        ThrowInvalidInput(
            "{} is gated: accept its terms at {}, create a token at {}/settings/tokens and set "
            "HF_TOKEN to it ({})",
            name, page, endpoint, said);
      }
      if (has_token) {
        ThrowInvalidInput("{}: the token of {} was not accepted ({})", name, settings_.token_source,
                          said);
      }
      ThrowInvalidInput(
          "{}: no such {} was found, or it is private: check the name; for a private one set "
          "HF_TOKEN; {} ({})",
          name, kind, other, said);
    case 403:
      if (code == "GatedRepo") {
        ThrowInvalidInput(
            "{} is gated, and the account of the token has no access: ask for access "
            "at {} ({})",
            name, page, said);
      }
      ThrowInvalidInput(
          "{}: access is refused{} ({})", name,
          has_token ? fmt::format("; check what the token of {} may read", settings_.token_source)
                    : "",
          said);
    case 404:
      if (code == "RevisionNotFound") {
        ThrowInvalidInput("{}: no revision '{}'; the default is main ({})", name,
                          repository_.revision, said);
      }
      if (code == "EntryNotFound" || !path.empty()) {
        ThrowRuntime("{}: a listed file{} is not there ({})", name,
                     path.empty() ? "" : fmt::format(", '{}',", Abridged(path)), said);
      }
      ThrowInvalidInput("{}@{}: no such {} or revision was found; {} ({})", name,
                        repository_.revision, kind, other, said);
    case 408:
    case 500:
    case 502:
    case 503:
    case 504:
      throw PassingError(said);
    case 429: {
      const double wait = WaitOf(reply.head);
      if (wait > kMaxWaitSeconds) {
        ThrowRuntime(
            "too many requests: the rate limit ends in {:.0f} s; run the command again "
            "then{} ({})",
            wait, has_token ? "" : ", or set HF_TOKEN, which raises the limit", said);
      }
      throw PassingError("too many requests: " + said, wait > 0 ? wait + 1 : 0);
    }
    default:
      ThrowRuntime("{}: {}", name, said);
  }
}

}  // namespace qlora
