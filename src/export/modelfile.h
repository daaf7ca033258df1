// The file from which Ollama makes a model.
#ifndef QLORA_EXPORT_MODELFILE_H_
#define QLORA_EXPORT_MODELFILE_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace qlora {

// Returns the texts at which a model of this tokenizer ends its turn: its ends of text, without
// those that other texts may hold too.
std::vector<std::string> StopTexts(const Tokenizer& tokenizer);

// Returns the text of a Modelfile for a GGUF file in the same folder. Without TEMPLATE:
// Ollama's language of templates is another one than that of chat templates, of which the file
// holds one. context: positions of the model.
std::string Modelfile(const std::filesystem::path& gguf, const std::vector<std::string>& stops,
                      std::int64_t context);

// Where the Modelfile of a GGUF file is: in its folder.
inline std::filesystem::path ModelfileOf(std::filesystem::path gguf) {
  return gguf.replace_filename("Modelfile");
}

}  // namespace qlora

#endif  // QLORA_EXPORT_MODELFILE_H_
