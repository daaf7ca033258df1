// The live page of a training run, for browsers on this machine only.
#ifndef QLORA_CLI_REPORT_DASHBOARD_H_
#define QLORA_CLI_REPORT_DASHBOARD_H_

#include <cstdint>
#include <memory>
#include <string>

namespace qlora {

// Serves / (the page) and /data.json (the record of the run, as it is now) on 127.0.0.1 from a
// thread of its own, until it is destroyed. It reads the files of the run and nothing else.
// Requests whose Host header does not name this machine are refused, so that pages of other sites
// cannot read it under a name of theirs.
class Dashboard {
 public:
  // Errors: InvalidInput when the port is none or is taken.
  Dashboard(std::int64_t port, std::string run_dir);
  ~Dashboard();

  const std::string& url() const { return url_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string url_;
};

}  // namespace qlora

#endif  // QLORA_CLI_REPORT_DASHBOARD_H_
