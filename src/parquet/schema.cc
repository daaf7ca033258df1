#include "parquet/schema.h"

#include <optional>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "unicode/unicode.h"

namespace qlora::parquet {
namespace {

constexpr int kMaxSchemaDepth = 32;
constexpr std::int64_t kMaxElements = 20'000;
constexpr std::int32_t kRepeated = 2;

// One entry of the list, which is the tree in depth-first order. Annotations come as a converted
// type (old files), as a logical type, or as both:
//
//             text  map   list  enum  unsigned  signed  integer  null  JSON  variant
//   converted   0   1, 2    3     4    11-14     15-18                   19
//   logical     1     2     3     4                        10      11    12     16
struct SchemaElement {
  std::optional<std::int32_t> physical;
  std::int32_t repetition = 0;
  std::string name;
  std::int32_t children = 0;
  std::int32_t converted = -1;
  std::int64_t logical = -1;
  bool logical_signed = true;  // of a logical integer

  bool is_list() const { return converted == 3 || logical == 3; }
  bool is_map() const { return converted == 1 || converted == 2 || logical == 2; }
  // A struct of the parts in which a value is stored, which are not the value.
  bool is_variant() const { return logical == 16; }
};

// 1 type, 3 repetition type, 4 name, 5 number of children, 6 converted type, 10 logical type.
SchemaElement ReadElement(ThriftReader& reader) {
  SchemaElement element;
  const auto read_integer = [&](const ThriftField& field) {
    return reader.Read(field, {{2, &element.logical_signed}});
  };
  // A union: the number of its only field is the annotation.
  const auto read_logical = [&](const ThriftField& field) {
    element.logical = field.id;
    return field.id == 10 && reader.Struct(field, read_integer);
  };
  reader.Struct([&](const ThriftField& field) {
    if (field.id == 10) return reader.Struct(field, read_logical);
    return reader.Read(field, {{1, &element.physical},
                               {3, &element.repetition},
                               {4, &element.name},
                               {5, &element.children},
                               {6, &element.converted}});
  });
  return element;
}

// The number of bits does not matter: JSON's integers have all.
Kind KindOf(const SchemaElement& element, Physical physical) {
  if (element.logical == 11) return Kind::kNull;
  const bool plain = element.converted < 0 && element.logical < 0;
  const bool logical_integer = element.logical == 10;
  const bool is_unsigned = (element.converted >= 11 && element.converted <= 14) ||
                           (logical_integer && !element.logical_signed);
  const bool is_signed = (element.converted >= 15 && element.converted <= 18) || logical_integer;
  switch (physical) {
    case Physical::kBoolean:
      return Kind::kBoolean;
    case Physical::kInt32:
    case Physical::kInt64:
      if (is_unsigned) return Kind::kUnsigned;
      return plain || is_signed ? Kind::kSigned : Kind::kNone;
    case Physical::kFloat:
    case Physical::kDouble:
      return Kind::kFloat;
    case Physical::kByteArray:
      if (element.converted == 19 || element.logical == 12) return Kind::kJson;
      return element.converted == 0 || element.converted == 4 || element.logical == 1 ||
                     element.logical == 4
                 ? Kind::kText
                 : Kind::kNone;
    default:
      return Kind::kNone;
  }
}

void LeaveOut(Node& node) {
  node.kind = Kind::kNone;
  for (Node& child : node.children) LeaveOut(child);
}

// Builds the tree from the list: an element is followed by its children, each with its own.
class TreeBuilder {
 public:
  explicit TreeBuilder(const std::vector<SchemaElement>& elements) : elements_(elements) {}

  Node Build() {
    Node root = BuildNode(Node(), 0);
    if (next_ != std::ssize(elements_)) ThrowInvalidInput("the schema has elements left over");
    if (root.shape == Node::Shape::kLeaf || root.leaves == 0) {
      ThrowInvalidInput("the schema has no columns");
    }
    return root;
  }

 private:
  // The next element and all below it. The root is neither optional nor a part of paths, whatever
  // its element says.
  Node BuildNode(const Node& parent, int depth) {
    if (next_ == std::ssize(elements_)) ThrowInvalidInput("the schema ends too early");
    if (depth > kMaxSchemaDepth) {
      ThrowInvalidInput("the schema is nested more than {} levels deep", kMaxSchemaDepth);
    }
    const SchemaElement& element = elements_[next_++];
    std::string unused;
    if (ValidUtf8(element.name, &unused).data() != element.name.data()) {
      ThrowInvalidInput("the name of column {} is not UTF-8", leaves_ + 1);
    }
    const bool is_root = depth == 0;
    Node node;
    node.name = element.name;
    node.path = parent.path.empty() ? element.name : parent.path + '.' + element.name;
    if (is_root) node.path.clear();
    node.nullable = !is_root && element.repetition != 0;
    node.repeated = !is_root && element.repetition == kRepeated;
    node.definition = parent.definition + node.nullable;
    node.repetition = parent.repetition + node.repeated;
    node.first_leaf = leaves_;
    if (element.repetition < 0 || element.repetition > kRepeated) {
      ThrowInvalidInput("column '{}' has repetition type {}", element.name, element.repetition);
    }
    if (element.children < 0)
      ThrowInvalidInput("column '{}' has {} children", element.name, element.children);
    if (element.children == 0 && !is_root) {
      FillLeaf(element, node);
    } else {
      node.shape = Node::Shape::kStruct;
      for (std::int32_t c = 0; c < element.children; ++c) {
        node.children.push_back(BuildNode(node, depth + 1));
      }
    }
    node.leaves = leaves_ - node.first_leaf;
    FindList(element, node);
    if (element.is_variant()) LeaveOut(node);
    return node;
  }

  void FillLeaf(const SchemaElement& element, Node& node) {
    if (!element.physical || *element.physical < 0 ||
        *element.physical > static_cast<int>(Physical::kFixed)) {
      ThrowInvalidInput("column '{}' has no known type", element.name);
    }
    node.physical = static_cast<Physical>(*element.physical);
    node.kind = KindOf(element, node.physical);
    node.column = leaves_++;
  }

  // The rules of the format for lists of three levels, and of two levels as older writers have
  // them. The names "array" and "<list>_tuple" mark writers whose repeated node is the element,
  // even if that has one field:
  //   group tags (LIST) { repeated group list { optional binary element } }    element: the child
  //   group tags (LIST) { repeated binary array }                              element: the node
  // A map is a list of its entries.
  void FindList(const SchemaElement& element, Node& node) {
    if (!element.is_list() && !element.is_map()) return;
    if (node.children.size() != 1 || !node.children[0].repeated) return;
    Node& repeated = node.children[0];
    node.shape = Node::Shape::kList;
    const bool one_field = repeated.shape == Node::Shape::kStruct && repeated.children.size() == 1;
    node.element_is_child = element.is_list() && one_field && !repeated.children[0].repeated &&
                            repeated.name != "array" && repeated.name != node.name + "_tuple";
    // The repeated node is the list itself, not a list inside it.
    repeated.repeated = false;
  }

  const std::vector<SchemaElement>& elements_;
  std::int64_t next_ = 0;
  std::int64_t leaves_ = 0;
};

void CollectLeaves(const Node& node, std::vector<const Node*>& leaves) {
  if (node.shape == Node::Shape::kLeaf) leaves.push_back(&node);
  for (const Node& child : node.children) CollectLeaves(child, leaves);
}

// Removes the fields that JSON has nothing for, and numbers the other leaves again. False when
// nothing at or below the node can be read. next_leaf: the number of the next leaf that is kept.
bool KeepReadable(Node& node, std::int64_t& next_leaf) {
  node.first_leaf = next_leaf;
  if (node.shape == Node::Shape::kLeaf) {
    next_leaf += node.kind != Kind::kNone;
    return node.kind != Kind::kNone;
  }
  std::vector<Node> kept;
  std::unordered_set<std::string> names;
  for (Node& child : node.children) {
    if (!KeepReadable(child, next_leaf)) continue;
    if (!names.insert(child.name).second) {
      ThrowInvalidInput("two columns have the name '{}'", child.name);
    }
    kept.push_back(std::move(child));
  }
  node.children = std::move(kept);
  node.leaves = next_leaf - node.first_leaf;
  return !node.children.empty();
}

}  // namespace

Node ReadSchema(ThriftReader& reader, const ThriftField& field) {
  std::vector<SchemaElement> elements;
  reader.ListOfStructs(field, [&] {
    if (std::ssize(elements) == kMaxElements) {
      ThrowInvalidInput("the schema has more than {} elements", kMaxElements);
    }
    elements.push_back(ReadElement(reader));
  });
  return TreeBuilder(elements).Build();
}

std::vector<const Node*> LeavesOf(const Node& root) {
  std::vector<const Node*> leaves;
  CollectLeaves(root, leaves);
  return leaves;
}

Node WithoutUnreadable(const Node& root) {
  Node kept = root;
  std::int64_t leaves = 0;
  if (!KeepReadable(kept, leaves)) {
    ThrowInvalidInput("no column holds text, numbers, or lists and structs of these");
  }
  return kept;
}

}  // namespace qlora::parquet
