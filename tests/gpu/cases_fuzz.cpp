// Cases drawn at random from everything that a spec can say; and the models of the repository.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "catalogue.hpp"
#include "check/kernel_choice.hpp"
#include "check/model_checks.hpp"
#include "check/random.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::Random;

constexpr int kFuzzCases = 60;

template <typename T, std::size_t N>
const T& pick(Random& random, const T (&choices)[N]) {
    return choices[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(N) - 1))];
}

bool chance(Random& random, double probability) { return random.uniform() < probability; }

Case random_heads(Random& random) {
    constexpr std::pair<std::int64_t, std::int64_t> heads[] = {{1, 1}, {2, 2}, {4, 2},  {6, 2},
                                                               {8, 1}, {5, 1}, {14, 2}, {16, 4}};
    constexpr std::int64_t usual[] = {64, 64, 96, 128, 128, 256};
    const auto any = [&] { return 8 * random.integer(1, 32); };
    const std::int64_t qk = chance(random, 0.7) ? pick(random, usual) : any();
    const std::int64_t vo = chance(random, 0.85) ? qk : any();
    const auto [q, kv] = pick(random, heads);
    return attention(chance(random, 0.5) ? DType::fp16 : DType::bf16, qk, vo, q, kv);
}

void random_scores(Case& test, Random& random) {
    AttentionSpec& spec = test.spec;
    if (chance(random, 0.6)) spec.mask = Mask::causal;
    constexpr std::int64_t windows[] = {0, 1, 7, 63, 64, 65, 128, 200, 1000};
    if (chance(random, 0.35)) spec.window_left = pick(random, windows);
    if (spec.mask == Mask::full && chance(random, 0.3)) spec.window_right = pick(random, windows);
    if (chance(random, 0.2)) spec.attention_chunk = 1 + pick(random, windows);
    if (spec.mask == Mask::causal && chance(random, 0.2)) spec.causal_block = 1 + pick(random, windows);
    if (chance(random, 0.25)) spec.softcap = random.uniform(2.0, 60.0);
    if (chance(random, 0.25)) spec.scale = random.uniform(0.02, 0.2);
    spec.alibi = chance(random, 0.2);
    spec.sink = chance(random, 0.3);
    spec.lse = chance(random, 0.6);
}

void random_storage(Case& test, Random& random) {
    constexpr KvStorage storages[] = {KvStorage::dense, KvStorage::ragged, KvStorage::paged,
                                      KvStorage::paged};
    AttentionSpec& spec = test.spec;
    spec.kv = pick(random, storages);
    test.q_storage = chance(random, 0.3) ? check::QStorage::dense : check::QStorage::ragged;
    if (spec.kv == KvStorage::paged) {
        spec.page_size = chance(random, 0.5) ? 16 : random.integer(1, 130);
        spec.page_order = chance(random, 0.5) ? PageOrder::NHD : PageOrder::HND;
        test.page_list = chance(random, 0.5) ? check::PageList::padded : check::PageList::compressed;
    }
    if (chance(random, 0.3)) spec.index_dtype = DType::int64;
    constexpr int alignments[] = {16, 16, 16, 8, 4, 2};
    spec.alignment = pick(random, alignments);
    const std::int64_t unit = spec.alignment / 2;
    constexpr check::MemoryOrder orders[] = {check::MemoryOrder::bshd, check::MemoryOrder::bhsd,
                                             check::MemoryOrder::sbhd};
    test.layout.order = pick(random, orders);
    test.layout.o_order = pick(random, orders);
    test.layout.base = unit * random.integer(0, 3);
    test.layout.pad = unit * random.integer(0, 5);
    test.layout.o_pad = unit * random.integer(0, 5);
    test.layout.lse_pad = random.integer(0, 3);
    test.layout.lse_heads_first = chance(random, 0.3);
    test.layout.table_pad = random.integer(0, 3);
    test.slack = random.integer(0, 20);
    test.first_token = random.integer(0, 5);
    test.give_bounds = chance(random, 0.7);
}

void random_lengths(Case& test, Random& random) {
    const std::int64_t batch = random.integer(1, 6);
    const bool decode = chance(random, 0.4);
    for (int steps = 0; steps < 2; ++steps) {
        Step step;
        for (std::int64_t s = 0; s < batch; ++s) {
            const std::int64_t kv = chance(random, 0.1) ? 0 : random.integer(1, decode ? 3000 : 600);
            const std::int64_t q = chance(random, 0.08) ? 0
                                   : decode             ? random.integer(1, 3)
                                                        : random.integer(1, 300);
            step.q_lens.push_back(q);
            step.kv_lens.push_back(chance(random, 0.3) && !decode ? q : kv);
        }
        test.steps.push_back(std::move(step));
    }
}

// Keys and values of 8 bits, whose head dims are multiples of 16.
void random_fp8(Case& test, Random& random) {
    constexpr KvScale scales[] = {KvScale::none, KvScale::tensor, KvScale::head};
    AttentionSpec& spec = test.spec;
    spec.kv_dtype = chance(random, 0.6) ? DType::e4m3 : DType::e5m2;
    spec.kv_scale = pick(random, scales);
    for (std::int64_t* const dim : {&spec.head_dim_qk, &spec.head_dim_vo}) *dim = (*dim + 15) / 16 * 16;
    test.layout.kv_as_bytes = chance(random, 0.3);
    test.scales_at_launch = spec.kv_scale != KvScale::none && chance(random, 0.3);
}

// Whose tokens have scales of their own, in tensors of their own or behind the columns.
void random_token_scales(Case& test, Random& random) {
    AttentionSpec& spec = test.spec;
    const bool is_one_block = std::max(spec.head_dim_qk, spec.head_dim_vo) <= 128;
    spec.kv_scale = is_one_block && chance(random, 0.2) ? KvScale::block128 : KvScale::token_head;
    test.scales_at_launch = chance(random, 0.2);
    test.layout.inline_scales = spec.alignment >= 4 && chance(random, 0.5);
    test.layout.scale_pad = random.integer(0, 3);
    test.layout.scales_transposed = chance(random, 0.3);
}

// Half of them with a kernel of the set that planning might choose for other lengths, or elsewhere.
void random_kernel(Case& test, Random& random) {
    if (chance(random, 0.5)) return;
    const std::vector<check::KernelChoice> choices = check::kernel_choices(test.spec);
    if (choices.empty()) return;  // it is refused, which its run says
    const auto last = static_cast<std::int64_t>(choices.size()) - 1;
    test.kernel = choices[static_cast<std::size_t>(random.integer(0, last))];
    constexpr std::int64_t chunks[] = {0, 128, 256, 640};
    test.kernel->chunk = check::chunk_of(*test.kernel, pick(random, chunks));
}

std::string read_text(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

void add_model(Catalogue& catalogue, const std::filesystem::path& path) {
    const std::string stem = path.stem().string();
    Model model;
    try {
        model = parse_model(read_text(path), {.slots = Slots::mapping});
    } catch (const std::exception& error) {
        add(catalogue, "models", stem,
            [what = std::string(error.what())](const Context&) { return "parse_model threw: " + what; });
        return;
    }
    for (const ModelAttention& part : model.attentions)
        for (const Case& test : check::model_cases(part))
            add(catalogue, "models", stem + " " + test.name, test);
    for (const ModelAttention& part : model.attentions) {
        for (check::AppendCase& test : check::append_cases(part)) {
            TestCase entry{"models", stem + " " + test.name, {}, {}};
            entry.ahead = [spec = test.spec](Runtime& runtime) { (void)runtime.prepare(spec, {}); };
            entry.run = [test = std::move(test)](const Context& context) {
                return check::run_append(context.runtime, test, context.run_options());
            };
            catalogue.push_back(std::move(entry));
        }
    }
}

}  // namespace

void add_fuzz(Catalogue& catalogue, std::uint64_t seed) {
    for (int n = 0; n < kFuzzCases; ++n) {
        const std::string name = fmt::format("{:02}", n);
        Random random(check::derive_seed(seed, "fuzz " + name));
        Case test = random_heads(random);
        random_scores(test, random);
        random_storage(test, random);
        random_lengths(test, random);
        random_kernel(test, random);
        add(catalogue, "fuzz", name, test);
    }
    for (int n = 0; n < kFuzzCases; ++n) {
        const std::string name = fmt::format("random {:02}", n);
        Random random(check::derive_seed(seed, "fp8 " + name));
        Case test = random_heads(random);
        random_scores(test, random);
        random_storage(test, random);
        random_lengths(test, random);
        random_fp8(test, random);
        random_kernel(test, random);
        add(catalogue, "fp8", name, test);
    }
    for (int n = 0; n < kFuzzCases / 2; ++n) {
        const std::string name = fmt::format("random {:02}", n);
        Random random(check::derive_seed(seed, "token_scales " + name));
        Case test = random_heads(random);
        random_scores(test, random);
        random_storage(test, random);
        random_lengths(test, random);
        random_fp8(test, random);
        random_token_scales(test, random);
        random_kernel(test, random);
        add(catalogue, "token_scales", name, test);
    }
}

void add_models(Catalogue& catalogue, const std::string& folder) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".json") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) add_model(catalogue, file);
}

}  // namespace attnsmith::gpu_tests
