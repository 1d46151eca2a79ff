// What CAF 0.17.6's OpenSSL module leaves out, put around the calls of OpenSSL that it makes.
#pragma once

#include <chrono>

namespace dflash {

// To be called once before the module is loaded; also what makes the linker keep the wrappers.
// Strangers that do not finish their handshake within `handshake` are hung up on.
void mend_caf_tls(std::chrono::milliseconds handshake);

}  // namespace dflash
