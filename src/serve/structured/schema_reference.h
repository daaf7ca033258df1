// Places that the references of a JSON Schema name.
#ifndef QLORA_SERVE_STRUCTURED_SCHEMA_REFERENCE_H_
#define QLORA_SERVE_STRUCTURED_SCHEMA_REFERENCE_H_

#include <string_view>

#include "io/json_fwd.h"

namespace qlora {

// Returns the place in `root` that a reference names: "#", "#/$defs/NAME", encoded with % where
// need be. Null for one that names none.
const OrderedJson* FindReference(const OrderedJson& root, std::string_view reference);

}  // namespace qlora

#endif  // QLORA_SERVE_STRUCTURED_SCHEMA_REFERENCE_H_
