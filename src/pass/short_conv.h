// The buffers that a short convolution (LFM2) adds to a pass; short_conv.cc has its steps.
#ifndef QLORA_PASS_SHORT_CONV_H_
#define QLORA_PASS_SHORT_CONV_H_

#include <cstdint>

#include "backend/backend.h"
#include "base/arena.h"
#include "model/config.h"

namespace qlora {

// The activations of one layer.
struct ShortConvActivations {
  MatrixView in;  // (N, 3*D) act: the gates b and c, and x
};

// Scratch that all layers share.
struct ShortConvScratch {
  MatrixView bx;     // (N, D) act: b * x
  MatrixView conv;   // (N, D) act: of bx; the backward pass leaves the gradient of bx here
  MatrixView gated;  // (N, D) act: c * conv, the input of the last linear
  // Backward only.
  MatrixView d_gated;  // (N, D) act; then the gradient of conv
  MatrixView d_in;     // (N, 3*D) act
};

ShortConvActivations LayoutShortConv(Carver& carver, const DecoderConfig& config,
                                     const Precision& precision, std::int64_t rows);
ShortConvScratch LayoutShortConvScratch(Carver& carver, const DecoderConfig& config,
                                        const Precision& precision, std::int64_t rows,
                                        bool training);

}  // namespace qlora

#endif  // QLORA_PASS_SHORT_CONV_H_
