// What chat completions, responses and messages ask alike: a conversation, tools, and how the
// answer is read. The readers of whole bodies are in message_request.cc and response_request.cc.
#ifndef QLORA_SERVE_REQUESTS_CONVERSATION_REQUEST_H_
#define QLORA_SERVE_REQUESTS_CONVERSATION_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "io/json_fwd.h"
#include "serve/answer_parts.h"
#include "serve/generation_service.h"
#include "serve/request_fields.h"
#include "serve/served_models.h"

namespace qlora {

class ArgumentTypes;
struct LoggedQuestion;

struct ToolChoice {
  bool may_call = true;
  bool must_call = false;
  bool only_one = false;  // call at most
  std::string name = {};  // of the tool that must be called; "": any
};

// In the form of chat completions, which is that of chat templates.
struct ConversationRequest {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = {};  // [{"type": "function", "function": {...}}], or null
  std::shared_ptr<const ArgumentTypes> types = {};  // of these tools, which all answers share
  OrderedJson variables = {};                       // of the chat template: an object, or null
  std::string begin = {};                           // of the answer, which the model goes on with
  AnswerGrammar format = {};                        // of the answer
  ToolChoice choice = {};                           // of these tools
  bool reads_calls = false;                         // there are tools, and the answer may call them
  std::string schema_path = "function.parameters";  // of a tool, within it
};

// Read requests of Anthropic's messages, and of OpenAI's responses. Nothing is kept here, so that
// what refers to earlier answers is refused. Errors: ApiError 400 that names the field.
ConversationRequest ReadMessageRequest(const RequestFields& body, const ServedModel& model);
ConversationRequest ReadResponseRequest(const RequestFields& body, const ServedModel& model);

// Sets the variables by which the template of the model thinks, or does not.
void SetThinking(bool thinks, const ServedModel& model, ConversationRequest& request);
// The same by an effort, if there is one, which the template reads, too: "none" does not think, ""
// says nothing. Errors: for a word that is no effort of OpenAI's or Anthropic's interface.
void ReadEffort(const RequestFields& fields, std::string_view name, const ServedModel& model,
                ConversationRequest& request);
// Reads chat_template_kwargs. Errors: for a variable that the conversation itself has.
void ReadVariables(const RequestFields& body, ConversationRequest& request);
// Sets a variable where the template reads it.
void SetVariable(std::string_view name, OrderedJson value, const ServedModel& model,
                 ConversationRequest& request);

// Messages, or items, of a conversation, at most.
inline constexpr std::int64_t kMostMessages = 4096;

// Returns a field that is text, or a list of parts, whose texts are joined. text_of: the text of a
// part of this type; refuses those that are none.
using TextOfPart = std::function<std::string(const RequestFields& part, const std::string& type)>;
std::string JoinedText(const RequestFields& fields, std::string_view name,
                       const TextOfPart& text_of);

// Returns a tool in the form of chat completions. function: an object with `name`, perhaps
// `description`, and its schema in the field `schema_name`.
OrderedJson ToolOf(const RequestFields& function, std::string_view schema_name);

// The ids of the calls in a conversation that is being read.
class CallIds {
 public:
  // Refuses a result of a tool whose call no message before it makes. messages: those before it;
  // from call to call others are only added. path: of the id.
  void CheckResult(const OrderedJson& messages, const std::string& id, const std::string& path);

 private:
  std::int64_t read_ = 0;  // messages whose calls are in ids_
  std::unordered_set<std::string> ids_;
};

// Refuses a text that is longer than the context of the model, before its tokens are counted. path:
// of the text, where it is a field. Errors: ApiError 400 context_length_exceeded.
void CheckPromptText(const ServedModel& model, std::string_view text, const std::string& path = {});

// What the model reads.
struct ConversationPrompt {
  std::string text = {};
  std::vector<std::int32_t> tokens = {};
  bool begins_with_thought = false;
  bool keeps_special_tokens = false;  // of the answer, for AnswerParts
};
// Errors: InvalidInput with what the chat template says, and for a model without one; ApiError 400
// for tools that the model has no form of calls for.
ConversationPrompt PromptOf(const ServedModel& model, const ConversationRequest& request);

// The form of the answers to such a request.
const std::shared_ptr<const AnswerForm>& FormOf(const ServedModel& model,
                                                const ConversationRequest& request);

// What is kept of the request beside its answers.
LoggedQuestion QuestionOf(const ConversationRequest& request);

// Bytes that answers to it hold of it; is_kept: until it is written for training.
std::size_t BytesHeldOf(const ConversationRequest& request, bool is_kept);
// What to do where these are too many.
inline constexpr const char* kShorterConversation = "shorten the conversation and its tools";

// What reads one answer to such a prompt.
AnswerParts PartsOf(const ServedModel& model, const ConversationRequest& request,
                    const ConversationPrompt& prompt);

// What ends one such answer behind its first call, where it may have no other
// (GenerationRequest::is_whole); else nothing.
std::function<bool(std::string_view)> EndOfOneCall(const ServedModel& model,
                                                   const ConversationRequest& request,
                                                   const ConversationPrompt& prompt);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_CONVERSATION_REQUEST_H_
