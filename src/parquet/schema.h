// The columns of a Parquet file: a tree whose leaves are stored one by one, and the levels by which
// the entries of a leaf tell nulls, empty lists and continued lists.
#ifndef QLORA_PARQUET_SCHEMA_H_
#define QLORA_PARQUET_SCHEMA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "parquet/thrift_reader.h"

namespace qlora::parquet {

// The numbers of the format.
enum class Physical : std::int8_t {
  kBoolean,
  kInt32,
  kInt64,
  kInt96,
  kFloat,
  kDouble,
  kByteArray,
  kFixed,
};

// The JSON type of a value. kNone: it has no counterpart there (binary, times, decimals, FLOAT16,
// VARIANT), so that the column is left out.
enum class Kind : std::uint8_t { kNone, kNull, kBoolean, kSigned, kUnsigned, kFloat, kText, kJson };

// A node of the tree. Levels count from the root: `definition` is how many optional and repeated
// nodes there are on the path to this node, itself included; `repetition` how many repeated ones.
struct Node {
  enum class Shape : std::uint8_t { kLeaf, kStruct, kList };

  std::string name;
  Shape shape = Shape::kLeaf;
  bool nullable = false;  // the node may be absent: optional or repeated, with a separate level
  bool repeated = false;  // a repeated node outside of a list is a list of itself, never null
  int definition = 0;
  int repetition = 0;
  // kLeaf.
  Physical physical = Physical::kBoolean;
  Kind kind = Kind::kNone;
  std::int64_t column = 0;  // number of the column in the file
  std::string path;         // names from the root on: "messages.list.element.role"
  // Leaves at and below this node: [first_leaf, first_leaf + leaves) of all leaves of the tree.
  std::int64_t first_leaf = 0;
  std::int64_t leaves = 0;
  // The fields of a struct, or the one child of a list, its repeated node; element_is_child says
  // that the list's elements are the only child of that node instead of the node itself.
  std::vector<Node> children;
  bool element_is_child = false;
};

// The root, a struct, from the list of SchemaElements, which `reader` is in front of.
// Errors: InvalidInput for a list that is not a tree of columns.
Node ReadSchema(ThriftReader& reader, const ThriftField& field);

// All leaves, in the order of the columns.
std::vector<const Node*> LeavesOf(const Node& root);

// The tree without fields that have no counterpart in JSON; its leaves are numbered from 0 again.
// Errors: InvalidInput when two fields that are kept have one name, or none is kept.
Node WithoutUnreadable(const Node& root);

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_SCHEMA_H_
