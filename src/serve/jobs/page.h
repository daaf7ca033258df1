// Lists of the API, a page at a time: {"object": "list", "data", "has_more", ...}.
#ifndef QLORA_SERVE_JOBS_PAGE_H_
#define QLORA_SERVE_JOBS_PAGE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "io/json_fwd.h"
#include "serve/http_server.h"

namespace qlora {

struct PageQuery {
  std::string after = {};  // the id of the last item that the client has; "": from the start
  std::int64_t limit = 20;
};

// Reads after and limit. Errors: ApiError 400 for a limit that is not 1 to `most`.
PageQuery ReadPageQuery(const HttpRequest& request, std::int64_t limit, std::int64_t most);

// An ordered list of `size` items.
struct PageSource {
  std::int64_t size = 0;
  std::function<std::string(std::int64_t i)> id;
  std::function<OrderedJson(std::int64_t i)> item;
};
// Errors: ApiError 400 when no item has the id `after`.
OrderedJson PageOf(const PageSource& source, const PageQuery& query);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_PAGE_H_
