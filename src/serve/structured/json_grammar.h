// The parts of JSON as parts of a grammar.
#ifndef QLORA_SERVE_STRUCTURED_JSON_GRAMMAR_H_
#define QLORA_SERVE_STRUCTURED_JSON_GRAMMAR_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "serve/structured/byte_grammar.h"

namespace qlora {

class JsonGrammar {
 public:
  // No bound: any number of them.
  struct Lengths {
    std::int64_t least = 0;
    std::optional<std::int64_t> most = {};
  };
  struct Bounds {
    std::optional<std::int64_t> least = {};
    std::optional<std::int64_t> most = {};
  };
  struct Property {
    std::string_view name;
    GrammarRule value;
    bool is_required;
  };

  JsonGrammar();
  GrammarBuilder& builder() { return builder_; }

  // A value each, and what follows.
  GrammarState Any(GrammarState next);
  GrammarState AnyObject(GrammarState next);
  GrammarState String(Lengths lengths, GrammarState next);
  GrammarState Number(GrammarState next);
  // Errors: InvalidInput where no integer is between the bounds.
  GrammarState Integer(Bounds bounds, GrammarState next);
  GrammarState Array(GrammarRule item, Lengths lengths, GrammarState next);
  // Members in this order, which may lack where they are not required.
  GrammarState Object(const std::vector<Property>& properties, GrammarState next);
  // Members of any name.
  GrammarState Map(GrammarRule value, GrammarState next);

  // What stands between brackets, from the first to the last, which counts as one level of depth;
  // and what follows. inside: up to builder().end().
  GrammarState Nested(GrammarState inside, GrammarState next);

  // White space may stand before the text. Errors: as GrammarBuilder::Finish.
  ByteGrammar Finish(GrammarState begin);

 private:
  GrammarState Space(GrammarState next);
  GrammarState Digits(std::int64_t least, std::int64_t most, GrammarState next);
  GrammarState IntegerDigits(GrammarState next);
  GrammarState Up(std::uint64_t least, std::uint64_t most, GrammarState next);
  GrammarState Escape(GrammarState next);
  GrammarState Character(GrammarState next);
  GrammarState Comma(GrammarState next);

  GrammarBuilder builder_;
  GrammarRule space_;
  GrammarRule character_;
  GrammarRule any_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_STRUCTURED_JSON_GRAMMAR_H_
