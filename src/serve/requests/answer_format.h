// The form of JSON that a request asks its answer to have: response_format, text.format,
// output_config.format and, its older name, output_format.
#ifndef QLORA_SERVE_REQUESTS_ANSWER_FORMAT_H_
#define QLORA_SERVE_REQUESTS_ANSWER_FORMAT_H_

#include <string>
#include <string_view>

#include "serve/generation_service.h"
#include "serve/request_fields.h"
#include "serve/requests/conversation_request.h"
#include "serve/served_models.h"
#include "serve/structured/byte_grammar.h"

namespace qlora {

// Reads {"type": "text" | "json_object" | "json_schema"} from a field of `holder` and, of the last
// one, the schema: {"json_schema": {"schema": {...}}}, or {"schema": {...}}. No grammar: any text.
// Errors: ApiError 400 that names what is not kept.
AnswerGrammar ReadAnswerFormat(const RequestFields& holder, std::string_view field,
                               const ServedModel& model);

// The form of answers by a grammar, which counts as held by requests (RequestRoom) as long as the
// form lives. Errors: as HeldBytes.
AnswerGrammar HeldForm(ByteGrammar grammar, const ServedModel& model, const std::string& path);

// Refuses a form that is asked for under a name of other interfaces or servers, which would be
// ignored. own: the name that the interface has for it, such as "text.format".
void RefuseOtherForms(const RequestFields& body, std::string_view own);

// Sets what an answer to the conversation is generated from, whose sampling and stop texts are
// read: model, prompt and form. stops_path: the field of stop texts. Returns the prompt, whose
// tokens it has taken. Errors: as PromptOf; ApiError 400 for what does not go together with a
// format, or with a call that must be.
ConversationPrompt AskConversation(const ServedModelPtr& model, const ConversationRequest& request,
                                   GenerationRequest& generation,
                                   const std::string& stops_path = "stop");

// Errors: ApiError 400 for what would break a format: min_tokens, ignore_eos, and tokens that
// logit_bias forbids. Stop texts cut an answer, as max_tokens does.
void CheckKeepsForm(const GenerationRequest& generation);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_ANSWER_FORMAT_H_
