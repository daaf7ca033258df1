// Log-probabilities of answers under the reference, measured once and kept on disk.
#ifndef QLORA_PREFERENCE_REFERENCE_TABLE_H_
#define QLORA_PREFERENCE_REFERENCE_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "io/json_fwd.h"

namespace qlora {

inline constexpr const char* kReferenceFile = "reference_logps.json";  // in output_dir

// Of a sample: of the chosen and the rejected answer, or of one answer.
struct AnswerLogp {
  double chosen = 0;
  double rejected = 0;  // 0: one answer
};

// By keys of samples, which depend on all of their tokens.
class ReferenceTable {
 public:
  bool has(std::uint64_t key) const { return values_.contains(key); }
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }
  void Add(std::uint64_t key, const AnswerLogp& value) { values_[key] = value; }
  // Errors: Runtime, a bug of the caller, for a sample that was not measured.
  const AnswerLogp& Of(std::uint64_t key) const;

  // Every bit of the values. model: what measured them.
  std::string ToText(const Json& model) const;
  // Returns what ToText has written, and its model. Errors: InvalidInput for anything else.
  static std::pair<ReferenceTable, Json> FromText(const std::string& text,
                                                  const std::string& where);

 private:
  std::map<std::uint64_t, AnswerLogp> values_;
};

}  // namespace qlora

#endif  // QLORA_PREFERENCE_REFERENCE_TABLE_H_
