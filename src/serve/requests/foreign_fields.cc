#include "serve/requests/foreign_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace qlora {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What a field asks for; fields of one kind stand for each other.
enum class Kind { kTokens, kStop, kChoices, kScores, kPrompt, kSystem, kThought, kSampling };

struct ForeignField {
  std::string_view name;
  Kind kind;
  double idle = kNone;  // the number that changes nothing; 0 and 1 are false and true, too
};

constexpr ForeignField kFields[] = {
    {"max_tokens", Kind::kTokens},
    {"max_completion_tokens", Kind::kTokens},
    {"max_output_tokens", Kind::kTokens},
    {"max_new_tokens", Kind::kTokens},
    {"n_predict", Kind::kTokens, -1},
    {"num_predict", Kind::kTokens, -1},
    {"stop", Kind::kStop},
    {"stop_sequences", Kind::kStop},
    {"stop_token_ids", Kind::kStop},
    {"include_stop_str_in_output", Kind::kStop, 0},
    {"n", Kind::kChoices, 1},
    {"best_of", Kind::kChoices, 1},
    {"use_beam_search", Kind::kSampling, 0},
    {"length_penalty", Kind::kSampling, 1},
    {"logprobs", Kind::kScores, 0},
    {"prompt_logprobs", Kind::kScores},
    {"echo", Kind::kPrompt, 0},
    {"suffix", Kind::kPrompt},
    {"chat_template", Kind::kPrompt},
    {"add_generation_prompt", Kind::kPrompt, 1},
    {"continue_final_message", Kind::kPrompt, 0},
    {"truncate_prompt_tokens", Kind::kPrompt},
    {"skip_special_tokens", Kind::kPrompt, 1},
    {"system", Kind::kSystem},
    {"instructions", Kind::kSystem},
    {"reasoning_effort", Kind::kThought},
    {"reasoning", Kind::kThought},
    {"thinking", Kind::kThought},
    {"enable_thinking", Kind::kThought},
    {"chat_template_kwargs", Kind::kThought},
    {"bad_words", Kind::kSampling},
    {"allowed_token_ids", Kind::kSampling},
    {"typical_p", Kind::kSampling, 1},
    {"tfs_z", Kind::kSampling, 1},
    {"top_a", Kind::kSampling, 0},
    {"top_n_sigma", Kind::kSampling, -1},
    {"mirostat", Kind::kSampling, 0},
    {"mirostat_mode", Kind::kSampling, 0},
    {"dynatemp_range", Kind::kSampling, 0},
    {"xtc_probability", Kind::kSampling, 0},
    {"dry_multiplier", Kind::kSampling, 0},
    {"smoothing_factor", Kind::kSampling, 0},
    {"epsilon_cutoff", Kind::kSampling, 0},
    {"eta_cutoff", Kind::kSampling, 0},
};

bool IsIdle(const OrderedJson& value, double idle) {
  if (value.is_boolean()) return static_cast<double>(value.get<bool>()) == idle;
  if (value.is_number()) return value.get<double>() == idle;
  // A text or a list with nothing in it.
  return value.empty() || value == "";
}

}  // namespace

void RefuseForeign(const RequestFields& body, std::initializer_list<std::string_view> own) {
  const auto is_own = [&](std::string_view name) { return std::ranges::count(own, name) != 0; };
  for (const ForeignField& field : kFields) {
    const OrderedJson* value = body.Find(field.name);
    if (value == nullptr || is_own(field.name) || IsIdle(*value, field.idle)) continue;
    std::string others;
    for (const ForeignField& other : kFields) {
      if (other.kind != field.kind || !is_own(other.name)) continue;
      others += fmt::format("{}{}", others.empty() ? "; this interface has " : ", ", other.name);
    }
    body.Refuse(field.name,
                fmt::format("is not offered here{}", others.empty() ? "; leave it out" : others));
  }
}

}  // namespace qlora
