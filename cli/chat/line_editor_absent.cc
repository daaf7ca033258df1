// Replaces line_editor.cc in a build without libedit.
#include "chat/line_reader.h"

namespace qlora {

std::unique_ptr<LineReader> MakeLineEditor(const InterruptGuard& /*guard*/) { return nullptr; }

}  // namespace qlora
