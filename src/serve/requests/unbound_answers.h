// What no answer is bound to here, in the same words for all interfaces: a form of its text, or a
// call.
#ifndef QLORA_SERVE_REQUESTS_UNBOUND_ANSWERS_H_
#define QLORA_SERVE_REQUESTS_UNBOUND_ANSWERS_H_

#include "serve/request_fields.h"

namespace qlora {

// Refuses every field that asks for a form of the answer, by its name: response_format and
// text.format other than text, output_format, output_config.format, and those of other servers,
// such as json_schema, grammar and guided_json.
void RefuseForms(const RequestFields& body);

// False for a tool_choice of none. Errors: for one that forces a call, or limits the tools.
// In OpenAI's interfaces auto and none are texts, in Anthropic's the type of an object.
bool MayCall(const RequestFields& body);
bool MayCallByType(const RequestFields& body);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_UNBOUND_ANSWERS_H_
