// The one translation unit with Catch2's main: it is slow to compile, so every test program shares
// it.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
