// Checkpoints from one format to another: quantize and export.
#ifndef QLORA_CONVERT_H_
#define QLORA_CONVERT_H_

#include "qlora/export.h"
#include "qlora/export_gguf.h"
#include "qlora/quantize.h"

#endif  // QLORA_CONVERT_H_
