// A cache over its life, without a GPU: kernels are built into it with progress, looked at, exported with a
// signature, imported elsewhere, pushed to a remote, and deleted.
//
//   cache_care FOLDER [REMOTE]
//
// REMOTE is the address of a remote layer, such as s3://BUCKET/PREFIX.
#include <attnsmith/attnsmith.hpp>
#include <iostream>
#include <stop_token>
#include <string>
#include <vector>

namespace as = attnsmith;

namespace {

constexpr int kSm = 90;
const as::AttentionSpec kSpec{.op = as::Op::merge, .head_dim_vo = 64, .q_heads = 8};

// True if every kernel is in the cache now.
bool build(const as::Runtime& runtime, const std::stop_source& stop) {
    const std::vector<as::AttentionSpec> specs = {kSpec};
    const std::vector<int> sms = {kSm};
    as::PrewarmOptions options;
    options.jobs = 2;
    options.progress = [](const as::PrewarmedKernel& kernel, int done, int total) {
        std::cout << done << " of " << total << ": " << as::to_json(kernel) << "\n";
    };
    options.waiting = [](const as::PrewarmedKernel& kernel) {
        std::cout << "another process compiles " << kernel.name << "\n";
    };
    options.stop = stop.get_token();  // a signal's handler may ask it to stop
    const as::PrewarmReport report = runtime.prewarm(specs, sms, options);
    std::cout << as::to_json(report) << "\n";
    return report.ok();
}

void look(const as::Cache& cache) {
    for (const std::string& directory : cache.directories()) std::cout << "directory: " << directory << "\n";
    const as::CacheStatistics statistics = cache.stat();
    std::cout << statistics.entries << " entries, " << statistics.counters.compiles << " compiled here\n";
    if (const as::CacheVerification found = cache.verify(); !found.bad.empty())
        std::cout << found.bad.size() << " entries were broken\n";
    const std::vector<as::AttentionSpec> specs = {kSpec};
    const std::vector<int> sms = {kSm};
    for (const as::CacheExplanation& one : cache.explain(specs, sms).kernels)
        std::cout << one.name << (one.hit ? " is a hit" : " is a miss") << "\n";
}

void ship(const as::Runtime& runtime, const std::string& folder) {
    const as::SigningKey key = as::make_signing_key(folder + "/key.pem");
    const as::Cache cache = runtime.cache();
    const as::CacheExportReport bundle =
        cache.export_bundle(folder + "/kernels.bundle", {.sms = {kSm}, .sign_key_file = key.secret_key_file});
    std::cout << bundle.entries << " entries in a bundle, signed by " << bundle.signed_by << "\n";
    const as::CacheImageReport image = cache.export_image(folder + "/image");
    std::cout << image.entries << " entries in an image, " << image.digest << "\n";

    // Another machine trusts that key alone.
    const as::Runtime other({.cache_dirs = {folder + "/other"}, .trust_key_files = {key.public_key_file}});
    const as::CacheImportReport imported = other.cache().import_bundle(bundle.file);
    std::cout << imported.imported << " entries are imported\n";
}

void push(const std::string& folder, const std::string& remote) {
    const as::Runtime runtime(
        {.cache_dirs = {folder + "/cache", remote}, .cache_trust = as::CacheTrust::all});
    const as::CachePushReport report = runtime.cache().push({.sms = {kSm}});
    std::cout << report.pushed << " entries are pushed, " << report.present << " were there\n";
}

void clean(const as::Runtime& runtime) {
    const as::Cache cache = runtime.cache();
    const as::CacheListing listing = cache.list();
    if (!listing.entries.empty()) {
        const as::CacheRemoveReport removed = cache.remove(listing.entries.front().key);
        std::cout << removed.entries << " entry removed by its key\n";
    }
    const as::CacheGcReport collected = cache.gc({.max_bytes = 1 << 20});
    std::cout << collected.entries << " entries were too many\n";
    std::cout << "left: " << as::to_json(cache.stat()) << "\n";
    std::cout << cache.clear().entries << " entries deleted\n";
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2 && count != 3) {
        std::cerr << "usage: cache_care FOLDER [REMOTE]\n";
        return 2;
    }
    const std::string folder = arguments[1];
    const std::stop_source stop;
    try {
        const as::Runtime runtime({.cache_dirs = {folder + "/cache"}});
        if (!build(runtime, stop)) return 1;
        look(runtime.cache());
        ship(runtime, folder);
        if (count == 3) push(folder, arguments[2]);
        clean(runtime);
    } catch (const as::Error& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
