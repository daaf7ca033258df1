// Files of safetensors with known content, and files that are broken.
#ifndef QLORA_TESTS_IO_SAFETENSORS_FIXTURE_H_
#define QLORA_TESTS_IO_SAFETENSORS_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/safetensors.h"
#include "io/tensor_file.h"
#include "io/test_util.h"

namespace qlora {

// A file with any header and data.
inline std::string FileWith(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  void ExpectHeaderRefused(const std::string& header, const std::string& data,
                           const std::string& message) {
    const std::filesystem::path path = folder_ / "bad.safetensors";
    WriteTextFile(path, FileWith(header, data));
    ExpectRefused([&] { OpenSafetensors(path); }, message);
    ExpectRefused([&] { OpenSafetensors(path); }, "bad.safetensors");
  }

  // Writes tensors of the declared sizes; byte j of tensor i is i * 17 + j.
  void WriteAll(TensorWriter& writer, const std::vector<TensorInfo>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      writer.Write(BytesOfVector(Content(i, tensors[i])));
    writer.Finish();
  }
  static std::vector<unsigned char> Content(std::size_t i, const TensorInfo& tensor) {
    std::vector<unsigned char> bytes(tensor.bytes());
    std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(i * 17));
    return bytes;
  }
  static std::vector<std::string> NamesOf(const TensorReader& reader) {
    std::vector<std::string> names;
    for (const TensorInfo& tensor : reader.tensors()) names.push_back(tensor.name);
    return names;
  }

  TemporaryFolder folder_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_IO_SAFETENSORS_FIXTURE_H_
