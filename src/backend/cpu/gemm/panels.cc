#include "backend/cpu/gemm/panels.h"

#include <algorithm>

namespace qlora::cpu {
namespace {

struct Panel {
  std::int64_t lane;  // the first one
  std::int64_t lanes;
  std::int64_t width;   // lanes, rounded up to whole vectors
  std::int64_t offset;  // in bytes, from the first panel
};

// Calls body(panel) for every panel of k values.
template <typename Body>
void ForEachPanel(const Kernels& kernels, std::int64_t lanes, std::int64_t k, const Body& body) {
  const std::int64_t bytes = RoundUp(k, kernels.step) * kernels.bytes;  // of a lane
  for (std::int64_t lane = 0; lane < lanes; lane += kernels.panel) {
    const std::int64_t count = std::min(kernels.panel, lanes - lane);
    // Panels before this one are full, so `lane` lanes of `bytes` bytes precede it.
    body(Panel{lane, count, RoundUp(count, kernels.vector), lane * bytes});
  }
}

}  // namespace

void PackPanels(const Kernels& kernels, const ConstMatrixView& in, void* panels) {
  ForEachPanel(kernels, in.cols, in.rows, [&](const Panel& p) {
    kernels.pack_panel_of_columns(Columns(in, p.lane, p.lanes),
                                  static_cast<std::byte*>(panels) + p.offset, p.width);
  });
}

void PackPanelsOfRows(const Kernels& kernels, const ConstMatrixView& in, void* panels) {
  ForEachPanel(kernels, in.rows, in.cols, [&](const Panel& p) {
    kernels.pack_panel_of_rows(Rows(in, p.lane, p.lanes),
                               static_cast<std::byte*>(panels) + p.offset, p.width);
  });
}

void MultiplyPanels(const Kernels& kernels, const Product& product, std::int64_t lanes,
                    const ConstMatrixView& next) {
  ForEachPanel(kernels, lanes, product.k, [&](const Panel& p) {
    Product part = product;
    // Panels before this one fetch the line that they share with it.
    const std::size_t begin = BytesOf(next.dtype, p.lane);
    if (!next.empty() && begin % kCacheLine == 0) {
      part.fetch = static_cast<const std::byte*>(next.data) + begin;
      part.fetch_lines = next.rows;
      part.fetch_stride = static_cast<std::int64_t>(BytesOf(next.dtype, next.stride));
    }
    part.panel = static_cast<const std::byte*>(product.panel) + p.offset;
    part.c = product.c + p.lane;
    part.width = p.width;
    kernels.multiply(part);
  });
}

}  // namespace qlora::cpu
