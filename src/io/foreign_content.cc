#include "io/foreign_content.h"

#include <array>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"

namespace qlora {

std::string ForeignContent(std::string_view content) {
  if (content.starts_with("\xEF\xBB\xBF")) content.remove_prefix(3);
  const std::size_t begin = content.find_first_not_of(" \t\r\n");
  content.remove_prefix(begin == std::string_view::npos ? content.size() : begin);
  if (content.starts_with("version https://git-lfs")) {
    return "; it is a Git LFS pointer, not the file itself: run `git lfs pull`";
  }
  const std::string start = LowerCase(std::string(content.substr(0, 16)));
  for (const std::string_view page : {"<!doctype", "<html", "<?xml", "<head", "<body"}) {
    if (start.starts_with(page)) {
      return "; it looks like a web page: download it again";
    }
  }
  // The whole answers of the hub to a name or a token that is wrong.
  constexpr auto kAnswers = std::to_array<std::string_view>(
      {"Entry not found", "Repository not found", "Invalid username or password.", "Not Found",
       "404: Not Found"});
  const std::string_view line = content.substr(0, content.find_last_not_of(" \t\r\n") + 1);
  for (const std::string_view answer : kAnswers) {
    if (line == answer)
      return "; it is the answer of a server that did not have the file: download it again";
  }
  return "";
}

std::string ReadOwnText(const std::filesystem::path& path) {
  std::string text = ReadTextFile(path);
  const std::string foreign = ForeignContent(text);
  if (!foreign.empty()) ThrowInvalidInput("{}: cannot be used{}", path.string(), foreign);
  return text;
}

}  // namespace qlora
