// What the emitted C++ needs of CANN's graph/operator.h and graph/graph.h. SaveToFile writes what was built as lines of
// text: graph, name, type, and for each input its name, the node that it reads, and the output of that node; names in hex.
#pragma once
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "graph/tensor.h"

namespace ge {
class Graph;
using SubgraphBuilder = std::function<Graph()>;

struct Record {
  std::string name, type;
  std::map<std::string, std::pair<std::shared_ptr<Record>, std::string>> inputs;
  std::map<std::string, std::string> attrs;
  std::map<std::string, TensorDesc> outputs;
  std::vector<SubgraphBuilder> graphs;
};

inline std::string Hex(const std::string &text) {
  static const char digits[] = "0123456789abcdef";
  std::string made;
  for (unsigned char c : text) made += {digits[c >> 4], digits[c & 15]};
  return made.empty() ? "-" : made;
}

template <typename T>
std::string Show(const T &v) {
  std::ostringstream out;
  out << v;
  return out.str();
}
inline std::string Show(const Tensor &v) { return std::string(v.bytes.begin(), v.bytes.end()); }
template <typename T>
std::string Show(const std::vector<T> &v) {
  std::string made = "[";
  for (const auto &x : v) made += Show(T(x)) + " ";
  return made + "]";
}

class Operator {
 public:
  Operator(const char *name, const char *type) : record(std::make_shared<Record>()) {
    record->name = name;
    record->type = type;
  }
  Operator &SetAttr(const char *name, int64_t value) { return Set(name, value); }
  template <typename T>
  Operator &Set(const char *name, const T &value) {
    record->attrs[name] = Show(value);
    return *this;
  }
  void Read(const std::string &port, const Operator &from, const char *output) {
    record->inputs[port] = {from.record, output};
  }

  std::shared_ptr<Record> record;
};

class Graph {
 public:
  explicit Graph(const char *name) : name_(name) {}
  Graph &SetInputs(const std::vector<Operator> &inputs) {
    for (const auto &op : inputs) roots_.push_back(op.record);
    return *this;
  }
  Graph &SetOutputs(const std::vector<std::pair<Operator, std::vector<size_t>>> &outputs) {
    for (const auto &o : outputs) roots_.push_back(o.first.record);
    return *this;
  }
  graphStatus SaveToFile(const char *path) const {
    std::ofstream file(path);
    Write(file);
    return file.good() ? GRAPH_SUCCESS : GRAPH_FAILED;
  }

 private:
  void Write(std::ostream &out) const {
    std::set<Record *> seen;
    auto work = roots_;
    while (!work.empty()) {
      auto node = work.back();
      work.pop_back();
      if (!seen.insert(node.get()).second) continue;
      out << Hex(name_) << ' ' << Hex(node->name) << ' ' << node->type;
      if (node->type == "Const") out << " value " << Hex(node->attrs["value"]);
      for (const auto &[port, from] : node->inputs) {
        out << ' ' << port << ' ' << Hex(from.first->name) << ' ' << from.second;
        work.push_back(from.first);
      }
      out << '\n';
      for (const auto &build : node->graphs) build().Write(out);
    }
  }
  std::string name_;
  std::vector<std::shared_ptr<Record>> roots_;
};
}  // namespace ge
