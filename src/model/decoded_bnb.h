// Weights in 4 bits of bitsandbytes (io/bnb.h) as dense ones: tables, routers and parameters of
// several linears, which layers read as numbers or in other pieces.
#ifndef QLORA_MODEL_DECODED_BNB_H_
#define QLORA_MODEL_DECODED_BNB_H_

#include <memory>
#include <set>
#include <string>

#include "io/tensor_file.h"

namespace qlora {

// The tensors of `stored` with these weights, of which all HasQuantState, in the type that they had
// before they were quantized, decoded as they are read, and without the other pieces of them.
// Errors: as ReadBnb.
std::unique_ptr<TensorReader> WithDecodedBnb(std::unique_ptr<TensorReader> stored,
                                             std::set<std::string> weights);

}  // namespace qlora

#endif  // QLORA_MODEL_DECODED_BNB_H_
