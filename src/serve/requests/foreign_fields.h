// Fields that other servers know, or that the interfaces here do not share.
#ifndef QLORA_SERVE_REQUESTS_FOREIGN_FIELDS_H_
#define QLORA_SERVE_REQUESTS_FOREIGN_FIELDS_H_

#include <initializer_list>
#include <string_view>

#include "serve/request_fields.h"

namespace qlora {

// Refuses such a field where its value would change the answer: nobody shall take another answer
// for the one that was asked for. own: those that the interface reads itself. Errors: ApiError 400
// that names the field, and what the interface has in its place.
void RefuseForeign(const RequestFields& body, std::initializer_list<std::string_view> own);
// The same of a request for decisions, which has no text written.
void RefuseForeignToDecision(const RequestFields& body,
                             std::initializer_list<std::string_view> own);

// Refuses what a message has beside its text, and the model would not see: pictures under the names
// of other servers. Errors: as above.
void RefuseForeignInMessage(const RequestFields& message);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUESTS_FOREIGN_FIELDS_H_
