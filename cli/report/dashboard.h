// The live page of a training run, for browsers on this machine only. An answer has a bounded
// number of points and of bytes of samples (log/log_reader.h) besides the run's options and the
// report on its data (files, names of fields), which are not bounded; large ones are made once for
// all clients (http_server.h), and none is made unless a browser asks. The memory plan does not
// count them.
#ifndef QLORA_CLI_REPORT_DASHBOARD_H_
#define QLORA_CLI_REPORT_DASHBOARD_H_

#include <cstdint>
#include <string>

#include "report/http_server.h"

namespace qlora {

// Serves / (the page) and /data.json (the record of the run, as it is now) until it is destroyed.
// Reads the files of the run and nothing else.
class Dashboard {
 public:
  // Errors: InvalidInput when the port cannot be had.
  Dashboard(std::int64_t port, std::string run_dir);

  const std::string& url() const { return url_; }

 private:
  std::string url_;
  HttpServer server_;
};

}  // namespace qlora

#endif  // QLORA_CLI_REPORT_DASHBOARD_H_
