# Puts style and scripts into the page of `qlora report` and writes it as a C++ constant.
#   cmake -DFOLDER=cli/report -DOUTPUT=report_html.cc -P embed_report.cmake
file(READ ${FOLDER}/report.html page)
foreach(part "CSS;report.css" "CHART;chart.js" "JS;report.js")
  list(GET part 0 mark)
  list(GET part 1 name)
  file(READ ${FOLDER}/${name} text)
  string(REPLACE "@${mark}@" "${text}" page "${page}")
endforeach()
file(WRITE ${OUTPUT} "namespace qlora {
extern const char kReportHtml[];
const char kReportHtml[] = R\"qlora_page(${page})qlora_page\";
}  // namespace qlora
")
