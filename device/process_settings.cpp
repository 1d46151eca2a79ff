#include "device/process_settings.hpp"

#include <unistd.h>

#include <cstdlib>

namespace dflash {
namespace {

bool set_unless_given(const char* name, const char* value) {
  if (std::getenv(name) != nullptr) return false;
  return ::setenv(name, value, 1) == 0;
}

}  // namespace

void restart_with_settings(char** argv) {
  bool changed = set_unless_given("GLIBC_TUNABLES",
                                  "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=3145728");
  if (std::getenv("OMP_WAIT_POLICY") == nullptr)
    changed |= set_unless_given("GOMP_SPINCOUNT", "10000");
  if (changed) ::execv("/proc/self/exe", argv);
}

}  // namespace dflash
