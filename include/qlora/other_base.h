// Adapters on other weights than those that they were trained on.
#ifndef QLORA_OTHER_BASE_H_
#define QLORA_OTHER_BASE_H_

#include <string>
#include <vector>

namespace qlora {

// A remark for people where the records of an adapter say that it was trained on another base than
// `model`; "" where they do not, and without an adapter (""). The weights tell, where they are
// recorded, otherwise the last part of the name. Both are folders, GGUF files, or names in the
// Hugging Face cache. Errors: InvalidInput for a name that is not in the cache, and records that
// cannot be read.
std::string DescribeOtherBase(const std::string& model, const std::string& adapter);

// These remarks on adapters as ModelOptions::adapter names them.
std::vector<std::string> DescribeOtherBases(const std::string& model,
                                            const std::vector<std::string>& adapters);

// The model that an adapter, a folder or a GGUF file, was trained on: as this program recorded it,
// since PEFT's record may name the checkpoint that a GGUF file was made from; otherwise as PEFT's
// record says.
std::string TrainedBase(const std::string& folder);

}  // namespace qlora

#endif  // QLORA_OTHER_BASE_H_
