// The files of a tokenizer, of which an adapter may have its own: trainers save the tokenizer that
// they trained with beside the adapter, with tokens and ends that the base does not have.
#ifndef QLORA_TOKENIZER_ADAPTER_FILES_H_
#define QLORA_TOKENIZER_ADAPTER_FILES_H_

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace qlora {

// The place of one of these files: in adapter_dir (may be empty) where it is there, otherwise in
// model_dir.
std::filesystem::path TokenizerFile(const std::filesystem::path& model_dir,
                                    const std::filesystem::path& adapter_dir,
                                    const std::string& name);

// Copies the files of the tokenizer, its chat template included, from where they are read to `to`,
// which may be adapter_dir. A template that `to` has stays.
void CopyTokenizerFiles(const std::filesystem::path& model_dir,
                        const std::filesystem::path& adapter_dir, const std::filesystem::path& to);

// The names of the files that CopyTokenizerFiles writes.
std::vector<std::string> TokenizerFileNames();

// True where the adapter has one of these files, with another text than the model's.
bool HasOwnTokenizerFiles(const std::filesystem::path& model_dir,
                          const std::filesystem::path& adapter_dir);

// The bytes of the files that CopyTokenizerFiles writes, at most.
std::size_t TokenizerFileBytes(const std::filesystem::path& model_dir,
                               const std::filesystem::path& adapter_dir);

// What is said when the adapter has another tokenizer, or chat template in tokenizer_config.json,
// than the model; "" where it has none or the same. model_dir may be a GGUF file, of which the
// tokens, BOS and the end of texts are compared. Loads both where the files differ.
std::string NoteOtherTokenizer(const std::filesystem::path& model_dir,
                               const std::filesystem::path& adapter_dir);

// The file that holds the chat template of the adapter, chat_template.jinja or
// tokenizer_config.json, where it is another than the model's or the model has none; otherwise "".
// model_dir may be a GGUF file.
std::filesystem::path OtherChatTemplate(const std::filesystem::path& model_dir,
                                        const std::filesystem::path& adapter_dir);

}  // namespace qlora

#endif  // QLORA_TOKENIZER_ADAPTER_FILES_H_
