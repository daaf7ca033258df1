// Ranges of code points, sorted: where the Unicode versions in use differ.
// Made by tools/make_unicode_tables.mjs; do not edit.
#ifndef QLORA_UNICODE_UNICODE_TABLES_H_
#define QLORA_UNICODE_UNICODE_TABLES_H_

namespace qlora {

struct CodeRange {
  char32_t first;
  char32_t last;
};
struct CategoryRange {
  char32_t first;
  char32_t last;
  int category;
};

// Assigned in Unicode 15 and 16, with their general category (utf8proc's numbers).
extern const CategoryRange kLaterCategories[126];
// Numbers of Unicode 17 (general category N).
extern const CodeRange kNumbers17[2];
// Characters that Unicode 9 leaves alone and later versions decompose, compose or reorder.
extern const CodeRange kInertInNormalization[73];
// Punctuation (general category P) that Unicode 8 does not have.
extern const CodeRange kPunctuationAfterUnicode8[40];
// Punctuation of Unicode 8 that is not punctuation today.
extern const CodeRange kFormerPunctuation[2];

}  // namespace qlora

#endif  // QLORA_UNICODE_UNICODE_TABLES_H_
