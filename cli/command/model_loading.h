// Loading a model with a progress bar.
#ifndef QLORA_CLI_COMMAND_MODEL_LOADING_H_
#define QLORA_CLI_COMMAND_MODEL_LOADING_H_

#include <functional>
#include <string>
#include <string_view>

#include "command/verb.h"
#include "qlora/model.h"

namespace qlora {

// Declares the options of a model that generates: as `model` declares them, and copy_weights, which
// is on.
void DeclareGenerator(ModelOptions& model, OptionTable& table);

// check: called often, may throw to end the work.
Model LoadModel(Context& context, const ModelOptions& options, const Console& console,
                const std::function<void()>& check = {});

// Refuses a folder of an adapter in the place of the model, with the command that is meant. `text`:
// a verb whose first bare argument is the model. Errors: InvalidInput, also for a damaged
// adapter_config.json.
void CheckIsNoAdapter(const VerbText& text, OptionTable& options);

// Says on console.err when the adapter (may be "") names another base than `model`, by the last
// part of their paths: it fits every model of the same shape, and is of no use with most of them.
// Errors: InvalidInput for a damaged adapter_config.json.
void NoteOtherBase(const std::string& model, const std::vector<std::string>& adapters,
                   const Console& console);

// Takes the sampling options that the user left open from the model's generation_config.json, and
// lists on console.err the options taken and the tokens that end an answer. A temperature, top_k,
// top_p or min_p from the user asks for do_sample. `options` hold them.
void ShowSampling(const Model& model, OptionTable& options, const Console& console);

// Says on console.err which layout prompts get (Model::prompt_layout).
void SayLayout(const Model& model, const Console& console);
// Says the same for a layout that the caller chose.
void SayLayout(const Model& model, std::string_view layout, const Console& console);

// Says on console.err where an answer was cut that the model did not end: a warning when the
// context of the model, of `context` tokens, is full.
void SayWhereCut(const GenerateReport& report, std::int64_t context, const Console& console);

// Returns "5 prompt tokens at 120 tokens/s, 32 new tokens at 45 tokens/s".
std::string FormatSpeed(const GenerateReport& report);

}  // namespace qlora

#endif  // QLORA_CLI_COMMAND_MODEL_LOADING_H_
