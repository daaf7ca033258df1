#include "serve/requests/sampling_fields.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "base/random.h"
#include "base/text.h"

namespace qlora {
namespace {

constexpr std::int64_t kMostBiases = 1024;
constexpr std::int64_t kMostStops = 16;
constexpr std::size_t kMostStopBytes = 256;

std::int64_t DrawSeed() {
  std::random_device device;
  const std::uint64_t high = device();
  // Below 2^53, which any client reads back as it is.
  return static_cast<std::int64_t>((high << 21) ^ device()) & ((std::int64_t{1} << 53) - 1);
}

// Any number of 64 bits, with a sign or without.
void ReadSeed(const RequestFields& body, const ServedModel& model, GenerateOptions& options) {
  const OrderedJson* seed = body.Find("seed");
  if (seed == nullptr) {
    options.seed = model.seed ? *model.seed : DrawSeed();
  } else if (seed->is_number_unsigned()) {
    options.seed = static_cast<std::int64_t>(seed->get<std::uint64_t>());
  } else {
    options.seed = AsInteger(*seed, body.PathOf("seed"));
  }
}

void ReadBiases(const RequestFields& body, std::int64_t vocabulary, GenerationRequest& request) {
  const std::optional<RequestFields> biases = body.Object("logit_bias");
  if (!biases) return;
  if (std::ssize(biases->json()) > kMostBiases) {
    body.Refuse("logit_bias", fmt::format("has more than {} tokens", kMostBiases));
  }
  for (const auto& [token, value] : biases->json().items()) {
    const std::optional<std::int32_t> id = ParseNumber<std::int32_t>(token);
    if (!id || *id < 0 || *id >= vocabulary) {
      body.Refuse("logit_bias",
                  fmt::format("expected ids of tokens from 0 to {} as names, found \"{}\"",
                              vocabulary - 1, FirstBytes(token, 40)));
    }
    const double bias = AsNumber(value, biases->PathOf(token), -100, 100);
    request.logit_bias.emplace_back(
        *id, bias == -100 ? -std::numeric_limits<float>::infinity() : static_cast<float>(bias));
  }
}

}  // namespace

AnswerFields ReadAnswerFields(const RequestFields& body, std::int64_t least_tokens) {
  AnswerFields fields;
  fields.choices = body.Integer("n", 1, kMostChoices).value_or(1);
  fields.streams = body.Bool("stream").value_or(false);
  if (const auto stream = body.Object("stream_options")) {
    if (!fields.streams)
      body.Refuse("stream_options", "is of streams; set stream, or leave it out");
    fields.includes_usage = stream->Bool("include_usage").value_or(false);
  }
  fields.max_new_tokens = body.Integer("max_tokens", least_tokens);
  const auto newer = body.Integer("max_completion_tokens", least_tokens);
  if (newer) fields.max_new_tokens = newer;
  return fields;
}

void ReadSampling(const RequestFields& body, const ServedModel& model, GenerationRequest& request) {
  GenerateOptions& options = request.options;
  options = model.sampling;
  // TGI's: false takes the likeliest token, whatever the temperature is.
  const std::optional<bool> samples = body.Bool("do_sample");
  if (samples) options.do_sample = *samples && options.temperature > 0;
  if (const auto temperature = body.Number("temperature", 0, 100)) {
    options.temperature = *temperature;
    options.do_sample = *temperature > 0 && samples.value_or(true);
  }
  if (const auto top_p = body.Number("top_p", 0, 1)) {
    options.top_p = *top_p > 0 ? *top_p : 1;
    if (*top_p == 0) options.do_sample = false;
  }
  if (const auto top_k = body.Integer("top_k", -1, kMostTokens)) {
    options.top_k = std::max<std::int64_t>(*top_k, 0);
  }
  if (const auto min_p = body.Number("min_p", 0, 1)) options.min_p = *min_p;
  // The second name is llama.cpp's.
  const char* repetition = body.Has("repetition_penalty") ? "repetition_penalty" : "repeat_penalty";
  if (const auto penalty = body.Number(repetition, 0.01, 100)) {
    options.repetition_penalty = *penalty;
  }
  request.presence_penalty = body.Number("presence_penalty", -2, 2).value_or(0);
  request.frequency_penalty = body.Number("frequency_penalty", -2, 2).value_or(0);
  ReadBiases(body, model.vocabulary, request);
  ReadSeed(body, model, options);
  request.min_tokens = body.Integer("min_tokens", 0, kMostTokens).value_or(0);
  request.ignore_eos = body.Bool("ignore_eos").value_or(false);
  request.keeps_prompt = body.Bool("cache_prompt").value_or(true);
}

void ReadStops(const RequestFields& body, std::string_view name, GenerationRequest& request) {
  const OrderedJson* stops = body.Find(name);
  if (stops == nullptr) return;
  const auto add = [&](const OrderedJson& value, const std::string& path) {
    const std::string& text = AsText(value, path);
    if (text.size() > kMostStopBytes) {
      RefuseField(path,
                  fmt::format("expected at most {} bytes, found {}", kMostStopBytes, text.size()));
    }
    if (!text.empty()) request.stops.push_back(text);
  };
  if (stops->is_string()) return add(*stops, body.PathOf(name));
  if (!stops->is_array()) body.Refuse(name, "expected text, or a list of texts");
  body.List(name, 0, kMostStops);
  for (std::int64_t i = 0; i < std::ssize(*stops); ++i) {
    add((*stops)[i], ItemPath(body.PathOf(name), i));
  }
}

std::int64_t ChoiceSeed(std::int64_t seed, std::int64_t i) {
  if (i == 0) return seed;
  const RandomKey key = MakeKey(static_cast<std::uint64_t>(seed), RandomPlace::kSampling, 1);
  const auto words = RandomWords(key, static_cast<std::uint64_t>(i));
  return static_cast<std::int64_t>((std::uint64_t{words[0]} << 32) | words[1]);
}

}  // namespace qlora
