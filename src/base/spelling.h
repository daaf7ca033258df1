// The known name nearest to one that does not exist: the name that a user may have meant.
#ifndef QLORA_BASE_SPELLING_H_
#define QLORA_BASE_SPELLING_H_

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

// Returns the candidate that needs the fewest corrections to become `name`, at most a third of the
// letters of `name`; the first of several; "" where none is that near. A correction inserts,
// deletes or replaces a letter or swaps two neighbours.
std::string Nearest(std::string_view name, std::span<const std::string> candidates);

// Returns every candidate that needs as few corrections as the nearest one, in their order.
std::vector<std::string> AllNearest(std::string_view name, std::span<const std::string> candidates);

// Returns the advice "; did you mean 'PATH'?" for a path that does not exist: the first missing
// part of `path` is replaced by the nearest name of its folder. "" where no name is near.
std::string SuggestPath(const std::filesystem::path& path);

}  // namespace qlora

#endif  // QLORA_BASE_SPELLING_H_
