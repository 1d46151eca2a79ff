# check_headers: every header compiles alone. One that is the first include of the source beside it has
# shown that already; the others are compiled here. Not part of the default build.
file(GLOB headers CONFIGURE_DEPENDS RELATIVE "${CMAKE_SOURCE_DIR}"
  "${CMAKE_SOURCE_DIR}/config/*.hpp" "${CMAKE_SOURCE_DIR}/data/*.hpp" "${CMAKE_SOURCE_DIR}/device/*.hpp"
  "${CMAKE_SOURCE_DIR}/device/kernels/*.hpp" "${CMAKE_SOURCE_DIR}/model/*.hpp" "${CMAKE_SOURCE_DIR}/model/families/*.hpp"
  "${CMAKE_SOURCE_DIR}/observe/*.hpp"
  "${CMAKE_SOURCE_DIR}/messages/*.hpp" "${CMAKE_SOURCE_DIR}/actors/*.hpp" "${CMAKE_SOURCE_DIR}/actors/runtime/*.hpp"
  "${CMAKE_SOURCE_DIR}/bin/*.hpp")
list(FILTER headers EXCLUDE REGEX "-inl\\.hpp$") # included once for each instruction set, by design
foreach(header ${headers})
  file(STRINGS "${CMAKE_SOURCE_DIR}/${header}" once LIMIT_COUNT 1 REGEX "^#pragma once$")
  if(NOT once)
    message(FATAL_ERROR "${header} has no #pragma once")
  endif()
  string(REGEX REPLACE "hpp$" "cpp" own "${header}")
  set(first "")
  if(EXISTS "${CMAKE_SOURCE_DIR}/${own}")
    file(STRINGS "${CMAKE_SOURCE_DIR}/${own}" first LIMIT_COUNT 1 REGEX "^#include")
  endif()
  if(first STREQUAL "#include \"${header}\"")
    continue()
  endif()
  string(REPLACE "/" "." name "${header}")
  set(source "${CMAKE_BINARY_DIR}/check_headers/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n")
  list(APPEND sources "${source}")
endforeach()
add_library(check_headers OBJECT EXCLUDE_FROM_ALL ${sources})
target_link_libraries(check_headers PRIVATE dflash_actors CLI11::CLI11 dflash_flags)
target_compile_options(check_headers PRIVATE -O0 -Wno-pragma-once-outside-header)
