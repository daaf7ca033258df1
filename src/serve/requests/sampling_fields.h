// The fields of a request that say how tokens are chosen, and where an answer ends.
#ifndef QLORA_SERVE_REQUESTS_SAMPLING_FIELDS_H_
#define QLORA_SERVE_REQUESTS_SAMPLING_FIELDS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "serve/generation_service.h"
#include "serve/request_fields.h"
#include "serve/served_models.h"

namespace qlora {

// Limits of numbers of tokens in a request, which the context bounds further.
inline constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();

// Choices of one request, at most.
inline constexpr std::int64_t kMostChoices = 16;

struct AnswerFields {
  std::int64_t choices = 1;  // of each prompt
  bool streams = false;
  bool includes_usage = false;  // of a stream
  std::optional<std::int64_t> max_new_tokens = {};
};
// Reads n, stream, stream_options, max_completion_tokens and its older name max_tokens, which are
// least_tokens or more. Errors: ApiError 400 that names the field.
AnswerFields ReadAnswerFields(const RequestFields& body, std::int64_t least_tokens = 1);

// Reads temperature, top_p, do_sample, top_k, min_p, repetition_penalty (repeat_penalty),
// presence_penalty, frequency_penalty, logit_bias, seed, min_tokens, ignore_eos and cache_prompt.
// What is absent is the model's (ServedModel::sampling). Errors: ApiError 400 that names the field.
void ReadSampling(const RequestFields& body, const ServedModel& model, GenerationRequest& request);

// Reads texts that end an answer: a text, or a list of them; "" is none.
void ReadStops(const RequestFields& body, std::string_view name, GenerationRequest& request);

// The seed of choice i of a request; of choice 0 it is that of the request.
std::int64_t ChoiceSeed(std::int64_t seed, std::int64_t i);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_SAMPLING_FIELDS_H_
