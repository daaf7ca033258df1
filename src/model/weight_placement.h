// Places the parts of frozen weights where a backend reads them: in the mapped file, or in memory
// that is carved. While the carver only counts, nothing is copied.
#ifndef QLORA_MODEL_WEIGHT_PLACEMENT_H_
#define QLORA_MODEL_WEIGHT_PLACEMENT_H_

#include <cstddef>

#include "backend/backend.h"
#include "base/arena.h"

namespace qlora {

class WeightPlacement {
 public:
  // read: false while the carver counts.
  WeightPlacement(Backend& backend, WeightUse use, Carver& carver, bool read)
      : backend_(backend), use_(use), carver_(carver), read_(read) {}

  // Places host values, which stay where they are as long as the weight, for `use`. A dense weight
  // whose rows are misaligned is copied.
  WeightView Place(const WeightView& host, WeightUse use);
  // Places a weight whose rows are looked up: pages that are used in place do not count as mapped,
  // because they are given back after each use.
  WeightView PlaceRows(const WeightView& host);
  // Copies host values that go away.
  WeightView Copy(const WeightView& host) { return Place(host, WeightUse::kGeneration); }
  // Places a weight of stored 4 bits, with the copy in the order of the backend.
  WeightView PlaceFourBit(QuantizedView host);
  // Adds what the backend makes of a quantized weight that is in its memory already.
  WeightView Prepacked(WeightView placed);

  bool generates() const { return use_ == WeightUse::kGeneration; }
  WeightUse use() const { return use_; }
  Backend& backend() { return backend_; }
  Carver& carver() { return carver_; }
  bool read() const { return read_; }
  // Bytes that are used in place.
  std::size_t mapped() const { return mapped_; }

 private:
  // A part of a weight as the backend reads it.
  template <typename T>
  void Adopt(const T*& data, std::size_t bytes, WeightUse use);

  Backend& backend_;
  WeightUse use_;
  Carver& carver_;
  bool read_;
  std::size_t mapped_ = 0;
};

}  // namespace qlora

#endif  // QLORA_MODEL_WEIGHT_PLACEMENT_H_
