// Texts with places to fill in.
#ifndef QLORA_JINJA_STRING_FORMAT_H_
#define QLORA_JINJA_STRING_FORMAT_H_

#include <string_view>

#include "jinja/value.h"

namespace qlora::jinja {

// format % value: %s %r %d %i %f %e %g %x %X %o %c and %%, with flags, width and precision; value
// is a tuple, a dict for %(name)s, or the only argument.
Value FormatPercent(Runtime& runtime, std::string_view format, const Value& value);

// format.format(...): {} {0} {name}, !s and !r; a format specification is not supported.
Value FormatBraces(Runtime& runtime, std::string_view format, const Arguments& arguments);

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_STRING_FORMAT_H_
