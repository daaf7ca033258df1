// Tensors with their bytes, as a safetensors file holds them.
#ifndef TESTS_IO_STORED_TENSOR_H_
#define TESTS_IO_STORED_TENSOR_H_

#include <cstddef>
#include <filesystem>
#include <vector>

#include "io/safetensors_writer.h"
#include "io/tensor_file.h"

namespace qlora {

struct StoredTensor {
  TensorInfo info;
  std::vector<std::byte> bytes;
};

inline void WriteTensors(const std::filesystem::path& path,
                         const std::vector<StoredTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const StoredTensor& tensor : tensors) infos.push_back(tensor.info);
  const auto writer = CreateSafetensors(path, infos, {});
  for (const StoredTensor& tensor : tensors) writer->Write(tensor.bytes);
  writer->Finish();
}

}  // namespace qlora

#endif  // TESTS_IO_STORED_TENSOR_H_
