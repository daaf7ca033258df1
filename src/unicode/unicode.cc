#include "unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>

#include "unicode/unicode_tables.h"

namespace qlora {
namespace {

// The row that holds c, or null.
template <typename Row, std::size_t n>
const Row* Find(const Row (&rows)[n], char32_t c) {
  const Row* row = std::lower_bound(std::begin(rows), std::end(rows), c,
                                    [](const Row& r, char32_t value) { return r.last < value; });
  return row != std::end(rows) && row->first <= c ? row : nullptr;
}

// The general category in Unicode 16.
int CategoryOf(char32_t c) {
  const int category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (category != UTF8PROC_CATEGORY_CN) return category;
  const CategoryRange* later = Find(kLaterCategories, c);
  return later == nullptr ? UTF8PROC_CATEGORY_CN : later->category;
}

// Letters and digits in circles and squares: symbols that count as alphabetic.
bool IsAlphabeticSymbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

void AppendNormalized(std::string_view text, int options, std::string* out) {
  utf8proc_uint8_t* result = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) throw std::bad_alloc();  // the text is valid, so nothing else can fail
  out->append(reinterpret_cast<const char*>(result), length);
}

}  // namespace

Utf8Step StepUtf8(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, true, false};
  // 80 ... BF continue a character, C0 and C1 would be overlong forms of ASCII, F5 and above are
  // beyond U+10FFFF: none can begin a character.
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const int length = Utf8Length(text[0]);
  // The second byte's range is narrower after these leads: no overlong forms, no surrogates,
  // nothing above U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (i == std::ssize(text)) return {i, false, true};
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool fits = i == 1 ? byte >= low && byte <= high : (byte & 0xC0) == 0x80;
    if (!fits) return {i, false, false};
  }
  return {length, true, false};
}

std::string_view ValidUtf8(std::string_view text, std::string* storage) {
  std::size_t valid = 0;  // bytes at the front of the rest
  bool copied = false;
  while (valid < text.size()) {
    std::uint64_t eight;
    if (text.size() - valid >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + valid, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {  // all ASCII
        valid += sizeof(eight);
        continue;
      }
    }
    const Utf8Step step = StepUtf8(text.substr(valid));
    if (step.valid) {
      valid += step.length;
      continue;
    }
    if (!copied) storage->clear();
    copied = true;
    storage->append(text.substr(0, valid));
    storage->append(kReplacementCharacter);
    text.remove_prefix(valid + step.length);
    valid = 0;
  }
  if (!copied) return text;
  storage->append(text);
  return *storage;
}

void AppendUtf8(char32_t c, std::string* text) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  text->append(reinterpret_cast<const char*>(bytes), count);
}

unsigned ClassOfWide(char32_t c) {
  const unsigned result = IsWhitespace(c) ? unsigned{kSpace} : 0u;
  switch (CategoryOf(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return result | kLetter | kUpperOrTitle;
    case UTF8PROC_CATEGORY_LL:
      return result | kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return result | kLetter | kOtherLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return result | kNumber;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return result | kMark;
    default:
      return result;
  }
}

bool IsWhitespace(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsNumeric(char32_t c) { return (ClassOf(c) & kNumber) != 0 || Find(kNumbers17, c) != nullptr; }

// Alphabetic beyond the letters are letter numbers, marks (nearly all) and circled letters.
bool IsWordCharacter(char32_t c) {
  if ((ClassOf(c) & (kLetter | kMark)) != 0) return true;
  const int category = CategoryOf(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC || IsAlphabeticSymbol(c) || c == 0x200C || c == 0x200D;
}

bool IsPunctuation(char32_t c) {
  if (c < 128) return c > ' ' && c < 127 && (ClassOf(c) & (kLetter | kNumber)) == 0;
  const int category = CategoryOf(c);
  const bool now = category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
  return now ? Find(kPunctuationAfterUnicode8, c) == nullptr
             : Find(kFormerPunctuation, c) != nullptr;
}

void AppendLowerCase(char32_t c, std::string* text) {
  // The only character whose lower case is two (SpecialCasing.txt, without conditions); utf8proc
  // maps one character to one.
  if (c == 0x130) {
    text->append("i\xCC\x87");  // i, combining dot above
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
}

std::string LowerText(std::string_view text) {
  std::string storage;
  text = ValidUtf8(text, &storage);
  std::string out;
  out.reserve(text.size());
  for (const char* p = text.data(); p != text.data() + text.size();) {
    AppendLowerCase(NextCharacter(p), &out);
  }
  return out;
}

// Most text needs no change, and utf8proc is slow, so only runs of characters that may change go
// through it, each with the character before, which a mark at the start of the run may join:
//
//     "The caf|e\u0301 ..|."   (NFC: U+0301 may change, U+0020 and letters may not)
//             ^before ^run
//
// Characters that Unicode 9 does not know are copied; nothing joins them.
std::string Normalize(std::string_view text, NormalForm form) {
  const int options =
      UTF8PROC_STABLE | UTF8PROC_COMPOSE | (form == NormalForm::kNfkc ? UTF8PROC_COMPAT : 0);
  // Nothing below U+00C0 changes in NFC, nothing below U+0080 in NFKC.
  const char32_t unchanged = form == NormalForm::kNfc ? 0xC0 : 0x80;
  std::string result;
  result.reserve(text.size());
  const char* const end = text.data() + text.size();
  const char* copied = text.data();  // the text before it is in the result
  const char* run = nullptr;
  const char* before = nullptr;
  const auto finish_run = [&](const char* run_end) {
    if (run == nullptr) return;
    result.append(copied, run);
    AppendNormalized({run, run_end}, options, &result);
    copied = run_end;
    run = nullptr;
  };
  for (const char* p = text.data(); p < end;) {
    const char* const start = p;
    const char32_t c = NextCharacter(p);
    if (c < unchanged) {
      finish_run(start);
      before = start;
    } else if (c > 0x2FF && Find(kInertInNormalization, c) != nullptr) {
      finish_run(start);
      before = nullptr;
    } else if (run == nullptr) {
      run = before != nullptr ? before : start;
      before = nullptr;
    }
  }
  finish_run(end);
  result.append(copied, end);
  return result;
}

}  // namespace qlora
