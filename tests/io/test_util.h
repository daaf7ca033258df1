// What the tests of the file formats share: a temporary folder, errors as values, raw bytes.
#ifndef QLORA_TESTS_IO_TEST_UTIL_H_
#define QLORA_TESTS_IO_TEST_UTIL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>

#include "qlora/error.h"
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

// A folder that is removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "qlora-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot create " << name;
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

template <typename T>
std::span<const std::byte> BytesOfVector(const T& values) {
  return std::as_bytes(std::span(values));
}

inline std::string AsString(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace qlora

#endif  // QLORA_TESTS_IO_TEST_UTIL_H_
