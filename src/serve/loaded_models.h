// The base in memory, loaded once, and the adapters that are served with it.
#ifndef QLORA_SERVE_LOADED_MODELS_H_
#define QLORA_SERVE_LOADED_MODELS_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "inference/loaded_model.h"
#include "serve/serve_options.h"
#include "serve/served_models.h"

namespace qlora {

// An adapter of the command line: "NAME=DIR", or "DIR", whose name is that of the folder.
struct NamedAdapter {
  std::string name = {};
  std::string folder = {};
};
// Errors: InvalidInput for a name that no model can have.
NamedAdapter ParseNamedAdapter(const std::string& text);
// [A-Za-z0-9][A-Za-z0-9._-]{0,63}
bool IsModelName(std::string_view name);

class LoadedModels final : public ServedModels {
 public:
  // Runs work where no pass of the base runs at the same time.
  using RunAlone = std::function<void(const std::function<void()>& work)>;

  // Loads the base, in the form that all adapters were trained on, and the adapters. version: of
  // the program. Errors: InvalidInput, also for names that are given twice, and for adapters that
  // were trained on different forms.
  LoadedModels(Context& context, const ServeOptions& options, const std::string& version,
               const ProgressFn& progress);

  ServedModelPtr Find(std::string_view name) const override;
  std::vector<ServedModelPtr> All() const override;
  void Load(const std::string& name, const std::string& folder) override;
  void Unload(const std::string& name) override;

  // Of all later loads; until then none runs beside others.
  void SetRunAlone(RunAlone run_alone) { run_alone_ = std::move(run_alone); }
  // What the server has memory for, which it knows once the base is loaded: positions of a
  // sequence, tokens of a question with its state, bytes of all adapters, of RequestRoom.
  void SetRoom(std::int64_t positions, std::int64_t decision_length, std::size_t adapter_bytes,
               std::size_t request_bytes);
  LoadedModel& base() { return *base_; }
  // Passes need room for these: the adapters, or the largest that may come. They live as long as
  // this.
  Adapters planned_adapters() const;
  // Remarks for people.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  ServedModelPtr MakeBase(const ServeOptions& options);
  ServedModelPtr MakeAdapter(const std::string& name, const std::string& folder);
  // Errors: InvalidInput for an adapter that the base or passes have no place for.
  void CheckFits(const std::string& folder, const LoraAdapter& adapter) const;
  std::shared_ptr<const LoraAdapter> LoadValues(const std::string& folder);
  // Of a model of its own folder: the tokenizer of the base, or of another model, where it is the
  // same.
  void SetTokenizer(const std::vector<ServedModelPtr>& others, ServedModel& model) const;
  // All that take memory: the base first, and unloaded ones until their answers have ended.
  std::vector<ServedModelPtr> Held() const;
  // more: bytes of the model that it has not yet. Errors: OutOfMemory where it has no room.
  void CheckMemory(const ServedModel& model, std::size_t more) const;
  GenerateOptions SamplingOf(const std::filesystem::path& model_dir) const;
  std::string Fingerprint(const std::string& adapter) const;

  const std::string version_;
  std::string base_name_;
  std::unique_ptr<LoadedModel> base_;
  std::unique_ptr<const LoraAdapter> largest_;  // where adapters may come later; of sizes alone
  RunAlone run_alone_;
  std::vector<std::string> notes_;
  std::mutex loading_;                                                   // one adapter at a time
  std::size_t adapter_bytes_ = std::numeric_limits<std::size_t>::max();  // of all, at most

  mutable std::mutex mutex_;
  std::vector<ServedModelPtr> models_;  // the base first
  std::vector<std::weak_ptr<const ServedModel>> unloaded_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_LOADED_MODELS_H_
