// The keys of a task's definition, as its readers share them.
#ifndef QLORA_TASK_DEFINITION_KEYS_H_
#define QLORA_TASK_DEFINITION_KEYS_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "io/json.h"

namespace qlora {

class DefinitionKeys {
 public:
  // json: an object, which must outlive this. path: of its file, for messages.
  DefinitionKeys(const OrderedJson& json, const std::filesystem::path& path)
      : json_(json), where_(path.string()) {}

  const OrderedJson& json() const { return json_; }
  const std::string& where() const { return where_; }

  // Errors of all below: InvalidInput with file and key.
  [[noreturn]] void Refuse(std::string_view key, std::string_view reason) const;
  // nullptr where the key is missing, or null.
  const OrderedJson* Find(std::string_view key) const;
  // Null where it is missing.
  OrderedJson Field(std::string_view key) const;
  std::string TextOr(std::string_view key, std::string otherwise) const;
  std::int64_t Number(std::string_view key, std::int64_t otherwise) const;

 private:
  const OrderedJson& json_;
  std::string where_;
};

// Whether `names`, each between two spaces, has a name.
bool HoldsName(std::string_view names, std::string_view name);

// The function of Python that a value calls: "utils.process_docs"; "" where it calls none.
std::string FunctionOf(const OrderedJson& value);

}  // namespace qlora

#endif  // QLORA_TASK_DEFINITION_KEYS_H_
