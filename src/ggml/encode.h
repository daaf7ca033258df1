// Numbers to blocks, with as small a squared error as a search finds. The results are the same bits
// on every machine.
//
// Scales and codes are chosen together: for given codes the best scale is a least squares solution,
// for a given scale the nearest codes are the best, and the search tries many starts
// (scale_fit-inl.h, affine_fit-inl.h; super_scales-inl.h and super_affine-inl.h for formats with
// two levels of scales). Every scale is taken as it will be stored before codes are chosen, so
// scales that are subnormal or zero in float16 cost no more than they must. Q8_0 alone has the
// bytes of llama.cpp.
#ifndef QLORA_GGML_ENCODE_H_
#define QLORA_GGML_ENCODE_H_

#include <cstddef>

#include "ggml/block_format.h"

namespace qlora {

// blocks = `count` blocks of `row` (count * values of a block). importance (as long as row, finite,
// not negative): weights of the squared errors, or null for 1. Columns of importance 0 count a
// little, so that they get sensible codes. Returns -1, or the index of a value that is NaN or
// beyond what the format can store; then blocks are not written. Errors (InvalidInput): the format
// is not `encodable`.
[[nodiscard]] std::int64_t EncodeBlocks(BlockFormat format, const float* row, std::int64_t count,
                                        const float* importance, std::byte* blocks);

}  // namespace qlora

#endif  // QLORA_GGML_ENCODE_H_
