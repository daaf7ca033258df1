#include "records/record_error.h"

#include <exception>
#include <new>

#include "base/check.h"

namespace qlora {

void RethrowAt(std::string_view place) {
  try {
    // Called within a catch block: throws the error of that block again to see its type.
    throw;
  } catch (const Error& error) {
    // The code stays, because programs tell errors of data from others by it.
    throw Error(error.code(), fmt::format("{}: {}", place, error.what()));
  } catch (const std::bad_alloc&) {
    throw;  // the program as a whole is out of memory, not the record wrong
  } catch (const std::exception& error) {
    ThrowInvalidInput("{}: {}", place, error.what());
  }
}

}  // namespace qlora
