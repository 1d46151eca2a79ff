// Splitting of rows over ATen's threads in a partition that depends on the number of threads alone.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

namespace dflash::kernel {

// Parts for n rows: the thread count, or fewer where rows are few.
inline int64_t part_count(int64_t rows, int64_t rows_at_least = 1) {
  const int64_t most = std::max<int64_t>(1, rows / std::max<int64_t>(1, rows_at_least));
  return std::min<int64_t>(at::get_num_threads(), most);
}

// f(part, first, last) for each part of [0, rows), in parallel.
template <class F>
void for_parts(int64_t rows, int64_t parts, const F& f) {
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) f(p, rows * p / parts, rows * (p + 1) / parts);
  });
}

}  // namespace dflash::kernel
