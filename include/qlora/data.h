// How users say what data to read: the same keys for every verb that reads data sets.
#ifndef QLORA_DATA_H_
#define QLORA_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "qlora/chat.h"
#include "qlora/options.h"

namespace qlora {

struct ReadingFields {
  std::string dataset_format = "auto";
  std::int64_t max_length = 0;  // tokens; 0: the context of the model, 2048 at most
  std::string over_long = "drop";
  bool train_on_inputs = false;
  bool append_eos = true;  // to text and completions that do not end in EOS
  // How the fields of a record become prompt and completion; both or none.
  std::string prompt_template;
  std::string completion_template;

  void Declare(OptionTable& table);
};

// What to train on and how to read it.
struct DataFields {
  std::vector<std::string> dataset;  // files; "path:weight" repeats or thins one of them
  std::vector<std::string> eval_dataset;
  double val_set_size = 0;  // below 1: a fraction; from 1: a number of samples
  ReadingFields reading;
  bool packing = false;
  bool shuffle = true;
  ChatFields chat;
  std::string dataset_prepared_path;  // folder for the index of the data; empty: in memory

  void Declare(OptionTable& table);
};

}  // namespace qlora

#endif  // QLORA_DATA_H_
