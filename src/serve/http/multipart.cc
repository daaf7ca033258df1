#include "serve/http/multipart.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "serve/api_error.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

constexpr std::size_t kMaxFields = 64;
constexpr std::size_t kMaxFieldBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxPartHead = std::size_t{8} << 10;
constexpr std::size_t kMaxBoundary = 70;  // RFC 2046
constexpr std::size_t kPiece = std::size_t{1} << 20;

template <typename... Args>
[[noreturn]] void Refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, "the form: " + fmt::format(format, std::forward<Args>(args)...));
}

std::string Utf8OrRefused(std::string_view text, std::string_view what) {
  std::string storage;
  if (ValidUtf8(text, &storage).data() != text.data()) Refuse("{} is not UTF-8", what);
  return std::string(text);
}

// A header such as: form-data; name="file"; filename="a \"b\".jsonl"
struct HeaderValue {
  std::string value;  // in lower case
  std::map<std::string, std::string> parameters;
};

// Takes `"..."` or a token from the front of `text`. A backslash before a quote or a backslash
// belongs to it; before others it is one, as in the paths of old browsers.
std::string TakeParameter(std::string_view& text) {
  std::string out;
  if (!text.starts_with('"')) {
    const std::size_t end = std::min(text.find(';'), text.size());
    out = Trim(text.substr(0, end));
    text.remove_prefix(end);
    return out;
  }
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      text = Trim(text.substr(i + 1));
      return out;
    }
    const bool escapes =
        text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\');
    out += text[escapes ? ++i : i];
  }
  Refuse("a header has a quote without an end");
}

HeaderValue ParseHeaderValue(std::string_view text) {
  const std::size_t semicolon = std::min(text.find(';'), text.size());
  HeaderValue header{.value = LowerCase(Trim(text.substr(0, semicolon))), .parameters = {}};
  text.remove_prefix(semicolon);
  while (!text.empty()) {
    if (text[0] != ';') Refuse("a header has a parameter that does not end");
    text = Trim(text.substr(1));
    const std::size_t equals = text.find('=');
    if (text.empty()) break;
    if (equals == std::string_view::npos) Refuse("a header has a parameter without a value");
    const std::string name = LowerCase(Trim(text.substr(0, equals)));
    text = Trim(text.substr(equals + 1));
    if (!header.parameters.emplace(name, TakeParameter(text)).second) {
      Refuse("a header has {} twice", Utf8OrRefused(name, "the name of a parameter"));
    }
  }
  return header;
}

std::string BoundaryOf(std::string_view type) {
  const HeaderValue header = ParseHeaderValue(type);
  if (header.value != "multipart/form-data") {
    throw ApiError(415, "expected a form: Content-Type multipart/form-data with a boundary");
  }
  const auto found = header.parameters.find("boundary");
  const std::string boundary = found == header.parameters.end() ? "" : found->second;
  const bool is_text =
      std::ranges::all_of(boundary, [](unsigned char c) { return c >= 0x20 && c < 0x7F; });
  if (boundary.empty() || boundary.size() > kMaxBoundary || !is_text) {
    Refuse("Content-Type: expected a boundary of 1 to {} characters", kMaxBoundary);
  }
  return boundary;
}

class FormReader {
 public:
  FormReader(std::string_view body, const std::string& boundary,
             const std::function<void(std::size_t)>& read_to)
      : body_(body), rest_(body), delimiter_("\r\n--" + boundary), read_to_(read_to) {}

  // Moves behind the boundary that begins the first part, before which anything may stand.
  void SkipPreamble() {
    const std::string_view first = std::string_view(delimiter_).substr(2);
    if (rest_.starts_with(first)) {
      rest_.remove_prefix(first.size());
    } else {
      PassContent([](std::string_view) {});
    }
  }

  // After a boundary: true where a part follows, false at the end of the form.
  bool BeginPart() {
    if (rest_.starts_with("--")) return false;
    const std::size_t text = std::min(rest_.find_first_not_of(" \t"), rest_.size());
    if (!rest_.substr(text).starts_with("\r\n")) Refuse("it ends before its last boundary");
    rest_.remove_prefix(text + 2);
    return true;
  }

  // The headers of a part by their names in lower case.
  std::map<std::string, std::string> TakeHead() {
    std::map<std::string, std::string> headers;
    std::size_t left = kMaxPartHead;
    while (true) {
      const std::size_t end = rest_.substr(0, left).find("\r\n");
      if (end == std::string_view::npos) Refuse("a part has no end of its headers");
      const std::string_view line = rest_.substr(0, end);
      rest_.remove_prefix(end + 2);
      left -= end + 2;
      if (line.empty()) return headers;
      const std::size_t colon = line.find(':');
      if (colon == std::string_view::npos) Refuse("a part has a header without a colon");
      const std::string name = LowerCase(line.substr(0, colon));
      if (!headers.emplace(name, Trim(line.substr(colon + 1))).second) {
        Refuse("a part has two headers of one name");
      }
    }
  }

  // Passes on what stands before the next boundary, and moves behind that.
  template <typename Take>
  void PassContent(const Take& take) {
    while (true) {
      const std::string_view window = rest_.substr(0, kPiece + delimiter_.size() - 1);
      const std::size_t end = window.find(delimiter_);
      if (end == std::string_view::npos && window.size() < kPiece + delimiter_.size() - 1) {
        Refuse("it ends before its last boundary");
      }
      const std::size_t bytes = std::min(end, kPiece);
      take(rest_.substr(0, bytes));
      rest_.remove_prefix(end == std::string_view::npos ? bytes : bytes + delimiter_.size());
      if (read_to_) read_to_(body_.size() - rest_.size());
      if (end != std::string_view::npos) return;
    }
  }

 private:
  const std::string_view body_;
  std::string_view rest_;
  const std::string delimiter_;
  const std::function<void(std::size_t)>& read_to_;
};

// What a part says of itself.
struct Part {
  std::string name;
  std::optional<std::string> file_name;
};

Part PartOf(const std::map<std::string, std::string>& headers) {
  const auto disposition = headers.find("content-disposition");
  if (disposition == headers.end()) Refuse("a part has no Content-Disposition");
  const HeaderValue value = ParseHeaderValue(disposition->second);
  const auto name = value.parameters.find("name");
  if (value.value != "form-data" || name == value.parameters.end()) {
    Refuse("a part is not form-data with a name");
  }
  const auto encoding = headers.find("content-transfer-encoding");
  if (encoding != headers.end() && !HasWord("7bit 8bit binary", LowerCase(encoding->second))) {
    Refuse("a part has a Content-Transfer-Encoding; send its bytes as they are");
  }
  Part part{.name = Utf8OrRefused(name->second, "the name of a part"), .file_name = {}};
  const auto file = value.parameters.find("filename");
  if (file != value.parameters.end()) {
    part.file_name = Utf8OrRefused(file->second, "the name of a file");
  }
  return part;
}

std::string TakeField(FormReader& reader, const std::string& name) {
  std::string text;
  reader.PassContent([&](std::string_view piece) {
    if (text.size() + piece.size() > kMaxFieldBytes) {
      Refuse("{} is longer than {} bytes", name, kMaxFieldBytes);
    }
    text += piece;
  });
  return Utf8OrRefused(text, name);
}

}  // namespace

MultipartForm ReadMultipart(std::string_view body, std::string_view type,
                            std::string_view file_field,
                            const std::function<void(std::string_view)>& write_file,
                            const std::function<void(std::size_t)>& read_to) {
  FormReader reader(body, BoundaryOf(type), read_to);
  MultipartForm form;
  reader.SkipPreamble();
  while (reader.BeginPart()) {
    const Part part = PartOf(reader.TakeHead());
    if (part.name == file_field) {
      if (!part.file_name) Refuse("{} is not a file: it has no filename", part.name);
      if (form.file_name) Refuse("{} is there twice", part.name);
      form.file_name = part.file_name;
      reader.PassContent([&](std::string_view piece) {
        form.file_bytes += static_cast<std::int64_t>(piece.size());
        write_file(piece);
      });
      continue;
    }
    if (part.file_name) Refuse("{} is a file; only {} may be one", part.name, file_field);
    if (form.fields.size() == kMaxFields) Refuse("it has more than {} fields", kMaxFields);
    const auto [place, is_new] = form.fields.try_emplace(part.name);
    if (!is_new) Refuse("{} is there twice", part.name);
    place->second = TakeField(reader, part.name);
  }
  return form;
}

MultipartForm ReadMultipartFile(const std::filesystem::path& body, std::string_view type,
                                std::string_view file_field, const std::filesystem::path& output) {
  const MappedFile mapped(body);
  const std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()),
                              mapped.bytes().size());
  AtomicFile file(output, OpenMode::kCreate);
  std::size_t released = 0;
  MultipartForm form = ReadMultipart(
      text, type, file_field, [&](std::string_view piece) { file.Write(piece); },
      [&](std::size_t bytes) {
        mapped.Release(released, bytes - released);
        released = bytes;
      });
  if (form.file_name) file.Commit();
  return form;
}

}  // namespace qlora
