#include "serve/jobs/page.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/json.h"
#include "serve/api_error.h"

namespace qlora {
namespace {

const std::vector<std::string> kIds = {"a", "b", "c", "d", "e"};

PageSource Source() {
  return {.size = std::ssize(kIds),
          .id = [](std::int64_t i) { return kIds[i]; },
          .item =
              [](std::int64_t i) {
                return OrderedJson{{"id", kIds[i]}};
              }};
}

HttpRequest RequestOf(std::map<std::string, std::string> query) {
  HttpRequest request;
  request.query = std::move(query);
  return request;
}

TEST(PageTest, PagesHaveEachItemOnce) {
  std::string after, ids;
  for (bool more = true; more;) {
    const OrderedJson page = PageOf(Source(), {.after = after, .limit = 2});
    EXPECT_EQ(page["object"], "list");
    for (const OrderedJson& item : page["data"]) ids += item["id"].get<std::string>();
    after = page["last_id"].get<std::string>();
    more = page["has_more"].get<bool>();
  }
  EXPECT_EQ(ids, "abcde");
}

TEST(PageTest, TheEndIsAnEmptyPage) {
  const OrderedJson page = PageOf(Source(), {.after = "e"});
  EXPECT_TRUE(page["data"].empty());
  EXPECT_EQ(page["has_more"], false);
  EXPECT_TRUE(page["last_id"].is_null());
}

TEST(PageTest, RefusesWhatIsNoPlaceOrNumber) {
  EXPECT_THROW(PageOf(Source(), {.after = "x"}), ApiError);
  for (const char* limit : {"0", "-1", "101", "two", "1.5", ""}) {
    EXPECT_THROW(ReadPageQuery(RequestOf({{"limit", limit}}), 20, 100), ApiError) << limit;
  }
  EXPECT_EQ(ReadPageQuery(RequestOf({{"limit", "100"}}), 20, 100).limit, 100);
  EXPECT_EQ(ReadPageQuery(RequestOf({{"after", "b"}}), 20, 100).after, "b");
  EXPECT_EQ(ReadPageQuery(RequestOf({}), 20, 100).limit, 20);
}

}  // namespace
}  // namespace qlora
