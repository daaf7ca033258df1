// The fields of a request, read by their types. Nothing is converted: "5" is not 5, true is no
// number, 1.5 is no count. null counts as absent. What is wrong is ApiError 400, whose param is the
// path of the field: "messages[0].content".
#ifndef QLORA_SERVE_REQUEST_FIELDS_H_
#define QLORA_SERVE_REQUEST_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "serve/http_server.h"

namespace qlora {

// Values of a body, at most: 64 prompts of 4096 ids, or thousands of messages and tools. A value
// takes kJsonValueBytes and its text, however short that is.
inline constexpr std::int64_t kMostBodyValues = 300'000;
inline constexpr std::int64_t kJsonValueBytes = 80;

// What a value takes of memory, with all that is in it.
std::size_t BytesOfJson(const OrderedJson& value);

// Returns the object that the body is. Errors: ApiError 400 for a body that is not UTF-8, not JSON,
// or no object; 415 for one that says to be something else than JSON.
OrderedJson ParseBody(const HttpRequest& request);

[[noreturn]] void RefuseField(const std::string& path, const std::string& reason);

// An object of a request, with its place. The JSON must outlive it.
class RequestFields {
 public:
  // path: "" for the body. Errors: for a value that is no object.
  explicit RequestFields(const OrderedJson& object, std::string path = {});

  const std::string& path() const { return path_; }
  const OrderedJson& json() const { return *object_; }
  // "messages[0].content" for "content".
  std::string PathOf(std::string_view name) const;
  [[noreturn]] void Refuse(std::string_view name, const std::string& reason) const;

  // Null where the field is absent, or null.
  const OrderedJson* Find(std::string_view name) const;
  bool Has(std::string_view name) const { return Find(name) != nullptr; }

  // Nothing where the field is absent. Errors: for other types, and outside of the range.
  std::optional<bool> Bool(std::string_view name) const;
  std::optional<std::int64_t> Integer(
      std::string_view name, std::int64_t least = std::numeric_limits<std::int64_t>::min(),
      std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  std::optional<double> Number(std::string_view name, double least, double most) const;
  std::optional<std::string> Text(std::string_view name) const;
  std::optional<RequestFields> Object(std::string_view name) const;
  // Null where the field is absent. Errors: for what is no list, and for another number of items.
  const OrderedJson* List(std::string_view name, std::int64_t least = 0,
                          std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;

  // The same for fields that must be there.
  std::string NeedText(std::string_view name) const;
  RequestFields NeedObject(std::string_view name) const;
  const OrderedJson& NeedList(std::string_view name, std::int64_t least = 0,
                              std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;

 private:
  const OrderedJson& Need(std::string_view name) const;

  const OrderedJson* object_;
  std::string path_;
};

// Refuses `metadata` but for up to 16 pairs of texts, of at most 64 and 512 characters.
void CheckMetadata(const RequestFields& body);

// Values that are no fields, such as items of lists; path as above. Errors: for other types.
std::string ItemPath(const std::string& list, std::int64_t i);  // "stop[1]"
const std::string& AsText(const OrderedJson& value, const std::string& path);
std::int64_t AsInteger(const OrderedJson& value, const std::string& path,
                       std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t most = std::numeric_limits<std::int64_t>::max());
double AsNumber(const OrderedJson& value, const std::string& path, double least, double most);
// Token ids of a vocabulary.
std::vector<std::int32_t> AsTokenIds(const OrderedJson& list, const std::string& path,
                                     std::int64_t vocabulary);

}  // namespace qlora

#endif  // QLORA_SERVE_REQUEST_FIELDS_H_
