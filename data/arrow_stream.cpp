#include "data/arrow_stream.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/error.hpp"
#include "data/files.hpp"

namespace dflash {

namespace {

constexpr int64_t batch_documents = 1000;

// A FlatBuffers object and what it points to. Only what Arrow's messages need: tables, strings,
// vectors of tables, vectors of structs of two int64.
struct flat_object {
  struct field {
    int slot = 0;  // in the table's definition
    int size = 4;  // bytes; 4 for a child
    int64_t value = 0;
    int child = -1;  // index in children
  };
  enum class kind { table, text, tables, pairs } what = kind::table;
  std::vector<field> fields;                       // table
  std::string text;                                // text
  std::vector<std::pair<int64_t, int64_t>> pairs;  // pairs
  std::vector<flat_object> children;               // of a table, or the entries of tables

  flat_object& scalar(int slot, int size, int64_t value) {
    fields.push_back({slot, size, value, -1});
    return *this;
  }
  flat_object& child(int slot, flat_object object) {
    fields.push_back({slot, 4, 0, static_cast<int>(children.size())});
    children.push_back(std::move(object));
    return *this;
  }
};

flat_object text_of(std::string_view text) {
  flat_object o;
  o.what = flat_object::kind::text;
  o.text = text;
  return o;
}

flat_object tables_of(std::vector<flat_object> entries) {
  flat_object o;
  o.what = flat_object::kind::tables;
  o.children = std::move(entries);
  return o;
}

flat_object pairs_of(std::vector<std::pair<int64_t, int64_t>> pairs) {
  flat_object o;
  o.what = flat_object::kind::pairs;
  o.pairs = std::move(pairs);
  return o;
}

// Lays objects out parents first, since offsets are unsigned.
class flat_buffer {
public:
  explicit flat_buffer(const flat_object& root) {
    put(4, 0);
    patch(0, write(root));
    pad(8, 0);
  }
  std::string take() { return std::move(bytes_); }

private:
  size_t write(const flat_object& o) {
    switch (o.what) {
      case flat_object::kind::table:
        return write_table(o);
      case flat_object::kind::text: {
        pad(4, 0);
        const size_t at = bytes_.size();
        put(4, static_cast<int64_t>(o.text.size()));
        bytes_ += o.text;
        bytes_ += '\0';
        return at;
      }
      case flat_object::kind::tables: {
        pad(4, 0);
        const size_t at = bytes_.size();
        put(4, static_cast<int64_t>(o.children.size()));
        for (size_t i = 0; i < o.children.size(); ++i) put(4, 0);
        for (size_t i = 0; i < o.children.size(); ++i) patch(at + 4 + 4 * i, write(o.children[i]));
        return at;
      }
      case flat_object::kind::pairs: {
        pad(8, 4);  // the structs behind the count are aligned to 8
        const size_t at = bytes_.size();
        put(4, static_cast<int64_t>(o.pairs.size()));
        for (const auto& [first, second] : o.pairs) {
          put(8, first);
          put(8, second);
        }
        return at;
      }
    }
    return 0;
  }

  size_t write_table(const flat_object& o) {
    int slots = 0;
    for (const auto& f : o.fields) slots = std::max(slots, f.slot + 1);
    std::vector<size_t> places(static_cast<size_t>(slots), 0);  // within the table; 0: absent
    size_t size = 4;                                            // the offset of the vtable
    for (const auto& f : o.fields) {
      const auto align = static_cast<size_t>(f.size);
      size = (size + align - 1) / align * align;
      places[static_cast<size_t>(f.slot)] = size;
      size += align;
    }
    pad(2, 0);
    const size_t vtable = bytes_.size();
    put(2, 4 + 2 * slots);
    put(2, static_cast<int64_t>(size));
    for (const size_t place : places) put(2, static_cast<int64_t>(place));
    pad(8, 0);
    const size_t table = bytes_.size();
    put(4, static_cast<int64_t>(table - vtable));
    bytes_.resize(table + size, '\0');
    for (const auto& f : o.fields)
      std::memcpy(bytes_.data() + table + places[static_cast<size_t>(f.slot)], &f.value, f.size);
    for (const auto& f : o.fields)
      if (f.child >= 0)
        patch(table + places[static_cast<size_t>(f.slot)],
              write(o.children[static_cast<size_t>(f.child)]));
    return table;
  }

  void put(int size, int64_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), static_cast<size_t>(size));
  }
  void patch(size_t at, size_t target) {
    const auto offset = narrow<uint32_t>(target - at);
    std::memcpy(bytes_.data() + at, &offset, 4);
  }
  void pad(size_t align, size_t rest) {  // until size mod align = rest
    while (bytes_.size() % align != rest) bytes_ += '\0';
  }

  std::string bytes_;
};

// Numbers of Arrow's definitions (format/Message.fbs, Schema.fbs).
constexpr int64_t metadata_v5 = 4, header_schema = 1, header_batch = 3, type_int = 2,
                  type_list = 12;

flat_object message(int64_t kind, flat_object header, int64_t body_bytes) {
  flat_object m;
  m.scalar(0, 2, metadata_v5).scalar(1, 1, kind).scalar(3, 8, body_bytes);
  m.child(2, std::move(header));
  return m;
}

flat_object field_of(std::string_view name,
                     int64_t type,
                     flat_object details,
                     std::vector<flat_object> children) {
  flat_object f;
  f.scalar(1, 1, 1).scalar(2, 1, type);
  f.child(0, text_of(name)).child(3, std::move(details));
  f.child(5, tables_of(std::move(children)));
  return f;
}

flat_object int64_field(std::string_view name) {
  flat_object details;
  details.scalar(0, 4, 64).scalar(1, 1, 1);
  return field_of(name, type_int, std::move(details), {});
}

flat_object list_field(std::string_view name) {
  std::vector<flat_object> item;
  item.push_back(int64_field("item"));
  return field_of(name, type_list, {}, std::move(item));
}

flat_object schema() {
  std::vector<flat_object> fields;
  fields.push_back(list_field("input_ids"));
  fields.push_back(list_field("loss_mask"));
  fields.push_back(int64_field("seq_len"));
  flat_object s;
  s.scalar(0, 2, 0);
  s.child(1, tables_of(std::move(fields)));
  return s;
}

class stream_writer {
public:
  explicit stream_writer(const std::filesystem::path& path) : file_(path) {}

  void put_message(const flat_object& message, std::span<const std::byte> body) {
    const std::string metadata = flat_buffer(message).take();
    const uint32_t prefix[] = {0xffffffff, narrow<uint32_t>(metadata.size())};
    file_.write(std::as_bytes(std::span(prefix)));
    file_.write(std::as_bytes(std::span(metadata)));
    file_.write(body);
  }
  void finish() {
    const uint32_t end[] = {0xffffffff, 0};
    file_.write(std::as_bytes(std::span(end)));
    file_.commit();
  }

private:
  atomic_file file_;
};

// The buffers of one record batch, one after the other.
struct batch_body {
  std::vector<std::byte> bytes;
  std::vector<std::pair<int64_t, int64_t>> buffers;  // offset, length

  void add(std::span<const std::byte> content) {
    buffers.emplace_back(static_cast<int64_t>(bytes.size()), static_cast<int64_t>(content.size()));
    bytes.insert(bytes.end(), content.begin(), content.end());
    bytes.resize((bytes.size() + 63) / 64 * 64);
  }
  void add_all_valid() { add({}); }
};

void put_batch(stream_writer& out, const token_set& documents, int64_t first, int64_t last) {
  std::vector<int32_t> offsets = {0};
  std::vector<int64_t> ids, masks, lengths;
  for (int64_t d = first; d < last; ++d) {
    const auto tokens = documents.ids(d);
    const auto mask = documents.mask(d);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    masks.insert(masks.end(), mask.begin(), mask.end());
    lengths.push_back(static_cast<int64_t>(tokens.size()));
    offsets.push_back(narrow<int32_t>(ids.size()));
  }
  const int64_t rows = last - first, tokens = static_cast<int64_t>(ids.size());
  batch_body body;
  std::vector<std::pair<int64_t, int64_t>> nodes;  // length, nulls
  for (const auto* values : {&ids, &masks}) {
    nodes.emplace_back(rows, 0);
    body.add_all_valid();
    body.add(std::as_bytes(std::span(offsets)));
    nodes.emplace_back(tokens, 0);
    body.add_all_valid();
    body.add(std::as_bytes(std::span(*values)));
  }
  nodes.emplace_back(rows, 0);
  body.add_all_valid();
  body.add(std::as_bytes(std::span(lengths)));
  flat_object batch;
  batch.scalar(0, 8, rows);
  batch.child(1, pairs_of(std::move(nodes))).child(2, pairs_of(body.buffers));
  out.put_message(message(header_batch, std::move(batch), static_cast<int64_t>(body.bytes.size())),
                  body.bytes);
}

}  // namespace

void write_arrow_documents(const std::filesystem::path& path, const token_set& documents) {
  stream_writer out(path);
  out.put_message(message(header_schema, schema(), 0), {});
  for (int64_t first = 0; first < documents.size(); first += batch_documents)
    put_batch(out, documents, first, std::min(first + batch_documents, documents.size()));
  out.finish();
}

}  // namespace dflash
