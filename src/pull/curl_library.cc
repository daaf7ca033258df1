#include "pull/curl_library.h"

#include <dlfcn.h>

#include <array>

#include "base/check.h"

namespace qlora {
namespace {

constexpr unsigned kOldestCurl = 0x073E00;  // 7.62, which has the functions for URLs

// The library with OpenSSL, then those with other implementations of TLS.
constexpr std::array<const char*, 3> kCurlNames = {"libcurl.so.4", "libcurl-gnutls.so.4",
                                                   "libcurl-nss.so.4"};

void* OpenLibrary() {
  for (const char* name : kCurlNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  ThrowInvalidInput(
      "qlora pull needs libcurl, which is not installed (on Debian: apt-get install libcurl4); "
      "`hf download` fills the same cache");
}

// dlsym knows names alone, no types.
template <typename Function>
void Look(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    ThrowInvalidInput("the installed libcurl has no {}; it is too old", name);
}

// Each member of CurlLibrary has the type that curl's header declares, so that calls are checked by
// the compiler as if the program were linked with the library.
CurlLibrary Load() {
  void* const library = OpenLibrary();
  CurlLibrary curl;
  Look(library, "curl_global_init", curl.global_init);
  Look(library, "curl_version_info", curl.version_info);
  Look(library, "curl_easy_init", curl.easy_init);
  Look(library, "curl_easy_setopt", curl.easy_setopt);
  Look(library, "curl_easy_perform", curl.easy_perform);
  Look(library, "curl_easy_strerror", curl.easy_strerror);
  Look(library, "curl_easy_cleanup", curl.easy_cleanup);
  Look(library, "curl_share_init", curl.share_init);
  Look(library, "curl_share_setopt", curl.share_setopt);
  Look(library, "curl_share_cleanup", curl.share_cleanup);
  Look(library, "curl_slist_append", curl.slist_append);
  Look(library, "curl_slist_free_all", curl.slist_free_all);
  Look(library, "curl_url", curl.url);
  Look(library, "curl_url_set", curl.url_set);
  Look(library, "curl_url_get", curl.url_get);
  Look(library, "curl_url_cleanup", curl.url_cleanup);
  Look(library, "curl_free", curl.free);
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    ThrowRuntime("libcurl cannot be initialized");
  }
  const curl_version_info_data* info = curl.version_info(CURLVERSION_NOW);
  if (info->version_num < kOldestCurl || (info->features & CURL_VERSION_SSL) == 0) {
    ThrowInvalidInput("libcurl {} is too old or has no https; 7.62 is needed", info->version);
  }
  return curl;
}

}  // namespace

// Opened once and never closed: the library keeps state for the life of the process.
const CurlLibrary& LoadCurl() {
  static const CurlLibrary curl = Load();
  return curl;
}

}  // namespace qlora
