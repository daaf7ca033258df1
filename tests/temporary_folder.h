// A folder of a test's own: no other test, process or clone of the sources has its name.
#ifndef QLORA_TESTS_TEMPORARY_FOLDER_H_
#define QLORA_TESTS_TEMPORARY_FOLDER_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace qlora {

// Removed at its end with what is in it, also where a test took its permissions away.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "qlora-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot create " << name;
    path_ = name;
  }
  ~TemporaryFolder() {
    namespace fs = std::filesystem;
    fs::permissions(path_, fs::perms::owner_all);
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      const bool is_folder = entry.is_directory() && !entry.is_symlink();
      if (is_folder) fs::permissions(entry.path(), fs::perms::owner_all);
    }
    fs::remove_all(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }
  // Writes a file, whose folder is made.
  std::filesystem::path Write(const std::filesystem::path& name, std::string_view text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_TEMPORARY_FOLDER_H_
