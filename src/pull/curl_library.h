// libcurl, opened when it is needed: no other verb loads it, and the program starts where it is
// missing.
#ifndef QLORA_PULL_CURL_LIBRARY_H_
#define QLORA_PULL_CURL_LIBRARY_H_

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>

namespace qlora {

// The functions of the library that are used, under their names without "curl_".
struct CurlLibrary {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_version_info) version_info = nullptr;
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_share_init) share_init = nullptr;
  decltype(&::curl_share_setopt) share_setopt = nullptr;
  decltype(&::curl_share_cleanup) share_cleanup = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;
  decltype(&::curl_url) url = nullptr;
  decltype(&::curl_url_set) url_set = nullptr;
  decltype(&::curl_url_get) url_get = nullptr;
  decltype(&::curl_url_cleanup) url_cleanup = nullptr;
  decltype(&::curl_free) free = nullptr;
};

// Opens the library once in the life of the process. Errors: InvalidInput that names the package,
// when it is missing, too old, or has no https.
const CurlLibrary& LoadCurl();

}  // namespace qlora

#endif  // QLORA_PULL_CURL_LIBRARY_H_
