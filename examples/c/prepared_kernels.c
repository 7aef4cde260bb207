/* Kernels before they are needed: one that is prepared in the background, and the set of all that a spec may
 * need, from which an engine picks for each step. */
#include "example.h"

int main(void) {
    attnsmith_error* error = NULL;
    attnsmith_runtime* runtime = NULL;
    check(attnsmith_runtime_create(NULL, &runtime, &error), &error);
    attnsmith_spec spec = {.size = sizeof spec,
                           .head_dim_qk = 64,
                           .q_heads = 8,
                           .kv_heads = 2,
                           .mask = ATTNSMITH_MASK_CAUSAL,
                           .kv = ATTNSMITH_KV_PAGED,
                           .page_size = 16};

    /* The first requests come while it is being compiled. */
    const attnsmith_sizes prefill = {.size = sizeof prefill, .batch = 1, .q_len = 2048, .kv_len = 2048};
    attnsmith_pending* pending = NULL;
    check(attnsmith_prepare_async(runtime, &spec, &prefill, ATTNSMITH_CURRENT_DEVICE, &pending, &error),
          &error);
    printf("the kernel is %s\n", attnsmith_pending_ready(pending) == 1 ? "ready" : "on its way");
    attnsmith_kernel* kernel = NULL;
    check(attnsmith_pending_kernel(pending, &kernel, &error), &error); /* waits */
    attnsmith_pending_free(pending);

    char* plan = NULL;
    attnsmith_spec told = {.size = sizeof told};
    check(attnsmith_kernel_plan_json(kernel, &plan, &error), &error);
    check(attnsmith_kernel_spec(kernel, &told, &error), &error);
    printf("on device %d, with scale %g, by the plan %.200s ...\n", attnsmith_kernel_device(kernel),
           told.scale, plan);
    attnsmith_string_free(plan);
    attnsmith_kernel_free(kernel);

    /* No step waits for a compile once the set is there. */
    attnsmith_kernel_set* set = NULL;
    check(attnsmith_prepare_set(runtime, &spec, ATTNSMITH_CURRENT_DEVICE, &set, &error), &error);
    check(attnsmith_kernel_set_spec(set, &told, &error), &error);
    printf("%zu kernels with %lld query heads on device %d\n", attnsmith_kernel_set_size(set),
           (long long)told.q_heads, attnsmith_kernel_set_device(set));
    const attnsmith_sizes decode = {.size = sizeof decode, .batch = 16, .q_len = 1, .kv_len = 4096};
    const attnsmith_kernel* picked = NULL; /* the set's: it is not freed */
    check(attnsmith_kernel_set_pick(set, &decode, &picked, &error), &error);
    for (size_t i = 0; i < attnsmith_kernel_set_size(set); ++i)
        if (attnsmith_kernel_set_kernel(set, i) == picked) printf("decodes take kernel %zu\n", i);

    /* One workspace for whatever is picked. */
    const attnsmith_workspace_bounds bounds = {
        .size = sizeof bounds, .batch = 16, .q_tokens = 2048, .max_kv_len = 4096};
    size_t bytes = 0;
    check(attnsmith_kernel_set_workspace_bytes(set, &bounds, &bytes, &error), &error);
    printf("a workspace of %zu bytes serves all\n", bytes);

    attnsmith_kernel_set_free(set);
    attnsmith_runtime_free(runtime);
    return 0;
}
