# LibTorch out of an unpacked PyPI wheel, without TorchConfig.cmake (which insists on nvcc + toolkit).
# Input:  TORCH_WHEEL_DIR = .../site-packages/torch (default: asked from python3, torch is not imported)
# Targets: TorchWheel::cpu (no CUDA toolkit needed), TorchWheel::cuda (only if toolkit found and WITH_CUDA)
include(FindPackageHandleStandardArgs)
if(NOT TORCH_WHEEL_DIR)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  execute_process(COMMAND "${Python3_EXECUTABLE}" -c
    "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE _d OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _r)
  if(_r EQUAL 0)
    set(TORCH_WHEEL_DIR "${_d}" CACHE PATH "torch directory of the unpacked wheel" FORCE)
  endif()
endif()
find_path(TorchWheel_INCLUDE_DIR torch/csrc/api/include/torch/torch.h PATHS "${TORCH_WHEEL_DIR}/include" NO_DEFAULT_PATH)
foreach(l c10 torch_cpu c10_cuda torch_cuda)
  find_library(TorchWheel_${l}_LIBRARY ${l} PATHS "${TORCH_WHEEL_DIR}/lib" NO_DEFAULT_PATH)
endforeach()
if(EXISTS "${TORCH_WHEEL_DIR}/version.py")
  file(STRINGS "${TORCH_WHEEL_DIR}/version.py" _v REGEX "^__version__")
  string(REGEX REPLACE ".*'([0-9.]+).*" "\\1" TorchWheel_VERSION "${_v}")
endif()
find_package_handle_standard_args(TorchWheel REQUIRED_VARS TorchWheel_c10_LIBRARY TorchWheel_torch_cpu_LIBRARY
                                  TorchWheel_INCLUDE_DIR VERSION_VAR TorchWheel_VERSION)
if(TorchWheel_FOUND AND NOT TARGET TorchWheel::cpu)
  # The wheel bundles fmt 12 in its include root; it must not shadow the system fmt that Debian's spdlog
  # was built with. A one-entry directory that comes first in the search path decides the matter.
  set(_shim "${CMAKE_SOURCE_DIR}/.deps/sysfmt")  # outside the build folder: compiler caches then hit across build folders
  file(MAKE_DIRECTORY "${_shim}")
  find_path(SYSFMT_INCLUDE_DIR fmt/core.h PATHS /usr/include NO_DEFAULT_PATH)
  if(SYSFMT_INCLUDE_DIR)
    file(CREATE_LINK "${SYSFMT_INCLUDE_DIR}/fmt" "${_shim}/fmt" SYMBOLIC)
  endif()
  find_package(Threads REQUIRED)
  add_library(TorchWheel::c10 SHARED IMPORTED)
  set_target_properties(TorchWheel::c10 PROPERTIES IMPORTED_LOCATION "${TorchWheel_c10_LIBRARY}")
  add_library(TorchWheel::cpu SHARED IMPORTED)
  set_target_properties(TorchWheel::cpu PROPERTIES IMPORTED_LOCATION "${TorchWheel_torch_cpu_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${_shim};${TorchWheel_INCLUDE_DIR};${TorchWheel_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
    INTERFACE_LINK_LIBRARIES "TorchWheel::c10;Threads::Threads"
    # libcudart/libcupti are NEEDED by libtorch_cpu.so and found at run time by its own RPATH
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
  if(WITH_CUDA)
    find_package(CUDAToolkit REQUIRED)
    find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
    add_library(TorchWheel::nccl UNKNOWN IMPORTED)
    set_target_properties(TorchWheel::nccl PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
    add_library(TorchWheel::cuda INTERFACE IMPORTED)
    set_target_properties(TorchWheel::cuda PROPERTIES INTERFACE_COMPILE_DEFINITIONS "USE_C10D_NCCL"
      INTERFACE_LINK_LIBRARIES "TorchWheel::cpu;-Wl,--no-as-needed;${TorchWheel_torch_cuda_LIBRARY};${TorchWheel_c10_cuda_LIBRARY};-Wl,--as-needed;TorchWheel::nccl;CUDA::cudart")
  endif()
endif()
