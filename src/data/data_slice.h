// A part of the records of a file: "data.jsonl[:1000]", "data.jsonl[-10%:]".
#ifndef QLORA_DATA_DATA_SLICE_H_
#define QLORA_DATA_DATA_SLICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace qlora {

struct DataSlice {
  // The number of a record, or a share of them in percent; below 0: counted from the end.
  struct Bound {
    double value = 0;
    bool is_percent = false;
  };
  std::optional<Bound> begin;
  std::optional<Bound> end;  // the first record behind the slice

  bool is_whole() const { return !begin && !end; }
  // The first record and the one behind the last, as Python slices a list of `records`. A share is
  // rounded to whole records, as Hugging Face's library `datasets` does.
  std::pair<std::int64_t, std::int64_t> Of(std::int64_t records) const;
};

// Takes a slice from the end of `text`, which then is the text before it; nothing, and `text` as it
// was, where it does not end in one: "[...]" without a colon is a pattern of file names.
std::optional<DataSlice> TakeSlice(std::string& text);

}  // namespace qlora

#endif  // QLORA_DATA_DATA_SLICE_H_
