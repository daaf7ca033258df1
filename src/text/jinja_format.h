// Texts with places to fill in.
#ifndef QLORA_TEXT_JINJA_FORMAT_H_
#define QLORA_TEXT_JINJA_FORMAT_H_

#include <string_view>

#include "text/jinja_value.h"

namespace qlora::jinja {

// format % value: %s %r %d %i %f %e %g %x %X %o %c and %%, with flags, width and precision; value
// is a tuple, a dict for %(name)s, or the only argument.
Value FormatPercent(Runtime& runtime, std::string_view format, const Value& value);

// format.format(...): {} {0} {name}, !s and !r; a format specification is not supported.
Value FormatBraces(Runtime& runtime, std::string_view format, const Arguments& arguments);

}  // namespace qlora::jinja

#endif  // QLORA_TEXT_JINJA_FORMAT_H_
