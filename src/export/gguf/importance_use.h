// What a file that is written takes of an importance matrix.
#ifndef QLORA_EXPORT_GGUF_IMPORTANCE_USE_H_
#define QLORA_EXPORT_GGUF_IMPORTANCE_USE_H_

#include <set>
#include <string>
#include <vector>

#include "export/gguf/gguf_mix.h"
#include "export/gguf/gguf_plan.h"
#include "export/gguf/imatrix.h"

namespace qlora {

class ImportanceUse {
 public:
  // matrix: may be null. file: the kind of the file that is written. Both must outlive this.
  ImportanceUse(const ImportanceMatrix* matrix, const GgufFileType& file)
      : matrix_(matrix), file_(file) {}

  // Gives a tensor its importance, if it is rounded to blocks. multiplies: false for a table, of
  // which rows are looked up. Errors: InvalidInput for a matrix of another model, and for one
  // without data that the file needs.
  void Weigh(GgufTensor& tensor, bool multiplies);
  // Some tensor is weighed.
  bool weighs() const { return !weighed_.empty(); }

  // notes: what the matrix lacks, and what it has of no tensor that is rounded. Errors:
  // InvalidInput where it has data of none of them.
  void Check(const GgufPlan& plan, std::vector<std::string>& notes) const;

 private:
  void NoteUnused(const GgufPlan& plan, std::vector<std::string>& notes) const;

  const ImportanceMatrix* matrix_;
  const GgufFileType& file_;
  std::set<std::string> weighed_;       // tensors that are rounded with their importance
  std::vector<std::string> unweighed_;  // those of the layers that are rounded without
};

}  // namespace qlora

#endif  // QLORA_EXPORT_GGUF_IMPORTANCE_USE_H_
