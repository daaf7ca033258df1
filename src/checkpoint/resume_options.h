// Options of a run as JSON, and which of them may change when the run resumes.
#ifndef QLORA_CHECKPOINT_RESUME_OPTIONS_H_
#define QLORA_CHECKPOINT_RESUME_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/train_position.h"
#include "data/dataset.h"
#include "io/json_fwd.h"
#include "qlora/train_options.h"

namespace qlora {

// True for the options of the length, place, frequency and speed of a run, and of the places of its
// model and data. They do not change the result of a step.
bool MayChangeOnResume(std::string_view option);

// True for the options that split a step into micro-batches, which may change together.
bool IsOfMicroBatches(std::string_view option);

// The micro-batches that a step of the record has at most; 0 where it does not say.
std::int64_t MicroBatchesOfStep(const Json& options);
// global_batch_size of such a run.
std::int64_t SamplesOfStep(const Json& options);

// True when the records split the same samples of a step in another way. With packing a step has
// other samples, so it is false.
bool HasOtherMicroBatches(const Json& then, const Json& now);

// Counts the micro-batches of a position of the record `then` as those of `now`.
void CountAgain(const Json& then, const Json& now, TrainPosition& at);

// All options as JSON text values.
Json OptionsToJson(TrainOptions options);

// What is recorded of the base of a run.
struct RecordedModel {
  std::string compute;                        // "auto" may mean another type on another machine
  std::uint64_t fingerprint = 0;              // ModelFingerprint
  std::string config = {};                    // ConfigText
  std::optional<std::uint64_t> weights = {};  // HashWeights, as soon as they are read
};

// The record of a run's checkpoints that a resumed run must share: the options that may not
// change, and what tells model and data from others. held_out, anchors: null without such data.
Json RecordedOptions(const TrainOptions& options, const RecordedModel& model, const Dataset& train,
                     const Dataset* held_out, const Dataset* anchors);

// Removes the model from the record `now` where the samples are the samples of `then`: the run may
// yet change its base for another form of the same model. Other samples may be of another model.
void LeaveOutBase(const Json& then, Json& now);

// "learning_rate (0.0002 in the checkpoint, 0.001 now), ...": how `now` differs from the record of
// a checkpoint; "" for a run that may resume. Keys that older checkpoints do not record may have
// any value.
std::string DifferencesOnResume(const Json& then, const Json& now);

// Says what a record of an earlier release does not tell of the base; "" for others.
std::string NoteUnrecorded(const Json& then);

// True when the record is of a version that recorded no layouts, and its samples were others.
bool HasOtherTextsOfOlderVersion(const Json& then, const Json& now);

}  // namespace qlora

#endif  // QLORA_CHECKPOINT_RESUME_OPTIONS_H_
