#include "model/untrained_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

namespace qlora {
namespace {

constexpr std::int64_t kCoordinates = 256;
constexpr double kParallel = 0.95;  // cosine; of rows that were trained it is far below
constexpr std::int64_t kMany = 8;   // rows that are parallel to one

using Direction = std::vector<float>;  // of length 1, or 0

double Cosine(const Direction& a, const Direction& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void Normalize(Direction& direction) {
  const double length = std::sqrt(Cosine(direction, direction));
  if (length == 0) return;
  for (float& value : direction) value = static_cast<float>(value / length);
}

class Head {
 public:
  Head(Memory& memory, const WeightView& head) : head_(memory, head), row_(head.cols()) {}

  // Some coordinates of a row, evenly spaced.
  Direction At(std::int64_t row) {
    head_.Read(row, row_.data());
    const std::int64_t cols = std::ssize(row_);
    Direction direction(std::min(cols, kCoordinates));
    for (std::int64_t i = 0; i < std::ssize(direction); ++i) {
      direction[i] = row_[i * cols / std::ssize(direction)];
    }
    Normalize(direction);
    return direction;
  }

 private:
  HostWeight head_;
  std::vector<float> row_;
};

// Rows among which untrained ones are looked for: the first and the last, where tokens that are
// kept for later are, and some between.
std::vector<std::int64_t> SampleOf(std::int64_t rows) {
  constexpr std::int64_t kFirst = 128;
  constexpr std::int64_t kLast = 256;
  constexpr std::int64_t kBetween = 384;
  std::set<std::int64_t> sample;
  for (std::int64_t i = 0; i < std::min(rows, kFirst); ++i) sample.insert(i);
  for (std::int64_t i = std::max<std::int64_t>(0, rows - kLast); i < rows; ++i) sample.insert(i);
  for (std::int64_t i = 0; i < kBetween; ++i) sample.insert(i * rows / kBetween);
  return {sample.begin(), sample.end()};
}

// The direction that most rows of a sample have in common; 0 where they have none.
Direction CommonDirection(const std::vector<Direction>& rows) {
  std::vector<std::int64_t> parallel(rows.size(), 0);
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (Cosine(rows[a], rows[b]) < kParallel) continue;
      ++parallel[a];
      ++parallel[b];
    }
  }
  const auto most = std::max_element(parallel.begin(), parallel.end());
  if (most == parallel.end() || *most < kMany) return {};
  const Direction& center = rows[most - parallel.begin()];
  Direction common(center.size(), 0);
  for (const Direction& row : rows) {
    if (Cosine(row, center) < kParallel) continue;
    for (std::size_t i = 0; i < common.size(); ++i) common[i] += row[i];
  }
  Normalize(common);
  return common;
}

}  // namespace

std::vector<std::int32_t> FindUntrainedRows(Memory& memory, const WeightView& head,
                                            std::span<const std::int32_t> ids) {
  Head rows(memory, head);
  std::vector<Direction> sample;
  for (const std::int64_t row : SampleOf(head.rows())) sample.push_back(rows.At(row));
  const Direction common = CommonDirection(sample);
  std::vector<std::int32_t> untrained;
  for (const std::int32_t id : ids) {
    const Direction row = rows.At(id);
    const bool is_zero = std::ranges::all_of(row, [](float value) { return value == 0; });
    if (is_zero || (!common.empty() && Cosine(row, common) >= kParallel)) untrained.push_back(id);
  }
  return untrained;
}

}  // namespace qlora
