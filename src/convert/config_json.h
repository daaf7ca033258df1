// config.json of a decoder that was read from a GGUF file, in the spelling of transformers.
#ifndef QLORA_CONVERT_CONFIG_JSON_H_
#define QLORA_CONVERT_CONFIG_JSON_H_

#include <string>
#include <vector>

#include "config/config.h"
#include "gguf/gguf.h"
#include "io/json_fwd.h"
#include "io/tensor_file.h"
#include "io/tensor_type.h"

namespace qlora {

// Returns a config.json that ParseDecoderConfig reads as the decoder of the file. The text part of
// a model that sees is a model of text (qwen2 for qwen2vl). What a GGUF file has as divisors of the
// rotary frequencies is llama3 where it is that, and longrope otherwise; norms are w - 1 again in
// families that store them so. Errors: InvalidInput naming what no config.json of the family can
// state.
Json ConfigJsonOf(const GgufReader& file);

// Where config.json declares layers that predict further tokens (MTP), which none of the written
// tensors is of, sets their number to 0, since servers look for them. Returns a remark, or "".
std::string DropUnwrittenMtp(const std::vector<TensorInfo>& written, const DecoderConfig& decoder,
                             Json& config);

// The type that dense tensors of a GGUF file get in a checkpoint, by the type of its embedding.
// That of blocks is float16, but of Gemma bfloat16.
DType DenseTypeOf(const TensorType& embedding, const DecoderConfig& config);

// The value of torch_dtype, in which transformers computes: that of the tensors, but never float16
// for Gemma, whose values are beyond its range.
const char* TorchDtypeOf(DType tensors, const DecoderConfig& config);

}  // namespace qlora

#endif  // QLORA_CONVERT_CONFIG_JSON_H_
