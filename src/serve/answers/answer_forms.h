// The forms in which families of models write thoughts and calls of tools, as a table.
#ifndef QLORA_SERVE_ANSWERS_ANSWER_FORMS_H_
#define QLORA_SERVE_ANSWERS_ANSWER_FORMS_H_

#include <string_view>
#include <vector>

#include "prompt/thought_forms.h"

namespace qlora {

// How a call is written between the texts that enclose it.
enum class CallKind {
  kJson,     // {"name": "f", "arguments": {"a": 1}}, or a list of these
  kNamed,    // f ... {"a": 1}
  kTagged,   // <function=f><parameter=a>1</parameter></function>
  kLiteral,  // f(a=1), or a list of these
};

// An answer has `open`, calls, and `close`. Empty texts stand for nothing; between all parts may be
// white space. Other than in kJson a call is, in this order,
//   name_begin, the name, name_end, perhaps attributes and attributes_end, arguments, call_end
// and an argument of a kTagged call is
//   key_begin, the key, key_end, perhaps attributes and key_attributes_end, value_begin, the value,
//   value_end.
struct CallForm {
  CallKind kind = CallKind::kJson;
  TemplateMarks in_template = {};
  // True of templates that are known by more than that.
  bool (*applies)(std::string_view template_text) = nullptr;

  std::string_view open = {};
  std::string_view close = {};
  std::string_view name_begin = {};
  std::string_view name_end = {};  // of kTagged "": white space, or a <
  std::string_view attributes_end = {};
  std::string_view key_begin = {};
  std::string_view key_end = {};
  std::string_view key_attributes_end = {};
  std::string_view value_begin = {};
  std::string_view value_end = {};
  std::string_view call_end = {};

  std::string_view before_name = {};  // what stands before this text is no part of the name
  std::string_view after_name = {};   // nor what stands behind this one
  std::string_view after_json = {};   // of kNamed: may follow the arguments
  bool key_is_name = false;           // of kJson: {"f": {"a": 1}}
  bool is_whole_answer = false;       // of kJson: without `open`, where an answer begins
  bool follows_prompt = false;        // the prompt ends with name_begin
  bool trims_lines = false;           // of kTagged: values stand on lines of their own
  bool has_data = false;              // of kTagged: values may stand in <![CDATA[ ]]>
};

// Text of an answer that says nothing, where the template has `in_template`.
struct IdleText {
  std::string_view in_template = {};
  std::string_view text = {};
};

// Parts of an answer that begin with a header which says what they are: gpt-oss.
struct ChannelForm {
  static constexpr std::string_view kStart = "<|start|>assistant";
  static constexpr std::string_view kBody = "<|message|>";
  static constexpr std::string_view kCall = "to=functions.";
  // A header begins with one of these.
  static constexpr std::string_view kHeaderBegins[] = {"<|channel|>", "to=", "<|constrain|>",
                                                       "<|message|>"};
  static constexpr std::string_view kThoughts[] = {"<|channel|>analysis", "to=self"};
  static constexpr std::string_view kEnds[] = {"<|end|>", "<|call|>", "<|return|>", "<|eom|>",
                                               "<|eot|>"};
};

// What of the tables a template has.
struct AnswerForm {
  std::vector<const CallForm*> calls;
  std::vector<const ThoughtForm*> thoughts;
  std::vector<std::string_view> idle;
  bool has_channels = false;
  bool has_marks = true;  // false: nothing in a text is a mark
};

}  // namespace qlora

#endif  // QLORA_SERVE_ANSWERS_ANSWER_FORMS_H_
