// A model of a few thousand weights with a chat template.
#ifndef QLORA_TESTS_SERVE_TINY_MODEL_H_
#define QLORA_TESTS_SERVE_TINY_MODEL_H_

#include <filesystem>

#include "base/file.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {

// A template that shows every message, and refuses a conversation that ends with a tool's result
// alone.
inline constexpr const char* kTestTemplate =
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' and loop.length == 1 %}{{ raise_exception('no call') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if kind is defined %}({{ kind }}){% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

// llama-tiny with a chat template.
class TestModelFolder {
 public:
  TestModelFolder() {
    const std::filesystem::path golden = SourceDir() / "tests/golden/llama-tiny";
    for (const char* name :
         {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy_file(golden / name, path() / name);
    }
    WriteTextFile(path() / "chat_template.jinja", kTestTemplate);
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_TINY_MODEL_H_
