// The host runs out of memory at every allocation in turn: each call gives ATTNSMITH_CODE_OUT_OF_MEMORY and
// an error object all the same, or does not notice, and nothing is leaked.
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>

#include "c_api/check.h"
#include "c_api/fake_driver.hpp"
#include "c_api/fuzz_operands.hpp"
#include "c_api/handles.hpp"

namespace {

// Allocations that succeed before the first one that fails; below 0, all do. From then on either one fails
// or all do.
thread_local long allowed = -1;
thread_local bool all_fail = false;

void* allocate(std::size_t bytes) {
    if (allowed == 0) {
        if (!all_fail) allowed = -1;
        return nullptr;
    }
    if (allowed > 0) --allowed;
    return std::malloc(bytes == 0 ? 1 : bytes);
}

void* allocate_or_throw(std::size_t bytes) {
    void* const memory = allocate(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

using namespace attnsmith::test;

namespace {

using CallWithError = std::function<attnsmith_code(attnsmith_error**)>;

// Fails each allocation of `call` in turn, until it needs no more. `expected` is what it gives with memory.
int starve(const CallWithError& call, attnsmith_code expected, bool for_good) {
    for (int attempt = 0;; ++attempt) {
        attnsmith_error* error = nullptr;
        all_fail = for_good;
        allowed = attempt;
        const attnsmith_code code = call(&error);
        const bool noticed = allowed <= 0 && (for_good ? allowed == 0 : allowed < 0);
        allowed = -1;
        CHECK(code == expected || code == ATTNSMITH_CODE_OUT_OF_MEMORY);
        CHECK((code == ATTNSMITH_OK) == (error == nullptr));
        CHECK(attnsmith_error_code(error) == code);
        if (code == ATTNSMITH_CODE_OUT_OF_MEMORY) {
            CHECK(std::strstr(attnsmith_error_details(error), "\"out_of_memory\"") != nullptr);
            attnsmith_error_free(error);  // of the one that was made beforehand, too, and twice
        }
        attnsmith_error_free(error);
        if (code == expected && !noticed) return attempt;
        CHECK(attempt < 10000);
    }
}

void starve_both(const char* name, const CallWithError& call, attnsmith_code expected) {
    const int once = starve(call, expected, false), for_good = starve(call, expected, true);
    std::printf("%-20s %d allocations failed one by one, %d for good\n", name, once, for_good);
}

}  // namespace

int main() {
    fake_driver();
    const TemporaryFolder folder;
    const char* const directory = folder.path().c_str();
    const attnsmith_runtime_options options = options_in(&directory);
    attnsmith_runtime* const opened = open_runtime(folder);
    const RuntimeHandle runtime(opened);
    attnsmith_spec spec = valid_spec(Kind::dense);
    attnsmith_kernel* prepared = nullptr;
    CHECK(attnsmith_prepare(opened, &spec, nullptr, 0, &prepared, nullptr) == ATTNSMITH_OK);
    const KernelHandle kernel(prepared);
    Operands operands(Kind::dense);

    starve_both(
        "runtime_create",
        [&](attnsmith_error** error) {
            attnsmith_runtime* made = nullptr;
            const attnsmith_code code = attnsmith_runtime_create(&options, &made, error);
            attnsmith_runtime_free(made);
            return code;
        },
        ATTNSMITH_OK);
    starve_both(
        "prepare",
        [&](attnsmith_error** error) {
            attnsmith_kernel* made = nullptr;
            const attnsmith_code code = attnsmith_prepare(opened, &spec, nullptr, 0, &made, error);
            attnsmith_kernel_free(made);
            return code;
        },
        ATTNSMITH_OK);
    const auto bind = [&](attnsmith_error** error) {
        attnsmith_call* made = nullptr;
        const attnsmith_code code =
            attnsmith_bind(kernel.get(), &operands.tensors, nullptr, nullptr, &made, error);
        attnsmith_call_free(made);
        return code;
    };
    starve_both("bind", bind, ATTNSMITH_OK);
    attnsmith_spec merge_spec = valid_spec(Kind::merge_lse);
    CHECK(attnsmith_prepare(opened, &merge_spec, nullptr, 0, &prepared, nullptr) == ATTNSMITH_OK);
    const KernelHandle merge_kernel(prepared);
    MergeOperands merge(Kind::merge_lse, MergeOperands::kMostStates);
    const auto bind_merge = [&](attnsmith_error** error) {
        attnsmith_call* made = nullptr;
        const attnsmith_code code =
            attnsmith_bind_merge(merge_kernel.get(), &merge.tensors, nullptr, nullptr, &made, error);
        attnsmith_call_free(made);
        return code;
    };
    starve_both("bind_merge", bind_merge, ATTNSMITH_OK);
    merge.o().view.data = nullptr;
    starve_both("bind_merge, refused", bind_merge, ATTNSMITH_CODE_INVALID_REQUEST);
    operands.list[0].view.ndim = 3;
    starve_both("bind, refused", bind, ATTNSMITH_CODE_INVALID_REQUEST);
    spec.mask = 9;
    starve_both(
        "prepare, refused",
        [&](attnsmith_error** error) {
            attnsmith_kernel* made = nullptr;
            return attnsmith_prepare(opened, &spec, nullptr, 0, &made, error);
        },
        ATTNSMITH_CODE_INVALID_REQUEST);
    spec = valid_spec(Kind::dense);
    spec.consistency = ATTNSMITH_CONSISTENCY_BITWISE;  // with precision high no kernel serves it
    spec.precision = ATTNSMITH_PRECISION_HIGH;
    starve_both(
        "prepare, unsupported",
        [&](attnsmith_error** error) {
            attnsmith_kernel* made = nullptr;
            return attnsmith_prepare(opened, &spec, nullptr, 0, &made, error);
        },
        ATTNSMITH_CODE_UNSUPPORTED);
    return 0;
}
