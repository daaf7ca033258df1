# Writes the parts of the page of `qlora serve` as C++ constants, with style and chart of `qlora report`.
#   cmake -DFOLDER=src/serve/page -DREPORT=cli/report -DOUTPUT=serve_page.cc -P embed_serve_page.cmake
file(READ ${FOLDER}/serve.html html)
file(READ ${REPORT}/report.css base_css)
file(READ ${FOLDER}/serve.css css)
file(READ ${REPORT}/chart.js chart)
file(READ ${FOLDER}/serve.js js)
file(WRITE ${OUTPUT} "#include \"serve/page/serve_page.h\"
namespace qlora {
const char kServeHtml[] = R\"qlora_page(${html})qlora_page\";
const char kServeCss[] = R\"qlora_page(${base_css}${css})qlora_page\";
const char kServeScript[] = R\"qlora_page(${chart}${js})qlora_page\";
}  // namespace qlora
")
