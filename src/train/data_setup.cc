#include "train/data_setup.h"

namespace qlora {

DataOptions ToDataOptions(const DataFields& fields, const std::vector<std::string>& paths,
                          std::int64_t vocab_size) {
  DataOptions data;
  for (const std::string& path : paths) {
    data.sources.push_back(ParseDataSource(path, ParseRowFormat(fields.dataset_format)));
  }
  data.max_length = fields.max_length;
  data.over_long = ParseOverLong(fields.over_long);
  data.train_on_inputs = fields.train_on_inputs;
  data.vocab_size = vocab_size;
  data.index_folder = fields.dataset_prepared_path;
  return data;
}

}  // namespace qlora
