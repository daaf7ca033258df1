// Arguments of calls as JSON text, from the texts that models write them as.
#ifndef QLORA_SERVE_ANSWERS_ARGUMENT_TEXT_H_
#define QLORA_SERVE_ANSWERS_ARGUMENT_TEXT_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace qlora {

// kText: text, whatever it looks like; kTextOrNull: the same, but for null; kValue: JSON, as far as
// it is; kUnknown: JSON, as far as it is, but never a text in quotes.
enum class ArgumentType { kText, kTextOrNull, kValue, kUnknown };

// What schemas of tools say of the types of arguments.
class ArgumentTypes {
 public:
  // tools: as of AnswerParts.
  explicit ArgumentTypes(std::string_view tools);

  bool HasTool(std::string_view function) const { return types_.contains(function); }
  ArgumentType Of(std::string_view function, std::string_view argument) const;

 private:
  std::map<std::string, std::map<std::string, ArgumentType, std::less<>>, std::less<>> types_;
};

// The JSON of a text, without its quotes. text: whole characters.
std::string EscapedText(std::string_view text);
std::string QuotedText(std::string_view text);

// The JSON of an argument that was written as plain text.
std::string JsonOfArgument(std::string_view text, ArgumentType type);

// Before and behind a text of Gemma's literals.
inline constexpr std::string_view kGemmaQuote = "<|\"|>";

// The JSON of a literal: of JSON, of Python ('a', None, (1, 2)), of Gemma ({a:<|"|>b<|"|>}).
// Nothing for a text that is none.
std::optional<std::string> JsonOfLiteral(std::string_view text);

// Returns JSON that was cut off with what is missing at its end; an object that holds the text
// itself, as "arguments", where that is no object.
std::string WholeArguments(std::string_view text);

}  // namespace qlora

#endif  // QLORA_SERVE_ANSWERS_ARGUMENT_TEXT_H_
