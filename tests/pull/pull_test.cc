// Whole pulls from a hub on this machine.
#include "pull/pull.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/file.h"
#include "bound_by_permissions.h"
#include "io/test_util.h"
#include "pull/fake_hub.h"
#include "recorded_syncs.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string Noise(std::size_t bytes) {
  std::string text(bytes, '\0');
  std::uint32_t x = 1;
  for (char& c : text) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  return text;
}

class PullTest : public testing::Test {
 protected:
  PullTest() {
    setenv("HF_HUB_CACHE", (scratch_ / "hub").c_str(), 1);
    hub_.files = {{"config.json", "{}"},
                  {"tokenizer.json", "{\"model\": 1}"},
                  {"additional_chat_templates/tool use.jinja", "{{ tools }}"},
                  {"model.safetensors", Noise(300000)},
                  {"pytorch_model.bin", "pickle"},
                  {"original/params.json", "{}"}};
    settings_.endpoint = hub_.endpoint();
    settings_.retry_seconds = 0.01;
    settings_.idle_seconds = 2;
  }
  ~PullTest() override { unsetenv("HF_HUB_CACHE"); }

  PullResult Run(const std::string& name = "org/tiny") {
    return Pull(settings_, {.repository = ParseHubRepository(name), .user_agent = "test"}, {});
  }
  fs::path folder() const { return scratch_ / "hub" / "models--org--tiny"; }
  bool HasRef() const { return fs::exists(folder() / "refs/main"); }
  fs::path Partial() const {
    return folder() / "blobs" /
           (Sha256Of(hub_.files.at("model.safetensors")) + ".qlora.incomplete");
  }

  // The error of a pull, after which no ref may name a snapshot.
  Error Failure() {
    const Error error = ErrorOf([&] { Run(); });
    EXPECT_FALSE(HasRef());
    return error;
  }
  void AnswerAll(int status, const std::string& code = "", const httplib::Headers& headers = {}) {
    hub_.fault = [=](const FakeHub::Request&, httplib::Response& response) {
      response.status = status;
      if (!code.empty()) response.set_header("X-Error-Code", code);
      for (const auto& [name, value] : headers) response.set_header(name.c_str(), value.c_str());
      return true;
    };
  }
  // Acts on the first `times` requests for the weights.
  void OnWeights(int times, std::function<void(httplib::Response&)> act) {
    hub_.fault = [times, act](const FakeHub::Request& request,
                              httplib::Response& response) mutable {
      if (!request.on_cdn || times-- <= 0) return false;
      act(response);
      return true;
    };
  }

  TemporaryFolder scratch_;
  FakeHub hub_;
  HubSettings settings_;
};

TEST_F(PullTest, FillsTheCacheWithWhatTrainingNeeds) {
  const PullResult result = Run();
  EXPECT_EQ(result.snapshot, folder() / "snapshots" / hub_.commit);
  EXPECT_EQ(result.progress.files, 4);
  EXPECT_EQ(result.progress.bytes_done, result.progress.bytes);
  EXPECT_EQ(result.left_out, 2);
  EXPECT_EQ(ReadTextFile(folder() / "refs/main"), hub_.commit);
  EXPECT_EQ(ResolveModelDir("org/tiny"), result.snapshot);
  EXPECT_EQ(ReadTextFile(result.snapshot / "model.safetensors"),
            hub_.files.at("model.safetensors"));
  EXPECT_EQ(fs::read_symlink(result.snapshot / "additional_chat_templates/tool use.jinja"),
            "../../../blobs/" + GitSha1Of("{{ tools }}"));
  EXPECT_FALSE(fs::exists(result.snapshot / "pytorch_model.bin"));
  EXPECT_FALSE(fs::exists(Partial()));

  const std::int64_t before = hub_.CountFileRequests();
  EXPECT_EQ(Run().progress.bytes_received, 0);
  EXPECT_EQ(hub_.CountFileRequests(), before);
}

// Every later program takes a blob that is there for right, also after a power failure.
TEST_F(PullTest, BlobsAreOnTheDiskBeforeTheyHaveTheirNames) {
  RecordedSyncs syncs;
  Run();
  const std::string weights = Sha256Of(hub_.files.at("model.safetensors"));
  EXPECT_THAT(syncs.named(), testing::Contains((folder() / "blobs" / weights).string()));
  EXPECT_EQ(syncs.unsynced(), std::vector<std::string>());
}

TEST_F(PullTest, ABrokenConnectionContinuesWhereItEnded) {
  OnWeights(1, [&](httplib::Response& response) {
    FakeHub::SendPart(hub_.files.at("model.safetensors"), 200000, response);
  });
  Run();
  EXPECT_EQ(hub_.requests().back().range.substr(0, 6), "bytes=");
  EXPECT_NE(hub_.requests().back().range, "bytes=0-");
}

// A header that begins with a blank continues the one before, and there is none. Old versions of
// libcurl take that of the answer before, which they have freed; a sanitizer would say so.
TEST_F(PullTest, AnAnswerThatBeginsWithAContinuedHeaderIsRefused) {
  int answers = 0;
  hub_.fault = [&](const FakeHub::Request&, httplib::Response& response) {
    // Headers are sent in their order, in which a blank comes first.
    if (++answers > 1) response.set_header(" continued", "x");
    return false;
  };
  const Error error = Failure();
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1"));
  EXPECT_GT(answers, 1);
}

TEST_F(PullTest, ALaterPullContinuesWhereTheFirstFailed) {
  OnWeights(1000, [&](httplib::Response& response) {
    FakeHub::SendPart(hub_.files.at("model.safetensors"), 0, response);
  });
  EXPECT_EQ(Failure().code(), ErrorCode::kRuntime);
  hub_.fault = [](const FakeHub::Request&, httplib::Response&) { return false; };
  WriteTextFile(Partial(), hub_.files.at("model.safetensors").substr(0, 123456));
  const PullResult result = Run();
  EXPECT_EQ(hub_.requests().back().range, "bytes=123456-");
  EXPECT_EQ(result.progress.bytes_received, 300000 - 123456);
}

// A server that sends another part than the rest is not read on.
TEST_F(PullTest, ARangeThatWasNotAskedForIsFetchedAnew) {
  const std::string text = hub_.files.at("model.safetensors");
  fs::create_directories(folder() / "blobs");
  WriteTextFile(Partial(), text.substr(0, 100000));
  OnWeights(1, [&](httplib::Response& response) {
    response.status = 206;
    response.set_header("Content-Range", "bytes 0-199999/300000");
    response.set_chunked_content_provider("application/octet-stream",
                                          [&](std::size_t, httplib::DataSink& sink) {
                                            sink.write(text.data(), 200000);
                                            sink.done();
                                            return true;
                                          });
  });
  const PullResult result = Run();
  EXPECT_EQ(ReadTextFile(result.snapshot / "model.safetensors"), text);
  EXPECT_EQ(hub_.requests().back().range, "");
  EXPECT_LT(result.progress.bytes_received, 400000);
}

TEST_F(PullTest, ADamagedPartialFileIsFetchedAgain) {
  fs::create_directories(folder() / "blobs");
  WriteTextFile(Partial(), std::string(1000, 'x'));
  EXPECT_EQ(ReadTextFile(Run().snapshot / "model.safetensors"), hub_.files.at("model.safetensors"));
}

TEST_F(PullTest, WrongContentIsRefusedAfterASecondTry) {
  const std::string wrong(300000, 'x');
  OnWeights(1, [&](httplib::Response& r) { r.set_content(wrong, "application/octet-stream"); });
  Run();
  fs::remove_all(folder());
  OnWeights(9, [&](httplib::Response& r) { r.set_content(wrong, "application/octet-stream"); });
  const Error error = Failure();
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("model.safetensors"), HasSubstr("sha256")));
}

TEST_F(PullTest, WrongSizesAndPagesAreRefused) {
  OnWeights(9, [](httplib::Response& r) { r.set_content("short", "application/octet-stream"); });
  EXPECT_THAT(Failure().what(), HasSubstr("sends 5 bytes, and the list says 300000"));
  OnWeights(9, [](httplib::Response& r) { r.set_content("<html>log in", "text/html"); });
  EXPECT_THAT(Failure().what(), HasSubstr("sends a page instead of the file"));
}

TEST_F(PullTest, TheTokenGoesToTheHubAlone) {
  settings_.token = "hf_secret";
  Run();
  for (const FakeHub::Request& request : hub_.requests()) {
    EXPECT_EQ(request.authorization, request.on_cdn ? "" : "Bearer hf_secret") << request.path;
  }
  hub_.fault = [&](const FakeHub::Request& request, httplib::Response& response) {
    if (!request.on_cdn) response.set_redirect("file:///etc/passwd");
    return !request.on_cdn;
  };
  EXPECT_THAT(ErrorOf([&] { Run(); }).what(), HasSubstr("protocol is refused"));
}

TEST_F(PullTest, RefusalsSayWhatToDo) {
  AnswerAll(401, "RepoNotFound");
  EXPECT_THAT(Failure().what(), AllOf(HasSubstr("check the name"), HasSubstr("HF_TOKEN"),
                                      HasSubstr("a data set is pulled with --dataset")));
  AnswerAll(401, "GatedRepo");
  EXPECT_THAT(Failure().what(), HasSubstr("accept its terms at " + settings_.endpoint));
  AnswerAll(403, "GatedRepo");
  EXPECT_THAT(Failure().what(), HasSubstr("ask for access at"));
  AnswerAll(404, "RevisionNotFound");
  EXPECT_THAT(Failure().what(), HasSubstr("no revision 'main'"));
  settings_.token = "hf_wrong";
  settings_.token_source = "HF_TOKEN";
  AnswerAll(401);
  const std::string message = Failure().what();
  EXPECT_THAT(message, HasSubstr("the token of HF_TOKEN was not accepted"));
  EXPECT_EQ(message.find("hf_wrong"), std::string::npos);
}

TEST_F(PullTest, BusyServersAreAskedAgain) {
  int refusals = 3;
  hub_.fault = [&](const FakeHub::Request&, httplib::Response& response) {
    if (refusals == 0) return false;
    response.status = refusals-- == 3 ? 429 : 503;
    return true;
  };
  Run();
  fs::remove_all(folder());
  AnswerAll(503);
  const std::size_t before = hub_.requests().size();
  EXPECT_THAT(Failure().what(), HasSubstr("says 503"));
  EXPECT_EQ(hub_.requests().size() - before, 5u);
  AnswerAll(429, "", {{"Retry-After", "100000"}});
  EXPECT_THAT(Failure().what(), HasSubstr("the rate limit ends in 100000 s"));
}

TEST_F(PullTest, HostileListingsAreRefused) {
  for (const char* path : {"../evil.json", "a/../../evil.json", "/evil.json", "C:\\evil.json",
                           "a//b.json", "a\nb.json", ".."}) {
    hub_.edit_listing = [path](nlohmann::json& listing) { listing[0]["path"] = path; };
    EXPECT_THAT(Failure().what(), HasSubstr("this name is refused")) << path;
  }
  hub_.edit_listing = [](nlohmann::json& listing) { listing[0]["oid"] = "../../x"; };
  EXPECT_THAT(Failure().what(), HasSubstr("is not a hash"));
  hub_.edit_listing = [](nlohmann::json& listing) { listing[0]["size"] = -1; };
  EXPECT_THAT(Failure().what(), HasSubstr("not a size"));
  EXPECT_FALSE(fs::exists(folder() / "snapshots"));
}

TEST_F(PullTest, FoldersWithoutEndAreRefused) {
  // As a text: made of values it takes seconds, for which the client does not wait.
  std::string many = "[";
  for (int i = 0; i <= 200'000; ++i) {
    many += fmt::format(R"({}{{"type":"directory","path":"a"}})", i == 0 ? "" : ",");
  }
  many += "]";
  hub_.fault = [&](const FakeHub::Request& request, httplib::Response& response) {
    const bool lists = request.path.find("/tree/") != std::string::npos;
    if (lists) response.set_content(many, "application/json");
    return lists;
  };
  EXPECT_THAT(Failure().what(), HasSubstr("has more than 200000 folders"));
  hub_.fault = [](const auto&, auto&) { return false; };
  hub_.edit_listing = [](nlohmann::json& listing) {
    const nlohmann::json folder = {{"type", "directory"}, {"path", "a"}};
    listing.insert(listing.end(), std::size_t{1000}, folder);
  };
  Run();
}

TEST_F(PullTest, ADiskThatIsTooSmallIsFoundFirst) {
  hub_.edit_listing = [](nlohmann::json& listing) {
    for (nlohmann::json& entry : listing) {
      if (entry.contains("lfs")) entry["lfs"]["size"] = 1'000'000'000'000'000;
    }
  };
  EXPECT_THAT(Failure().what(), HasSubstr("931322.57 GiB are needed"));
  EXPECT_EQ(hub_.CountFileRequests(), 0);
}

TEST_F(PullTest, WithoutLinksFilesAreCopied) {
  settings_.symlinks = false;
  const fs::path config = Run().snapshot / "config.json";
  EXPECT_FALSE(fs::is_symlink(config));
  EXPECT_EQ(ReadTextFile(config), "{}");
}

TEST_F(PullTest, OneContentHasOneSizeAndSizesCanBeAddedUp) {
  hub_.edit_listing = [](nlohmann::json& listing) {
    for (nlohmann::json& entry : listing) entry["oid"] = std::string(40, 'a');
  };
  EXPECT_THAT(ErrorOf([&] { Run(); }).what(), HasSubstr("has the content aaaa"));
  hub_.edit_listing = [](nlohmann::json& listing) {
    for (nlohmann::json& entry : listing) {
      entry.erase("lfs");
      entry["size"] = std::int64_t{1} << 53;
    }
  };
  EXPECT_THAT(ErrorOf([&] { Run(); }).what(), HasSubstr("claim more than 9007199254740992 bytes"));
}

TEST_F(PullTest, AnIndexOfAnySizeIsNotRead) {
  hub_.files.erase("model.safetensors");
  hub_.files["model.safetensors.index.json"] = "{ }";
  hub_.edit_listing = [](nlohmann::json& listing) {
    for (nlohmann::json& entry : listing) {
      if (entry["path"] == "model.safetensors.index.json") entry["size"] = 60'000'000;
    }
  };
  EXPECT_THAT(ErrorOf([&] { Run(); }).what(), HasSubstr("an index of weights has at most"));
}

TEST_F(PullTest, DoesNotFollowALinkInThePlaceOfAPartialFile) {
  const fs::path precious = scratch_ / "precious";
  WriteTextFile(precious, "mine");
  fs::create_directories(Partial().parent_path());
  fs::create_symlink(precious, Partial());
  EXPECT_THAT(ErrorOf([&] { Run(); }).what(),
              HasSubstr("is a symbolic link, which is not followed"));
  EXPECT_EQ(ReadTextFile(precious), "mine");
}

TEST_F(PullTest, NamesAListedFileThatIsNotThere) {
  OnWeights(1, [](httplib::Response& response) { response.status = 404; });
  const Error error = ErrorOf([&] { Run(); });
  EXPECT_THAT(error.what(), HasSubstr("a listed file, 'model.safetensors', is not there"));
  EXPECT_EQ(error.code(), ErrorCode::kRuntime);
}

// An error of any length is not read to its end.
TEST_F(PullTest, AnErrorWithoutEndEnds) {
  OnWeights(1, [](httplib::Response& response) {
    response.status = 418;
    response.set_chunked_content_provider("text/plain", [](std::size_t, httplib::DataSink& sink) {
      return sink.write(std::string(4096, 'x').data(), 4096);
    });
  });
  EXPECT_THAT(ErrorOf([&] { Run(); }).what(), HasSubstr("says 418"));
}

// Of a server that never ends it.
TEST_F(PullTest, AnErrorThatComesDropByDropEnds) {
  OnWeights(1, [](httplib::Response& response) {
    response.status = 418;
    response.set_chunked_content_provider("text/plain", [](std::size_t, httplib::DataSink& sink) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return sink.write("x", 1);
    });
  });
  EXPECT_THAT(ErrorOf([&] { Run(); }).what(), HasSubstr("says 418"));
}

TEST_F(PullTest, AHeaderLineWithoutEndIsNoLackOfMemory) {
  OnWeights(9, [](httplib::Response& response) {
    response.set_header("X-Long", std::string(200'000, 'x').c_str());
  });
  const Error error = ErrorOf([&] { Run(); });
  EXPECT_THAT(error.what(), HasSubstr("a line of the answer's header is too long"));
  // Other files may or may not have been asked for by then.
  EXPECT_EQ(std::ranges::count_if(hub_.requests(), &FakeHub::Request::on_cdn), 1)
      << "not tried again";
}

// A cache of others, or on a medium that cannot be written.
TEST_F(PullTest, ACompleteCacheMayBeReadOnly) {
  Run();
  const BoundByPermissions bound;
  if (!bound.holds()) GTEST_SKIP() << "root may write everywhere";
  std::vector<fs::path> folders = {scratch_ / "hub"};
  for (const auto& entry : fs::recursive_directory_iterator(scratch_ / "hub")) {
    if (entry.is_directory() && !entry.is_symlink()) folders.push_back(entry.path());
  }
  for (const fs::path& folder : folders) {
    fs::permissions(folder, fs::perms::owner_write, fs::perm_options::remove);
  }
  EXPECT_EQ(Run().progress.bytes_received, 0);
  hub_.files["config.json"] = "{ }";
  EXPECT_THAT(ErrorOf([&] { Run(); }).what(), HasSubstr("Permission denied"));
  for (const fs::path& folder : folders) fs::permissions(folder, fs::perms::owner_all);
}

TEST_F(PullTest, ForceDownloadReplacesADamagedBlob) {
  const fs::path weights = Run().snapshot / "model.safetensors";
  const std::string good = ReadTextFile(weights);
  std::string bad = good;
  bad[100] ^= 1;
  WriteTextFile(fs::canonical(weights), bad);
  Run();
  EXPECT_TRUE(ReadTextFile(weights) == bad);
  hub_.files["copy/config.json"] = "{}";  // a content that is there already, and twice
  hub_.files["LICENSE"] = "{}";
  const PullResult result =
      Pull(settings_, {.repository = ParseHubRepository("org/tiny"), .force_download = true}, {});
  EXPECT_TRUE(ReadTextFile(weights) == good);
  EXPECT_EQ(result.progress.bytes_received, result.progress.bytes);
}

TEST_F(PullTest, ALongNameIsLinked) {
  const std::string name = std::string(240, 'n') + ".jinja";
  hub_.files["additional_chat_templates/" + name] = "{{ a }}";
  const PullResult result = Run();
  EXPECT_EQ(ReadTextFile(result.snapshot / "additional_chat_templates" / name), "{{ a }}");
}

}  // namespace
}  // namespace qlora
