#include "serve/structured/schema_reference.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

namespace qlora {

const OrderedJson* FindReference(const OrderedJson& root, std::string_view reference) {
  if (!reference.starts_with('#')) return nullptr;
  std::string pointer;
  for (std::size_t i = 1; i < reference.size(); ++i) {
    const char* digits = reference.data() + i + 1;
    unsigned char byte = 0;
    const bool is_encoded = reference[i] == '%' && i + 2 < reference.size() &&
                            std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    pointer += is_encoded ? static_cast<char>(byte) : reference[i];
    if (is_encoded) i += 2;
  }
  try {
    const OrderedJson::json_pointer place(pointer);
    return root.contains(place) ? &root.at(place) : nullptr;
  } catch (const OrderedJson::exception&) {  // no pointer
    return nullptr;
  }
}

}  // namespace qlora
