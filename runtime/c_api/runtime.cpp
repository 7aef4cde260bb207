// Runtimes, devices and device memory.
#include <fmt/format.h>

#include <string>

#include "c_api/arguments.hpp"
#include "c_api/error.hpp"
#include "c_api/objects.hpp"
#include "c_api/tensors.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::c_api {
namespace {

std::string text_or_empty(const char* text) { return text == nullptr ? std::string() : std::string(text); }

// `what` is what an item is.
std::vector<std::string> read_paths(const char* const* paths, std::size_t count, std::string_view name,
                                    const char* what) {
    std::vector<std::string> texts;
    for (const char* const path : list(paths, count, name)) {
        const std::string item = fmt::format("{}[{}]", name, texts.size());
        texts.emplace_back(required_text(path, item));
        if (texts.back().empty()) refuse(item, "\"\"", what);
    }
    return texts;
}

// Absent: 0, the default, which `otherwise` names.
template <typename Value>
std::optional<Value> read_word(const problem::WordList<Value>& words, std::string_view field,
                               std::int32_t number, std::string_view otherwise = {}) {
    return words.from_number(fmt::format("options.{}", field), number, otherwise);
}

std::uint64_t read_max_bytes(std::int64_t bytes) {
    constexpr std::int64_t kNoLimit = -1;
    if (bytes == kNoLimit) return 0;
    if (bytes > 0) return static_cast<std::uint64_t>(bytes);
    refuse("options.cache_max_bytes", std::to_string(bytes),
           "a number of bytes, 0 (the default) or -1 (no limit)");
}

LogSink read_log(attnsmith_log_fn log_line, void* user) {
    if (log_line == nullptr) return {};
    return [log_line, user](LogLevel level, std::string_view line) {
        log_line(user, problem::kLogLevelWords.number_of(level), std::string(line).c_str());
    };
}

void read_allocator(const attnsmith_runtime_options& c, RuntimeOptions& options) {
    if ((c.allocate_memory == nullptr) != (c.release_memory == nullptr)) {
        refuse(c.allocate_memory == nullptr ? "options.allocate_memory" : "options.release_memory", "NULL",
               "both functions, or neither");
    }
    void* const user = c.memory_user;
    if (c.allocate_memory != nullptr) {
        options.device_allocate = [allocate = c.allocate_memory, user](std::size_t bytes, int device) {
            return allocate(user, bytes, device);
        };
    }
    if (c.release_memory != nullptr) {
        options.device_free = [release = c.release_memory, user](void* memory, std::size_t bytes,
                                                                 int device) {
            release(user, memory, bytes, device);
        };
    }
}

RuntimeOptions read_options(const attnsmith_runtime_options* given) {
    if (given == nullptr) return {};
    const attnsmith_runtime_options c = read_struct(given, "options");
    RuntimeOptions options;
    options.cache_dirs = read_paths(c.cache_dirs, c.cache_dir_count, "options.cache_dirs", "a directory");
    options.cache_trust = *read_word(problem::kCacheTrustWords, "cache_trust", c.cache_trust);
    if (c.cache_max_bytes != 0) options.cache_max_bytes = read_max_bytes(c.cache_max_bytes);
    options.use_cache = !flag("options", "no_cache", c.no_cache);
    options.cache_source = !flag("options", "no_cache_source", c.no_cache_source);
    options.toolchain = *read_word(problem::kToolchainWords, "toolchain", c.toolchain);
    options.record_file = text_or_empty(c.record_file);
    options.on_miss = read_word(problem::kOnMissWords, "on_miss", c.on_miss, "what ATTNSMITH_ON_MISS says");
    check_reserved("options", c.reserved);
    options.nvrtc_path = text_or_empty(c.nvrtc_path);
    options.driver_path = text_or_empty(c.driver_path);
    options.compile_threads = count("options", "compile_threads", c.compile_threads);
    options.log_level = read_word(problem::kLogLevelWords, "log_level", c.log_level, "the default");
    options.log = read_log(c.log_line, c.log_user);
    options.keep_source_dir = text_or_empty(c.keep_source_dir);
    options.tuning_files =
        read_paths(c.tuning_files, c.tuning_file_count, "options.tuning_files", "a tuning table's file");
    options.trust_key_files = read_paths(c.trust_key_files, c.trust_key_file_count, "options.trust_key_files",
                                         "a public key's file");
    options.sign_key_file = text_or_empty(c.sign_key_file);
    options.push_compiled = flag("options", "push_compiled", c.push_compiled);
    options.use_environment = !flag("options", "no_environment", c.no_environment);
    read_allocator(c, options);
    return options;
}

// Host memory that `bytes` are copied from or to; none is needed for none.
template <typename Byte>
Byte* host_memory(Byte* host, std::size_t bytes) {
    if (bytes > 0) required(static_cast<const char*>(host), "host");
    return host;
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_runtime_create(const attnsmith_runtime_options* options, attnsmith_runtime** runtime,
                                        attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        attnsmith_runtime*& result = required(runtime, "runtime");
        result = new attnsmith_runtime{Runtime(read_options(options))};
    });
}

void attnsmith_runtime_free(attnsmith_runtime* runtime) noexcept { delete runtime; }

attnsmith_code attnsmith_devices_json(attnsmith_runtime* runtime, char** json,
                                      attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Runtime& of = required(runtime, "runtime").runtime;
        char*& result = required(json, "json");
        result = copy_text(to_json(of.devices()));
    });
}

attnsmith_code attnsmith_synchronize(attnsmith_runtime* runtime, void* stream,
                                     attnsmith_error** error) noexcept {
    return guarded(error, [&] { required(runtime, "runtime").runtime.synchronize(stream_of(stream)); });
}

std::size_t attnsmith_workspace_zeroed_bytes(void) noexcept { return workspace_zeroed_bytes(); }

attnsmith_code attnsmith_workspace_clear(attnsmith_runtime* runtime, const attnsmith_workspace* workspace,
                                         void* stream, std::int32_t device,
                                         attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Runtime& of = required(runtime, "runtime").runtime;
        of.clear_workspace(read_workspace(workspace), stream_of(stream), device);
    });
}

attnsmith_code attnsmith_buffer_allocate(attnsmith_runtime* runtime, std::int32_t device, std::size_t bytes,
                                         attnsmith_buffer** buffer, attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        const Runtime& of = required(runtime, "runtime").runtime;
        attnsmith_buffer*& result = required(buffer, "buffer");
        result = new attnsmith_buffer{of.allocate(bytes, device)};
    });
}

void* attnsmith_buffer_data(const attnsmith_buffer* buffer) noexcept {
    return buffer == nullptr ? nullptr : buffer->buffer.data();
}

std::size_t attnsmith_buffer_bytes(const attnsmith_buffer* buffer) noexcept {
    return buffer == nullptr ? 0 : buffer->buffer.bytes();
}

attnsmith_code attnsmith_buffer_upload(attnsmith_buffer* buffer, const void* host, std::size_t bytes,
                                       std::size_t offset, attnsmith_error** error) noexcept {
    return guarded(
        error, [&] { required(buffer, "buffer").buffer.upload(host_memory(host, bytes), bytes, offset); });
}

attnsmith_code attnsmith_buffer_download(const attnsmith_buffer* buffer, void* host, std::size_t bytes,
                                         std::size_t offset, attnsmith_error** error) noexcept {
    return guarded(
        error, [&] { required(buffer, "buffer").buffer.download(host_memory(host, bytes), bytes, offset); });
}

void attnsmith_buffer_free(attnsmith_buffer* buffer) noexcept { delete buffer; }
