// One test body for every op, instantiated for each backend: generated cases, run once on the
// backend under test and once on the reference backend in float64, compared within a bound that is
// computed from the operands and the roundings that the op contract allows.
//
// op_test.cc includes this header and instantiates the suite for every backend.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_H_
#define QLORA_TESTS_BACKEND_OP_CASES_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"

namespace qlora::testing_util {

struct BackendUnderTest {
  std::string name;  // letters, digits and underscores
  std::function<std::unique_ptr<Backend>()> make;
  Precision precision;
  DType compute = DType::kF32;  // what the backend rounds operands of matrix products to
};

inline std::string NameOfParam(const testing::TestParamInfo<BackendUnderTest>& info) {
  return info.param.name;
}
inline void PrintTo(const BackendUnderTest& param, std::ostream* out) { *out << param.name; }

class OpTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  OpTest() : backend_(GetParam().make()), reference_(MakeReferenceBackend()) {}

  DType activation() const { return GetParam().precision.activation; }
  DType wide() const { return GetParam().precision.wide; }
  // Inputs are generated with values that the compute type can hold, so that only what a backend
  // computes itself may be rounded to it.
  DType precise() const {
    return GetParam().compute == DType::kBF16 || activation() == DType::kBF16 ? DType::kBF16
                                                                              : DType::kF64;
  }
  double compute_unit() const { return GetParam().compute == DType::kBF16 ? 0x1p-8 : 0; }

  Backend& backend() { return *backend_; }
  Backend& reference() { return *reference_; }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> reference_;
};

}  // namespace qlora::testing_util

#include "backend/op_cases_activation.h"
#include "backend/op_cases_attention.h"
#include "backend/op_cases_experts.h"
#include "backend/op_cases_linear.h"
#include "backend/op_cases_loss.h"
#include "backend/op_cases_optimizer.h"
#include "backend/op_cases_rows.h"

#endif  // QLORA_TESTS_BACKEND_OP_CASES_H_
