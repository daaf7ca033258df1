#include "decision/class_labels.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "decision/question.h"
#include "io/json.h"
#include "parquet/footer.h"
#include "records/file_bytes.h"
#include "records/file_format.h"

namespace qlora {
namespace {

using Labels = std::vector<std::string>;

// Labels are numbered from 0 on; a gap or a number that is none leaves them without meaning.
Labels InOrder(const std::map<std::string, std::string>& by_number) {
  Labels labels(by_number.size());
  for (const auto& [number, name] : by_number) {
    const auto at = ParseNumber<std::size_t>(number);
    if (!at || *at >= labels.size()) return {};
    labels[*at] = name;
  }
  return labels;
}

Labels NamesOfJson(const OrderedJson* names) {
  std::map<std::string, std::string> by_number;
  if (names == nullptr || !names->is_structured()) return {};
  for (const auto& [number, name] : names->items()) {
    if (!name.is_string()) return {};
    by_number[number] = name.get<std::string>();
  }
  return InOrder(by_number);
}

// The names in the features of a data set: {"label": {"names": [...]}}, or a list of
// {"name": "label", "dtype": {"class_label": {"names": {"0": ...}}}}.
Labels LabelsOfFeatures(const OrderedJson& features, const std::string& column) {
  if (features.is_object()) {
    const OrderedJson* feature = FindField(features, column);
    return feature != nullptr && feature->is_object() ? NamesOfJson(FindField(*feature, "names"))
                                                      : Labels();
  }
  for (const OrderedJson& feature : features) {
    if (!feature.is_object() || feature.value("name", OrderedJson()) != column) continue;
    const OrderedJson* type = FindField(feature, "dtype");
    const OrderedJson* label =
        type != nullptr && type->is_object() ? FindField(*type, "class_label") : nullptr;
    if (label != nullptr && label->is_object()) return NamesOfJson(FindField(*label, "names"));
  }
  return {};
}

// The first names among the features of a description, which may be one of several configurations.
Labels LabelsOfInfo(const OrderedJson& info, const std::string& column) {
  if (!info.is_object()) return {};
  if (const OrderedJson* features = FindField(info, "features")) {
    return LabelsOfFeatures(*features, column);
  }
  for (const OrderedJson& inner : info) {
    if (Labels labels = LabelsOfInfo(inner, column); !labels.empty()) return labels;
  }
  return {};
}

Labels LabelsOfJson(const std::string& text, const std::string& column) {
  OrderedJson info;
  return TryParseJson(text, info) ? Labels() : LabelsOfInfo(info, column);
}

Labels LabelsOfParquet(const std::filesystem::path& path, const std::string& column) {
  const FileBytes file(path);
  const parquet::Footer footer = parquet::ReadFooter(
      {.name = file.name(), .size = file.size(), .read = [&](auto begin, auto count) {
         return file.Read(begin, count);
       }});
  for (const auto& [key, value] : footer.metadata) {
    if (key != "huggingface") continue;
    if (Labels labels = LabelsOfJson(value, column); !labels.empty()) return labels;
  }
  return {};
}

// A line of YAML: how far it is indented, and what it says, without the dash of a list's item.
struct YamlLine {
  std::size_t indent = 0;
  bool is_item = false;
  std::string_view key;
  std::string value;
};

std::string Unquoted(std::string_view text) {
  text = Trim(text);
  if (text.size() < 2 || text.front() != text.back()) return std::string(text);
  const std::string inside(text.substr(1, text.size() - 2));
  if (text.front() == '\'') return ReplaceAll(inside, "''", "'");
  return text.front() == '"' ? ReplaceAll(inside, "\\\"", "\"") : std::string(text);
}

YamlLine ReadYamlLine(std::string_view line) {
  YamlLine out;
  out.indent = std::min(line.find_first_not_of(' '), line.size());
  line.remove_prefix(out.indent);
  out.is_item = line.starts_with("- ");
  if (out.is_item) line.remove_prefix(2);
  const std::size_t colon = line.find(':', line.starts_with('\'') ? line.find('\'', 1) : 0);
  out.key = line.substr(0, colon);
  if (colon != std::string_view::npos) out.value = Unquoted(line.substr(colon + 1));
  return out;
}

}  // namespace

// Follows the indentation, which is all of YAML that cards need:
//
//   - name: label
//     dtype:
//       class_label:
//         names:
//           '0': World
Labels ClassLabelsOfCard(std::string_view card, std::string_view column) {
  std::map<std::string, std::string> by_number;
  std::size_t item = std::string_view::npos;   // the indentation of the column's item
  std::size_t names = std::string_view::npos;  // and of its `names`
  bool is_first = true;
  for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = card.find('\n', begin);
    const std::string_view text = TrimEnd(card.substr(begin, end - begin));
    if (std::exchange(is_first, false) != (text == "---")) break;  // the front matter ends
    const YamlLine line = ReadYamlLine(text);
    if (names != std::string_view::npos) {
      if (line.indent <= names) break;
      by_number[Unquoted(line.key)] = line.value;
    } else if (item != std::string_view::npos && line.indent > item) {
      if (line.key == "names") names = line.indent;
    } else {
      const bool is_column = line.is_item && line.key == "name" && line.value == column;
      item = is_column ? line.indent : std::string_view::npos;
    }
  }
  return InOrder(by_number);
}

Labels FindClassLabels(const std::filesystem::path& data_file, const std::string& column) {
  constexpr int kFolders = 3;
  try {
    if (DataExtension(data_file) == ".parquet") {
      if (Labels labels = LabelsOfParquet(data_file, column); !labels.empty()) return labels;
    }
    std::filesystem::path folder = std::filesystem::absolute(data_file).parent_path();
    for (int i = 0; i < kFolders; ++i, folder = folder.parent_path()) {
      for (const char* name : {"dataset_info.json", "dataset_infos.json", "README.md"}) {
        if (!std::filesystem::is_regular_file(folder / name)) continue;
        const std::string text = ReadTextFile(folder / name);
        Labels labels = std::string_view(name) == "README.md" ? ClassLabelsOfCard(text, column)
                                                              : LabelsOfJson(text, column);
        if (!labels.empty()) return labels;
      }
    }
  } catch (const Error&) {
    // A description that cannot be read describes nothing; whoever needs names asks the user.
  } catch (const std::filesystem::filesystem_error&) {
  }
  return {};
}

DecisionFields WithClassLabels(DecisionFields fields, const std::filesystem::path& data_file) {
  if (fields.label_names.empty()) {
    fields.label_names = FindClassLabels(data_file, fields.label_column);
  }
  return fields;
}

}  // namespace qlora
