// A loaded model: text, conversations, evaluation.
#include <pybind11/stl/filesystem.h>

#include "base/check.h"
#include "base_warning.h"
#include "keywords.h"
#include "nf4_tensor.h"
#include "python_calls.h"
#include "qlora/model.h"
#include "report_class.h"
#include "shared_context.h"

namespace qlora::python {
namespace {

namespace py = pybind11;
using pybind11::literals::operator""_a;

py::object Parsed(const std::string& json) {
  return py::module_::import("json").attr("loads")(Text(json));
}

// A model and the threads that it computes with.
class LoadedModel {
 public:
  LoadedModel(ContextPtr context, Model model)
      : context_(std::move(context)), model_(std::move(model)) {}

  const Model& model() const { return model_; }

  // Receives text of prompt number i. Returns what the callback of the caller does.
  using OnText = std::function<py::object(std::int64_t i, const py::str& piece)>;

  // All prompts at the same time. on_text: may be empty.
  std::vector<GenerateReport> Generate(const std::vector<PromptText>& prompts,
                                       const OnText& on_text, const py::dict& options) {
    GenerateOptions generate;
    OptionTable table;
    generate.Declare(table);
    SetOptions(options, table);
    // A sampling option asks for sampling, as on the command line.
    for (const char* key : {"temperature", "top_k", "top_p", "min_p"}) {
      if (table.Find(key)->set && !table.Find("do_sample")->set) {
        table.Set("do_sample", "true", key);
      }
    }
    // After the user's options, which it leaves alone.
    model_.TakeGenerationConfig(table);
    PythonCalls python;
    const auto each_piece = [&](std::int64_t i, std::string_view piece) {
      bool stops = false;
      python([&] {
        // Called with the interpreter's lock, which is released while the model computes.
        if (on_text) stops = AsksToStop(on_text(i, Text(std::string(piece))));
      });
      // False ends the answer: the callback wants it or has raised, or Ctrl+C came.
      return !stops && !python.stopped();
    };
    return RunWithCalls(python, [&] {
      return context_->Run(
          [&](Context&) { return model_.Generate(prompts, generate, each_piece); });
    });
  }

  // Of a callback, or None, that is told pieces alone; refers to it.
  static OnText OfOne(const py::object& on_text) {
    if (on_text.is_none()) return {};
    return [&on_text](std::int64_t, const py::str& piece) { return on_text(piece); };
  }

  // chat: None takes the layout of the adapter's data, or the chat template if there is one; True
  // makes a conversation of this message, as Chat; False takes the prompt as it is.
  PromptText LaidOut(const std::string& prompt, const std::optional<std::string>& system,
                     const std::optional<bool>& chat) const {
    if (!chat) return model_.Prompt(prompt, system.value_or(""));
    // A system message that is left out silently would change the answer.
    if (!*chat && system) {
      ThrowInvalidInput("system needs a chat template; name one with chat_template=");
    }
    if (!*chat) return {.text = prompt};
    py::list messages;
    if (system) messages.append(py::dict("role"_a = "system", "content"_a = Text(*system)));
    messages.append(py::dict("role"_a = "user", "content"_a = Text(prompt)));
    return model_.PromptOfChat(JsonText(messages), JsonText(py::none()));
  }

  GenerateReport Answer(const std::string& prompt, const std::optional<std::string>& system,
                        const std::optional<bool>& chat, const py::object& on_text,
                        const py::dict& options) {
    return Generate({LaidOut(prompt, system, chat)}, OfOne(on_text), options).front();
  }
  std::vector<GenerateReport> AnswerAll(const std::vector<std::string>& prompts,
                                        const std::optional<std::string>& system,
                                        const std::optional<bool>& chat, const py::object& on_text,
                                        const py::dict& options) {
    std::vector<PromptText> laid_out;
    for (const std::string& prompt : prompts) laid_out.push_back(LaidOut(prompt, system, chat));
    OnText each;
    if (!on_text.is_none()) {
      each = [&](std::int64_t i, const py::str& piece) { return on_text(i, piece); };
    }
    return Generate(laid_out, each, options);
  }

  GenerateReport Chat(const py::object& messages, const py::object& tools,
                      const py::object& on_text, const py::dict& options) {
    const PromptText prompt = model_.PromptOfChat(JsonText(messages), JsonText(tools));
    return Generate({prompt}, OfOne(on_text), options).front();
  }

  std::string ChatPrompt(const py::object& messages, const py::object& tools) const {
    return model_.PromptOfChat(JsonText(messages), JsonText(tools)).text;
  }

  EvalResult Evaluate(const py::dict& options, const std::map<std::string, int>& given) {
    EvalOptions eval;
    eval.reading.given = ToGivenRecords(given);
    OptionTable table;
    eval.Declare(table);
    SetOptions(options, table);
    eval.preference.Complete(table, eval.label_smoothing_factor);
    return context_->Run([&](Context&) { return model_.Evaluate(eval); });
  }

  py::object Decide(const std::string& request, const py::dict& options) {
    DecideOptions decide;
    OptionTable table;
    decide.Declare(table);
    SetOptions(options, table);
    return Parsed(context_->Run([&](Context&) { return model_.Decide(request, decide); }));
  }

  TemperatureMap FitTemperatures(const py::dict& options, const std::map<std::string, int>& given) {
    CalibrateOptions calibrate;
    calibrate.reading.given = ToGivenRecords(given);
    OptionTable table;
    calibrate.Declare(table);
    SetOptions(options, table);
    return context_->Run([&](Context&) { return Calibrate(model_, calibrate); }).temperatures;
  }

  std::vector<std::int32_t> Tokenize(const std::string& text, bool special) const {
    return model_.Tokenize(text, special);
  }
  py::str Detokenize(const std::vector<std::int64_t>& ids, bool special) const {
    std::vector<std::int32_t> tokens;
    for (const std::int64_t id : ids) {
      if (!std::in_range<std::int32_t>(id)) {
        ThrowInvalidInput("ids: {} is not a token id of this model", id);
      }
      tokens.push_back(static_cast<std::int32_t>(id));
    }
    return Text(model_.Detokenize(tokens, special));
  }

 private:
  ContextPtr context_;
  Model model_;
};

std::unique_ptr<LoadedModel> LoadModel(const py::dict& options, const py::object& on_load,
                                       const ContextPtr& context) {
  ModelOptions settings;
  // As in the verbs generate and chat: a model of Python is loaded to write text.
  settings.copy_weights = true;
  std::int64_t threads = 0;
  OptionTable table;
  settings.Declare(table);
  table.Add("copy_weights", &settings.copy_weights, "copy weights to generate faster");
  table.Add("threads", &threads, "threads to compute with; 0: one per usable core");
  SetOptions(options, table);
  // The model keeps its threads: later calls compute with the same ones.
  const ContextPtr used = ContextFor(context, threads);
  PythonCalls python;
  std::unique_ptr<LoadedModel> loaded = RunWithCalls(python, [&] {
    return used->Run([&](Context& c) {
      WarnOfOtherBase(settings.model_name_or_path, settings.adapter, python);
      const auto progress = [&](std::int64_t done, std::int64_t total) {
        python([&] {
          if (!on_load.is_none()) on_load(done, total);
        });
        // Loading has no other place to stop at.
        if (python.stopped()) throw Stopped();
      };
      return std::make_unique<LoadedModel>(used, Model::Load(c, settings, progress));
    });
  });
  for (const std::string& note : loaded->model().notes()) Warn(note);
  return loaded;
}

void BindReports(py::module_& module) {
  ReportClass<GenerateReport> generated(module, "GenerateReport",
                                        "A text that a model wrote; str() is the text alone.");
  generated.Add("text", &GenerateReport::text, "New text, without the prompt.")
      .Add("prompt_tokens", &GenerateReport::prompt_tokens, "Tokens of the prompt.")
      .Add("new_tokens", &GenerateReport::new_tokens, "Tokens of the text.")
      .Add("stopped_at_eos", &GenerateReport::stopped_at_eos,
           "True when the model ended the text, and no limit did.")
      .Add("prefill_seconds", &GenerateReport::prefill_seconds, "Time of reading the prompt.")
      .Add("decode_seconds", &GenerateReport::decode_seconds, "Time of writing the text.");
  generated.python_class().def_property_readonly(
      "stop_reason",
      [](const GenerateReport& r) { return std::string(StopReasonName(r.stop_reason)); },
      "Why the text ends: \"eos\", \"stop\", \"max_new_tokens\", \"context\", or \"caller\" for "
      "on_text.");
  generated.python_class().def("__str__", [](const GenerateReport& r) { return Text(r.text); });
  ReportClass<EvalResult>(module, "EvalResult", "An evaluation, as Model.eval returns it.")
      .Add("loss", &EvalResult::loss, "Mean negative log-likelihood of the supervised tokens.")
      .Add("perplexity", &EvalResult::perplexity, "exp(loss)")
      .Add("token_accuracy", &EvalResult::token_accuracy,
           "Fraction of supervised tokens that are the model's first choice.")
      .Add("tokens", &EvalResult::tokens, "Supervised tokens.")
      .Add("sequences", &EvalResult::sequences, "Samples that were read.")
      .Add("dropped", &EvalResult::dropped, "Samples longer than max_length.")
      .Add("truncated", &EvalResult::truncated, "Samples that were cut to max_length.")
      .Add("seconds", &EvalResult::seconds, "Time of the evaluation.")
      .Add("data", &EvalResult::data, "Counts and lengths of the data, in words.")
      .Add("warning", &EvalResult::warning, "A note on the data, or an empty text.")
      .Add("logprobs", &EvalResult::logprobs,
           "With per_token: the log-probability of each supervised token, in file order.")
      .Add("token_ids", &EvalResult::token_ids, "With per_token: the tokens of logprobs.")
      .AddValue(
          "decision",
          [](const EvalResult& result) -> py::object {
            if (!result.decision) return py::none();
            return Parsed(result.decision->metrics);
          },
          "Of records that ask questions: accuracy, log_loss, brier, ece ... of all and by type.")
      .AddValue(
          "decision_before_temperature",
          [](const EvalResult& result) -> py::object {
            if (!result.decision || result.decision->metrics_before.empty()) return py::none();
            return Parsed(result.decision->metrics_before);
          },
          "The same of the probabilities without temperatures, where some were used.")
      .AddMetrics();
}

}  // namespace

void BindModel(py::module_& module) {
  BindReports(module);
  // Internal: qlora_cpp.Model of the package wraps it, with signatures and docstrings.
  py::class_<LoadedModel>(module, "LoadedModel")
      .def(py::init(&LoadModel), "options"_a, "on_load"_a = py::none(), "context"_a = py::none())
      .def("generate", &LoadedModel::Answer, "prompt"_a, "system"_a, "chat"_a, "on_text"_a,
           "options"_a)
      .def("generate_all", &LoadedModel::AnswerAll, "prompts"_a, "system"_a, "chat"_a, "on_text"_a,
           "options"_a)
      .def("chat", &LoadedModel::Chat)
      .def("chat_prompt",
           [](const LoadedModel& m, const py::object& messages, const py::object& tools) {
             return Text(m.ChatPrompt(messages, tools));
           })
      .def("eval", &LoadedModel::Evaluate, "options"_a, "given"_a)
      .def("decide", &LoadedModel::Decide, "request"_a, "options"_a)
      .def("calibrate", &LoadedModel::FitTemperatures, "options"_a, "given"_a)
      .def("tokenize", &LoadedModel::Tokenize, "text"_a, "special"_a)
      .def("detokenize", &LoadedModel::Detokenize, "ids"_a, "special"_a)
      .def(
          "count_tokens",
          [](const LoadedModel& m, const std::string& text) { return m.model().CountTokens(text); },
          "text"_a)
      .def_property_readonly("context_length",
                             [](const LoadedModel& m) { return m.model().context_length(); })
      .def_property_readonly("has_chat_template",
                             [](const LoadedModel& m) { return m.model().has_chat_template(); })
      .def_property_readonly("prompt_layout",
                             [](const LoadedModel& m) { return m.model().prompt_layout(); })
      .def_property_readonly("stop_tokens",
                             [](const LoadedModel& m) { return m.model().stop_tokens(); });
}

}  // namespace qlora::python
