# Compiler settings shared by every target, and the two helpers that make targets.

find_program(DFLASH_CCACHE ccache)
if(DFLASH_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DFLASH_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${DFLASH_CCACHE})
endif()
find_program(DFLASH_MOLD mold)
if(DFLASH_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(dflash_flags INTERFACE)
target_compile_options(dflash_flags INTERFACE
  # -Wrestrict is wrong about `"text" + std::string` in GCC 12 (GCC bug 105651)
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${DFLASH_WERROR}>>:-Werror>)
if(DFLASH_SANITIZE)
  # CAF 0.17.6 binds a null reference for actors without arguments: -fno-sanitize=null
  add_compile_options(-fsanitize=${DFLASH_SANITIZE} -fno-sanitize=null -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DFLASH_SANITIZE})
endif()

if(DFLASH_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-sanitize=null
    -fprofile-instr-generate -fcoverage-mapping)
  add_link_options(-fsanitize=address,undefined -fprofile-instr-generate)
endif()

# dflash_library(NAME [LINK targets...]): a static library of all .cpp files in this folder (not below it).
function(dflash_library name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  if(sources)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${name} PUBLIC ${arg_LINK} PRIVATE dflash_flags)
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE "${CMAKE_SOURCE_DIR}")
    target_link_libraries(${name} INTERFACE ${arg_LINK})
  endif()
endfunction()

# dflash_tests(FOLDER LABEL lib...): one Catch2 program of all .cpp files under tests/FOLDER.
function(dflash_tests folder)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp")
  if(NOT sources)
    return()
  endif()
  add_executable(test_${folder} ${sources} $<TARGET_OBJECTS:catch_main>)
  target_link_libraries(test_${folder} PRIVATE ${arg_LINK} Catch2::Catch2 dflash_flags)
  target_compile_definitions(test_${folder} PRIVATE
    DFLASH_TEST_DATA="${CMAKE_CURRENT_SOURCE_DIR}/data")
  add_test(NAME ${folder} COMMAND test_${folder})
  set_tests_properties(${folder} PROPERTIES LABELS "unit")
endfunction()
