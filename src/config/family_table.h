// The rows of all families (families.h), and of the models that also see or hear.
#ifndef QLORA_CONFIG_FAMILY_TABLE_H_
#define QLORA_CONFIG_FAMILY_TABLE_H_

#include <span>

#include "config/families.h"

namespace qlora {

std::span<const Family> AllFamilies();
std::span<const Wrapper> AllWrappers();

}  // namespace qlora

#endif  // QLORA_CONFIG_FAMILY_TABLE_H_
