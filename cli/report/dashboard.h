// The live page of a training run, for browsers on this machine only. An answer has a bounded
// number of points and of bytes of samples (log/log_reader.h) besides the run's options and the
// report on its data (files, names of fields), which are not bounded; it is made once for all
// clients (shared_text.h), and none is made unless a browser asks. Whatever else a client sends or
// leaves unread costs some kilobytes and a connection for some seconds. The memory plan does not
// count them.
#ifndef QLORA_CLI_REPORT_DASHBOARD_H_
#define QLORA_CLI_REPORT_DASHBOARD_H_

#include <cstdint>
#include <string>

#include "report/shared_text.h"
#include "serve/http_server.h"

namespace qlora {

// Errors: InvalidInput unless `port` is 1 to 65535.
void CheckPort(std::int64_t port);

// Serves / (the page) and /data.json (the record of the run, as it is now) until it is destroyed.
// Reads the files of the run and nothing else.
class Dashboard {
 public:
  // Errors: InvalidInput when the port cannot be had.
  Dashboard(std::int64_t port, std::string run_dir);

  const std::string& url() const { return url_; }

 private:
  std::string url_;
  SharedText data_;
  HttpServer server_;
};

}  // namespace qlora

#endif  // QLORA_CLI_REPORT_DASHBOARD_H_
