#include "serve/jobs/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "io/json.h"
#include "serve/api_error.h"

namespace qlora {

PageQuery ReadPageQuery(const HttpRequest& request, std::int64_t limit, std::int64_t most) {
  PageQuery query{.limit = limit};
  if (const auto after = request.query.find("after"); after != request.query.end()) {
    query.after = after->second;
  }
  const auto given = request.query.find("limit");
  if (given == request.query.end()) return query;
  const auto number = ParseNumber<std::int64_t>(given->second);
  if (!number || *number < 1 || *number > most) {
    throw ApiError(400, fmt::format("limit: expected a number from 1 to {}", most), "limit");
  }
  query.limit = *number;
  return query;
}

OrderedJson PageOf(const PageSource& source, const PageQuery& query) {
  std::int64_t begin = 0;
  if (!query.after.empty()) {
    while (begin < source.size && source.id(begin) != query.after) ++begin;
    if (begin == source.size) {
      throw ApiError(400, "after: the list has no item of this id", "after");
    }
    ++begin;
  }
  const std::int64_t end = std::min(source.size, begin + query.limit);
  OrderedJson data = OrderedJson::array();
  for (std::int64_t i = begin; i < end; ++i) data.push_back(source.item(i));
  OrderedJson page = {{"object", "list"}, {"data", std::move(data)}};
  page["first_id"] = begin < end ? OrderedJson(source.id(begin)) : OrderedJson();
  page["last_id"] = begin < end ? OrderedJson(source.id(end - 1)) : OrderedJson();
  page["has_more"] = end < source.size;
  return page;
}

}  // namespace qlora
