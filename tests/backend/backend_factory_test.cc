#include "backend/backend_factory.h"

#include <gtest/gtest.h>

#include "qlora/context.h"
#include "qlora/error.h"

namespace qlora {
namespace {

TEST(BackendFactory, AContextDecidesBeforeTheOption) {
  Context context(1);
  const BackendFactory::Ptr given = BackendFactory::Of("cpu");
  BackendFactory::GiveTo(context, given);
  for (const char* device : {"auto", "cpu", "cuda"}) {
    EXPECT_EQ(BackendFactory::ForJob(context, device), given) << device;
  }
  BackendFactory::GiveTo(context, nullptr);
  EXPECT_NE(BackendFactory::ForJob(context, "cpu"), given);
  EXPECT_THROW(BackendFactory::ForJob(context, "cuda"), Error);
}

}  // namespace
}  // namespace qlora
