// Tests of permissions where tests run as root, as in containers.
#ifndef QLORA_TESTS_BOUND_BY_PERMISSIONS_H_
#define QLORA_TESTS_BOUND_BY_PERMISSIONS_H_

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace qlora {

// While one lives, the permissions of files bind this thread and the programs that it starts, also
// when they are root's: without the capabilities that override permissions, root is a user who owns
// its files. `holds` is false where the system does not let a program give these up.
class BoundByPermissions {
 public:
  BoundByPermissions() {
    if (geteuid() != 0) return;
    // A program that root starts would have all capabilities again without SECBIT_NOROOT.
    holds_ = Capabilities(SYS_capget) && prctl(PR_SET_SECUREBITS, SECBIT_NOROOT) == 0;
    if (!holds_) return;
    before_ = sets_[0].effective;
    sets_[0].effective &= ~(1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH);
    holds_ = Capabilities(SYS_capset);
  }
  ~BoundByPermissions() {
    if (before_ == 0) return;
    sets_[0].effective = before_;
    Capabilities(SYS_capset);
    prctl(PR_SET_SECUREBITS, 0);
  }
  BoundByPermissions(const BoundByPermissions&) = delete;
  BoundByPermissions& operator=(const BoundByPermissions&) = delete;

  bool holds() const { return holds_; }

 private:
  bool Capabilities(long call) { return syscall(call, &header_, sets_) == 0; }

  __user_cap_header_struct header_ = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets_[_LINUX_CAPABILITY_U32S_3] = {};
  __u32 before_ = 0;  // effective capabilities; 0: nothing was changed
  bool holds_ = true;
};

}  // namespace qlora

#endif  // QLORA_TESTS_BOUND_BY_PERMISSIONS_H_
