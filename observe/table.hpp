// Text tables with aligned columns, for terminals.
#pragma once

#include <string>
#include <vector>

namespace dflash {

enum class align { left, right };

class text_table {
public:
  struct column {
    std::string title;
    align side = align::right;
  };

  explicit text_table(std::vector<column> columns);

  /// As many cells as there are columns.
  void add_row(std::vector<std::string> cells);

  /// Title line, then one line a row; two spaces between columns, none at the ends of lines.
  std::string text() const;

private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace dflash
