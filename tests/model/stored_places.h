// Where a reader that shows tensors in another form says that the file has their values.
#ifndef QLORA_TESTS_MODEL_STORED_PLACES_H_
#define QLORA_TESTS_MODEL_STORED_PLACES_H_

#include <gtest/gtest.h>

#include <cstring>

#include "io/tensor_file.h"

namespace qlora {

inline float ValueAt(const TensorReader& reader, const TensorInfo& tensor, std::int64_t element) {
  float value;
  std::memcpy(&value, reader.Bytes(tensor).data() + element * sizeof(value), sizeof(value));
  return value;
}

// All tensors are of F32 and unscaled. stored: the tensors of the files of `shown`.
inline void ExpectStoredPlaces(const TensorReader& shown, const TensorReader& stored) {
  for (const TensorInfo& tensor : shown.tensors()) {
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      const StoredValue place = shown.StoredAt(tensor, i);
      const TensorInfo* source = stored.Find(place.tensor->name);
      ASSERT_NE(source, nullptr) << place.tensor->name;
      ASSERT_LT(place.element, source->elements());
      ASSERT_EQ(ValueAt(stored, *source, place.element), ValueAt(shown, tensor, i))
          << tensor.name << " " << i;
    }
  }
}

}  // namespace qlora

#endif  // QLORA_TESTS_MODEL_STORED_PLACES_H_
