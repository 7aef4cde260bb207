#include "c_api/bind.hpp"

#include <string>
#include <string_view>

#include "attnsmith/error.hpp"

namespace attnsmith::c_api {

void rethrow_in_dlpack_words(const InvalidRequest& error) {
    constexpr std::string_view kRank = ".rank";
    if (!error.field().ends_with(kRank)) throw error;
    const std::string tensor = error.field().substr(0, error.field().size() - kRank.size());
    throw InvalidRequest(tensor + ".ndim", error.value(), error.accepted());
}

}  // namespace attnsmith::c_api
