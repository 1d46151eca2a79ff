#include "observe/table.hpp"

#include <algorithm>

#include "config/error.hpp"

namespace dflash {

text_table::text_table(std::vector<column> columns) : columns_(std::move(columns)) {}

void text_table::add_row(std::vector<std::string> cells) {
  DFLASH_CHECK(cells.size() == columns_.size(), "cells and columns", cells.size(), columns_.size());
  rows_.push_back(std::move(cells));
}

std::string text_table::text() const {
  std::vector<std::size_t> widths;  // [column]
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = columns_[c].title.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  std::string out;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string padding(widths[c] - cell.size(), ' ');
      if (c > 0) line += "  ";
      line += columns_[c].side == align::left ? cell + padding : padding + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  for (const auto& row : rows_)
    add_line([&](std::size_t c) -> const std::string& { return row[c]; });
  return out;
}

}  // namespace dflash
