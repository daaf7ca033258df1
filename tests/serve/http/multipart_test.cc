#include "serve/http/multipart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "serve/api_error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr std::string_view kType = "multipart/form-data; boundary=B";

struct Upload {
  MultipartForm form;
  std::string file;
};

Upload Read(const std::string& body, std::string_view type = kType) {
  Upload upload;
  upload.form =
      ReadMultipart(body, type, "file", [&](std::string_view piece) { upload.file.append(piece); });
  return upload;
}

// The message of the refusal; "" where there is none.
std::string Refusal(const std::string& body, std::string_view type = kType) {
  try {
    Read(body, type);
    return "";
  } catch (const ApiError& error) {
    EXPECT_TRUE(error.status == 400 || error.status == 415) << error.status;
    return error.message;
  }
}

std::string Field(const std::string& name, const std::string& value) {
  return "--B\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
}
std::string File(const std::string& content, const std::string& name = "a.jsonl") {
  return "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + name +
         "\"\r\nContent-Type: application/octet-stream\r\n\r\n" + content + "\r\n";
}
const std::string kEnd = "--B--\r\n";

TEST(MultipartTest, FieldsAndTheFile) {
  const Upload upload =
      Read(Field("purpose", "fine-tune") + File("{\"a\":1}\n") + Field("metadata[k]", "é") + kEnd);
  EXPECT_THAT(upload.form.fields,
              UnorderedElementsAre(Pair("purpose", "fine-tune"), Pair("metadata[k]", "é")));
  EXPECT_EQ(upload.form.file_name, "a.jsonl");
  EXPECT_EQ(upload.form.file_bytes, 8);
  EXPECT_EQ(upload.file, "{\"a\":1}\n");
}

TEST(MultipartTest, FormsThatClientsMake) {
  // A quoted boundary, spaces after it, text before and after the parts, no end of line at the end.
  const Upload odd = Read(
      "preamble\r\n--a b \t\r\ncontent-disposition:form-data;name=x\r\n\r\n1\r\n"
      "--a b--epilogue",
      "Multipart/Form-Data; charset=utf-8; BOUNDARY=\"a b\"");
  EXPECT_THAT(odd.form.fields, UnorderedElementsAre(Pair("x", "1")));
  EXPECT_FALSE(odd.form.file_name.has_value());
  // curl, browsers, and a path of an old one.
  EXPECT_EQ(Read(File("", R"(a \"b\" \\.jsonl)") + kEnd).form.file_name, R"(a "b" \.jsonl)");
  EXPECT_EQ(Read(File("", "a %22b%22;c.jsonl") + kEnd).form.file_name, "a %22b%22;c.jsonl");
  EXPECT_EQ(Read(File("", R"(C:\data\漢.jsonl)") + kEnd).form.file_name, R"(C:\data\漢.jsonl)");
  EXPECT_TRUE(Read(kEnd).form.fields.empty());
}

TEST(MultipartTest, ContentIsKeptToTheByte) {
  for (const char* content :
       {"", "\r\n", "\r", "--B", "\r\n--", "\r\n-B\r\n--\r\n--A", "\n--B", "\r\n\r\n--"}) {
    EXPECT_EQ(Read(File(content) + kEnd).file, content) << content;
  }
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(Read(File(bytes) + kEnd).file, bytes);
  // Around the size of the pieces, so that a boundary lies across two.
  for (std::size_t size = (1 << 20) - 10; size < (1 << 20) + 10; ++size) {
    const std::string large(size, '\r');
    ASSERT_EQ(Read(File(large) + kEnd).file, large) << size;
  }
}

TEST(MultipartTest, MalformedFormsAreRefused) {
  const std::string good = Field("a", "1") + File("content") + kEnd;
  ASSERT_EQ(Refusal(good), "");
  // Whatever the last boundary is cut to.
  for (std::size_t size = 0; size < good.size() - 2; ++size) {
    EXPECT_NE(Refusal(good.substr(0, size)), "") << size;
  }
  EXPECT_THAT(Refusal(Field("a", "1") + Field("a", "2") + kEnd), HasSubstr("a is there twice"));
  EXPECT_THAT(Refusal(File("1") + File("2") + kEnd), HasSubstr("file is there twice"));
  EXPECT_THAT(Refusal(Field("file", "1") + kEnd), HasSubstr("no filename"));
  for (const char* head :
       {"", "Content-Type: text/plain\r\n", "Content-Disposition: attachment; name=\"a\"\r\n",
        "Content-Disposition: form-data\r\n", "Content-Disposition: form-data; name=\"a\r\n",
        "Content-Disposition: form-data; name=\"a\"x\r\n",
        "Content-Disposition: form-data; name\r\n",
        "Content-Disposition: form-data; name=a; name=b\r\n",
        "Content-Disposition: form-data; name=\"\xFF\"\r\n",
        "Content-Disposition: form-data; name=other; filename=b\r\n", "no colon\r\n",
        "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b\r\n",
        "Content-Disposition: form-data; name=a\r\nContent-Transfer-Encoding: base64\r\n"}) {
    EXPECT_NE(Refusal("--B\r\n" + std::string(head) + "\r\n1\r\n" + kEnd), "") << head;
  }
  EXPECT_NE(Refusal("--BX\r\n\r\n1\r\n--B--\r\n"), "");
  EXPECT_THAT(Refusal(Field("a", "\xC3") + kEnd), HasSubstr("UTF-8"));
}

TEST(MultipartTest, LimitsHold) {
  EXPECT_EQ(Refusal(Field("a", std::string(64 << 10, 'x')) + kEnd), "");
  EXPECT_NE(Refusal(Field("a", std::string((64 << 10) + 1, 'x')) + kEnd), "");
  EXPECT_NE(Refusal("--B\r\nX: " + std::string(9 << 10, 'x') + "\r\n\r\n1\r\n" + kEnd), "");
  std::string many;
  for (int i = 0; i < 64; ++i) many += Field(std::to_string(i), "");
  EXPECT_EQ(Refusal(many + kEnd), "");
  EXPECT_NE(Refusal(many + Field("64", "") + kEnd), "");
}

TEST(MultipartTest, TypesThatAreNoForm) {
  EXPECT_THAT(Refusal(kEnd, "application/json"), HasSubstr("multipart/form-data"));
  EXPECT_THAT(Refusal(kEnd, ""), HasSubstr("multipart/form-data"));
  for (const char* type :
       {"multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary",
        "multipart/form-data; boundary=\"B", "multipart/form-data; boundary=B; boundary=C"}) {
    EXPECT_NE(Refusal(kEnd, type), "") << type;
  }
  EXPECT_NE(Refusal(kEnd, "multipart/form-data; boundary=" + std::string(71, 'B')), "");
}

TEST(MultipartTest, FromAFileToAFile) {
  const TemporaryFolder scratch;
  const std::string content = std::string(3 << 20, 'x') + "\r\n--";
  WriteTextFile(scratch / "body", Field("purpose", "p") + File(content) + kEnd);
  const MultipartForm form = ReadMultipartFile(scratch / "body", kType, "file", scratch / "out");
  EXPECT_EQ(form.fields.at("purpose"), "p");
  EXPECT_EQ(form.file_bytes, std::ssize(content));
  EXPECT_EQ(ReadTextFile(scratch / "out"), content);
  // A form that breaks after its file leaves nothing, as does one without a file.
  WriteTextFile(scratch / "body", File(content) + "--B\r\n");
  EXPECT_THROW(ReadMultipartFile(scratch / "body", kType, "file", scratch / "none"), ApiError);
  WriteTextFile(scratch / "body", Field("purpose", "p") + kEnd);
  EXPECT_FALSE(
      ReadMultipartFile(scratch / "body", kType, "file", scratch / "none").file_name.has_value());
  WriteTextFile(scratch / "body", "");
  EXPECT_THROW(ReadMultipartFile(scratch / "body", kType, "file", scratch / "none"), ApiError);
  EXPECT_EQ(scratch.files(), 2u);
}

}  // namespace
}  // namespace qlora
