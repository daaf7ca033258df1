#include "records/record_error.h"

#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "io/test_util.h"

namespace qlora {
namespace {

template <typename Body>
void RunAtLine3(const Body& body) {
  NamePlace([] { return "d.jsonl:3"; }, body);
}

TEST(RecordErrorTest, EveryExceptionBecomesAnErrorWithItsPlace) {
  ExpectRefused([] { RunAtLine3([] { throw std::length_error("too long"); }); },
                "d.jsonl:3: too long");
  ExpectRefused([] { RunAtLine3([] { nlohmann::json::parse("[]").at(3); }); },
                "d.jsonl:3: [json.exception");
  const Error error = ErrorOf([] { RunAtLine3([] { throw Error(ErrorCode::kRuntime, "disk"); }); });
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  EXPECT_STREQ(error.what(), "d.jsonl:3: disk");
  EXPECT_THROW(RunAtLine3([] { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST(RecordErrorTest, ThePlaceIsAskedForOnlyWhenItIsNeeded) {
  int asked = 0;
  const auto place = [&asked] { return std::to_string(++asked); };
  EXPECT_EQ(NamePlace(place, [] { return 7; }), 7);
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace qlora
