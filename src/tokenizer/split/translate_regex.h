// Oniguruma's regular expressions in PCRE2's language.
#ifndef QLORA_TOKENIZER_SPLIT_TRANSLATE_REGEX_H_
#define QLORA_TOKENIZER_SPLIT_TRANSLATE_REGEX_H_

#include <string>
#include <string_view>

namespace qlora {

// The regular expression in PCRE2's language (with PCRE2_UTF, PCRE2_UCP, PCRE2_MULTILINE).
// Errors as MakeRegexPattern.
std::string TranslateRegex(std::string_view regex, const std::string& where);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_SPLIT_TRANSLATE_REGEX_H_
