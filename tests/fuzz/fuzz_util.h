// What the fuzzers of the file formats share. A parser may refuse its input with InvalidInput; any
// other exception, and whatever the sanitizers see, ends the run.
#ifndef QLORA_TESTS_FUZZ_FUZZ_UTIL_H_
#define QLORA_TESTS_FUZZ_FUZZ_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "io/tensor_file.h"
#include "qlora/error.h"

namespace qlora {

// Runs body and swallows its refusals.
template <typename Body>
void Attack(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidInput) std::abort();
    if (error.what()[0] == '\0') std::abort();
  }
}

// A folder for the input files, in memory where the system has that; removed at exit.
class FuzzFolder {
 public:
  FuzzFolder() {
    const bool memory = std::filesystem::is_directory("/dev/shm");
    std::string name = std::string(memory ? "/dev/shm" : "/tmp") + "/qlora-fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~FuzzFolder() { std::filesystem::remove_all(path_); }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path Put(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
    return file;
  }

 private:
  std::filesystem::path path_;
};

// A safetensors file whose header length is right: mutations then reach what lies behind it.
inline std::string SafetensorsOf(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out.append(header).append(data);
}

// The text up to the next 0 byte; moves `rest` behind it.
inline std::string_view TakeText(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view text = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return text;
}

// Reads every byte of every tensor and looks every tensor up.
inline void ReadAll(const TensorReader& reader) {
  unsigned sum = 0;
  for (const TensorInfo& tensor : reader.tensors()) {
    if (reader.Find(tensor.name) != &tensor) std::abort();
    for (const std::byte byte : reader.Bytes(tensor)) sum += static_cast<unsigned>(byte);
    reader.Release(tensor);
  }
  asm volatile("" : : "r"(sum));  // the sum counts as used, so every byte is read
}

}  // namespace qlora

#endif  // QLORA_TESTS_FUZZ_FUZZ_UTIL_H_
