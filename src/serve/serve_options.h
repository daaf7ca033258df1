// The options of a server.
#ifndef QLORA_SERVE_SERVE_OPTIONS_H_
#define QLORA_SERVE_SERVE_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/model_options.h"
#include "qlora/options.h"

namespace qlora {

struct ServeOptions {
  ModelOptions model = {};  // its adapters: "NAME=DIR" or "DIR"
  std::string served_model_name = {};
  std::string host = "127.0.0.1";
  std::int64_t port = 8080;
  std::string api_key = {};
  std::string api_key_file = {};
  std::vector<std::string> allow_host = {};
  std::vector<std::string> allow_origin = {};

  std::int64_t context_length = 0;  // of prompt and answer; 0: the model's, as far as memory goes
  std::int64_t max_sequences = 16;  // answers that are written at the same time
  std::int64_t max_queue = 256;     // further ones that wait
  std::int64_t max_new_tokens = 0;  // of a chat that sets no limit; 0: to the end of the context
  std::int64_t max_step_ms = 200;
  std::string max_memory = {};  // of the process: "8GB"; "": what is available
  std::string kv_memory = {};   // of keys and values; "": half of what is left
  bool has_seed = false;
  std::int64_t seed = 0;  // of requests without one

  std::string runs = {};                // folder of training runs, and of jobs
  std::string max_file_size = "100MB";  // of an uploaded file
  std::string adapter_dir = {};         // where load_lora_adapter finds adapters
  std::int64_t max_lora_rank = 64;      // of adapters that come later
  std::string log_requests = {};        // folder of conversations and marks; "": none are kept
  bool page = true;

  // Adds all but `model`.
  void Declare(OptionTable& table);
  // Adapters come of requests and of jobs, beside those of the command line.
  bool gets_adapters() const { return !adapter_dir.empty() || !runs.empty(); }
  // Errors: InvalidInput for values that are none.
  void Check() const;
};

}  // namespace qlora

#endif  // QLORA_SERVE_SERVE_OPTIONS_H_
