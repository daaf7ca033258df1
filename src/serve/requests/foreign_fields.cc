#include "serve/requests/foreign_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace qlora {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// What a field asks for; fields of one kind stand for each other, but for those of prompts.
enum class Kind {
  kAdapter,
  kInput,
  kTools,
  kLater,  // answers that are fetched when they are there
  kTokens,
  kStop,
  kChoices,
  kScores,
  kPrompt,
  kSystem,
  kThought,
  kForm,
  kWrapped,  // fields that other servers have in an object of their own
  kSampling,
  kWindow,  // of a repetition penalty: idle without one
  kState,   // what a decision is about, in place of kInput
  kDecision,
};

struct ForeignField {
  std::string_view name;
  Kind kind;
  double idle = kNone;  // the number that changes nothing; 0 and 1 are false and true, too
  std::string_view instead = {};  // what all interfaces have in its place
};

// Of llama-server, vLLM, SGLang, TGI, LoRAX, Ollama, mlx_lm, text-generation-webui, TabbyAPI,
// Mistral, and the interfaces here.
constexpr ForeignField kFields[] = {
    {"lora", Kind::kAdapter, kNone, "model"},
    {"lora_path", Kind::kAdapter, kNone, "model"},
    {"lora_request", Kind::kAdapter, kNone, "model"},
    {"adapter_id", Kind::kAdapter, kNone, "model"},
    {"adapter_source", Kind::kAdapter, kNone, "model"},
    {"adapter_parameters", Kind::kAdapter, kNone, "model"},
    {"adapters", Kind::kAdapter, kNone, "model"},
    {"adapter", Kind::kAdapter, kNone, "model"},
    {"messages", Kind::kInput},
    {"prompt", Kind::kInput},
    {"input", Kind::kInput},
    {"previous_response_id", Kind::kInput},
    {"conversation", Kind::kInput},
    {"thread", Kind::kInput},
    {"background", Kind::kLater, 0},
    {"tools", Kind::kTools},
    {"functions", Kind::kTools},
    {"mcp_servers", Kind::kTools},
    {"max_tokens", Kind::kTokens},
    {"max_completion_tokens", Kind::kTokens},
    {"max_output_tokens", Kind::kTokens},
    {"max_new_tokens", Kind::kTokens},
    {"n_predict", Kind::kTokens, -1},
    {"num_predict", Kind::kTokens, -1},
    {"t_max_predict_ms", Kind::kTokens, 0},
    {"stop", Kind::kStop},
    {"stop_sequences", Kind::kStop},
    {"stop_token_ids", Kind::kStop},
    {"stop_regex", Kind::kStop},
    {"include_stop_str_in_output", Kind::kStop, 0},
    {"no_stop_trim", Kind::kStop, 0},
    {"eos_token_id", Kind::kStop},
    {"ban_eos_token", Kind::kStop, 0, "ignore_eos"},
    {"ignore_eos_token", Kind::kStop, 0, "ignore_eos"},
    {"min_new_tokens", Kind::kStop, 0, "min_tokens"},
    {"n", Kind::kChoices, 1},
    {"n_cmpl", Kind::kChoices, 1},
    {"best_of", Kind::kChoices, 1},
    {"use_beam_search", Kind::kSampling, 0},
    {"num_beams", Kind::kSampling, 1},
    {"length_penalty", Kind::kSampling, 1},
    {"logprobs", Kind::kScores, 0},
    {"n_probs", Kind::kScores, 0},
    {"top_logprobs", Kind::kScores, 0},
    {"prompt_logprobs", Kind::kScores},
    {"return_token_ids", Kind::kScores, 0},
    {"return_tokens_as_token_ids", Kind::kScores, 0},
    {"return_hidden_states", Kind::kScores, 0},
    {"echo", Kind::kPrompt, 0},
    {"suffix", Kind::kPrompt},
    {"images", Kind::kPrompt, 0},
    {"image_data", Kind::kPrompt, 0},
    {"audio_data", Kind::kPrompt, 0},
    {"video_data", Kind::kPrompt, 0},
    {"multi_modal_data", Kind::kPrompt, 0},
    {"context", Kind::kPrompt},
    {"input_prefix", Kind::kPrompt},
    {"input_suffix", Kind::kPrompt},
    {"chat_template", Kind::kPrompt},
    {"instruction_template", Kind::kPrompt},
    {"character", Kind::kPrompt},
    {"documents", Kind::kPrompt},
    {"prompt_embeds", Kind::kPrompt},
    {"input_ids", Kind::kPrompt},
    {"session_params", Kind::kPrompt},
    {"template", Kind::kPrompt},
    {"raw", Kind::kPrompt, 0},
    {"safe_prompt", Kind::kPrompt, 0},
    {"tool_prompt", Kind::kPrompt},
    {"guideline", Kind::kPrompt},
    {"response_prefix", Kind::kPrompt},
    {"add_bos_token", Kind::kPrompt, 1},
    {"add_special_tokens", Kind::kPrompt, 0},
    {"add_generation_prompt", Kind::kPrompt, 1},
    {"continue_final_message", Kind::kPrompt, 0},
    {"truncate", Kind::kPrompt},
    {"truncate_prompt_tokens", Kind::kPrompt},
    {"truncation_length", Kind::kPrompt, 0},
    {"skip_special_tokens", Kind::kPrompt, 1},
    {"spaces_between_special_tokens", Kind::kPrompt, 1},
    {"system", Kind::kSystem},
    {"instructions", Kind::kSystem},
    {"reasoning_effort", Kind::kThought},
    {"reasoning", Kind::kThought},
    {"thinking", Kind::kThought},
    {"think", Kind::kThought},
    {"enable_thinking", Kind::kThought},
    {"chat_template_kwargs", Kind::kThought},
    {"template_vars", Kind::kThought},
    {"thinking_budget", Kind::kThought, -1},
    {"thinking_budget_tokens", Kind::kThought, -1},
    {"thinking_token_budget", Kind::kThought, -1},
    {"reasoning_budget", Kind::kThought, -1},
    {"include_reasoning", Kind::kThought, 1},
    {"separate_reasoning", Kind::kThought, 1},
    {"format", Kind::kForm},
    {"regex", Kind::kForm},
    {"ebnf", Kind::kForm},
    {"structural_tag", Kind::kForm},
    {"grammar_string", Kind::kForm},
    {"options", Kind::kWrapped, kNone, "its fields in the body itself"},
    {"parameters", Kind::kWrapped, kNone, "its fields in the body itself"},
    {"sampling_params", Kind::kWrapped, kNone, "its fields in the body itself"},
    {"extra_body", Kind::kWrapped, kNone, "its fields in the body itself"},
    {"extra_args", Kind::kSampling},
    {"vllm_xargs", Kind::kSampling},
    {"custom_logit_processor", Kind::kSampling},
    {"logits_processors", Kind::kSampling},
    {"samplers", Kind::kSampling},
    {"sampler_priority", Kind::kSampling},
    {"preset", Kind::kSampling},
    {"random_seed", Kind::kSampling, kNone, "seed"},
    {"sampling_seed", Kind::kSampling, kNone, "seed"},
    {"bad_words", Kind::kSampling, kNone, "logit_bias"},
    {"banned_tokens", Kind::kSampling, kNone, "logit_bias"},
    {"banned_strings", Kind::kSampling},
    {"custom_token_bans", Kind::kSampling, kNone, "logit_bias"},
    {"allowed_token_ids", Kind::kSampling},
    {"watermark", Kind::kSampling, 0},
    {"typical", Kind::kSampling, 1},
    {"typical_p", Kind::kSampling, 1},
    {"tfs", Kind::kSampling, 1},
    {"tfs_z", Kind::kSampling, 1},
    {"top_a", Kind::kSampling, 0},
    {"top_n_sigma", Kind::kSampling, -1},
    {"adaptive_target", Kind::kSampling, -1},
    {"mirostat", Kind::kSampling, 0},
    {"mirostat_mode", Kind::kSampling, 0},
    {"dynamic_temperature", Kind::kSampling, 0},
    {"dynatemp_range", Kind::kSampling, 0},
    {"temperature_last", Kind::kSampling, 0},
    {"xtc_probability", Kind::kSampling, 0},
    {"dry_multiplier", Kind::kSampling, 0},
    {"smoothing_factor", Kind::kSampling, 0},
    {"epsilon_cutoff", Kind::kSampling, 0},
    {"eta_cutoff", Kind::kSampling, 0},
    {"penalty_alpha", Kind::kSampling, 0},
    {"guidance_scale", Kind::kSampling, 1},
    {"cfg_scale", Kind::kSampling, 1},
    {"rep_pen", Kind::kSampling, 1, "repetition_penalty"},
    {"encoder_repetition_penalty", Kind::kSampling, 1},
    {"no_repeat_ngram_size", Kind::kSampling, 0},
    {"repeat_last_n", Kind::kWindow, -1},
    {"repetition_context_size", Kind::kWindow},
    {"repetition_penalty_range", Kind::kWindow, 0},
    {"penalty_range", Kind::kWindow, -1},
    {"state", Kind::kState},
    {"temperature", Kind::kDecision, 1},
    {"decision_temperature", Kind::kDecision},
    {"decision_template", Kind::kDecision},
    {"permutations", Kind::kDecision, 1},
};

enum class Asked { kText, kDecision };

// How a text is written, and where it ends, changes no decision.
bool Changes(Kind kind, Asked asked) {
  switch (kind) {
    case Kind::kTokens:
    case Kind::kStop:
    case Kind::kChoices:
    case Kind::kScores:
    case Kind::kForm:
    case Kind::kSampling:
    case Kind::kWindow:
      return asked == Asked::kText;
    case Kind::kState:
    case Kind::kDecision:
      return asked == Asked::kDecision;
    default:
      return true;
  }
}

// A model may have a penalty of its own where the request says nothing.
bool HasNoPenalty(const RequestFields& body) {
  const char* name = body.Has("repetition_penalty") ? "repetition_penalty" : "repeat_penalty";
  const OrderedJson* penalty = body.Find(name);
  return penalty != nullptr && *penalty == 1;
}

bool IsIdle(const OrderedJson& value, double idle) {
  if (value.is_boolean()) return static_cast<double>(value.get<bool>()) == idle;
  if (value.is_number()) return value.get<double>() == idle;
  // A text or a list with nothing in it.
  return value.empty() || value == "";
}

bool StandForEachOther(Kind a, Kind b) {
  const auto input = [](Kind kind) { return kind == Kind::kState ? Kind::kInput : kind; };
  return a != Kind::kPrompt && input(a) == input(b);
}

using Names = std::initializer_list<std::string_view>;

void RefuseFields(const RequestFields& body, Names own, Asked asked) {
  const auto is_own = [&](std::string_view name) { return std::ranges::count(own, name) != 0; };
  for (const ForeignField& field : kFields) {
    const OrderedJson* value = body.Find(field.name);
    if (value == nullptr || is_own(field.name) || IsIdle(*value, field.idle)) continue;
    if (!Changes(field.kind, asked)) continue;
    if (field.kind == Kind::kWindow && HasNoPenalty(body)) continue;
    std::string others;
    if (!field.instead.empty()) others = fmt::format("; this interface has {}", field.instead);
    for (const ForeignField& other : kFields) {
      if (!StandForEachOther(other.kind, field.kind) || !is_own(other.name)) continue;
      others += fmt::format("{}{}", others.empty() ? "; this interface has " : ", ", other.name);
    }
    body.Refuse(field.name,
                fmt::format("is not offered here{}", others.empty() ? "; leave it out" : others));
  }
}

}  // namespace

void RefuseForeign(const RequestFields& body, Names own) { RefuseFields(body, own, Asked::kText); }

void RefuseForeignToDecision(const RequestFields& body, Names own) {
  RefuseFields(body, own, Asked::kDecision);
}

void RefuseForeignInMessage(const RequestFields& message) {
  // Ollama's, and those of other servers that read more than text.
  for (const char* name : {"images", "image_url", "videos", "audios"}) {
    const OrderedJson* value = message.Find(name);
    if (value == nullptr || IsIdle(*value, 0)) continue;
    message.Refuse(name, "the model reads text alone; leave it out");
  }
}

}  // namespace qlora
