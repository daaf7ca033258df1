// The type of JSON values that keep the order of their keys, for headers that pass values on
// without looking inside.
#ifndef QLORA_IO_JSON_FWD_H_
#define QLORA_IO_JSON_FWD_H_

#include <nlohmann/json_fwd.hpp>

namespace qlora {

using OrderedJson = nlohmann::ordered_json;

}  // namespace qlora

#endif  // QLORA_IO_JSON_FWD_H_
