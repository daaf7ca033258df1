// The grids of the IQ1, IQ2 and IQ3 formats: rows of 4 or 8 magnitudes (IQ1: of values) that a code
// names by number. The rows are data of ggml's formats, from ggml, which is under the MIT licence:
// copyright "The ggml authors".
#ifndef QLORA_GGML_GRIDS_H_
#define QLORA_GGML_GRIDS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace qlora {

template <std::size_t kRows, std::size_t kValues>
using Grid = std::array<std::array<std::int8_t, kValues>, kRows>;

extern const Grid<256, 8> kIq2XxsGrid;
extern const Grid<512, 8> kIq2XsGrid;
extern const Grid<1024, 8> kIq2SGrid;
extern const Grid<256, 4> kIq3XxsGrid;
extern const Grid<512, 4> kIq3SGrid;
extern const Grid<2048, 8> kIq1Grid;

}  // namespace qlora

#endif  // QLORA_GGML_GRIDS_H_
