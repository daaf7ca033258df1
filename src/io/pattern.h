// Regular expressions of configurations, tasks and templates, with the meaning that Python's re
// gives to common patterns. `where` starts the message of the error (InvalidInput) about a pattern
// that does not compile or that takes too long.
#ifndef QLORA_IO_PATTERN_H_
#define QLORA_IO_PATTERN_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

// Returns re.fullmatch(pattern, text) is not None.
bool FullMatch(const std::string& pattern, std::string_view text, std::string_view where);

// Returns re.match(pattern, text) is not None.
bool MatchesAtStart(const std::string& pattern, std::string_view text, std::string_view where);

// Returns re.match(pattern, text)["name"] for a pattern with a group (?<name>...), or nothing.
std::optional<std::string> GroupAtStart(const std::string& pattern, std::string_view text,
                                        std::string_view where, const char* name);

// Returns re.findall(pattern, text): of each match its groups, or the whole of a pattern without
// groups.
std::vector<std::vector<std::string>> FindAll(const std::string& pattern, std::string_view text,
                                              std::string_view where);

// Returns re.split(pattern, text) of a pattern without groups.
std::vector<std::string> SplitAtMatches(const std::string& pattern, std::string_view text,
                                        std::string_view where);

// Returns re.sub(pattern, lambda match: replacement, text): the replacement as it is, without
// escapes.
std::string ReplaceMatches(const std::string& pattern, std::string_view replacement,
                           std::string_view text, std::string_view where);

}  // namespace qlora

#endif  // QLORA_IO_PATTERN_H_
