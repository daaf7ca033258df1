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

// The path of `file` from the folder of a Modelfile: "./a.gguf" in it, "../b/a.gguf" elsewhere.
// Errors: InvalidInput for a path that a line cannot hold.
std::string PathInModelfile(const std::filesystem::path& folder, const std::filesystem::path& file);

// What Ollama makes a model of.
struct OllamaModel {
  std::filesystem::path gguf;          // in the folder of the Modelfile, or elsewhere
  std::filesystem::path adapter = {};  // in its folder; empty: none
  std::vector<std::string> stops = {};
  std::int64_t context = 0;        // positions of the model
  std::string chat_template = {};  // OllamaTemplate; "": none
};

// Template and stops for this tokenizer, without files and context. notes: receives what the
// template lacks.
OllamaModel OllamaModelOf(const Tokenizer& tokenizer, std::vector<std::string>& notes);

// Returns the text of a Modelfile in `folder`, with paths that hold from there. notes: receives the
// stops that are left out because they do not fit. Errors: as PathInModelfile.
std::string Modelfile(const OllamaModel& model, const std::filesystem::path& folder,
                      std::vector<std::string>& notes);

// True for a text that Modelfile() gave for this GGUF file, a model or an adapter: a person who has
// changed anything in it wants to keep it.
bool IsModelfileOf(std::string_view text, const std::filesystem::path& gguf);

// Where the Modelfile of a GGUF file is: in its folder.
inline std::filesystem::path ModelfileOf(std::filesystem::path gguf) {
  return gguf.replace_filename("Modelfile");
}

}  // namespace qlora

#endif  // QLORA_EXPORT_MODELFILE_H_
