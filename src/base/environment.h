// Reads environment variables.
#ifndef QLORA_BASE_ENVIRONMENT_H_
#define QLORA_BASE_ENVIRONMENT_H_

#include <cstdlib>
#include <string>

namespace qlora {

// Returns the value of an environment variable; "" when it is not set.
inline std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace qlora

#endif  // QLORA_BASE_ENVIRONMENT_H_
