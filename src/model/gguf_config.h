// The decoder that a GGUF file describes, by the rules of llama.cpp: which keys it reads, what
// their defaults are, and what it computes without a key. Where those differ from what the model
// was trained with (windows that llama.cpp ignores, YaRN's parameters), the file is followed as
// llama.cpp follows it, and DecoderConfig::notes says so.
//
// Tensors tell what keys do not: the rows of the embedding, biases, whether the head is tied, and
// the divisors of rotary frequencies. The norms of Gemma are 1 + w in GGUF, so that one_plus_norm
// is false.
#ifndef QLORA_MODEL_GGUF_CONFIG_H_
#define QLORA_MODEL_GGUF_CONFIG_H_

#include "gguf/gguf.h"
#include "model/config.h"

namespace qlora {

// Errors: InvalidInput naming the file and the key: keys that llama.cpp needs and the file lacks,
// an architecture that is not supported, files that are no models, settings that contradict each
// other.
DecoderConfig ParseGgufConfig(const GgufReader& file);

}  // namespace qlora

#endif  // QLORA_MODEL_GGUF_CONFIG_H_
