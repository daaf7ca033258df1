// A server as a whole: models, engine, routes, connections.
#ifndef QLORA_SERVE_RUNNING_SERVER_H_
#define QLORA_SERVE_RUNNING_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "qlora/context.h"
#include "serve/loaded_models.h"
#include "serve/serve_options.h"
#include "serve/serve_plan.h"

namespace qlora {

class RunningServer {
 public:
  // Loads the models, and answers until it is destroyed. version: of the program; log: a line at a
  // time, from any thread. All must outlive this. Errors: InvalidInput, OutOfMemory.
  RunningServer(Context& context, const ServeOptions& options, const std::string& version,
                std::function<void(const std::string& line)> log, const ProgressFn& progress);
  ~RunningServer();
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  const LoadedModels& models() const;
  const ServePlan& plan() const;
  std::int64_t port() const;

  // Takes no further connections, refuses requests that have not begun, has a running job write a
  // checkpoint and end, and waits until what runs is answered, but not longer; what is not by then gets
  // an error. True when all is answered.
  bool Drain(std::chrono::milliseconds longest);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_RUNNING_SERVER_H_
