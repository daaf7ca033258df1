// What an export refuses: options that contradict each other or have no effect, and files in which
// too little is left of an adapter.
#ifndef QLORA_EXPORT_EXPORT_CHECKS_H_
#define QLORA_EXPORT_EXPORT_CHECKS_H_

#include <string>
#include <string_view>
#include <vector>

#include "export/gguf/gguf_plan.h"
#include "qlora/export.h"

namespace qlora {

// options.format is resolved. Errors: InvalidInput for values that no option has, for a type that
// the format cannot hold or that needs what is not given, and for options without effect.
void CheckExportOptions(const ExportOptions& options);

// Reports what rounding leaves of the adapter. types: what is rounded to, for messages.
// is_published: the blocks of the base are the form in which it was published. report.merge_base
// is set. Returns a note where less is left than usual, or "". Errors: InvalidInput where little is
// left, unless options.force.
std::string CheckKeptChange(const std::vector<KeptChange>& kept, const ExportOptions& options,
                            std::string_view types, bool is_published, ExportReport& report);

}  // namespace qlora

#endif  // QLORA_EXPORT_EXPORT_CHECKS_H_
