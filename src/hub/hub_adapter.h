// Adapters by the names of the hub.
#ifndef QLORA_HUB_HUB_ADAPTER_H_
#define QLORA_HUB_HUB_ADAPTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "io/peft/adapter_source.h"

namespace qlora {

// Returns the folder of an adapter: `name` where it is a folder or names nothing that the cache
// could have, otherwise the snapshot of org/name[@revision] in the cache. "" stays "". Errors:
// InvalidInput for a name of the hub that is not in the cache or is no adapter, with what to do.
std::string ResolveAdapterDir(const std::string& name);

// The same for adapters as options name them, "PATH:WEIGHT" (io/peft/adapter_source.h).
AdapterSet ResolveAdapters(const std::vector<std::string>& names, std::int64_t rank);

}  // namespace qlora

#endif  // QLORA_HUB_HUB_ADAPTER_H_
