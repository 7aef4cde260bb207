// What the tests with the stub of the CUDA driver share: one runtime, a kernel of dense attention and its
// operands, and how answers are checked.
#pragma once

#include <cstring>
#include <ostream>

#include "c_api/fake_driver.hpp"
#include "c_api/handles.hpp"
#include "support/catch.hpp"

namespace attnsmith::test {

using nlohmann::json;

inline constexpr std::int64_t kBatch = 2, kQueries = 8, kKeys = 32, kHeads = 4, kKvHeads = 2, kDim = 64;

inline attnsmith_spec dense_spec() {
    attnsmith_spec spec{};
    spec.size = sizeof spec;
    spec.head_dim_qk = kDim;
    spec.q_heads = kHeads;
    spec.kv_heads = kKvHeads;
    return spec;
}

inline constexpr attnsmith_sizes kSizes{sizeof(attnsmith_sizes), kBatch, kQueries, kKeys};

// The code, and on failure the details, of a call that took `error`.
struct Answer {
    attnsmith_code code = ATTNSMITH_CODE_FAILED;
    json details;

    std::string field() const { return details.value("field", ""); }
    bool refuses(const std::string& field) const {
        return code == ATTNSMITH_CODE_INVALID_REQUEST && details.value("field", "") == field;
    }
};

inline std::ostream& operator<<(std::ostream& stream, const Answer& answer) {
    return stream << answer.code << " " << answer.details.dump();
}

template <typename Function, typename... Arguments>
Answer ask(Function function, Arguments... arguments) {
    attnsmith_error* error = nullptr;
    Answer answer;
    answer.code = function(arguments..., &error);
    const ErrorHandle owned(error);
    if ((answer.code == ATTNSMITH_OK) != (error == nullptr))
        throw std::runtime_error("error and code differ");
    if (error == nullptr) return answer;
    answer.details = json::parse(attnsmith_error_details(error));
    if (answer.details.value("field", "") != attnsmith_error_field(error) ||
        answer.details.value("driver_code", 0) != attnsmith_error_driver_code(error)) {
        throw std::runtime_error("error's fields and details differ: " + answer.details.dump());
    }
    return answer;
}

// As ask(), for what has to succeed: the error would be the test's.
template <typename Function, typename... Arguments>
void must(Function function, Arguments... arguments) {
    const Answer answer = ask(function, arguments...);
    INFO(answer);
    REQUIRE(answer.code == ATTNSMITH_OK);
}

// One runtime for all test cases, so that each kernel is compiled once.
class Session {
  public:
    Session() {
        fake_driver();
        runtime_.reset(open_runtime(folder_));
    }

    attnsmith_runtime* runtime() const { return runtime_.get(); }

  private:
    TemporaryFolder folder_;
    RuntimeHandle runtime_;
};

inline attnsmith_runtime* runtime() {
    static const Session session;
    return session.runtime();
}

inline KernelHandle prepare(const attnsmith_spec& spec, std::int32_t device = 0) {
    attnsmith_kernel* kernel = nullptr;
    must(attnsmith_prepare, runtime(), &spec, &kSizes, device, &kernel);
    return KernelHandle(kernel);
}

inline const attnsmith_kernel* dense_kernel() {
    static const KernelHandle kernel = prepare(dense_spec());
    return kernel.get();
}

// Memory that stands for the device's.
alignas(256) inline unsigned char memory[4][1 << 18];

// Operands of dense_spec().
struct Operands {
    DlTensor q{memory[0], {kBatch, kQueries, kHeads, kDim}};
    DlTensor k{memory[1], {kBatch, kKeys, kKvHeads, kDim}};
    DlTensor v{memory[2], {kBatch, kKeys, kKvHeads, kDim}};
    DlTensor o{memory[3], {kBatch, kQueries, kHeads, kDim}};

    attnsmith_tensors tensors() {
        attnsmith_tensors tensors{};
        tensors.size = sizeof tensors;
        tensors.q = q.get(), tensors.k = k.get(), tensors.v = v.get(), tensors.o = o.get();
        return tensors;
    }
};

inline Answer try_bind(const attnsmith_kernel* kernel, Operands& operands,
                       const attnsmith_batch* batch = nullptr) {
    const attnsmith_tensors tensors = operands.tensors();
    attnsmith_call* call = nullptr;
    const Answer answer = ask(attnsmith_bind, kernel, &tensors, batch, nullptr, &call);
    if ((answer.code == ATTNSMITH_OK) != (call != nullptr)) throw std::runtime_error("call and code differ");
    attnsmith_call_free(call);
    return answer;
}

inline CallHandle bind(const attnsmith_kernel* kernel, const attnsmith_tensors& tensors,
                       const attnsmith_batch* batch = nullptr,
                       const attnsmith_workspace* workspace = nullptr) {
    attnsmith_call* call = nullptr;
    must(attnsmith_bind, kernel, &tensors, batch, workspace, &call);
    return CallHandle(call);
}

// The arguments that the kernel of a call gets.
template <typename Arguments>
Arguments launched_with(const attnsmith_call* call) {
    fake_cuda_state& state = fake_driver();
    state.param_bytes = sizeof(Arguments);
    const int before = state.launches;
    must(attnsmith_launch, call, nullptr);
    state.param_bytes = 0;
    REQUIRE(state.launches > before);
    Arguments arguments;
    std::memcpy(static_cast<void*>(&arguments), state.last_launch.parameter, sizeof arguments);
    return arguments;
}

}  // namespace attnsmith::test
