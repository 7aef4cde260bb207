// Any bytes as the choices by which a list of cache places with a password is made: nothing that the library
// says of it, and no host that it would ask, has the password.
#include "fuzz/fuzz.hpp"
#include "support/planted_password.hpp"

using namespace attnsmith::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::size_t next = 0;
    const PlantedList list =
        plant_password([&](std::size_t below) { return next < size ? data[next++] % below : 0; });
    for (const bool as_option : {false, true}) {
        const Said said = everything_said(list, as_option);
        require(!leaks(said));
        require(!list.encoded || said.refusal.empty());
    }
    return 0;
}
