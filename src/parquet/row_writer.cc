#include "parquet/row_writer.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "base/printable.h"
#include "io/json.h"
#include "unicode/unicode.h"

namespace qlora::parquet {
namespace {

// Appends `text` as a JSON string: control characters, quotes and backslashes escaped, all other
// bytes of UTF-8 unchanged.
void AppendText(std::string_view text, std::string& out) {
  constexpr std::string_view kEscaped = "\"\\";
  out += '"';
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
      continue;
    }
    if (kEscaped.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  out += '"';
}

// JSON that a column holds as text becomes a part of the record; text that is not JSON stays text.
void AppendJson(std::string_view text, std::string& out) {
  OrderedJson value;
  if (TryParseJson(text, value)) {
    AppendText(text, out);
  } else {
    out += FormatJson(value);
  }
}

}  // namespace

// How the columns of a record are put together again, for an optional list `turns` of optional
// structs with the optional texts `role` and `say` (r: repetition level, d: definition level):
//
//   record                                          role  r d         say  r d
//   {"turns": [{"role": "a", "say": "x"},            "a"  0 4         "x"  0 4
//              {"role": "b", "say": null}]}          "b"  1 4          -   1 3
//   {"turns": []}                                     -   0 1          -   0 1
//   {"turns": null}                                   -   0 0          -   0 0
//
// d: 1 the list is there, 2 an element is there, 3 the struct, 4 the text. Each column has one
// entry per element, or one for a list that is empty or null.
RowWriter::RowWriter(const Source& source, const Node& root, const RowGroup& group,
                     MemoryBudget& budget)
    : root_(root), row_share_(budget) {
  for (const Node* leaf : LeavesOf(root)) {
    const ColumnChunk& chunk = group.columns[leaf->column];
    columns_.push_back(std::make_unique<ColumnReader>(source, *leaf, chunk, budget));
  }
}

void RowWriter::Append(std::string& out) {
  elements_ = 0;
  AppendStruct(root_, /*in_list=*/false, out);
  row_share_.Resize(0);
  for (const auto& column : columns_) {
    if (column->repetition() != 0) column->Throw("an entry continues a list that has ended");
  }
}

void RowWriter::CheckEnd() const {
  for (const auto& column : columns_) {
    if (!column->at_end()) column->Throw("the column has more rows than its row group");
  }
}

// False for null.
bool RowWriter::AppendAny(const Node& node, bool in_list, std::string& out) {
  if (node.repeated) {
    AppendList(node, /*element_is_child=*/false, out);
    return true;
  }
  if (First(node).definition() < node.definition) {
    SkipAbsent(node);
    out += "null";
    return false;
  }
  AppendPresent(node, in_list, out);
  return node.kind != Kind::kNull;
}

void RowWriter::AppendPresent(const Node& node, bool in_list, std::string& out) {
  switch (node.shape) {
    case Node::Shape::kLeaf:
      if (First(node).definition() != node.definition) {
        First(node).Throw("the levels of columns disagree");
      }
      AppendValue(node, out);
      First(node).Next();
      return;
    case Node::Shape::kStruct:
      return AppendStruct(node, in_list, out);
    case Node::Shape::kList:
      return AppendList(node.children[0], node.element_is_child, out);
  }
}

// In lists, fields that are null are left out, except `content`: a struct of Parquet has all fields
// in all elements, and a message without tool calls has no key for tool calls.
void RowWriter::AppendStruct(const Node& node, bool in_list, std::string& out) {
  out += '{';
  for (const Node& child : node.children) {
    const std::size_t before = out.size();
    if (out.back() != '{') out += ", ";
    AppendText(child.name, out);
    out += ": ";
    const bool is_null = !AppendAny(child, in_list, out);
    if (is_null && in_list && child.name != "content") out.resize(before);
  }
  out += '}';
}

// Elements follow as long as the next entry repeats at the level of this list.
void RowWriter::AppendList(const Node& repeated, bool element_is_child, std::string& out) {
  out += '[';
  if (First(repeated).definition() < repeated.definition) {
    SkipAbsent(repeated);
  } else {
    do {
      CountElement(repeated, out);
      if (out.back() != '[') out += ", ";
      if (element_is_child) {
        AppendAny(repeated.children[0], /*in_list=*/true, out);
      } else {
        AppendPresent(repeated, /*in_list=*/true, out);
      }
    } while (ListContinues(repeated));
  }
  out += ']';
}

// A run of levels and indices of no bits make any number of elements of no bytes. What a record may
// hold is counted while the row grows.
void RowWriter::CountElement(const Node& repeated, const std::string& out) {
  if (++elements_ > kMaxOrderedValues) {
    First(repeated).Throw(
        fmt::format("a row has more than {} elements of lists", kMaxOrderedValues));
  }
  row_share_.Resize(std::ssize(out));
}

// All columns below must say the same, or texts would move from one record to another.
bool RowWriter::ListContinues(const Node& repeated) const {
  const bool continues = First(repeated).repetition() == repeated.repetition;
  for (std::int64_t l = repeated.first_leaf; l < repeated.first_leaf + repeated.leaves; ++l) {
    const ColumnReader& column = *columns_[l];
    if ((column.repetition() == repeated.repetition) != continues ||
        column.repetition() > repeated.repetition) {
      column.Throw("the columns of a list have elements of different number");
    }
  }
  return continues;
}

// All nodes above an absent node are present, so every column below it ends one level above it.
void RowWriter::SkipAbsent(const Node& node) {
  for (std::int64_t l = node.first_leaf; l < node.first_leaf + node.leaves; ++l) {
    ColumnReader& column = *columns_[l];
    if (!node.nullable || column.definition() != node.definition - 1) {
      column.Throw("the levels of columns disagree");
    }
    column.Next();
  }
}

void RowWriter::AppendValue(const Node& leaf, std::string& out) const {
  const ColumnReader& column = First(leaf);
  const Value& value = column.value();
  switch (leaf.kind) {
    case Kind::kNone:
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBoolean:
      out += value.bits != 0 ? "true" : "false";
      return;
    case Kind::kSigned:
      fmt::format_to(std::back_inserter(out), "{}", static_cast<std::int64_t>(value.bits));
      return;
    case Kind::kUnsigned:
      fmt::format_to(std::back_inserter(out), "{}", value.bits);
      return;
    case Kind::kFloat: {  // JSON has no NaN, which pandas writes for missing values
      const auto number = std::bit_cast<double>(value.bits);
      out += std::isfinite(number) ? PythonRepr(number) : "null";
      return;
    }
    case Kind::kText:
    case Kind::kJson: {
      std::string unused;
      if (ValidUtf8(value.text, &unused).data() != value.text.data()) {
        column.Throw("a text is not UTF-8");
      }
      return leaf.kind == Kind::kText ? AppendText(value.text, out) : AppendJson(value.text, out);
    }
  }
}

}  // namespace qlora::parquet
