// The float32 reference against the float64 reference: the same bounds that every backend keeps.
#include "backend/op_cases.h"

namespace qlora::testing_util {
namespace {

INSTANTIATE_TEST_SUITE_P(Reference, OpTest,
                         testing::Values(BackendUnderTest{.name = "f32",
                                                          .make = MakeReferenceBackend,
                                                          .precision = {DType::kF32, DType::kF32},
                                                          .compute = DType::kF32}),
                         NameOfParam);

}  // namespace
}  // namespace qlora::testing_util
