#include "pull/hub_settings.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/text.h"
#include "hub/hub_cache.h"

namespace qlora {
namespace {

// As huggingface_hub reads its switches.
bool IsOn(const char* name) {
  const std::string value = UpperCase(Environment(name));
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// A token comes from a variable or a file, which editors end with a line break.
void SetToken(std::string token, const std::string& source, HubSettings& settings) {
  token = std::string(Trim(token));
  const bool printable =
      std::all_of(token.begin(), token.end(), [](unsigned char c) { return c > 0x20 && c < 0x7F; });
  if (!printable) {  // a line break would begin another header
    ThrowInvalidInput("{}: invalid characters in token; expected printable ASCII without blanks",
                      source);
  }
  settings.token = std::move(token);
  settings.token_source = source;
}

// The first of: the variables, the file that HF_TOKEN_PATH names, HF_HOME/token, as Hugging Face's
// own programs look for a token. With HF_HUB_DISABLE_IMPLICIT_TOKEN only the variables count.
void FindToken(HubSettings& settings) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (!Trim(Environment(name)).empty()) return SetToken(Environment(name), name, settings);
  }
  if (IsOn("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return;
  const std::string named = Environment("HF_TOKEN_PATH");
  const std::filesystem::path path = named.empty() ? HubHome() / "token" : ExpandPath(named);
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    SetToken(ReadTextFile(path), path.string(), settings);
  }
}

}  // namespace

// Variables with values that are not understood are errors: a pull that ignored HF_ENDPOINT or
// HF_HUB_OFFLINE would connect to where the user forbade it.
HubSettings ReadHubSettings() {
  for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    if (IsOn(name)) ThrowInvalidInput("{} is set, so nothing is downloaded (offline)", name);
  }
  HubSettings settings;
  std::string endpoint(Trim(Environment("HF_ENDPOINT")));
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (!endpoint.empty()) settings.endpoint = endpoint;
  if (const std::string text = Environment("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    settings.idle_seconds = ParseNumber<std::int64_t>(text).value_or(0);
    if (settings.idle_seconds < 1 || settings.idle_seconds > 86400) {
      ThrowInvalidInput("HF_HUB_DOWNLOAD_TIMEOUT: expected seconds, found '{}'", text);
    }
  }
  settings.symlinks = !IsOn("HF_HUB_DISABLE_SYMLINKS");
  FindToken(settings);
  return settings;
}

}  // namespace qlora
