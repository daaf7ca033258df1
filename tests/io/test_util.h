// What the tests of the file formats share: a temporary folder, errors as values, raw bytes.
#ifndef QLORA_TESTS_IO_TEST_UTIL_H_
#define QLORA_TESTS_IO_TEST_UTIL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>

#include "qlora/error.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {

// The Error that `body` throws; a test failure when it throws none.
template <typename Body>
Error ErrorOf(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kRuntime, "");
}

// Expects InvalidInput whose message contains `part`.
template <typename Body>
void ExpectRefused(const Body& body, const std::string& part) {
  const Error error = ErrorOf(body);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidInput) << error.what();
  EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
}

template <typename T>
std::span<const std::byte> BytesOfVector(const T& values) {
  return std::as_bytes(std::span(values));
}

inline std::string AsString(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace qlora

#endif  // QLORA_TESTS_IO_TEST_UTIL_H_
