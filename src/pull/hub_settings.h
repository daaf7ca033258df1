// The settings of the hub, from the environment variables of Hugging Face's own programs.
#ifndef QLORA_PULL_HUB_SETTINGS_H_
#define QLORA_PULL_HUB_SETTINGS_H_

#include <cstdint>
#include <string>

namespace qlora {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT; without a slash at the end
  std::string token;                                // empty: none
  std::string token_source;                         // variable or file, for messages
  std::int64_t idle_seconds = 30;                   // HF_HUB_DOWNLOAD_TIMEOUT
  bool symlinks = true;                             // HF_HUB_DISABLE_SYMLINKS
  double retry_seconds = 1;                         // before the second try
};

// The token is HF_TOKEN, otherwise HUGGING_FACE_HUB_TOKEN, otherwise the content of the file
// HF_TOKEN_PATH or HF_HOME/token. Errors: InvalidInput when HF_HUB_OFFLINE is set, and for a
// malformed token or number.
HubSettings ReadHubSettings();

}  // namespace qlora

#endif  // QLORA_PULL_HUB_SETTINGS_H_
