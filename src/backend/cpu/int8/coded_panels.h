// Rows of activations as panels of codes: the lanes of Int8Product.
#ifndef QLORA_BACKEND_CPU_INT8_CODED_PANELS_H_
#define QLORA_BACKEND_CPU_INT8_CODED_PANELS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/views.h"
#include "backend/int8/codes.h"
#include "base/arena.h"
#include "base/index_range.h"
#include "qlora/tensor.h"

namespace qlora::cpu {

// A column that some lanes of a panel keep in float32.
struct SpikeColumn {
  std::int32_t column;
  std::uint32_t lanes;  // bit i: lane i
};

// At most kInt8Lanes rows.
struct CodedPanel {
  std::int64_t row;  // the first one
  std::int64_t rows;
  std::int64_t lane;  // the first one
  std::int64_t width;
  std::int8_t* codes;    // (k / kInt8Step, width, kInt8Step), k rounded up to kInt8Depth
  float* scales;         // (groups, width)
  std::int32_t* starts;  // (groups, width)
  SpikeColumn* spikes;   // ascending
  std::int32_t* spike_count;
};

// Room for rows of `k` columns. A panel is as wide as its rows, rounded up to whole vectors.
class CodedPanels {
 public:
  CodedPanels() = default;
  // Rows [0, rows). are_single: a panel of each row, for Int8Kernels::dots.
  CodedPanels(Carver& carver, std::int64_t rows, std::int64_t k, bool are_single = false)
      : CodedPanels(carver, {{{0, rows}}}, k, are_single) {}
  // Ranges of rows, whose panels follow one another and have rows of one range each.
  CodedPanels(Carver& carver, std::span<const IndexRange> ranges, std::int64_t k,
              bool are_single = false);

  bool are_single() const { return most_ == 1; }
  std::int64_t count() const { return std::ssize(places_); }
  // Lanes of all panels.
  std::int64_t lanes() const { return lanes_; }
  CodedPanel operator[](std::int64_t panel) const;
  // The codes of the panel that comes next, of these values of k or of those after them.
  const std::int8_t* CodesBehind(std::int64_t panel, std::int64_t k, std::int64_t depth) const {
    const bool last = panel + 1 == count();
    const CodedPanel next = (*this)[last ? 0 : panel + 1];
    return next.codes + std::min(last ? k + depth : k, k_ - depth) * next.width;
  }
  std::int64_t k() const { return k_; }

 private:
  std::int64_t groups() const { return Pieces(k_, int8::kGroup); }
  std::int64_t most_spikes() const { return std::min(k_, most_ * groups() * int8::Spikes::kMost); }

  struct Place {
    std::int64_t row;
    std::int64_t rows;
    std::int64_t lane;
  };

  std::vector<Place> places_;
  std::int64_t lanes_ = 0;
  std::int64_t most_ = kInt8Lanes;  // rows of a panel
  std::int64_t k_ = 0;
  MatrixView codes_;
  MatrixView scales_;
  MatrixView starts_;
  MatrixView spikes_;
  MatrixView spike_counts_;
};

// The order of columns within a group; kPaired: as of PairCodes.
enum class CodeOrder : std::uint8_t { kPlain, kPaired };

// Codes the rows of x that are those of the panel: x(n, i), times factors[i] unless that is null.
void PackCodes(const ConstMatrixView& x, const float* factors, CodeOrder order,
               const CodedPanel& panel);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_INT8_CODED_PANELS_H_
