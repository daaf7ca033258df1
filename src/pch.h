// The headers that most sources of the library include, compiled once (cmake/flags.cmake).
#ifndef QLORA_PCH_H_
#define QLORA_PCH_H_

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#endif  // QLORA_PCH_H_
