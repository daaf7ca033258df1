// Adapters that are loaded while others are.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "serve/routes/serve_fixture.h"

namespace qlora {
namespace {

// Asks for another adapter while it loads one.
class AskingModels final : public ServedModels {
 public:
  ServedModelPtr Find(std::string_view) const override { return nullptr; }
  std::vector<ServedModelPtr> All() const override { return {}; }
  void Load(const std::string&, const std::string&) override {
    if (++loads == 1) on_load();
  }
  void Unload(const std::string&) override {}

  int loads = 0;
  std::function<void()> on_load;
};

TEST(ModelRoutes, OneAdapterIsLoadedAtATime) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "a");
  ServeOptions options;
  options.adapter_dir = folder.path().string();
  AskingModels models;
  ScriptedGeneration generation;
  Metrics metrics;
  Workers workers(2);
  Server server{.models = models,
                .generation = generation,
                .metrics = metrics,
                .options = options,
                .workers = workers,
                .log = [](const std::string&) {}};
  RouteTable table(server);
  AddModelRoutes(table, server);
  // The reply of a route that has run.
  struct Reply final : HttpReply {
    void Send(HttpResponse response) override { status.set_value(response.status); }
    void Begin(HttpResponse) override {}
    void Write(std::string) override {}
    void End() override {}
    void OnGone(std::function<void()>) override {}
    std::promise<int> status;
  };
  const auto load = [&] {
    const auto reply = std::make_shared<Reply>();
    table.Handle({.method = "POST",
                  .path = "/v1/load_lora_adapter",
                  .body = R"({"lora_name": "a", "lora_path": "a"})"},
                 reply);
    return reply->status.get_future().get();
  };
  int beside = 0;
  models.on_load = [&] { beside = load(); };
  EXPECT_EQ(load(), 200);
  EXPECT_EQ(beside, 429);
  EXPECT_EQ(models.loads, 1);
  EXPECT_EQ(load(), 200) << "who has the answer may ask for more at once";
  workers.Finish();  // a route goes on behind its reply
}

}  // namespace
}  // namespace qlora
