#include "unicode/unicode.h"

#include <functional>

#include "tokenizer/tokenizer_test_util.h"

namespace qlora {
namespace {

// FNV-1a over one text a code point, each ended by a zero byte, as tools/make_unicode_tables.mjs
// has it from the real library.
std::uint32_t Digest(const std::function<std::string(char32_t)>& text_of) {
  std::uint32_t hash = 0x811c9dc5;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    // Bytes by pointer: the bodies of these tests are not optimised, and there are 40 million.
    const std::string text = text_of(c);
    const char* const end = text.c_str() + text.size() + 1;
    for (const char* byte = text.c_str(); byte != end; ++byte) {
      hash = (hash ^ static_cast<unsigned char>(*byte)) * 0x01000193;
    }
  }
  return hash;
}

std::string Text(char32_t c) {
  std::string text;
  AppendUtf8(c, &text);
  return text;
}

TEST(Unicode, EveryCodePointIsWhatHuggingFaceSays) {
  const nlohmann::json golden = ReadFixture("unicode.json");
  const auto flag = [&](const char* name, const std::function<bool(char32_t)>& test) {
    EXPECT_EQ(Digest([&](char32_t c) { return test(c) ? "1" : "0"; }), golden[name]) << name;
  };
  const auto has = [](unsigned classes) {
    return [=](char32_t c) { return (ClassOf(c) & classes) != 0; };
  };
  flag("letter", has(kLetter));
  flag("number", has(kNumber));
  flag("space", has(kSpace));
  flag("mark", has(kMark));
  flag("upper_or_title", has(kUpperOrTitle));
  flag("lower", has(kLower));
  flag("other_letter", has(kOtherLetter));
  flag("whitespace", &IsWhitespace);
  flag("numeric", &IsNumeric);
  flag("word", &IsWordCharacter);
  flag("punctuation", &IsPunctuation);
  const std::pair<const char*, NormalForm> forms[] = {{"NFC", NormalForm::kNfc},
                                                      {"NFKC", NormalForm::kNfkc}};
  for (const auto& [name, form] : forms) {
    EXPECT_EQ(Digest([form = form](char32_t c) {
                return Normalize(Text(c), form) + Normalize("a\u0327" + Text(c) + "\u0301", form);
              }),
              golden[name])
        << name;
  }
}

TEST(Unicode, NormalizesRunsOnly) {
  EXPECT_EQ(Normalize("abe\u0301cd", NormalForm::kNfc), "ab\u00e9cd");
  EXPECT_EQ(Normalize("e\u0301", NormalForm::kNfc), "\u00e9");
  EXPECT_EQ(Normalize("\u0301e\u0301", NormalForm::kNfc), "\u0301\u00e9");
  EXPECT_EQ(Normalize("\u1100\u1161\u11a8", NormalForm::kNfc), "\uac01");
  EXPECT_EQ(Normalize("\ufb01\u2460", NormalForm::kNfkc), "fi1");
  EXPECT_EQ(Normalize("", NormalForm::kNfc), "");
}

TEST(Unicode, LowerCase) {
  const auto lower = [](char32_t c) {
    std::string text;
    AppendLowerCase(c, &text);
    return text;
  };
  EXPECT_EQ(lower(U'A'), "a");
  EXPECT_EQ(lower(U'1'), "1");
  EXPECT_EQ(lower(U'\u0416'), "\u0436");
  EXPECT_EQ(lower(U'\u0130'), "i\u0307");
}

std::string Valid(std::string_view text) {
  std::string storage;
  return std::string(ValidUtf8(text, &storage));
}

// The table of Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts".
TEST(Unicode, LowerTextTakesAnyBytes) {
  EXPECT_EQ(LowerText("AbC \xC3\x89!"), "abc \xC3\xA9!");
  EXPECT_EQ(LowerText("A\xFF"
                      "B"),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(LowerText(""), "");
}

TEST(Unicode, IllFormedBytesBecomeReplacementCharacters) {
  EXPECT_EQ(Valid("plain"), "plain");
  EXPECT_EQ(Valid("a\xF0\x9F\x98\x80z\u4e2d"), "a\U0001F600z\u4e2d");
  EXPECT_EQ(Valid("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                  "A"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd"
            "A");
  EXPECT_EQ(Valid("\xED\xA0\x80\xED\xBF\xBF"), "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(Valid("\xF4\x91\x92\x93\xFF"
                  "A\x80\xBF"
                  "B"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd"
            "A\ufffd\ufffd"
            "B");
  EXPECT_EQ(Valid("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
                  "A"),
            "\ufffd\ufffd\ufffd\ufffd"
            "A");
  EXPECT_EQ(Valid("12345678\xE2\x82"), "12345678\ufffd");
}

TEST(Unicode, ValidTextIsNotCopied) {
  const std::string text = "na\u00efve text, long enough";
  std::string storage;
  EXPECT_EQ(ValidUtf8(text, &storage).data(), text.data());
  EXPECT_TRUE(storage.empty());
}

TEST(Unicode, StepTellsBeginningsFromErrors) {
  EXPECT_TRUE(StepUtf8("\xE2\x82").incomplete);
  EXPECT_TRUE(StepUtf8("\xF0").incomplete);
  EXPECT_FALSE(StepUtf8("\xE2\x28").incomplete);
  EXPECT_FALSE(StepUtf8("\xFF").incomplete);
  EXPECT_EQ(StepUtf8("\xF0\x9F\x98\x80").length, 4);
}

}  // namespace
}  // namespace qlora
