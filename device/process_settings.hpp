// Settings of run-time libraries that are read while a program is being loaded.
#pragma once

namespace dflash {

// Starts the program once more (execv of itself, the same process) with the settings below, each
// only where the user has not set its variable; returns if there is nothing to set, or where that
// fails: then the program runs with the libraries' defaults. First thing in main, before any
// thread.
//
// GOMP_SPINCOUNT (not with OMP_WAIT_POLICY): the OpenMP run-time spins for long at every barrier
// before it sleeps. Where other programs share the cores, that starves the thread that is waited
// for.
// GLIBC_TUNABLES: large tensors come and go in sizes that change with every batch. From the heap
// they leave holes, which made up half of a training step's memory; mapped one by one they do not,
// and huge pages make the mapping cheap (docs/performance.md has both figures).
void restart_with_settings(char** argv);

}  // namespace dflash
