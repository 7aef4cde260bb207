"""The types of the dictionaries that attnsmith's functions give: plans, reports and errors' details.

    plan: attnsmith.Plan = attnsmith.plan(head_dim=128, q_heads=32, sm=90)
    for kernel in plan["kernels"]:
        print(kernel["name"], kernel["grid"])

At run time they are plain dicts, read from the library's JSON. A test compares each type that has a JSON schema
(runtime/schemas, installed with the library) to it. Later versions may add fields; they neither remove nor rename any.
"""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict, Union

from .words import Consistency, KvScale, KvStorage, Mask, Op, PageOrder, Precision, Rope, RopeTable, Slots

# A class whose name begins with an underscore has the fields that are always there; the class derived from it adds those
# that may be absent.

#: What a layer of a model computes: attention of a prompt, attention of a step, or an append to its cache.
Phase = Literal["prefill", "decode", "append"]

# ---- What several results share


class Refusal(TypedDict):
    """Why one candidate, a kernel or a part of a model, does not serve a request."""

    candidate: str
    reason: str


class _UnsupportedPart(TypedDict):
    name: str
    reason: str


class UnsupportedPart(_UnsupportedPart, total=False):
    """A part of a model or a request that no kernel serves. `sm` is there if this is so on that compute capability alone."""

    sm: int


class SkippedPart(TypedDict):
    """A combination of words that does not exist, or a recorded line that could not be read."""

    name: str
    reason: str


class ModelWarning(TypedDict):
    """What the plan of a model may not contain, by the field of its config; and words of a request that have no effect."""

    kind: Literal["unknown_type", "unread_field", "not_planned", "approximated", "ignored"]
    field: str
    text: str


# ---- Requests and plans


class _NormalizedRequest(TypedDict):
    op: Op


class NormalizedRequest(_NormalizedRequest, total=False):
    """A request with every default filled in, as Kernel.spec gives it. It has the words of its op. attnsmith.Request says
    what each word means."""

    dtype: Literal["fp16", "bf16"]
    o_dtype: Literal["fp16", "bf16", "fp32"]
    kv_dtype: Literal["fp16", "bf16", "e4m3", "e5m2"]
    kv_scale: KvScale
    head_dim_qk: int
    head_dim_vo: int
    head_dim_ckv: int
    head_dim_kpe: int
    q_heads: int
    kv_heads: int
    mask: Mask
    window_left: Optional[int]
    window_right: Optional[int]
    attention_chunk: Optional[int]
    causal_block: Optional[int]
    scale: float
    softcap: Optional[float]
    alibi: bool
    sink: bool
    lse: bool
    kv: KvStorage
    page_order: PageOrder
    page_size: int
    index_dtype: Literal["int32", "int64"]
    alignment: Literal[16, 8, 4, 2]
    precision: Precision
    consistency: Consistency
    slots: Slots
    rope: Rope
    rotary_dim: int
    rope_table: RopeTable
    rope_factor: Optional[float]
    q_norm: bool
    k_norm: bool
    v_norm: bool
    norm_eps: Optional[float]
    q_dtype: Literal["fp16", "bf16", "e4m3", "e5m2"]
    check_slots: bool


class PlannedRequest(NormalizedRequest):
    """The request of a plan, with the sizes that it is planned for."""

    batch: int
    q_len: int
    kv_len: int


class PlannedDevice(TypedDict):
    """The GPU that a plan is for. `sm` is its compute capability as text: "90" is 9.0."""

    sm: str
    name: str
    sm_count: int
    shared_bytes_per_block: int


class PredictedResources(TypedDict):
    """What planning expects one CTA of a kernel to take."""

    registers_per_thread: int
    shared_bytes: int
    ctas_per_sm: int


class CompiledResources(TypedDict):
    """What the compiler reported of a kernel. `compile_ms` is in milliseconds."""

    registers_per_thread: int
    spill_bytes: int
    shared_bytes: int
    cubin_bytes: int
    compile_ms: float


class _KernelResources(TypedDict):
    predicted: PredictedResources


class KernelResources(_KernelResources, total=False):
    """What a kernel takes. `compiled` is there if the cache has the kernel."""

    compiled: CompiledResources


class _KernelInCache(TypedDict):
    key: str
    state: Literal["hit", "miss"]


class KernelInCache(_KernelInCache, total=False):
    """Whether the cache has a kernel, and its key there. `toolchain` is the version of the NVRTC that compiled it."""

    toolchain: str


class _PlannedKernel(TypedDict):
    role: Literal["attention", "widen", "merge", "append", "top_k"]
    name: str
    template: str
    backend: Literal["mma", "wgmma", "cuda_core"]
    target: str
    tile_q: int
    warps: int
    grid: str
    resources: KernelResources
    cache: KernelInCache


class PlannedKernel(_PlannedKernel, total=False):
    """A kernel of a plan. `tile_q` and `tile_kv` count queries and keys, `grid_ctas` the CTAs of a launch at the request's
    sizes, and `kv_head_shares` the parts of a KV head's query heads that have tiles of their own. `tuning` says where the
    tile comes from. `producer_warps` are those of the warps that only load."""

    tile_kv: int
    kv_head_shares: int
    tuning: Literal["model", "table", "user"]
    stages: int
    producer_warps: int
    gather: Literal[True]
    grid_ctas: int
    threads_per_cta: int


class PlannedFallback(TypedDict):
    """The kernels that calls run whose bounds would have more bytes of dequantised keys in the workspace than this."""

    above_widened_bytes: int
    kernels: List[str]


class SplitCuts(TypedDict):
    """How policy "absolute" cuts the keys of a query: into pieces of a power of two, the least that is `least_keys` or more
    and gives at most `most_pieces`. The running softmax takes `softmax_keys` at a time."""

    least_keys: int
    most_pieces: int
    softmax_keys: int


class _SplitKv(TypedDict):
    policy: Literal["none", "chunks", "shares", "absolute"]


class SplitKv(_SplitKv, total=False):
    """How the keys of a query are divided among CTAs. `chunk` and `least_keys` count keys."""

    of_bounds: Literal[True]
    chunk: int
    splits: int
    least_keys: int
    shares: int
    workspace_bytes: int
    cuts: SplitCuts


class PlannedNumerics(TypedDict):
    """How far o may be from exact attention: by `atol` + `rtol` * abs(o)."""

    accumulate: Literal["fp32"]
    atol: float
    rtol: float
    consistency: Consistency
    precision: Precision


class PlannedModel(TypedDict):
    """Which attention of a model a plan is for. `layers` counts the layers that have it; `notes` says what was assumed."""

    name: str
    phase: Phase
    layers: int
    notes: List[str]


class _Plan(TypedDict):
    schema: Literal["attnsmith.plan/1"]
    request: PlannedRequest
    device: PlannedDevice
    kernels: List[PlannedKernel]
    split_kv: SplitKv
    numerics: PlannedNumerics
    rejected: List[Refusal]


class Plan(_Plan, total=False):
    """Which kernels serve a request, and why (schema attnsmith.plan/1). `rejected` has the kernels that no size of the
    request gets, `unused` those that serve other sizes or take longer at these. `model` is there in the plans of a model."""

    instead: PlannedFallback
    unused: List[Refusal]
    model: PlannedModel


class ModelPlans(TypedDict):
    """The plans of a model, one for each distinct attention, phase and SM (schema attnsmith.plans/1)."""

    schema: Literal["attnsmith.plans/1"]
    plans: List[Plan]
    unsupported: List[UnsupportedPart]
    skipped: List[SkippedPart]
    warnings: List[ModelWarning]


# ---- Models and coverage


class CoveredRequest(PlannedRequest):
    """A request with every default filled in, its sizes and the compute capabilities that it names, usually none."""

    sm: List[int]


class CoveredAttention(TypedDict):
    """One attention of a model or request. Without a model, `phase` is empty and `layers` is 0."""

    name: str
    phase: Union[Phase, Literal[""]]
    layers: int
    notes: List[str]
    request: CoveredRequest


class CoverageReport(TypedDict):
    """The attentions that requests or a model with lists of words stand for, each once."""

    attentions: List[CoveredAttention]
    unsupported: List[UnsupportedPart]
    skipped: List[SkippedPart]
    warnings: List[ModelWarning]


class ModelReport(TypedDict):
    """The distinct attentions of a model's config."""

    model_type: str
    attentions: List[CoveredAttention]
    unsupported: List[UnsupportedPart]
    warnings: List[ModelWarning]


# ---- Devices, prewarming and adapters


class DeviceInfo(TypedDict):
    """A GPU. `device` is its ordinal, and so is `index`, the earlier name; `sm` is its compute capability (90 is 9.0), and
    `sm_count` the number of its multiprocessors."""

    device: int
    index: int
    name: str
    sm: int
    sm_count: int
    memory_bytes: int


class _PrewarmedKernel(TypedDict):
    name: str
    sm: int
    key: str
    state: Literal["hit", "remote", "compiled", "waited", "missing", "failed", "cancelled"]
    ms: float
    cubin_bytes: int


class PrewarmedKernel(_PrewarmedKernel, total=False):
    """What prewarming did for one kernel, and the milliseconds that it took. `error` is there if it failed or is missing."""

    error: str
    directory: str


class PrewarmSummary(TypedDict):
    """The kernels of a prewarm by their states, and the seconds that it took. `ok`: all that was requested is in the cache."""

    total: int
    hits: int
    compiled: int
    remote: int
    pushed: int
    missing: int
    waited: int
    failed: int
    cancelled: int
    unsupported: int
    ok: bool
    seconds: float


class PrewarmReport(TypedDict):
    """What prewarm() did (schema attnsmith.prewarm/1)."""

    schema: Literal["attnsmith.prewarm/1"]
    summary: PrewarmSummary
    kernels: List[PrewarmedKernel]
    unsupported: List[UnsupportedPart]
    skipped: List[SkippedPart]
    warnings: List[ModelWarning]


class PassedOnCalls(TypedDict):
    """Calls of `function` that an adapter passed on to the framework's own attention, `to`, and `why`."""

    function: str
    why: str
    to: str
    calls: int


class AdapterReport(TypedDict):
    """What an adapter did since the start or reset(): `served` counts calls by function."""

    served: Dict[str, int]
    passed_on: List[PassedOnCalls]


# ---- The cache


class CacheUnreadable(TypedDict):
    """A path of the cache that could not be read."""

    path: str
    reason: str


class CacheBadEntry(TypedDict):
    """An entry of the cache that is damaged, and what was done with it."""

    path: str
    reason: str
    quarantined: bool
    action: str


class CacheEntry(TypedDict):
    """A kernel in the cache. `name` is empty and `sm` 0 where its metadata does not say them. `modified` is a time in UTC,
    `age_s` is in seconds, and `layer` is a place in the list of directories."""

    key: str
    toolchain: str
    name: str
    sm: int
    target: str
    bytes: int
    modified: str
    age_s: int
    layer: int
    path: str


class CacheListing(TypedDict):
    """The entries of the cache: cache("ls")."""

    schema: Literal["attnsmith.cache-ls/1"]
    directories: List[str]
    entries: List[CacheEntry]
    unreadable: List[CacheUnreadable]


class CacheDirectories(TypedDict):
    """The writable directory, the read-only directories and the remotes: cache("dir"). `named_by` is the option or variable
    that names them."""

    schema: Literal["attnsmith.cache-dir/1"]
    directories: List[str]
    remotes: List[str]
    named_by: str


class CacheCounters(TypedDict):
    """What happened in the writable directory since `since`, a time in UTC, or None before anything was counted."""

    since: Optional[str]
    hits: int
    misses: int
    miss_errors: int
    compiles: int
    waits: int
    remote_hits: int
    remote_misses: int
    remote_failures: int
    remote_bytes: int
    quarantines: int
    evictions: int
    bytes_read: int
    bytes_published: int
    bytes_evicted: int


class CacheLayer(TypedDict):
    """A read-only directory or bundle of the cache. The reasons are empty where it is used."""

    directory: str
    entries: int
    bytes: int
    allocated_bytes: int
    not_trusted_because: str
    not_usable_because: str
    unreadable: List[CacheUnreadable]


class CacheStatistics(TypedDict):
    """What the cache holds: cache("stat"). `bytes` are the lengths of files, `allocated_bytes` what they take on the disk."""

    schema: Literal["attnsmith.cache-stat/1"]
    directory: str
    writable: bool
    not_writable_because: str
    not_trusted_because: str
    entries: int
    bytes: int
    allocated_bytes: int
    max_bytes: Optional[int]
    quarantined: int
    staging: int
    counters: CacheCounters
    layers: List[CacheLayer]
    unreadable: List[CacheUnreadable]


class CacheKeyField(TypedDict):
    """A field that the key of a kernel is computed from."""

    label: str
    value: str


class CacheDifference(TypedDict):
    """A field in which the key of a kernel differs from that of an entry. An empty side does not have the field."""

    label: str
    here: str
    there: str


class CacheExplainedEntry(CacheEntry):
    """An entry of the kernel that is explained. `fault` says why it is not used; it is empty where it is used."""

    fault: str


class CacheNearest(TypedDict):
    """The entry that shares the most fields with a kernel that the cache does not have."""

    entry: CacheEntry
    differences: List[CacheDifference]


class _CacheExplanation(TypedDict):
    name: str
    sm: int
    key: str
    state: Literal["hit", "miss"]
    fields: List[CacheKeyField]
    entries: List[CacheExplainedEntry]


class CacheExplanation(_CacheExplanation, total=False):
    """Why the cache has a kernel or has not. `nearest` is there for some misses."""

    nearest: CacheNearest


class CacheExplanations(TypedDict):
    """The kernels of a key or a request, and their entries: cache("explain")."""

    schema: Literal["attnsmith.cache-explain/1"]
    directories: List[str]
    kernels: List[CacheExplanation]
    unreadable: List[CacheUnreadable]
    unsupported: List[UnsupportedPart]
    skipped: List[SkippedPart]
    warnings: List[ModelWarning]


class CacheVerification(TypedDict):
    """What a check of all entries found: cache("verify")."""

    schema: Literal["attnsmith.cache-verify/1"]
    directory: str
    checked: int
    unusable: int
    other_format: int
    stale_staging_removed: int
    bad: List[CacheBadEntry]


class _CacheGcReport(TypedDict):
    schema: Literal["attnsmith.cache-gc/1"]
    directory: str
    entries: int
    quarantined: int
    staging: int
    locks: int
    allocated_bytes: int
    max_bytes: Optional[int]


class CacheGcReport(_CacheGcReport, total=False):
    """What was deleted to keep to the limit: cache("gc"). `allocated_bytes` were freed on the disk; `max_bytes` is None
    where there is no limit."""

    kept_entries: int
    kept_allocated_bytes: int


class CacheClearReport(TypedDict):
    """What was deleted: cache("clear")."""

    schema: Literal["attnsmith.cache-clear/1"]
    directory: str
    entries: int
    quarantined: int
    staging: int
    locks: int
    bytes: int
    staging_left: int
    locks_left: int


class CacheRemoveReport(TypedDict):
    """How many entries of a key were deleted: cache("rm"). `left` counts those in read-only directories."""

    schema: Literal["attnsmith.cache-rm/1"]
    directory: str
    key: str
    entries: int
    bytes: int
    left: int


class _CacheExportReport(TypedDict):
    schema: Literal["attnsmith.cache-export/1"]
    entries: int
    bytes: int
    other_format: int
    missing: int
    bad: List[CacheBadEntry]
    unreadable: List[CacheUnreadable]
    unsupported: List[UnsupportedPart]
    skipped: List[SkippedPart]
    warnings: List[ModelWarning]


class CacheExportReport(_CacheExportReport, total=False):
    """What was written: cache("export"). A bundle has `file`; an image has `oci`, its directory, `tag` and `digest`.
    `other_format` counts entries of other formats, and `missing` the kernels of the model that the cache does not have."""

    file: str
    oci: str
    tag: str
    digest: str
    signature_file: str
    signed_by: str


class _CacheImportReport(TypedDict):
    schema: Literal["attnsmith.cache-import/1"]
    file: str
    directory: str
    entries: int
    imported: int
    present: int
    bytes: int


class CacheImportReport(_CacheImportReport, total=False):
    """What was read from a bundle: cache("import"). `signed_by` is the id of the trusted key, where a signature is
    required."""

    signed_by: str


class _CachePushedEntry(TypedDict):
    name: str
    sm: int
    key: str
    toolchain: str
    bytes: int
    state: Literal["pushed", "present", "failed", "cancelled", "gone"]


class CachePushedEntry(_CachePushedEntry, total=False):
    """An entry that was to be pushed. One that is `gone` was deleted while the push ran. `error` is there if it failed."""

    error: str


class CacheMissingKernel(TypedDict):
    """A kernel that was to be pushed and that the cache does not have."""

    name: str
    sm: int
    key: str


class _CachePushReport(TypedDict):
    schema: Literal["attnsmith.cache-push/1"]
    remotes: List[str]
    pushed: int
    present: int
    failed: int
    cancelled: int
    bytes: int
    other_format: int
    seconds: float
    entries: List[CachePushedEntry]
    missing: List[CacheMissingKernel]
    bad: List[CacheBadEntry]
    unreadable: List[CacheUnreadable]
    unsupported: List[UnsupportedPart]
    skipped: List[SkippedPart]
    warnings: List[ModelWarning]


class CachePushReport(_CachePushReport, total=False):
    """What was put to the remotes: cache("push"). `signed_by` is the id of the key, where one signs."""

    signed_by: str


# ---- Errors


class ErrorDetails(TypedDict, total=False):
    """The facts of an error, for programs. `message` is always there, and `code` in errors of the library; the others are
    the fields of the error's class."""

    code: Literal["bad_usage", "invalid_request", "unsupported", "compile_error", "driver_error", "library_missing",
                  "cache_error", "kernel_missing", "out_of_memory", "failed"]
    message: str
    field: str
    value: str
    accepted: str
    refusals: List[Refusal]
    log: str
    options: List[str]
    numbered_source: str
    call: str
    driver_code: int
    meaning: str
    library: str
    tried: List[str]
    path: str
    request: Dict[str, Any]
    sm: int
    key: str
    command: str
