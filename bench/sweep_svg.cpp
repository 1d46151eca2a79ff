#include "bench/sweep_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace dflash::bench {

namespace {

constexpr double width = 640, height = 360, left = 60, right = 20, top = 34, bottom = 50;
constexpr std::array<const char*, 2> colours = {"#1f5fa8", "#c0561b"};

struct frame {
  double least_factor = 1, largest_factor = 1, least_ratio = 1;

  double x(double factor) const {
    const double share =
        std::log2(factor / least_factor) / std::log2(largest_factor / least_factor);
    return left + share * (width - left - right);
  }
  double y(double ratio) const {
    return top + (1 - (ratio - least_ratio) / (1 - least_ratio)) * (height - top - bottom);
  }
};

frame frame_of(const std::vector<sweep_curve>& curves) {
  frame f{16, 1.0 / 8, 0.9};
  for (const sweep_curve& curve : curves)
    for (const sweep_point& p : curve.points) {
      f.least_factor = std::min(f.least_factor, p.factor);
      f.largest_factor = std::max(f.largest_factor, p.factor);
      f.least_ratio = std::min(f.least_ratio, std::floor(p.ratio * 10) / 10);
    }
  return f;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"#222222\">{}</text>\n",
      x,
      y,
      anchor,
      text);
}

std::string line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format(
      "<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2, colour);
}

std::string axes(const frame& f) {
  std::string svg;
  for (double ratio = f.least_ratio; ratio < 1.001; ratio += 0.1) {
    svg += line(left, f.y(ratio), width - right, f.y(ratio), "#dddddd");
    svg += text_at(left - 8, f.y(ratio) + 4, "end", fmt::format("{:.1f}", ratio));
  }
  for (double factor = f.least_factor; factor < f.largest_factor * 1.001; factor *= 2) {
    svg += line(f.x(factor), top, f.x(factor), height - bottom, "#dddddd");
    svg += text_at(f.x(factor), height - bottom + 18, "middle", fmt::format("{:g}", factor));
  }
  svg += text_at((left + width - right) / 2, height - 10, "middle", "limits, times the default");
  return svg + text_at(left, 18, "start", "batches/s, of what the slowest stage allows");
}

std::string drawing_of(const frame& f, const sweep_curve& curve, size_t number) {
  const char* colour = colours.at(number);
  std::string path, dots;
  for (const sweep_point& p : curve.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", f.x(p.factor), f.y(p.ratio));
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                        f.x(p.factor),
                        f.y(p.ratio),
                        colour);
  }
  const double key_y = height - bottom - 30 + 16 * static_cast<double>(number);
  return fmt::format("<path d=\"{}\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, colour) + dots +
         line(width - right - 230, key_y - 4, width - right - 210, key_y - 4, colour) +
         text_at(width - right - 204, key_y, "start", curve.name);
}

}  // namespace

std::string sweep_svg(const std::vector<sweep_curve>& curves) {
  const frame f = frame_of(curves);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"12\" fill=\"none\">\n<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n"
      "<g>\n{}</g>\n",
      width,
      height,
      width,
      height,
      axes(f));
  for (size_t i = 0; i < curves.size(); ++i)
    svg += "<g>\n" + drawing_of(f, curves[i], i) + "</g>\n";
  return svg + "</svg>\n";
}

}  // namespace dflash::bench
