// What the routes of a server share.
#ifndef QLORA_SERVE_SERVER_H_
#define QLORA_SERVE_SERVER_H_

#include <atomic>
#include <functional>
#include <string>

#include "serve/generation_service.h"
#include "serve/metrics.h"
#include "serve/serve_options.h"
#include "serve/served_models.h"
#include "serve/workers.h"

namespace qlora {

class FineTuning;
class RequestLog;

struct Server {
  ServedModels& models;
  GenerationService& generation;
  Metrics& metrics;
  const ServeOptions& options;
  Workers& workers;
  // Writes a line of the log; from any thread.
  std::function<void(const std::string& line)> log;
  // Passes over it run on the thread of the engine; null where tests have none.
  LoadedModel* base = nullptr;
  // Jobs, where there is a folder for them; null: none.
  FineTuning* fine_tuning = nullptr;
  // Conversations and marks, where they are kept; null: they are not.
  RequestLog* request_log = nullptr;
  // No new requests are taken: ApiError 503.
  std::atomic<bool> stops = false;
};

}  // namespace qlora

#endif  // QLORA_SERVE_SERVER_H_
