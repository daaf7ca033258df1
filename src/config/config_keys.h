// How config.json is read, key by key. Used by config.cc.
#ifndef QLORA_CONFIG_CONFIG_KEYS_H_
#define QLORA_CONFIG_CONFIG_KEYS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/json.h"

namespace qlora {

// The keys of one JSON object of config.json. Errors: InvalidInput naming the file and the key.
class ConfigKeys {
 public:
  ConfigKeys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  // nullptr when absent or null.
  const Json* Find(const char* key) const { return FindJson(object_, key, where_); }
  bool IsNull(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }

  std::int64_t Int(const char* key) const { return JsonGet<std::int64_t>(object_, key, where_); }
  std::int64_t Int(const char* key, std::int64_t otherwise) const {
    return JsonGetOr(object_, key, otherwise, where_);
  }
  double Double(const char* key) const { return JsonGet<double>(object_, key, where_); }
  double Double(const char* key, double otherwise) const {
    return JsonGetOr(object_, key, otherwise, where_);
  }
  // A number, or 0 where the key is null.
  double DoubleOrNull(const char* key, double otherwise) const {
    return IsNull(key) ? 0.0 : Double(key, otherwise);
  }
  bool Bool(const char* key, bool otherwise) const {
    return JsonGetOr(object_, key, otherwise, where_);
  }
  std::string String(const char* key, const std::string& otherwise) const {
    return JsonGetOr(object_, key, otherwise, where_);
  }
  std::vector<std::string> Strings(const char* key) const {
    return JsonGet<std::vector<std::string>>(object_, key, where_);
  }
  std::vector<std::int64_t> Ints(const char* key) const {
    return JsonGet<std::vector<std::int64_t>>(object_, key, where_);
  }
  std::vector<double> Doubles(const char* key, std::int64_t count) const {
    auto values = JsonGet<std::vector<double>>(object_, key, where_);
    if (static_cast<std::int64_t>(values.size()) != count) {
      ThrowInvalidInput("{}: key '{}' must have {} numbers, found {}", where_, key, count,
                        values.size());
    }
    return values;
  }

 private:
  const Json& object_;
  std::string where_;
};

}  // namespace qlora

#endif  // QLORA_CONFIG_CONFIG_KEYS_H_
