// Which files of a repository a trainer needs.
#ifndef QLORA_PULL_SELECTION_H_
#define QLORA_PULL_SELECTION_H_

#include <functional>
#include <string>
#include <vector>

#include "hub/hub_cache.h"
#include "pull/hub_api.h"

namespace qlora {

struct SelectionOptions {
  bool all = false;
  std::vector<std::string> include = {};  // with *, ? and [abc]; empty: the files that are needed
  std::vector<std::string> exclude = {};
};

// Selects the files to download. From a model: configuration, tokenizer, templates, licence, and
// the safetensors weights that the loader will open: model.safetensors, otherwise the shards of its
// index, otherwise the weights of an adapter. From a data set: the files in formats of data.
// read_file fetches a small file as text (the index). Errors: InvalidInput when no file can be
// used, naming those that are there; Runtime for an index that names a file which is not listed.
std::vector<HubFile> SelectFiles(const std::vector<HubFile>& files, HubType type,
                                 const SelectionOptions& options,
                                 const std::function<std::string(const HubFile&)>& read_file);

// True when all of `path` fits the pattern, as in a shell, but * and ? also match a slash.
bool FitsPattern(const std::string& path, const std::string& pattern);

}  // namespace qlora

#endif  // QLORA_PULL_SELECTION_H_
