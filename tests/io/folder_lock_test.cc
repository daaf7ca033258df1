#include "io/folder_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "temporary_folder.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

TEST(FolderLock, HoldsAFolderUntilItsProcessEnds) {
  const TemporaryFolder folder;
  const std::string name = folder / "held";
  fs::create_directory(name);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    FolderLock lock;
    const char taken = lock.Take(name) ? 'y' : 'n';
    if (write(ready[1], &taken, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char taken = 0;
  ASSERT_EQ(read(ready[0], &taken, 1), 1);
  EXPECT_EQ(taken, 'y');
  FolderLock lock;
  EXPECT_FALSE(lock.Take(name));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(lock.Take(name));
  EXPECT_TRUE(lock.Take(name)) << "taken already";
  EXPECT_FALSE(FolderLock().Take(name));
  EXPECT_TRUE(fs::is_empty(name)) << "a lock leaves no file";
  EXPECT_TRUE(FolderLock().Take(fs::path(name) / "absent"));
  EXPECT_TRUE(FolderLock().IsAt(name)) << "nothing was taken";
  EXPECT_TRUE(lock.IsAt(name + "/"));
  fs::rename(name, name + "-renamed");
  EXPECT_FALSE(lock.IsAt(name));
  fs::create_directory(name);
  EXPECT_FALSE(lock.IsAt(name)) << "another folder";
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace qlora
