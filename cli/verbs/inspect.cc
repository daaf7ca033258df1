// `qlora inspect`: describes the model, adapter or file at a path, or data without a model; or,
// given data and a model, shows samples as the trainer sees them, with the options of `train` that
// decide about samples.
#include "qlora/inspect.h"

#include "base/check.h"
#include "command/common.h"
#include "terminal/terminal.h"
#include "terminal/text_wrap.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

class InspectVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "inspect",
        .summary = "describe a model, an adapter, a GGUF file or a data set",
        .explanation =
            "Describes a model, an adapter, a GGUF file or data, given its path: of data the "
            "format, the fields, the lengths and what cannot be read. Given data and a model, "
            "shows the data as the trainer will see them: trained and masked tokens, lengths, "
            "dropped samples.",
        .examples = {"qlora inspect ./my-model", "qlora inspect train.jsonl",
                     "qlora inspect train.jsonl --model ./my-model --samples 3"},
        .positionals = {"path"},
        .required = {},
    };
  }

  void Declare(OptionTable& table) override {
    table.Section("Input");
    // The option is not model_name_or_path: the path may be an adapter or a file, and with a
    // dataset the path is absent.
    table.AddPath("path", &path_,
                  "model directory, adapter directory, .gguf file or data to describe");
    table.AddPath("model_name_or_path", &data_.model, "model whose tokenizer reads the dataset",
                  {"base_model", "model"});
    data_.data.Declare(table);
    table.Add("preference_loss", &data_.preference_loss,
              "of pairs of answers (sigmoid ...), or answers with labels (kto): what this loss "
              "trains of them",
              {"pref_loss", "dpo_loss_type"});
    table.Add("per_device_train_batch_size", &data_.per_device_train_batch_size,
              "micro-batch size assumed in the packing report", {"micro_batch_size", "batch_size"});
    table.Add(
        "seed", &data_.seed,
        "random seed of the training run, which chooses the samples that val_set_size holds out");
    table.Add("samples", &samples_, "number of samples of the dataset to show");
    run_.Declare(table);
  }

  int Run(const Console& console) override {
    const Inspection found = Look(console);
    console.out << (run_.json ? found.json + "\n" : found.text);
    return 0;
  }

 private:
  Inspection Look(const Console& console) {
    if (data_.data.dataset.empty() && !path_.empty() && IsData(path_)) {
      data_.data.dataset = {path_};  // so that the options of data hold of it
    }
    if (data_.data.dataset.empty() || data_.model.empty()) {
      if (!data_.preference_loss.empty()) {
        ThrowInvalidInput(
            "preference_loss says what is trained of data, whose tokens need --model; leave it "
            "out");
      }
      return Describe(console);
    }
    Context context(run_.ThreadCount());
    // Colours only on a terminal: a file would hold escape sequences.
    StatusLine line(console.err, console.style);
    return InspectData(
        context, data_, samples_, console.out_style.color,
        [&](std::int64_t done, std::int64_t total) { ShowReading(line, done, total); });
  }

  // Of data, what is told without the tokens of a model.
  Inspection Describe(const Console& console) const {
    if (data_.data.dataset.empty() && path_.empty() && data_.model.empty()) {
      ThrowInvalidInput(
          "a path is missing: give a model, an adapter, a GGUF file or data, or --dataset and "
          "--model");
    }
    // `qlora inspect --model X` equals `qlora inspect X`.
    Inspection found = !data_.data.dataset.empty() ? InspectRecords(data_.data)
                                                   : Inspect(path_.empty() ? data_.model : path_);
    // Printable: names and values come from a file.
    found.text = Fitted(console.out_style, Printable(found.text));
    return found;
  }

  std::string path_;
  DataInspection data_;
  std::int64_t samples_ = 3;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeInspectVerb() { return std::make_unique<InspectVerb>(); }

}  // namespace qlora
