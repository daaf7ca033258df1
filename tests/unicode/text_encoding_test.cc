// The encoding of a text is told as iconv writes it.
#include "unicode/text_encoding.h"

#include <gtest/gtest.h>
#include <iconv.h>

#include <string>

namespace qlora {
namespace {

// Returns the text of UTF-8 in another encoding; "" where iconv does not know it.
std::string Converted(std::string text, const char* encoding) {
  const iconv_t converter = iconv_open(encoding, "UTF-8");
  if (converter == iconv_t(-1)) return "";
  std::string out(4 * text.size(), '\0');
  char* from = text.data();
  char* to = out.data();
  std::size_t from_left = text.size();
  std::size_t to_left = out.size();
  EXPECT_EQ(iconv(converter, &from, &from_left, &to, &to_left), 0u) << encoding;
  iconv_close(converter);
  out.resize(out.size() - to_left);
  return out;
}

TEST(TextEncodingTest, TellsWhatIconvWrites) {
  const struct {
    const char* encoding;
    const char* answer;
  } cases[] = {
      {"WINDOWS-1252", "Größe und Gewicht der Möwe, für Müller geprüft"},
      {"WINDOWS-1252", "L'été dernier, à Brest, la marée était très haute où ça?"},
      {"WINDOWS-1252", "¿Dónde está el niño? ¡Mañana será otro día!"},
      {"GB18030", "海上有雾，船长说要小心航行。"},
      {"GB18030", "问：船有几根绳子？答：九十根。"},
      {"SHIFT_JIS", "船にはロープが何本ありますか。九十本です。"},
      {"UTF-16LE", "Is fog a cloud? Ja, natürlich."},
      {"UTF-16BE", "Is fog a cloud? Ja, natürlich."},
  };
  for (const auto& one : cases) {
    const std::string record =
        std::string("{\"prompt\": \"1\", \"completion\": \"") + one.answer + "\"}\n";
    const std::string bytes = Converted(record + record, one.encoding);
    if (bytes.empty()) continue;
    EXPECT_EQ(GuessEncoding(bytes), one.encoding) << one.answer;
  }
}

}  // namespace
}  // namespace qlora
