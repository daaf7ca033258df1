#include <unistd.h>

#include "common.h"
#include "errors.h"
#include "qlora/inspect.h"
#include "verbs.h"

namespace qlora {
namespace {

class InspectVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "inspect",
        .summary = "what a model, adapter, GGUF file or data set holds",
        .explanation =
            "Give a path to see a model, an adapter or a GGUF file. Give a dataset and the model "
            "that it is for to see what the trainer will see: which tokens are trained on and "
            "which are masked, lengths, and what was dropped.",
        .examples = {"qlora inspect ./my-model",
                     "qlora inspect --dataset train.jsonl --model ./my-model --samples 3"},
        .positionals = {"path"},
        .required = {},
    };
  }

  void Declare(OptionTable& table) override {
    table.Section("What");
    table.AddPath("path", &path_, "model or adapter directory, or .gguf file");
    table.AddPath("model_name_or_path", &data_.model, "model whose tokenizer reads the dataset",
                  {"base_model", "model"});
    data_.data.Declare(table);
    table.Add("per_device_train_batch_size", &data_.per_device_train_batch_size,
              "samples of a micro-batch", {"micro_batch_size", "batch_size"});
    table.Add("seed", &data_.seed, "of the trainer: it draws what val_set_size holds out");
    table.Add("samples", &samples_, "samples of the dataset to show");
    table.Section("Run");
    run_.DeclareThreads(table);
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    const Inspection found = Look();
    console.out << (run_.json ? found.json + "\n" : found.text);
    return 0;
  }

 private:
  Inspection Look() {
    if (data_.data.dataset.empty()) {
      if (path_.empty() && data_.model.empty()) {
        ThrowUsage("inspect what? give a path, or --dataset and --model");
      }
      Inspection found = Inspect(path_.empty() ? data_.model : path_);
      found.text = Printable(found.text);  // names and values are those of a file
      return found;
    }
    if (data_.model.empty()) ThrowUsage("--dataset needs --model: its tokenizer reads the data");
    Context context(run_.ThreadCount());
    return InspectData(context, data_, samples_, StyleOf(STDOUT_FILENO).color);
  }

  std::string path_;
  DataInspection data_;
  std::int64_t samples_ = 3;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeInspectVerb() { return std::make_unique<InspectVerb>(); }

}  // namespace qlora
