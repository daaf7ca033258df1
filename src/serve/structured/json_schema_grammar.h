// The texts that are JSON, or values of a JSON Schema, as a grammar.
//
// Every text of the grammar is valid JSON that the schema allows, but not every such text is in it:
// properties come in the order of the schema, and only those that it names; numbers have at most 15
// digits before the point and 15 behind it; white space between parts is none, a space, or a line
// break with its indent. Values stand in each other no deeper than GrammarReader::kMostDepth.
//
// Read are: type (also as a list), properties, required, additionalProperties, items, minItems,
// maxItems, minLength, maxLength, enum, const, anyOf, allOf of one schema, $ref into the schema,
// and of integers minimum, maximum, exclusiveMinimum and exclusiveMaximum. Titles and the like say
// nothing of a value. Anything else is refused by name: a form that is not kept would be a promise
// that is not kept.
#ifndef QLORA_SERVE_STRUCTURED_JSON_SCHEMA_GRAMMAR_H_
#define QLORA_SERVE_STRUCTURED_JSON_SCHEMA_GRAMMAR_H_

#include <string>

#include "io/json_fwd.h"
#include "qlora/error.h"
#include "serve/request_fields.h"
#include "serve/structured/byte_grammar.h"
#include "serve/structured/json_grammar.h"

namespace qlora {

// Any object.
ByteGrammar JsonObjectGrammar();

// The arguments of a call, by their schema, and what follows, within a larger grammar. Of a schema
// that says nothing of a value they are any object. Errors: as JsonSchemaGrammar, and for a schema
// whose type is not object.
GrammarState JsonSchemaObject(JsonGrammar& grammar, const OrderedJson& schema,
                              const std::string& path, GrammarState next);

// Runs what makes a grammar of what a field has. Its Error is ApiError 400 for the field.
template <typename Work>
auto AtField(const std::string& path, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    RefuseField(path, error.what());
  }
}

// path: of the schema in its request, for errors. Errors: ApiError 400 that names the keyword.
ByteGrammar JsonSchemaGrammar(const OrderedJson& schema, const std::string& path);

}  // namespace qlora

#endif  // QLORA_SERVE_STRUCTURED_JSON_SCHEMA_GRAMMAR_H_
