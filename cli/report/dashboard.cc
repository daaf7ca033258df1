#include "report/dashboard.h"

#include <fmt/format.h>

#include "report/report_page.h"

namespace qlora {

Dashboard::Dashboard(std::int64_t port, std::string run_dir)
    : url_(fmt::format("http://127.0.0.1:{}/", port)),
      server_(port, [run_dir = std::move(run_dir)](std::string_view path) -> HttpResponse {
        if (path == "/") {
          // The page without data, which asks for /data.json again and again.
          return {.type = "text/html; charset=utf-8",
                  .body = ReportPage("{\"live\":true,\"runs\":[]}")};
        }
        if (path == "/data.json") {
          // Logs are read for each request: the trainer shares nothing with this thread but the
          // files.
          return {.type = "application/json", .body = ReportData({run_dir}, true)};
        }
        return {.status = 404, .body = "there is no such page\n"};
      }) {}

}  // namespace qlora
