#include "backend/cpu/gemm/panels.h"

#include <algorithm>

namespace qlora::cpu {
namespace {

// Calls body(first lane, lanes, width, offset in bytes) for every panel of k values.
template <typename Body>
void ForEachPanel(const Kernels& kernels, std::int64_t lanes, std::int64_t k, const Body& body) {
  const std::int64_t bytes = RoundUp(k, kernels.step) * kernels.panel * kernels.bytes;
  std::int64_t offset = 0;
  for (std::int64_t lane = 0; lane < lanes; lane += kernels.panel, offset += bytes) {
    const std::int64_t count = std::min(kernels.panel, lanes - lane);
    body(lane, count, RoundUp(count, kernels.vector), offset);
  }
}

}  // namespace

void PackPanels(const Kernels& kernels, const ConstMatrixView& in, void* panels) {
  ForEachPanel(kernels, in.cols, in.rows,
               [&](std::int64_t lane, std::int64_t lanes, std::int64_t width, std::int64_t offset) {
                 kernels.pack_panel_of_columns(Block(in, 0, in.rows, lane, lanes),
                                               static_cast<std::byte*>(panels) + offset, width);
               });
}

void PackPanelsOfRows(const Kernels& kernels, const ConstMatrixView& in, void* panels) {
  ForEachPanel(kernels, in.rows, in.cols,
               [&](std::int64_t lane, std::int64_t lanes, std::int64_t width, std::int64_t offset) {
                 kernels.pack_panel_of_rows(Rows(in, lane, lanes),
                                            static_cast<std::byte*>(panels) + offset, width);
               });
}

void MultiplyPanels(const Kernels& kernels, const Product& product, std::int64_t lanes) {
  ForEachPanel(kernels, lanes, product.k,
               [&](std::int64_t lane, std::int64_t, std::int64_t width, std::int64_t offset) {
                 Product part = product;
                 part.panel = static_cast<const std::byte*>(product.panel) + offset;
                 part.c = product.c + lane;
                 part.width = width;
                 kernels.multiply(part);
               });
}

}  // namespace qlora::cpu
