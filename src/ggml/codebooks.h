// Tables of formats whose codes are not evenly spaced.
#ifndef QLORA_GGML_CODEBOOKS_H_
#define QLORA_GGML_CODEBOOKS_H_

#include <array>
#include <cstdint>

namespace qlora {

using Codebook = std::array<std::int8_t, 16>;

// IQ4_NL and IQ4_XS.
inline constexpr Codebook kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};

// MXFP4 and NVFP4: twice the value of the e2m1 number that the code is. Code 8, which is -0 there,
// is +0 here.
inline constexpr Codebook kE2m1Values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace qlora

#endif  // QLORA_GGML_CODEBOOKS_H_
