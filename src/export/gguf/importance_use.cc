#include "export/gguf/importance_use.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/check.h"
#include "base/printable.h"
#include "config/gguf_names.h"

namespace qlora {
namespace {

// "'a', 'b', 'c' and 4 more".
std::string SomeOf(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[i]);
  }
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

}  // namespace

void ImportanceUse::Weigh(GgufTensor& tensor, bool multiplies) {
  if (matrix_ == nullptr || !tensor.info.dtype.is_blocks()) return;
  const std::string& name = tensor.info.name;
  const std::vector<float>* weights = matrix_->Find(name);
  if (weights == nullptr) {
    // llama.cpp's files have none of the head, and none of the embedding.
    if (GgufBlockOf(name) >= 0) unweighed_.push_back(name);
    if (!file_.needs_importance || !multiplies || tensor.info.dtype != file_.base) return;
    ThrowInvalidInput(
        "the importance matrix has no '{}', which {} needs: make one of this model, or choose "
        "another outtype",
        name, file_.name);
  }
  const std::int64_t cols = tensor.info.shape.back();
  const std::int64_t matrices = tensor.info.shape.size() > 2 ? tensor.info.shape[0] : 1;
  if (std::ssize(*weights) == matrices * cols) {
    tensor.importance = *weights;
    weighed_.insert(name);
  } else if (multiplies) {
    ThrowInvalidInput(
        "the importance matrix has {} values for '{}', where the model has {} matrices of {} "
        "columns; it is of another model",
        weights->size(), name, matrices, cols);
  }
}

void ImportanceUse::Check(const GgufPlan& plan, std::vector<std::string>& notes) const {
  if (matrix_ == nullptr) return;
  const std::int64_t lacking = std::ssize(unweighed_);
  if (weighed_.empty() && lacking == 0) {
    notes.push_back("the importance matrix has no effect: no tensor that it has is rounded");
    return;
  }
  if (weighed_.empty()) {
    const auto& entries = matrix_->entries;
    ThrowInvalidInput(
        "the importance matrix has data of none of the {} that are rounded ({}){}; it is of "
        "another model, or of another program: give one of this model",
        Counted(lacking, "tensor"), SomeOf(unweighed_),
        entries.empty() ? "" : fmt::format("; its first entry is '{}'", entries.begin()->first));
  }
  if (lacking > 0) {
    notes.push_back(fmt::format(
        "the importance matrix has no data of {} of {} that are rounded, whose columns count "
        "alike: {}",
        lacking, Counted(std::ssize(weighed_) + lacking, "tensor"), SomeOf(unweighed_)));
  }
  NoteUnused(plan, notes);
}

void ImportanceUse::NoteUnused(const GgufPlan& plan, std::vector<std::string>& notes) const {
  std::map<std::string_view, const GgufTensor*> tensors;
  for (const GgufTensor& tensor : plan.tensors()) tensors[tensor.info.name] = &tensor;
  std::vector<std::string> unknown;
  std::vector<std::string> copied;
  for (const auto& [name, entry] : matrix_->entries) {
    if (weighed_.contains(name)) continue;
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      unknown.push_back(name);
    } else if (found->second->info.dtype.is_blocks() && !found->second->stored.empty()) {
      copied.push_back(name);
    }
  }
  if (!unknown.empty()) {
    notes.push_back(
        fmt::format("the importance matrix has data that no tensor of the file has, and that are "
                    "not used: {}",
                    SomeOf(unknown)));
  }
  if (!copied.empty()) {
    notes.push_back(
        fmt::format("the importance matrix has data of tensors that are copied as the file has "
                    "them, where they are not used: {}",
                    SomeOf(copied)));
  }
}

}  // namespace qlora
