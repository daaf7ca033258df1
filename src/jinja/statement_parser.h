// Tokens -> the tree of a template. The grammar of its statements:
//
//   block       = {text | "{{" tuple "}}" | "{%" statement "%}"}
//   statement   = "if" tuple %} block {"elif" tuple %} block} ["else" %} block] "endif"
//               | "for" targets "in" tuple ["if" expression] %} block ["else" %} block] "endfor"
//               | "set" targets "=" tuple
//               | "set" target {"|" filter} %} block "endset"
//               | "filter" filter {"|" filter} %} block "endfilter"
//               | "with" [target "=" expression {"," target "=" expression}] %} block "endwith"
//               | "macro" name parameters %} block "endmacro"
//               | "call" [parameters] expression %} block "endcall"
//               | "generation" %} block "endgeneration"
//               | "break" | "continue"
//   targets     = target {"," target} [","]
//   target      = name | name "." name (in set) | "(" targets ")"
//   parameters  = "(" {name ","} {name "=" expression ","} ")"
#ifndef QLORA_JINJA_STATEMENT_PARSER_H_
#define QLORA_JINJA_STATEMENT_PARSER_H_

#include <vector>

#include "jinja/lexer.h"
#include "jinja/syntax_tree.h"

namespace qlora::jinja {

// Errors: Failure with the place, also for a construct that is not supported.
Syntax Parse(std::vector<Token> tokens);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_STATEMENT_PARSER_H_
