// Classes of read-only values.
#ifndef QLORA_PYTHON_REPORT_CLASS_H_
#define QLORA_PYTHON_REPORT_CLASS_H_

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "keywords.h"
#include "qlora/metrics.h"

namespace qlora::python {

// A report of the library as a class of Python: an attribute for each member, a repr with all of
// them, and _asdict() for tables and logs.
template <typename Report>
class ReportClass {
 public:
  ReportClass(pybind11::module_& module, const char* name, const char* doc)
      : class_(module, name, doc) {
    class_.attr("_fields") = pybind11::list();
    class_.def("_asdict", [](const pybind11::object& self) { return Values(self); });
    class_.def("__repr__", [](const pybind11::object& self) {
      std::string text;
      for (const auto& [key, value] : Values(self)) {
        text += (text.empty() ? "" : ", ") + std::string(pybind11::str(key)) + "=" +
                std::string(pybind11::repr(value));
      }
      return Text(std::string(pybind11::str(self.attr("__class__").attr("__name__"))) + "(" + text +
                  ")");
    });
  }

  template <typename Member>
  ReportClass& Add(const char* name, Member Report::*member, const char* doc) {
    if constexpr (std::is_same_v<Member, std::string>) {
      class_.def_property_readonly(
          name, [member](const Report& report) { return Text(report.*member); }, doc);
    } else {
      class_.def_readonly(name, member, doc);
    }
    class_.attr("_fields").attr("append")(name);
    return *this;
  }

  // A value that get(report) makes of several members.
  template <typename Get>
  ReportClass& AddValue(const char* name, const Get& get, const char* doc) {
    class_.def_property_readonly(name, get, doc);
    class_.attr("_fields").attr("append")(name);
    return *this;
  }

  // Metrics of the objective: as the dict `metrics`, and each as an attribute.
  ReportClass& AddMetrics() {
    class_.def_property_readonly(
        "metrics", [](const Report& report) { return MetricsOf(report); },
        "What the objective reports beside the loss, by name.");
    class_.def("__getattr__", [](const Report& report, const std::string& name) {
      for (const MetricValue& metric : report.metrics) {
        if (metric.name == name) return metric.value;
      }
      throw pybind11::attribute_error("no field or metric '" + name + "'");
    });
    class_.attr("_fields").attr("append")("metrics");
    return *this;
  }

  pybind11::class_<Report>& python_class() { return class_; }

 private:
  static pybind11::dict MetricsOf(const Report& report) {
    pybind11::dict metrics;
    for (const MetricValue& metric : report.metrics) metrics[metric.name.c_str()] = metric.value;
    return metrics;
  }

  static pybind11::dict Values(const pybind11::object& self) {
    pybind11::dict values;
    for (const pybind11::handle& name : self.attr("_fields")) {
      values[name] = self.attr(pybind11::str(name));
    }
    return values;
  }

  pybind11::class_<Report> class_;
};

}  // namespace qlora::python

#endif  // QLORA_PYTHON_REPORT_CLASS_H_
