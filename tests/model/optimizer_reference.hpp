// The reference values of tests/data/make_optimizer_reference.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <string>

#include "data/safetensors.hpp"

namespace dflash::test {

class reference {
public:
  reference()
      : file_(safetensors_file::open(DFLASH_TEST_DATA "/optimizer_reference.safetensors")) {}
  at::Tensor operator[](const std::string& name) const {
    const st_tensor& t = file_.at(name);
    const auto bytes = file_.bytes(t);
    const auto type = t.dtype == st_dtype::f64 ? at::kDouble : at::kFloat;
    return at::from_blob(const_cast<std::byte*>(bytes.data()), t.shape, type).clone();
  }

private:
  safetensors_file file_;
};

}  // namespace dflash::test
