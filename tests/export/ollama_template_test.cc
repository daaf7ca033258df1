// Chat templates in the language of Modelfiles.
#include "export/ollama_template.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "io/json.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OllamaTemplateTest : public ConvertTest {
 protected:
  // Of llama-tiny, which puts <s> in front, with this template.
  OllamaTemplate Of(const std::string& chat_template) {
    const fs::path model = root_ / "model";
    fs::remove_all(model);
    fs::copy(kGolden / "llama-tiny", model);
    WriteTextFile(model / "chat_template.jinja", chat_template);
    return OllamaTemplateOf(Tokenizer::Load(model));
  }
};

constexpr const char* kEach =
    "{{ range $i, $m := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}";

TEST_F(OllamaTemplateTest, TurnsOfRoles) {
  const OllamaTemplate found =
      Of("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  EXPECT_THAT(found.notes, IsEmpty());
  EXPECT_EQ(found.turn_end, "<|im_end|>");
  EXPECT_EQ(found.text,
            std::string(kEach) +
                "{{ if eq .Role \"system\" }}<|im_start|>system\n{{ .Content }}<|im_end|>\n"
                "{{ end }}{{ if eq .Role \"user\" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n"
                "{{ if $last }}<|im_start|>assistant\n{{ end }}{{ end }}"
                "{{ if eq .Role \"assistant\" }}<|im_start|>assistant\n{{ .Content }}"
                "{{ if not $last }}<|im_end|>\n{{ end }}{{ end }}{{ end }}");
}

// A message that stands there without a system message, and a BOS that the tokenizer puts there.
TEST_F(OllamaTemplateTest, AnOpening) {
  const OllamaTemplate found = Of(
      "{{ bos_token }}{% if messages[0].role != 'system' %}<|system|>\nBe kind.<|end|>\n{% endif %}"
      "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>\n{% endif %}");
  EXPECT_THAT(found.notes, IsEmpty());
  EXPECT_THAT(found.text,
              testing::StartsWith("{{ if not .System }}<|system|>\nBe kind.<|end|>\n{{ end }}"));
  EXPECT_EQ(found.text.find("<s>"), std::string::npos);
}

// Gemma's, and a Llama 2 whose turns begin with BOS.
TEST_F(OllamaTemplateTest, ASystemMessageInTheTurnOfTheFirstUser) {
  const OllamaTemplate gemma = Of(
      "{{ bos_token }}{% set first = messages[0].content + '\n\n' if messages[0].role == 'system' "
      "else '' %}{% for m in (messages[1:] if first else messages) %}<start_of_turn>"
      "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first else '' }}"
      "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
      "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}");
  EXPECT_THAT(gemma.text, HasSubstr("<start_of_turn>user\n{{ if and $.System (eq $i 1) }}"
                                    "{{ $.System }}\n\n{{ end }}{{ .Content }}<end_of_turn>\n"));
  EXPECT_THAT(gemma.notes, IsEmpty());
  const OllamaTemplate llama2 =
      Of("{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} "
         "[/INST]{% elif m.role == 'assistant' %} {{ m.content }} {{ eos_token }}{% endif %}"
         "{% endfor %}");
  EXPECT_THAT(llama2.text, HasSubstr("{{ if eq .Role \"user\" }}[INST] {{ .Content }} [/INST]"));
  EXPECT_THAT(llama2.text, HasSubstr("{{ if not $last }} </s><s>{{ end }}"));
  EXPECT_THAT(llama2.notes, testing::ElementsAre(HasSubstr("no place for a system message")));
}

// A Llama 2 with a system message, as it was published.
TEST_F(OllamaTemplateTest, ASystemMessageInTextsOfItsOwn) {
  const OllamaTemplate found =
      Of("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
         "{% set system_message = messages[0]['content'] %}{% else %}"
         "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
         "{% for message in loop_messages %}{% if loop.index0 == 0 and system_message != false %}"
         "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + "
         "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
         "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + "
         "' [/INST]' }}{% elif message['role'] == 'assistant' %}"
         "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}");
  EXPECT_THAT(found.notes, IsEmpty());
  EXPECT_THAT(found.text, HasSubstr("[INST] {{ if and $.System (eq $i 1) }}<<SYS>>\n"
                                    "{{ $.System }}\n<</SYS>>\n\n{{ end }}{{ .Content }}"
                                    " [/INST]"));
}

// A template that loses what the chat template shows is none.
TEST_F(OllamaTemplateTest, ASystemMessageElsewhere) {
  for (const char* text :
       {"{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}{% if loop.last and "
        "messages[0].role == 'system' %} ({{ messages[0].content }}){% endif %}[/INST]"
        "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% endif %}{% endfor %}",
        "{% if messages[0].role == 'system' and messages | length > 3 %}"
        "{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"}) {
    const OllamaTemplate found = Of(text);
    EXPECT_EQ(found.text, "") << text;
    EXPECT_THAT(found.notes, testing::ElementsAre(HasSubstr("has no TEMPLATE"))) << text;
  }
}

// As those of later Mistrals.
TEST_F(OllamaTemplateTest, ASystemMessageInTheTurnOfTheLastUser) {
  const OllamaTemplate found =
      Of("{{ bos_token }}{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
         "{% for m in (messages[1:] if s else messages) %}{% if m.role == 'user' %}[INST] "
         "{% if s and loop.last %}{{ s }}\n\n{% endif %}{{ m.content }}[/INST]{% else %} "
         "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}");
  EXPECT_THAT(found.text, HasSubstr("{{ if and $.System $last }}{{ $.System }}\n\n{{ end }}"));
}

TEST_F(OllamaTemplateTest, WhatCannotBeWrittenIsSaid) {
  for (const char* text : {"{% for m in messages %}{{ loop.index }}{{ m.content }}{% endfor %}",
                           "{{ messages | tojson }}", "{{ raise_exception('no') }}", "always",
                           "{% for m in messages %}<{{ '{{' }}>{{ m.content }}{% endfor %}",
                           "{% for m in messages %}\"\"\"{{ m.content }}{% endfor %}"}) {
    const OllamaTemplate found = Of(text);
    EXPECT_EQ(found.text, "") << text;
    EXPECT_THAT(found.notes, testing::ElementsAre(HasSubstr("has no TEMPLATE"))) << text;
  }
}

// Tools that a template reads, to refuse them, are not lost.
TEST_F(OllamaTemplateTest, ToolsThatAreShownAreSaid) {
  const std::string turns =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_THAT(Of("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + turns).notes,
              testing::Each(testing::Not(HasSubstr("tools"))));
  EXPECT_THAT(Of("{% if tools %}{{ tools | tojson }}{% endif %}" + turns).notes,
              testing::Contains(HasSubstr("tools of the chat template cannot be written")));
}

TEST_F(OllamaTemplateTest, AModelWithoutATemplateHasNone) {
  const OllamaTemplate found = OllamaTemplateOf(Tokenizer::Load(kGolden / "llama-tiny"));
  EXPECT_EQ(found.text, "");
  EXPECT_THAT(found.notes, IsEmpty());
}

}  // namespace
}  // namespace qlora
