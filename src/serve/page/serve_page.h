// The page of a server, where people try and compare its models.
//
// serve.html, serve.css and serve.js are embedded in the program by cmake/embed_serve_page.cmake,
// with the style and the chart of `qlora report` (cli/report). The page asks the routes that
// clients ask, and no other server.
#ifndef QLORA_SERVE_PAGE_SERVE_PAGE_H_
#define QLORA_SERVE_PAGE_SERVE_PAGE_H_

namespace qlora {

extern const char kServeHtml[];
extern const char kServeCss[];
extern const char kServeScript[];

}  // namespace qlora

#endif  // QLORA_SERVE_PAGE_SERVE_PAGE_H_
