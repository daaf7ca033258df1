// The events of one job: lines of JSON, which are only added. Event number n is line n of the file,
// so that its id says where it is.
#ifndef QLORA_SERVE_JOBS_JOB_EVENTS_H_
#define QLORA_SERVE_JOBS_JOB_EVENTS_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/json_fwd.h"
#include "serve/jobs/page.h"

namespace qlora {

class JobEvents {
 public:
  // Takes the lines of a file that is there; what a crash has cut off is removed from it. Errors:
  // InvalidInput, Runtime.
  JobEvents(std::filesystem::path path, std::string job_id);

  // Both add an event, and change nothing where that fails. Errors: as AppendWhole (base/file.h).
  //
  // level: info, warn, error.
  void Say(std::string_view level, std::string_view message);
  // An event of type metrics of a step, which is larger than the one before.
  void AddMetrics(std::string_view message, const OrderedJson& data);
  // The last step with metrics; 0: none.
  std::int64_t last_step() const { return last_step_; }

  // A page of them, the newest first. Errors: ApiError 400.
  OrderedJson Page(const PageQuery& query) const;

 private:
  std::string IdOf(std::int64_t number) const;
  void Add(OrderedJson event);

  std::filesystem::path path_;
  std::string job_id_;
  std::int64_t size_ = 0;
  std::int64_t last_step_ = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_JOB_EVENTS_H_
