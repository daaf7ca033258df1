#include "io/formats.h"

namespace qlora {

std::int64_t TensorInfo::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::size_t TensorInfo::bytes() const {
  return BytesOf(dtype, static_cast<std::size_t>(elements()));
}

}  // namespace qlora
