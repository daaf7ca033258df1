// The options of data: the same keys for every verb that reads data sets.
#ifndef QLORA_DATA_H_
#define QLORA_DATA_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "qlora/chat.h"
#include "qlora/options.h"

namespace qlora {

// Records of the calling program in place of a file.
struct GivenRecords {
  std::string name;     // in dataset or eval_dataset, and in messages
  int descriptor = -1;  // of a regular file of JSON Lines, which the caller keeps open
};

// The names that the Python module gives them; `resume` knows by these that there is no file.
inline constexpr std::string_view kGivenDataset = "records";
inline constexpr std::string_view kGivenEvalDataset = "eval_records";

// What samples are made of: preference_loss says it (train_options.h).
enum class PreferenceForm : std::uint8_t {
  kNone,    // texts and answers
  kPairs,   // a chosen and a rejected answer to one prompt
  kLabels,  // an answer with a label: desirable or not
};

struct PreferenceReading {
  PreferenceForm form = PreferenceForm::kNone;
  bool trains_text = false;  // pairs: the chosen answer trains its prompt as well
};

// How records of questions become prompts with labels (src/decision/question.h).
struct DecisionReading {
  std::string decision_template;  // plain, chat, a Jinja file; "": chat if the model has a template
  std::vector<std::string> question_types = {"noul", "choice", "score"};
  bool soft_targets = true;           // false: the most likely option
  std::string option_order = "auto";  // of training: given, shuffle; auto: shuffle
  std::int64_t max_options = 26;      // of a choice in training
  bool share_prefix = true;           // compute what the questions of a record share once
  // Tables of texts with labels.
  std::string text_column = "text";
  std::string label_column = "label";
  std::vector<std::string> label_names;
  std::string instructions;

  void Declare(OptionTable& table);
};

// How records become samples. Help texts and aliases of the keys: src/data/data_options.cc.
struct ReadingFields {
  std::string dataset_format = "auto";  // auto: by the fields of the first record
  std::int64_t max_length = 0;          // tokens of a sample; 0: the model's context, 2048 at most
  std::string over_long = "drop";       // longer samples: drop, truncate or error
  std::string bad_records = "error";    // records that cannot be read: error or drop
  bool train_on_inputs = false;         // train on prompts too
  bool assistant_only_loss = true;      // false: train on every token of conversations
  // Turns of the assistant that are trained on: all, last, or each in a sample of its own.
  std::string train_turns = "all";
  bool append_eos = true;  // to texts, completions and last turns without EOS
  // The layout of records of prompt and answer: auto, chat, text or instruction_answer.
  std::string prompt_layout = "auto";
  // How the fields of a record become prompt and completion; both or none.
  std::string prompt_template;
  std::string completion_template;
  std::vector<std::string> ignore_fields;  // of records: read as if they were not there
  std::vector<GivenRecords> given;         // names that are no files
  DecisionReading decision;
  PreferenceReading preference;  // no option of its own

  void Declare(OptionTable& table);
};

// The data of a run: files, how their records are read, and how samples become micro-batches.
struct DataFields {
  // Files; "path:weight" repeats or thins one of them, "path[:1000]" is its first 1000 records.
  std::vector<std::string> dataset;
  // Files to evaluate; without any, and without val_set_size, those that folders of `dataset` hold.
  std::vector<std::string> eval_dataset;
  double val_set_size = 0;  // held out: below 1 a fraction; from 1 a number of records
  // Of decisions: data that temperatures are fitted to after training, or the part of the training
  // records that is held out for it, as val_set_size; records of one state stay together.
  std::vector<std::string> calibration_dataset;
  double calibration_size = 0;
  ReadingFields reading;
  bool packing = false;  // fill micro-batches with whole samples up to max_length tokens
  bool shuffle = true;   // visit samples in random order
  ChatFields chat;
  std::string dataset_prepared_path;  // folder for the index of the data; empty: in memory

  void Declare(OptionTable& table);
};

}  // namespace qlora

#endif  // QLORA_DATA_H_
