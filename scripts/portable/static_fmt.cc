// The compiled part of fmt, which Debian has as a shared library only: the definitions in its
// header, and the templates that fmt/format.h declares extern.
#include <fmt/format-inl.h>

namespace fmt {
inline namespace v9 {
namespace detail {
template dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;
template std::locale locale_ref::get<std::locale>() const;
template thousands_sep_result<char> thousands_sep_impl(locale_ref);
template char decimal_point_impl(locale_ref);
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, string_view, basic_format_args<format_context>, locale_ref);
}  // namespace detail
}  // namespace v9
}  // namespace fmt
