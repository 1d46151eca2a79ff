#include "device/packed_linear.hpp"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <string_view>
#include <utility>

#include "config/error.hpp"

namespace dflash {
namespace {

using reorder_signature = at::Tensor(const at::Tensor&, std::optional<int64_t>);
using linear_signature = at::Tensor(const at::Tensor&,
                                    const at::Tensor&,
                                    const std::optional<at::Tensor>&,
                                    std::string_view,
                                    c10::List<std::optional<at::Scalar>>,
                                    std::optional<std::string_view>);

// The two operators have no header: they are looked up by name, once.
const c10::TypedOperatorHandle<reorder_signature>& reorder_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                             .typed<reorder_signature>();
  return op;
}

const c10::TypedOperatorHandle<linear_signature>& linear_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<linear_signature>();
  return op;
}

// The number of rows that oneDNN is told to pack for. Measured on avx512_bf16 with hints of 1, 64
// and 1024: 1 to 1024 rows take the same time whatever the hint, so one packing serves prefill and
// decoding alike.
constexpr int64_t rows_hint = 64;

}  // namespace

bool cpu_has_bf16_product() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") != 0;  // every CPU with amx_bf16 has it as well
#else
  return false;
#endif
}

packed_linear::packed_linear(at::Tensor weight, plain_weight plain) {
  DFLASH_CHECK(weight.dim() == 2, "a linear weight has two dimensions", weight.dim());
  out_features_ = weight.size(0);
  in_features_ = weight.size(1);
  plain_ = weight.contiguous();
  const auto type = plain_.scalar_type();
  if (plain_.device().is_cpu() &&
      (type == at::kFloat || (type == at::kBFloat16 && cpu_has_bf16_product()))) {
    packed_ = reorder_operator().call(plain_, rows_hint);
    if (plain == plain_weight::drop) plain_.reset();
  }
}

at::Tensor packed_linear::operator()(const at::Tensor& x) const {
  DFLASH_CHECK(x.dim() == 2 && x.size(1) == in_features_,
               "rows do not fit the weight",
               x.dim(),
               x.size(-1),
               in_features_);
  if (!packed_.defined()) return at::linear(x, plain_);
  if (x.size(0) == 0) return at::empty({0, out_features_}, x.options());
  return linear_operator().call(
      x, packed_, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), std::nullopt);
}

const at::Tensor& packed_linear::weight() const {
  DFLASH_CHECK(plain_.defined(), "the plain form of this weight was dropped when it was packed");
  return plain_;
}

int64_t packed_linear::bytes() const {
  const int64_t one = out_features_ * in_features_ *
                      (packed_.defined() ? 2
                       : defined()       ? plain_.element_size()
                                         : 0);
  return (packed_.defined() ? one : 0) + (plain_.defined() ? one : 0);
}

}  // namespace dflash
