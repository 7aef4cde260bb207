#include "kernel_code/every_kernel.hpp"

#include "families/attention_mma/kernel.hpp"
#include "families/traits.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::test {

using families::KernelConfig;

namespace {

AttentionSpec spec_of(int head_dim_qk, int head_dim_vo, bool paged) {
    AttentionSpec spec{.dtype = DType::bf16,
                       .head_dim_qk = head_dim_qk,
                       .head_dim_vo = head_dim_vo,
                       .q_heads = 8,
                       .kv_heads = 2};
    if (paged) spec.kv = KvStorage::paged, spec.page_size = 16;
    return spec;
}

}  // namespace

Kernels kernels_of(const std::vector<AttentionSpec>& specs, int sm) {
    Kernels kernels;
    for (const AttentionSpec& spec : specs) {
        for (const KernelConfig& kernel :
             planner::kernel_set(problem::validate(spec, {}).spec, sm, planner::repository_tuning())
                 .kernels())
            kernels.insert(kernel);
    }
    return kernels;
}

Kernels kernels_on(int sm, const HeadDims& head_dims) {
    std::vector<AttentionSpec> specs;
    for (const auto& [qk, vo] : head_dims) {
        for (bool paged : {false, true}) specs.push_back(spec_of(qk, vo, paged));
    }
    AttentionSpec extras = spec_of(128, 128, true);
    extras.dtype = DType::fp16;
    extras.softcap = 50.0;
    specs.push_back(extras);
    extras.alibi = true;
    extras.index_dtype = DType::int64;
    for (int alignment : {8, 4, 2}) {
        extras.alignment = alignment;
        specs.push_back(extras);
    }
    // On sm_100, 103 and 110 NVRTC 13.0 spills registers of head dim 256, which no tile avoids; the planner
    // serves it all the same.
    const bool spills = sm >= 100 && sm < 120;
    const AttentionSpec wide = spills ? spec_of(200, 200, true) : spec_of(256, 256, true);
    for (AttentionSpec bitwise :
         {spec_of(64, 64, false), wide, spec_of(384, 384, true), spec_of(512, 512, true), extras}) {
        bitwise.consistency = Consistency::bitwise;
        specs.push_back(bitwise);
    }
    // Keys and values that are widened, by either kernel, and latents of as many rows as there are tiles for.
    for (AttentionSpec stored :
         {spec_of(80, 80, true), spec_of(128, 128, true), spec_of(512, 512, true),
          AttentionSpec{
              .op = Op::mla, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 128, .scale = 0.1}}) {
        stored.kv_dtype = DType::e4m3;
        specs.push_back(stored);
        if (stored.op != Op::mla && stored.head_dim_qk <= 128) continue;
        stored.consistency = Consistency::bitwise;
        specs.push_back(stored);
    }
    Kernels kernels = kernels_of(specs, sm);
    // Those have a test of their own.
    std::erase_if(kernels, [](const KernelConfig& k) { return k.backend() == families::Backend::wgmma; });
    // One spills on sm_90, outside of its loop over keys, in tiles of 32 rows at head dim 512.
    std::erase_if(kernels, [](const KernelConfig& k) {
        if (k.backend() != families::Backend::mma || k.sm != 90 || k.tile_q() != 32) return false;
        const auto constants = k.as<families::attention_mma::Kernel>();
        return constants.absolute_cuts && constants.head_dim_vo == 512 && size_of(constants.key_value) > 1;
    });
    return kernels;
}

Kernels token_scales_on(int sm, const std::vector<int>& dims) {
    std::vector<AttentionSpec> specs;
    for (const int dim : dims) {
        AttentionSpec spec = spec_of(dim, dim, dim % 128 == 0);
        spec.kv_dtype = dim % 128 == 0 ? DType::e4m3 : DType::e5m2, spec.kv_scale = KvScale::token_head;
        specs.push_back(spec);
        if (dim > 128) {
            spec.consistency = Consistency::bitwise;
            specs.push_back(spec);
        }
        if (dim != 128) continue;
        spec.dtype = DType::fp16, spec.alignment = 4, spec.softcap = 50.0, spec.alibi = true;
        spec.index_dtype = DType::int64;
        specs.push_back(spec);
        spec = specs[specs.size() - 2];
        spec.consistency = Consistency::bitwise;
        specs.push_back(spec);
    }
    AttentionSpec latent{.op = Op::mla, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 16, .scale = 0.1};
    latent.kv_dtype = DType::e4m3, latent.kv_scale = KvScale::token_head;
    specs.push_back(latent);
    latent.kv = KvStorage::paged, latent.page_size = 64, latent.kv_scale = KvScale::block128;
    specs.push_back(latent);
    latent.consistency = Consistency::bitwise;
    specs.push_back(latent);
    Kernels kernels = kernels_of(specs, sm);
    std::erase_if(kernels, [](const KernelConfig& k) { return k.backend() != families::Backend::mma; });
    return kernels;
}

Kernels merges_on(int sm) {
    std::vector<AttentionSpec> specs;
    for (const std::int64_t dim : {8, 64, 72, 128, 256, 512}) {
        for (const int alignment : {16, 8, 4, 2}) {
            if (alignment != 16 && dim != 72) continue;
            for (const DType dtype : {DType::fp16, DType::bf16})
                specs.push_back({.op = Op::merge,
                                 .dtype = dtype,
                                 .head_dim_vo = dim,
                                 .q_heads = 8,
                                 .alignment = alignment});
        }
    }
    return kernels_of(specs, sm);
}

Kernels top_k_on(int sm) {
    return kernels_of({{.op = Op::top_k}, {.op = Op::top_k, .index_dtype = DType::int64}}, sm);
}

Kernels appends_on(int sm) {
    std::vector<AttentionSpec> specs;
    const auto add = [&](std::int64_t dim, Rope rope, std::int64_t rotary_dim, bool norm) -> AttentionSpec& {
        AttentionSpec spec{.op = Op::append, .head_dim_qk = dim, .q_heads = 8, .kv_heads = 2};
        spec.rope = rope, spec.rotary_dim = rotary_dim;
        spec.q_norm = spec.k_norm = spec.v_norm = norm;
        return specs.emplace_back(spec);
    };
    for (const std::int64_t dim : {8, 64, 80, 128, 256, 512}) {
        for (const Rope rope : {Rope::none, Rope::half, Rope::interleaved})
            add(dim, rope, 0, rope != Rope::none);
    }
    add(96, Rope::half, 24, true);
    add(512, Rope::half, 300, true);
    add(512, Rope::half, 128, true).kv_dtype = DType::e4m3;
    add(192, Rope::half, 0, false).head_dim_vo = 128;
    for (const DType stored : {DType::e4m3, DType::e5m2}) {
        AttentionSpec& spec = add(128, Rope::half, 0, true);
        spec.kv_dtype = spec.q_dtype = stored;
        spec.kv_scale = KvScale::head;
        spec.slots = Slots::table;
        spec.kv = KvStorage::paged, spec.page_size = 16;
        if (stored == DType::e5m2) spec.index_dtype = DType::int64;
    }
    for (const Rope rope : {Rope::half, Rope::interleaved})
        add(128, rope, 0, true).rope_table = RopeTable::frequencies;
    add(512, Rope::half, 0, true).rope_table = RopeTable::frequencies;
    add(128, Rope::half, 0, true).check_slots = true;
    add(8, Rope::none, 0, false).check_slots = true;
    for (const int alignment : {8, 4, 2}) {
        AttentionSpec& spec = add(128, Rope::half, 0, true);
        spec.dtype = DType::fp16, spec.alignment = alignment;
        spec.kv_dtype = alignment == 4 ? DType::fp16 : DType::e4m3;
    }
    for (const std::int64_t kpe : {0, 64}) {
        AttentionSpec spec{.op = Op::append, .head_dim_ckv = 512, .head_dim_kpe = kpe, .q_heads = 16};
        spec.kv = KvStorage::paged, spec.page_size = 64, spec.k_norm = true;
        if (kpe > 0) spec.rope = Rope::interleaved;
        specs.push_back(spec);
        spec.slots = Slots::table, spec.kv_dtype = DType::e4m3, spec.kv_scale = KvScale::tensor;
        specs.push_back(spec);
    }
    return kernels_of(specs, sm);
}

Kernels fp32_kernels_on(int sm, const HeadDims& head_dims) {
    std::vector<AttentionSpec> specs;
    for (const auto& [qk, vo] : head_dims) {
        AttentionSpec spec = spec_of(qk, vo, false);
        spec.o_dtype = DType::fp32;
        specs.push_back(spec);
        if (qk != 128) continue;
        spec = spec_of(qk, vo, true);
        spec.dtype = DType::fp16;
        spec.o_dtype = DType::fp32;
        for (const int alignment : {16, 8, 2}) {
            spec.alignment = alignment;
            specs.push_back(spec);
        }
    }
    return kernels_of(specs, sm);
}

Kernels latent_kernels_on(int sm) {
    AttentionSpec spec{.op = Op::mla, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 128};
    spec.scale = 0.1;
    AttentionSpec other = spec;
    other.dtype = DType::fp16;
    other.head_dim_ckv = 320, other.head_dim_kpe = 24;
    other.o_dtype = DType::fp32;
    other.alignment = 8;
    spec.kv = KvStorage::paged, spec.page_size = 64;
    std::vector<AttentionSpec> specs{spec, other};
    spec.consistency = Consistency::bitwise;
    specs.push_back(spec);
    AttentionSpec narrow = spec;  // with an odd number of 16 columns, and without any
    narrow.head_dim_ckv = 448, narrow.head_dim_kpe = 0;
    specs.push_back(narrow);
    narrow = other;
    narrow.consistency = Consistency::bitwise;
    narrow.head_dim_ckv = 512;
    specs.push_back(narrow);
    if (families::traits_of(sm).wgmma_flops > 0) {
        other.alignment = 16;
        for (const auto& [ckv, kpe] : {std::pair{128, 8}, {256, 0}, {384, 24}}) {
            other.head_dim_ckv = ckv, other.head_dim_kpe = kpe;
            specs.push_back(other);
        }
        AttentionSpec gathered = spec;
        gathered.consistency = Consistency::standard;
        gathered.page_size = 1;
        gathered.index_dtype = DType::int64;
        specs.push_back(gathered);
        // Widened in their place; those of 512 + 64 spill 16 bytes, as loaders have few registers.
        for (const auto& [ckv, kpe] : {std::pair{128, 64}, {384, 0}}) {
            for (const int page_size : {1, 64}) {
                AttentionSpec widened = gathered;
                widened.kv_dtype = page_size == 1 ? DType::e4m3 : DType::e5m2, widened.page_size = page_size;
                widened.head_dim_ckv = ckv, widened.head_dim_kpe = kpe;
                specs.push_back(widened);
            }
        }
    }
    return kernels_of(specs, sm);
}

Kernels wgmma_kernels(const HeadDims& head_dims, bool few) {
    std::vector<AttentionSpec> specs;
    for (const auto& [qk, vo] : head_dims) {
        for (const bool paged : {false, true}) {
            AttentionSpec spec = spec_of(qk, vo, paged);
            if (paged) spec.dtype = DType::fp16;
            for (const Mask mask : {Mask::causal, Mask::full}) {  // the table's tiles may differ
                spec.mask = mask;
                specs.push_back(spec);
            }
            spec.alibi = true;
            specs.push_back(spec);
            if (few || qk % 64 != 0) continue;
            AttentionSpec bitwise = spec;
            bitwise.consistency = Consistency::bitwise;
            specs.push_back(bitwise);
            bitwise.softcap = 50.0;
            specs.push_back(bitwise);
            bitwise.alibi = false;
            specs.push_back(bitwise);
            spec.index_dtype = DType::int64;
            if (paged) {
                spec.page_size = 1;
                specs.push_back(spec);
                AttentionSpec plain = spec;
                plain.alibi = false;
                specs.push_back(plain);
            }
            spec.softcap = 50.0;
            specs.push_back(spec);
            spec.alibi = false;
            specs.push_back(spec);
            AttentionSpec widened = spec_of(qk, vo, paged);
            if (paged) widened.dtype = DType::fp16;
            for (const DType stored : {DType::e4m3, DType::e5m2}) {
                widened.kv_dtype = stored;
                specs.push_back(widened);
                widened.softcap = 50.0, widened.alibi = true;
                if (paged) widened.page_size = 1;
            }
            specs.push_back(widened);
        }
    }
    Kernels kernels = kernels_of(specs, 90);
    std::erase_if(kernels, [](const KernelConfig& k) { return k.backend() != families::Backend::wgmma; });
    return kernels;
}

Kernels every_kernel(int sm) {
    Kernels kernels = kernels_on(sm, kMainHeadDims);
    kernels.merge(kernels_on(sm, kOtherHeadDims));
    for (const HeadDims& head_dims : {kMainHeadDims, kOtherHeadDims})
        kernels.merge(fp32_kernels_on(sm, head_dims));
    kernels.merge(latent_kernels_on(sm));
    kernels.merge(token_scales_on(sm, {64, 128, 160, 192, 256, 384, 512}));
    kernels.merge(merges_on(sm));
    kernels.merge(appends_on(sm));
    kernels.merge(top_k_on(sm));
    if (families::traits_of(sm).wgmma_flops == 0) return kernels;
    for (const int dim : {64, 72, 80, 96, 112, 120, 128, 136, 160, 192, 200, 248, 256, 384, 512})
        kernels.merge(wgmma_kernels({{dim, dim}}));
    kernels.merge(wgmma_kernels({{192, 128}, {128, 512}, {512, 128}, {384, 256}}));
    return kernels;
}

}  // namespace attnsmith::test
