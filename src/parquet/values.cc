#include "parquet/values.h"

#include <bit>
#include <string>

#include "base/check.h"
#include "parquet/delta.h"
#include "parquet/rle_bit_packed.h"

namespace qlora::parquet {
namespace {

constexpr std::uint64_t kLengthBytes = 4;

// Bytes of a number in PLAIN; 0 for other types.
int WidthOf(Physical physical) {
  if (physical == Physical::kInt32 || physical == Physical::kFloat) return 4;
  return physical == Physical::kInt64 || physical == Physical::kDouble ? 8 : 0;
}

// A stored number as Value::bits: float32 becomes a double, 32 bits are extended by their sign, or
// by zeros where the column is unsigned.
std::uint64_t Widen(std::uint64_t raw, const Node& leaf) {
  const auto word = static_cast<std::uint32_t>(raw);
  if (leaf.physical == Physical::kFloat) {
    return std::bit_cast<std::uint64_t>(static_cast<double>(std::bit_cast<float>(word)));
  }
  if (leaf.physical != Physical::kInt32) return raw;
  return leaf.kind == Kind::kUnsigned ? word
                                      : static_cast<std::uint64_t>(static_cast<std::int32_t>(word));
}

// The first `count` bytes of `bytes`, which moves behind them.
std::string_view TakeBytes(std::string_view& bytes, std::uint64_t count) {
  if (count > bytes.size()) ThrowInvalidInput("the values of a page end too early");
  const std::string_view taken = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return taken;
}

std::uint64_t TakeLength(std::string_view& bytes) {
  return BitsAt(TakeBytes(bytes, kLengthBytes), 0, 32);
}

std::uint64_t LengthOf(std::int64_t length) {
  if (length < 0) ThrowInvalidInput("a text has the negative length {}", length);
  return static_cast<std::uint64_t>(length);
}

// Little-endian numbers, one behind the other.
class PlainNumbers : public ValueReader {
 public:
  PlainNumbers(const Node& leaf, std::string_view bytes) : leaf_(leaf), bytes_(bytes) {}
  Value Next() override {
    const int width = WidthOf(leaf_.physical);
    return {Widen(BitsAt(TakeBytes(bytes_, width), 0, 8 * width), leaf_), {}};
  }

 private:
  const Node& leaf_;
  std::string_view bytes_;
};

// A bit each, the lowest of a byte first.
class PlainBooleans : public ValueReader {
 public:
  explicit PlainBooleans(std::string_view bytes) : bytes_(bytes) {}
  Value Next() override {
    if (bit_ / 8 >= bytes_.size()) ThrowInvalidInput("the booleans of a page end too early");
    return {BitsAt(bytes_, bit_++, 1), {}};
  }

 private:
  std::string_view bytes_;
  std::uint64_t bit_ = 0;
};

// A length of 4 bytes in front of each text.
class PlainTexts : public ValueReader {
 public:
  explicit PlainTexts(std::string_view bytes) : bytes_(bytes) {}
  Value Next() override {
    const std::uint64_t length = TakeLength(bytes_);
    return {0, TakeBytes(bytes_, length)};
  }

 private:
  std::string_view bytes_;
};

// A length of 4 bytes, then runs of values of one bit (rle_bit_packed.h).
class RleBooleans : public ValueReader {
 public:
  explicit RleBooleans(std::string_view bytes) {
    const std::uint64_t length = TakeLength(bytes);
    bits_ = RleBitPackedReader(TakeBytes(bytes, length), 1);
  }
  Value Next() override { return {bits_.Next(), {}}; }

 private:
  RleBitPackedReader bits_;
};

// A byte with the width of an index, then runs of indices (rle_bit_packed.h).
class DictionaryValues : public ValueReader {
 public:
  DictionaryValues(std::string_view bytes, const std::vector<Value>& dictionary)
      : dictionary_(dictionary) {
    const auto width = static_cast<std::uint8_t>(TakeBytes(bytes, 1)[0]);
    indices_ = RleBitPackedReader(bytes, width);
  }
  Value Next() override {
    const std::uint32_t index = indices_.Next();
    if (index >= dictionary_.size()) {
      ThrowInvalidInput("index {} exceeds a dictionary of {} values", index, dictionary_.size());
    }
    return dictionary_[index];
  }

 private:
  const std::vector<Value>& dictionary_;
  RleBitPackedReader indices_;
};

// Differences (delta.h).
class DeltaNumbers : public ValueReader {
 public:
  DeltaNumbers(const Node& leaf, std::string_view bytes, std::int64_t count)
      : leaf_(leaf), values_(bytes, count) {}
  Value Next() override { return {Widen(static_cast<std::uint64_t>(values_.Next()), leaf_), {}}; }

 private:
  const Node& leaf_;
  DeltaReader values_;
};

// Lengths, then the bytes of all texts.
class DeltaLengthTexts : public ValueReader {
 public:
  DeltaLengthTexts(std::string_view bytes, std::int64_t count)
      : lengths_(bytes, count), bytes_(lengths_.Rest()) {}
  Value Next() override { return {0, TakeBytes(bytes_, LengthOf(lengths_.Next()))}; }

 private:
  DeltaReader lengths_;
  std::string_view bytes_;
};

// Each text begins with a part of the text before: lengths of these parts, then the rests:
//
//   "apple", "apply", "ape"   ->   0, 4, 2   and   "apple", "y", "e"
class DeltaTexts : public ValueReader {
 public:
  DeltaTexts(std::string_view bytes, std::int64_t count)
      : prefixes_(bytes, count), suffixes_(prefixes_.Rest(), count) {}
  Value Next() override {
    const std::uint64_t prefix = LengthOf(prefixes_.Next());
    if (prefix > text_.size()) {
      ThrowInvalidInput("a text repeats {} bytes of a text that has {}", prefix, text_.size());
    }
    text_.resize(prefix);
    text_ += suffixes_.Next().text;
    return {0, text_};
  }

 private:
  DeltaReader prefixes_;
  DeltaLengthTexts suffixes_;
  std::string text_;
};

// Byte 0 of all numbers, then byte 1 of all numbers ...: byte k of number i is at k * count + i.
// Bytes of equal weight compress better side by side.
class SplitNumbers : public ValueReader {
 public:
  SplitNumbers(const Node& leaf, std::string_view bytes, std::int64_t count)
      : leaf_(leaf), bytes_(bytes), count_(count) {
    if (std::ssize(bytes) / WidthOf(leaf.physical) < count) {
      ThrowInvalidInput("the numbers of a page end too early");
    }
  }
  Value Next() override {
    std::uint64_t raw = 0;
    for (int k = 0; k < WidthOf(leaf_.physical); ++k) {
      raw |= std::uint64_t{static_cast<std::uint8_t>(bytes_[k * count_ + next_])} << 8 * k;
    }
    ++next_;
    return {Widen(raw, leaf_), {}};
  }

 private:
  const Node& leaf_;
  std::string_view bytes_;
  std::int64_t count_;
  std::int64_t next_ = 0;
};

// The reader of a page without values, in which some writers leave out all bytes.
class NoValues : public ValueReader {
 public:
  Value Next() override { ThrowInvalidInput("a page has no values"); }
};

std::unique_ptr<ValueReader> MakePlain(const Node& leaf, std::string_view bytes) {
  if (leaf.physical == Physical::kBoolean) return std::make_unique<PlainBooleans>(bytes);
  if (leaf.physical == Physical::kByteArray) return std::make_unique<PlainTexts>(bytes);
  return std::make_unique<PlainNumbers>(leaf, bytes);
}

}  // namespace

std::unique_ptr<ValueReader> MakeValueReader(std::int32_t encoding, const Node& leaf,
                                             std::string_view bytes, std::int64_t count,
                                             const std::vector<Value>* dictionary) {
  const bool is_boolean = leaf.physical == Physical::kBoolean;
  const bool is_text = leaf.physical == Physical::kByteArray;
  const bool is_integer = leaf.physical == Physical::kInt32 || leaf.physical == Physical::kInt64;
  const bool is_number = WidthOf(leaf.physical) > 0;
  if (count == 0) return std::make_unique<NoValues>();
  switch (encoding) {
    case kPlain:
      if (is_boolean || is_text || is_number) return MakePlain(leaf, bytes);
      break;
    case kPlainDictionary:
    case kRleDictionary:
      if (dictionary == nullptr) ThrowInvalidInput("a page needs a dictionary and there is none");
      return std::make_unique<DictionaryValues>(bytes, *dictionary);
    case kRle:
      if (is_boolean) return std::make_unique<RleBooleans>(bytes);
      break;
    case kDeltaBinaryPacked:
      if (is_integer) return std::make_unique<DeltaNumbers>(leaf, bytes, count);
      break;
    case kDeltaLengthByteArray:
      if (is_text) return std::make_unique<DeltaLengthTexts>(bytes, count);
      break;
    case kDeltaByteArray:
      if (is_text) return std::make_unique<DeltaTexts>(bytes, count);
      break;
    case kByteStreamSplit:
      if (is_number) return std::make_unique<SplitNumbers>(leaf, bytes, count);
      break;
    default:
      break;
  }
  ThrowInvalidInput("values of type {} in encoding {} are not supported",
                    static_cast<int>(leaf.physical), encoding);
}

}  // namespace qlora::parquet
