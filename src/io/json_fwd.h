// The types of JSON values, for headers that pass values on without looking inside.
#ifndef QLORA_IO_JSON_FWD_H_
#define QLORA_IO_JSON_FWD_H_

#include <nlohmann/json_fwd.hpp>

namespace qlora {

using Json = nlohmann::json;                 // objects are sorted by key
using OrderedJson = nlohmann::ordered_json;  // objects keep the order of their keys

}  // namespace qlora

#endif  // QLORA_IO_JSON_FWD_H_
