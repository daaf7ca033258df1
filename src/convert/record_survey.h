// What data files hold, told without a model: format, fields, texts, records that cannot be read.
#ifndef QLORA_CONVERT_RECORD_SURVEY_H_
#define QLORA_CONVERT_RECORD_SURVEY_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/data_options.h"
#include "io/json_fwd.h"

namespace qlora {

struct FieldSurvey {
  std::string name;
  std::int64_t records = 0;        // that have it, and say something in it
  std::vector<std::string> kinds;  // "text", "number", "list" ...
};

// Characters of all texts of a record, without the names of its fields.
struct LengthSurvey {
  std::int64_t shortest = 0;
  std::int64_t median = 0;
  std::int64_t longest = 0;
  std::int64_t total = 0;
};

struct FileSurvey {
  std::string path;
  std::string container;  // "JSON Lines" ...
  std::string format;     // "messages" ...; "" where the fields tell of none
  // "pairs of answers" or "answers with a label", whose answers are of that format; "" for others.
  std::string preferences;
  std::string loss;              // preference_loss that reads them
  std::string fields;            // "prompt: question, completion: answer", where names differ
  std::string problem;           // why no format is told
  std::set<DecisionForm> forms;  // of records that ask questions
  bool needs_chat_template = false;
  std::int64_t records = 0;
  std::int64_t bad = 0;                       // that cannot be read or laid out
  std::string first_bad;                      // "data.jsonl:3: ..."
  std::vector<FieldSurvey> names;             // in the order of the file, at most kMostNames
  std::map<std::string, std::int64_t> roles;  // of conversations, as the file writes them
  LengthSurvey lengths;
  std::string first;  // the first record that can be read, its long texts and lists cut
};

// Reads every record of the slice of a file, which is one of options.sources, as training does.
// Errors: InvalidInput for a file that holds no records.
FileSurvey SurveyFile(const DataSource& source, const DataOptions& options);

std::string RenderSurvey(const FileSurvey& survey);
OrderedJson SurveyToJson(const FileSurvey& survey);

}  // namespace qlora

#endif  // QLORA_CONVERT_RECORD_SURVEY_H_
