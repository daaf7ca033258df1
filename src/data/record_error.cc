#include "data/record_error.h"

#include <exception>
#include <new>

#include "base/check.h"

namespace qlora {

void RethrowAt(std::string_view place) {
  try {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", place, error.what()));
  } catch (const std::bad_alloc&) {
    throw;  // the program as a whole is out of memory, not the record wrong
  } catch (const std::exception& error) {
    ThrowInvalidInput("{}: {}", place, error.what());
  }
}

}  // namespace qlora
