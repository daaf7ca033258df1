// The file from which Ollama makes a model.
#ifndef QLORA_EXPORT_MODELFILE_H_
#define QLORA_EXPORT_MODELFILE_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace qlora {

// Returns the texts at which a model of this tokenizer ends its turn: its ends of text, without
// those that other texts may hold too.
std::vector<std::string> StopTexts(const Tokenizer& tokenizer);

// True for a text that a line of a Modelfile may hold: without quotes, line ends and other control
// characters, with which a token of the model could write lines of its own.
bool FitsModelfile(std::string_view text);

// What Ollama makes a model of.
struct OllamaModel {
  std::filesystem::path gguf;          // in the folder of the Modelfile, or elsewhere
  std::filesystem::path adapter = {};  // in its folder; empty: none
  std::vector<std::string> stops = {};
  std::int64_t context = 0;        // positions of the model
  std::string chat_template = {};  // OllamaTemplate; "": none
};

// Returns the text of a Modelfile in `folder`, with paths that hold from there. notes: receives the
// stops that are left out because they do not fit. Errors: InvalidInput for a path that a line
// cannot hold.
std::string Modelfile(const OllamaModel& model, const std::filesystem::path& folder,
                      std::vector<std::string>& notes);

// True for a text that Modelfile() may have given for this GGUF file, a model or an adapter. A
// person who has written more into it wants to keep it.
bool IsModelfileOf(std::string_view text, const std::filesystem::path& gguf);

// Where the Modelfile of a GGUF file is: in its folder.
inline std::filesystem::path ModelfileOf(std::filesystem::path gguf) {
  return gguf.replace_filename("Modelfile");
}

}  // namespace qlora

#endif  // QLORA_EXPORT_MODELFILE_H_
