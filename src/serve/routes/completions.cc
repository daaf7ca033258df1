// POST /v1/completions: texts that are continued as they are.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/json.h"
#include "prompt/prompt_renderer.h"
#include "serve/request_fields.h"
#include "serve/requests/answer_format.h"
#include "serve/requests/conversation_request.h"
#include "serve/requests/foreign_fields.h"
#include "serve/requests/sampling_fields.h"
#include "serve/routes/completion_set.h"
#include "serve/routes/logprob_json.h"
#include "serve/routes/routes.h"

namespace qlora {
namespace {

constexpr std::int64_t kMostPrompts = 64;
constexpr std::int64_t kUnsetTokens = 16;

struct TextPrompt {
  PromptTokens tokens = {};
  std::string text = {};
};

struct CompletionRequest {
  ServedModelPtr model = {};
  std::vector<TextPrompt> prompts = {};
  GenerationRequest generation = {};
  AnswerFields answers = {};
  bool echoes = false;
};

// answer: tokens that it has at least.
void CheckTokens(const ServedModel& model, std::int64_t tokens, std::int64_t answer,
                 const std::string& path) {
  if (tokens + answer <= model.context_length) return;
  throw ContextExceeded(model.context_length, fmt::format("{} tokens", tokens), path);
}

TextPrompt PromptOfText(const ServedModel& model, const std::string& text, std::int64_t answer,
                        const std::string& path) {
  CheckPromptText(model, text, path);
  std::vector<std::int32_t> tokens = EncodePrompt(*model.tokenizer, {.text = text});
  const std::optional<std::int32_t> begin = model.tokenizer->bos_id();
  if (tokens.empty() && begin) tokens = {*begin};
  CheckTokens(model, std::ssize(tokens), answer, path);
  return {std::move(tokens), text};
}

TextPrompt PromptOfIds(const ServedModel& model, const OrderedJson& ids, std::int64_t answer,
                       const std::string& path) {
  if (ids.empty()) RefuseField(path, "expected at least one token id");
  CheckTokens(model, std::ssize(ids), answer, path);
  TextPrompt prompt = {AsTokenIds(ids, path, model.vocabulary)};
  prompt.text = model.tokenizer->Decode(prompt.tokens, false);
  return prompt;
}

// A text, ids, a list of texts, or a list of lists of ids.
std::vector<TextPrompt> ReadPrompts(const RequestFields& body, const ServedModel& model,
                                    const GenerationService& generation,
                                    const AnswerFields& answers) {
  const std::int64_t choices = answers.choices;
  const std::int64_t least = std::min<std::int64_t>(answers.max_new_tokens.value_or(1), 1);
  const std::string path = body.PathOf("prompt");
  const OrderedJson* prompt = body.Find("prompt");
  if (prompt == nullptr) body.Refuse("prompt", "is missing");
  if (!prompt->is_string() && (!prompt->is_array() || prompt->empty())) {
    body.Refuse("prompt", "expected text, token ids, or a list of these");
  }
  const bool is_list = prompt->is_array() && !prompt->front().is_number();
  if (is_list) body.List("prompt", 1, kMostPrompts);
  CheckAnswers(generation, is_list ? std::ssize(*prompt) : 1, choices);
  if (prompt->is_string()) return {PromptOfText(model, prompt->get<std::string>(), least, path)};
  if (!is_list) return {PromptOfIds(model, *prompt, least, path)};
  std::vector<TextPrompt> prompts;
  for (std::int64_t i = 0; i < std::ssize(*prompt); ++i) {
    const OrderedJson& one = (*prompt)[i];
    const std::string place = ItemPath(path, i);
    if (!one.is_string() && !one.is_array()) RefuseField(place, "expected text, or token ids");
    prompts.push_back(one.is_string() ? PromptOfText(model, one.get<std::string>(), least, place)
                                      : PromptOfIds(model, one, least, place));
  }
  return prompts;
}

CompletionRequest ReadCompletion(const RequestFields& body, const Server& server) {
  CompletionRequest request;
  request.model = server.models.Find(body.Text("model").value_or(""));
  request.echoes = body.Bool("echo").value_or(false);
  // Of a prompt that is shown, nothing may be written.
  request.answers = ReadAnswerFields(body, request.echoes ? 0 : 1);
  const std::int64_t choices = request.answers.choices;
  request.prompts = ReadPrompts(body, *request.model, server.generation, request.answers);
  if (!body.Text("suffix").value_or("").empty()) {
    body.Refuse("suffix", "texts are continued at their ends alone");
  }
  GenerationRequest& generation = request.generation;
  RefuseForeign(body, {"prompt", "max_tokens", "max_completion_tokens", "stop", "n", "best_of",
                       "logprobs", "echo", "suffix", "add_special_tokens"});
  if (!body.Bool("add_special_tokens").value_or(true)) {
    body.Refuse("add_special_tokens", "texts get them here; send the prompt as token ids");
  }
  RefuseOtherForms(body, "response_format");
  generation.format = ReadAnswerFormat(body, "response_format", *request.model);
  generation.model = request.model;
  ReadSampling(body, *request.model, generation);
  ReadStops(body, "stop", generation);
  CheckKeepsForm(generation);
  generation.options.max_new_tokens = request.answers.max_new_tokens.value_or(
      server.options.max_new_tokens > 0 ? server.options.max_new_tokens : kUnsetTokens);
  generation.top_logprobs = body.Integer("logprobs", 0, 20);
  generation.wants_prompt_logprobs = request.echoes && generation.top_logprobs;
  if (body.Integer("best_of", 1, kMostChoices).value_or(choices) != choices) {
    body.Refuse("best_of", "answers are not picked from more than n");
  }
  return request;
}

std::vector<GenerationRequest> RequestsOf(const CompletionRequest& request) {
  std::vector<GenerationRequest> requests;
  for (const TextPrompt& prompt : request.prompts) {
    for (std::int64_t i = 0; i < request.answers.choices; ++i) {
      GenerationRequest& one = requests.emplace_back(request.generation);
      one.prompt = prompt.tokens;
      one.options.seed = ChoiceSeed(one.options.seed, i);
    }
  }
  return requests;
}

class CompletionAnswer final : public CompletionSet {
 public:
  CompletionAnswer(Server& server, HttpReplyPtr reply, CompletionRequest request,
                   const std::string& id)
      : CompletionSet(server, std::move(reply), *request.model, request.answers, "cmpl-" + id,
                      "text_completion"),
        request_(std::move(request)) {
    std::size_t text = 0;
    for (const TextPrompt& prompt : request_.prompts) text += prompt.text.size();
    const auto shown = static_cast<std::size_t>(request_.echoes ? request_.answers.choices : 0);
    held().Add((1 + shown) * text, "prompt", "shorten the prompts");
    const std::int64_t count = std::ssize(request_.prompts) * request_.answers.choices;
    for (std::int64_t i = 0; i < count; ++i) {
      choices_.emplace_back(*request_.model->tokenizer, PromptOf(i));
    }
  }

 protected:
  void Begin() override {
    if (streams_) stream_.emplace(reply(), RoomFor(BytesOfEcho()));
    if (!request_.echoes) return;
    for (std::int64_t i = 0; i < std::ssize(choices_); ++i) {
      Show(i, PromptOf(i), nullptr);
    }
  }

  void Add(std::int64_t i, GenerationPiece piece) override {
    std::span<const AnswerToken> prompt = piece.prompt;
    while (!prompt.empty()) {
      const std::size_t part = std::min(kPromptPart, prompt.size());
      Show(i, "", LogprobsOf(i, prompt.first(part), true));
      prompt = prompt.subspan(part);
    }
    if (piece.text.empty() && piece.tokens.empty()) return;
    if (server().request_log != nullptr) choices_[i].answer += piece.text;
    Show(i, piece.text, piece.tokens.empty() ? nullptr : LogprobsOf(i, piece.tokens, false));
  }

  void End(std::int64_t i, const GenerationEnd& end) override {
    choices_[i].finish_reason = FinishReason(end.reason);
    if (stream_) SendChoice(i, "text", "", nullptr, choices_[i].finish_reason);
  }

  std::vector<std::string> Whole() override {
    std::vector<std::string> texts;
    for (Choice& choice : choices_) {
      std::string logprobs = "{}";
      for (std::size_t list = 0; list < choice.values.size(); ++list) {
        AppendField(logprobs, CompletionLogprobs::kLists[list],
                    "[" + std::exchange(choice.values[list], {}) + "]");
      }
      if (!request_.generation.top_logprobs) logprobs = "null";
      texts.push_back(
          ChoiceText(std::ssize(texts), "text", choice.text, logprobs, choice.finish_reason));
    }
    return texts;
  }

  LoggedQuestion Question() override { return {}; }
  std::vector<LoggedAnswer> Answers() override {
    std::vector<LoggedAnswer> answers;
    for (const Choice& choice : choices_) {
      answers.push_back(
          {.message = {{"prompt", PromptOf(std::ssize(answers))}, {"completion", choice.answer}},
           .is_whole = choice.finish_reason == "stop"});
    }
    return answers;
  }

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, std::string_view prompt) : logprobs(tokenizer, prompt) {}

    CompletionLogprobs logprobs;
    std::string text = {};    // with the prompt, of echo
    std::string answer = {};  // that is kept
    std::array<std::string, CompletionLogprobs::kLists.size()> values = {};  // items of each list
    std::string finish_reason = {};
  };

  // Trees of JSON of a whole prompt would take several times the memory of their text.
  static constexpr std::size_t kPromptPart = 256;

  const std::string& PromptOf(std::int64_t i) const {
    return request_.prompts[i / request_.answers.choices].text;
  }

  OrderedJson LogprobsOf(std::int64_t i, std::span<const AnswerToken> tokens, bool is_prompt) {
    OrderedJson logprobs = CompletionLogprobs::Empty();
    choices_[i].logprobs.Add(tokens, is_prompt, logprobs);
    return logprobs;
  }

  // Of the events of prompts, which are there at once: text, and about what a token and each of the
  // likeliest ones take.
  std::size_t BytesOfEcho() const {
    if (!request_.echoes) return 0;
    constexpr std::size_t kTokenText = 80;
    constexpr std::size_t kTopText = 40;
    const auto top = request_.generation.top_logprobs;
    const std::size_t of_token =
        top ? kTokenText + static_cast<std::size_t>(*top + 1) * kTopText : 0;
    std::size_t bytes = 0;
    for (const TextPrompt& prompt : request_.prompts) {
      bytes += 2 * prompt.text.size() + prompt.tokens.size() * of_token;
    }
    return bytes * static_cast<std::size_t>(request_.answers.choices);
  }

  // Adds to a choice, and sends it on in a stream.
  void Show(std::int64_t i, const std::string& text, OrderedJson logprobs) {
    if (stream_) return SendChoice(i, "text", text, std::move(logprobs));
    Choice& choice = choices_[i];
    choice.text += text;
    if (logprobs.is_null()) return;
    for (std::size_t list = 0; list < choice.values.size(); ++list) {
      std::string& items = choice.values[list];
      const std::size_t before = items.size();
      AppendItems(logprobs[CompletionLogprobs::kLists[list]], items);
      // Once more where the answer is put together.
      held().Add(2 * (items.size() - before), "logprobs", kFewerLogprobs);
    }
  }

  const CompletionRequest request_;
  std::vector<Choice> choices_;
};

}  // namespace

void AddCompletionRoutes(RouteTable& table, Server& server) {
  table.Add("POST", "/v1/completions", [&server](const HttpRequest& http, HttpReplyPtr reply) {
    const OrderedJson json = ParseBody(http);
    CompletionRequest request = ReadCompletion(RequestFields(json), server);
    NoteAnswer(*reply, request.model->name,
               fmt::format("seed {}", request.generation.options.seed));
    std::vector<GenerationRequest> requests = RequestsOf(request);
    const std::int64_t choices = request.answers.choices;
    std::make_shared<CompletionAnswer>(server, std::move(reply), std::move(request), http.id)
        ->Start(std::move(requests), choices);
  });
}

}  // namespace qlora
