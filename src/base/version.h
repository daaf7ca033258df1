// The release and the commit of this build. Written by cmake/version.cmake into the library
// qlora_version, which only programs and modules link.
#ifndef QLORA_BASE_VERSION_H_
#define QLORA_BASE_VERSION_H_

namespace qlora {

// Returns "0.2.0", or "0.2.0+3" three commits after that release.
const char* Version();
// Returns twelve digits, with "-dirty" when files were changed; "" when nothing tells.
const char* Commit();

}  // namespace qlora

#endif  // QLORA_BASE_VERSION_H_
