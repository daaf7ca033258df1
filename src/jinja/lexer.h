// A template's text -> tokens, with the white space around tags already taken off.
#ifndef QLORA_JINJA_LEXER_H_
#define QLORA_JINJA_LEXER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/jinja.h"

namespace qlora::jinja {

struct Token {
  // kOperator: also the beginnings and ends of tags, {{ }} {% %}.
  enum Kind { kText, kName, kString, kInteger, kFloat, kOperator, kEnd };
  Kind kind;
  std::size_t offset;  // in the source
  std::string text;    // the text, name, value of the string, digits, or operator
};

// The text with \n for every line end and without the last one, which kPlain keeps, as Jinja reads
// it. Errors: Failure for text that is not UTF-8, or too long.
std::string NormalizeSource(std::string_view text, JinjaLayout layout);

// Errors: Failure with the place.
std::vector<Token> Tokenize(const std::string& source, JinjaLayout layout);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_LEXER_H_
