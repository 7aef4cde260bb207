"""attnsmith.compat.flashinfer: each argument that FlashInfer has, as docs/replace-flashinfer.md says it is taken."""

import inspect
import re
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    torch = None
from flashinfer_cases import (CASCADE, DECODE, DIM, FlashInferTest, GRAPH, KV_HEADS, Latents, MLA, PAGE, PREFILL, Pages,
                              Q_HEADS, RAGGED, SHARED_DECODE, SHARED_PREFILL, SINKS, ints, randn, workspace)
from support import REPOSITORY

if torch is not None:
    import attnsmith.compat.flashinfer as flashinfer

# As flashinfer-python 0.7.2 has them, without annotations. Its decode's plan() takes optional arguments by keyword, and
# in an order of its own by position, which is deprecated: both are this signature.
SIGNATURES = {
    "single_decode_with_kv_cache":
        "q, k, v, kv_layout='NHD', pos_encoding_mode='NONE', use_tensor_cores=False, q_scale=None, "
        "k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, "
        "rope_theta=None, return_lse=False",
    "BatchDecodeWithPagedKVCacheWrapper":
        "float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, use_tensor_cores=False, "
        "paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None, "
        "backend='auto', jit_args=None",
    "BatchDecodeWithPagedKVCacheWrapper.reset_workspace_buffer":
        "float_workspace_buffer, int_workspace_buffer",
    "BatchDecodeWithPagedKVCacheWrapper.plan":
        "indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, "
        "pos_encoding_mode='NONE', window_left=-1, logits_soft_cap=None, q_data_type='float16', "
        "kv_data_type=None, o_data_type=None, data_type=None, sm_scale=None, rope_scale=None, "
        "rope_theta=None, non_blocking=True, block_tables=None, seq_lens=None, fixed_split_size=None, "
        "disable_split_kv=False, q_len_per_req=1, *, window_right=0, is_causal=None",
    "BatchDecodeWithPagedKVCacheWrapper.forward":
        "q, paged_kv_cache, pos_encoding_mode='NONE', q_scale=None, k_scale=None, v_scale=None, "
        "window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None",
    "BatchDecodeWithPagedKVCacheWrapper.run":
        "q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None, "
        "return_lse=False, enable_pdl=None, window_left=None, sinks=None, q_len_per_req=None, "
        "skip_softmax_threshold_scale_factor=None, kv_cache_sf=None",
    "BatchDecodeWithPagedKVCacheWrapper.forward_return_lse":
        "q, paged_kv_cache, pos_encoding_mode='NONE', q_scale=None, k_scale=None, v_scale=None, "
        "window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper":
        "workspace_buffer, indptr_buffer, indices_buffer, last_page_len_buffer, kv_layout='NHD', "
        "use_tensor_cores=False",
    "single_prefill_with_kv_cache":
        "q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None, "
        "packed_custom_mask=None, causal=False, kv_layout='NHD', pos_encoding_mode='NONE', "
        "use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None, "
        "rope_theta=None, backend='auto', return_lse=False, kv_cache_sf=None, k_scale=None, v_scale=None",
    "BatchPrefillWithPagedKVCacheWrapper":
        "float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, qo_indptr_buf=None, "
        "paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, "
        "custom_mask_buf=None, mask_indptr_buf=None, backend='auto', jit_args=None, jit_kwargs=None, "
        "variant_owns_mask=False",
    "BatchPrefillWithPagedKVCacheWrapper.reset_workspace_buffer":
        "float_workspace_buffer, int_workspace_buffer",
    "BatchPrefillWithPagedKVCacheWrapper.plan":
        "qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, "
        "head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False, "
        "pos_encoding_mode='NONE', use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, "
        "logits_soft_cap=None, rope_scale=None, rope_theta=None, q_data_type='float16', kv_data_type=None, "
        "o_data_type=None, non_blocking=True, prefix_len_ptr=None, token_pos_in_items_ptr=None, "
        "token_pos_in_items_len=0, max_item_len_ptr=None, seq_lens=None, seq_lens_q=None, block_tables=None, "
        "max_token_per_sequence=None, max_sequence_kv=None, fixed_split_size=None, disable_split_kv=False",
    "BatchPrefillWithPagedKVCacheWrapper.forward":
        "q, paged_kv_cache, causal=False, pos_encoding_mode='NONE', use_fp16_qk_reduction=False, "
        "k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, "
        "rope_theta=None",
    "BatchPrefillWithPagedKVCacheWrapper.run":
        "q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None, "
        "return_lse=False, lse_base='log2', lse_layout='NH', enable_pdl=None, window_left=None, sinks=None, "
        "kv_cache_sf=None, skip_softmax_threshold_scale_factor=None, use_fp16_softmax=None, "
        "uses_spcompress=None",
    "BatchPrefillWithPagedKVCacheWrapper.forward_return_lse":
        "q, paged_kv_cache, causal=False, pos_encoding_mode='NONE', use_fp16_qk_reduction=False, "
        "k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, "
        "rope_theta=None",
    "BatchPrefillWithRaggedKVCacheWrapper":
        "float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, qo_indptr_buf=None, "
        "kv_indptr_buf=None, custom_mask_buf=None, mask_indptr_buf=None, backend='auto', jit_args=None, "
        "jit_kwargs=None, variant_owns_mask=False",
    "BatchPrefillWithRaggedKVCacheWrapper.reset_workspace_buffer":
        "float_workspace_buffer, int_workspace_buffer",
    "BatchPrefillWithRaggedKVCacheWrapper.plan":
        "qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None, "
        "packed_custom_mask=None, causal=False, pos_encoding_mode='NONE', use_fp16_qk_reduction=False, "
        "window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, "
        "q_data_type='float16', kv_data_type=None, o_data_type=None, non_blocking=True, prefix_len_ptr=None, "
        "token_pos_in_items_ptr=None, token_pos_in_items_len=0, max_item_len_ptr=None, fixed_split_size=None, "
        "disable_split_kv=False, seq_lens=None, seq_lens_q=None, max_token_per_sequence=None, "
        "max_sequence_kv=None, v_indptr=None, o_indptr=None",
    "BatchPrefillWithRaggedKVCacheWrapper.forward":
        "q, k, v, causal=False, pos_encoding_mode='NONE', use_fp16_qk_reduction=False, window_left=-1, "
        "logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None",
    "BatchPrefillWithRaggedKVCacheWrapper.run":
        "q, k, v, *args, q_scale=None, k_scale=None, v_scale=None, o_scale=None, out=None, lse=None, "
        "return_lse=False, lse_base='log2', lse_layout='NH', enable_pdl=None, kv_cache_sf=None",
    "BatchPrefillWithRaggedKVCacheWrapper.forward_return_lse":
        "q, k, v, causal=False, pos_encoding_mode='NONE', use_fp16_qk_reduction=False, window_left=-1, "
        "logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None",
    "BatchMLAPagedAttentionWrapper":
        "float_workspace_buffer, use_cuda_graph=False, qo_indptr=None, kv_indptr=None, kv_indices=None, "
        "kv_len_arr=None, backend='auto'",
    "BatchMLAPagedAttentionWrapper.plan":
        "qo_indptr=None, kv_indptr=None, kv_indices=None, kv_len_arr=None, num_heads=None, head_dim_ckv=None, "
        "head_dim_kpe=None, page_size=None, causal=None, sm_scale=None, q_data_type=None, kv_data_type=None, "
        "use_profiler=False, *, metadata=None, cum_seq_lens_q=None, block_tables=None, seq_lens=None, "
        "max_q_len=None, query_layout=None, kv_cache_layout=None, lse_mode='none', output_dtype=None, "
        "output_scale='none', scale_mode='default', skip_softmax=False, enable_pdl=None, use_sinks=False",
    "BatchMLAPagedAttentionWrapper.run":
        "q_nope=None, q_pe=None, ckv_cache=None, kpe_cache=None, out=None, lse=None, return_lse=False, "
        "profiler_buffer=None, kv_len=None, page_table=None, return_lse_base_on_e=False, o_scale=None, *, "
        "query=None, kv_cache=None, ckv_scale=None, ckv_scale_arr=None, kpe_scale=None, sinks=None, "
        "skip_softmax_threshold_scale_factor=None, bmm1_scale=None, bmm2_scale=None",
    "fast_decode_plan":
        "indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode='NONE', "
        "window_left=-1, logits_soft_cap=None, q_data_type=None, kv_data_type=None, data_type=None, sm_scale=None, "
        "rope_scale=None, rope_theta=None, non_blocking=True, fixed_split_size=None, disable_split_kv=False, "
        "q_len_per_req=1, global_override_indptr_cpu=None",
    SINKS:
        "float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, qo_indptr_buf=None, "
        "paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, "
        "custom_mask_buf=None, mask_indptr_buf=None, backend='auto', pos_encoding_mode='NONE', "
        "use_fp16_qk_reduction=False, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, head_dim_qk=128, "
        "head_dim_vo=128, window_left=-1",
    SHARED_DECODE: "float_workspace_buffer, kv_layout='NHD'",
    f"{SHARED_DECODE}.begin_forward":
        "unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, "
        "page_size, data_type='float16'",
    f"{SHARED_DECODE}.forward": "q, k_shared, v_shared, unique_kv_cache",
    SHARED_PREFILL: "float_workspace_buffer, kv_layout='NHD'",
    f"{SHARED_PREFILL}.begin_forward":
        "qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim, "
        "page_size",
    f"{SHARED_PREFILL}.forward":
        "q, k_shared, v_shared, unique_kv_cache, causal=False, use_fp16_qk_reduction=False, sm_scale=None, "
        "rope_scale=None, rope_theta=None",
    "merge_state":
        "v_a, s_a, v_b, s_b",
    "merge_state_in_place":
        "v, s, v_other, s_other, mask=None",
    "merge_states":
        "v, s",
    "MultiLevelCascadeAttentionWrapper":
        "num_levels, float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, qo_indptr_buf_arr=None, "
        "paged_kv_indptr_buf_arr=None, paged_kv_indices_buf_arr=None, paged_kv_last_page_len_buf_arr=None",
    "MultiLevelCascadeAttentionWrapper.reset_workspace_buffer":
        "float_workspace_buffer, int_workspace_buffers",
    "MultiLevelCascadeAttentionWrapper.plan":
        "qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len, num_qo_heads, "
        "num_kv_heads, head_dim, page_size, causal=False, pos_encoding_mode='NONE', "
        "use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None, "
        "rope_theta=None, q_data_type='float16', kv_data_type=None",
    "MultiLevelCascadeAttentionWrapper.run":
        "q, paged_kv_cache",
    "get_batch_indices_positions":
        "append_indptr, seq_lens, nnz, batch_indices=None, positions=None",
    "get_seq_lens":
        "kv_indptr, kv_last_page_len, page_size",
    "append_paged_mla_kv_cache":
        "append_ckv, append_kpe, batch_indices, positions, ckv_cache, kpe_cache, kv_indices, kv_indptr, "
        "kv_last_page_len",
    "append_paged_kv_cache":
        "append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr, "
        "kv_last_page_len, kv_layout='NHD'",
}
SAME_AS = {"single_prefill_with_kv_cache_return_lse": "single_prefill_with_kv_cache"}
SAME_AS.update({f"{name}.begin_forward": f"{name}.plan" for name in (DECODE, PREFILL, RAGGED, CASCADE)})
SAME_AS.update({f"{name}.run_return_lse": f"{name}.run" for name in (DECODE, PREFILL, RAGGED)})
SAME_AS[f"{CASCADE}.forward"] = f"{CASCADE}.run"
SAME_AS.update({f"{SINKS}.{name}": f"{PREFILL}.{name}" for name in ("plan", "forward", "forward_return_lse")})
SAME_AS.update({f"{SINKS}.begin_forward": f"{PREFILL}.plan", f"{SINKS}.run_return_lse": f"{SINKS}.run"})
ONES = None if torch is None else torch.ones(1)
JIT = {"jit_args": ["name"], "jit_kwargs": {"a": 1}, "variant_owns_mask": True}
MASKS = {"custom_mask": ONES, "packed_custom_mask": ONES}
ITEMS = {"prefix_len_ptr": ONES, "token_pos_in_items_ptr": ONES, "token_pos_in_items_len": 3, "max_item_len_ptr": ONES}
RUN = {"args": (ONES,), "skip_softmax_threshold_scale_factor": 2.0, "kv_cache_sf": ONES}
# A value of each argument that is refused, and of each that changes nothing.
REFUSED = {
    "single_prefill_with_kv_cache": {"scale_q": ONES, "scale_k": ONES, "scale_v": ONES, "kv_cache_sf": ONES, **MASKS},
    DECODE: {"jit_args": ["name"]}, PREFILL: JIT, RAGGED: JIT,
    f"{DECODE}.plan": {"block_tables": ONES, "window_right": -1}, f"{DECODE}.run": RUN,
    f"{PREFILL}.plan": {"block_tables": ONES, **MASKS, **ITEMS}, f"{PREFILL}.run": RUN,
    f"{RAGGED}.plan": {"v_indptr": ONES, "o_indptr": ONES, **MASKS, **ITEMS},
    f"{RAGGED}.run": {"q_scale": 2.0, "o_scale": 2.0, "args": (ONES,), "kv_cache_sf": ONES},
    f"{MLA}.plan": {"use_profiler": True, "skip_softmax": True, "use_sinks": True, "output_scale": "per-tensor"},
    f"{MLA}.run": {name: ONES for name in (
        "profiler_buffer", "kv_len", "page_table", "o_scale", "ckv_scale_arr", "sinks",
        "skip_softmax_threshold_scale_factor", "bmm1_scale", "bmm2_scale")},
    f"{CASCADE}.plan": {"pos_encoding_mode": "ALIBI"},
    SINKS: {"pos_encoding_mode": "ALIBI"},
    f"{SINKS}.run": {"kv_cache_sf": ONES, "skip_softmax_threshold_scale_factor": 2.0, "sinks": ONES},
}
ROPE = {"rope_scale": 2.0, "rope_theta": 5.0}
FP16 = {"use_fp16_qk_reduction": True, **ROPE}
LONGEST = {"max_token_per_sequence": 99, "max_sequence_kv": 99}
BUFFERS = {"custom_mask_buf": ONES, "mask_indptr_buf": ONES, "backend": "fa3"}
HINTS = {
    "single_decode_with_kv_cache": {"use_tensor_cores": True, **ROPE},
    "single_prefill_with_kv_cache": {"backend": "cudnn", **FP16},
    DECODE: {"use_tensor_cores": True, "backend": "cute-dsl"}, GRAPH: {"use_tensor_cores": True},
    PREFILL: BUFFERS, RAGGED: BUFFERS,
    f"{DECODE}.plan": ROPE, f"{DECODE}.forward": ROPE, f"{DECODE}.forward_return_lse": ROPE,
    f"{DECODE}.run": {"enable_pdl": True}, f"{RAGGED}.run": {"enable_pdl": True},
    f"{PREFILL}.run": {"enable_pdl": True, "use_fp16_softmax": True, "uses_spcompress": True},
    f"{PREFILL}.plan": {**FP16, **LONGEST}, f"{RAGGED}.plan": {**FP16, **LONGEST}, f"{CASCADE}.plan": FP16,
    MLA: {"backend": "cutlass"},
    f"{MLA}.plan": {"query_layout": "packed", "kv_cache_layout": "split", "max_q_len": 9, "enable_pdl": True},
    "fast_decode_plan": ROPE, f"{SHARED_PREFILL}.forward": FP16,
    SINKS: {"custom_mask_buf": ONES, "mask_indptr_buf": ONES, "backend": "fa3",
            "use_fp16_qk_reduction": True, "q_data_type": "half", "kv_data_type": "half", "head_dim_qk": 8, "head_dim_vo": 8},
    f"{SINKS}.run": {"enable_pdl": True, "use_fp16_softmax": True, "uses_spcompress": True},
    "append_paged_kv_cache": {"kv_last_page_len": None}, "append_paged_mla_kv_cache": {"kv_last_page_len": None},
}
HINTS.update({f"{name}.{method}": FP16 for name in (PREFILL, RAGGED) for method in ("forward", "forward_return_lse")})


def of(table, name):
    return table.get(SAME_AS.get(name, name), {})


def documented():
    """From docs/replace-flashinfer.md: by function or method, what each argument is."""
    text = (REPOSITORY / "docs/replace-flashinfer.md").read_text(encoding="utf-8")
    tables = {}
    for section in text.split("\n### ")[1:]:
        title, *lines = section.splitlines()
        arguments = {}
        for line in lines:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("| `"):
                for argument in re.findall(r"`(\w+)`", cells[0]):
                    assert argument not in arguments, (title, argument)
                    arguments[argument] = cells[1]
        for name in re.findall(r"`([\w.]+)`", title):
            tables[name] = arguments
    return tables


def signature_of(name):
    found = flashinfer
    for part in name.split("."):
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
    if hasattr(found, "func"):  # a partial, of a function or of a method
        found = found.func
    parameters = [parameter.replace(annotation=inspect.Parameter.empty)
                  for argument, parameter in inspect.signature(found).parameters.items() if argument != "self"]
    return inspect.Signature(parameters)


class Arguments(FlashInferTest):
    def test_signatures_are_those_of_flashinfer(self):
        for name, text in SIGNATURES.items():
            with self.subTest(name=name):
                self.assertEqual(str(signature_of(name)), f"({text})")

    def test_every_public_function_and_method_has_its_table(self):
        names = [name for name in flashinfer.__all__ if callable(getattr(flashinfer, name))]
        kinds = (DECODE, PREFILL, RAGGED, MLA, CASCADE, SINKS, SHARED_DECODE, SHARED_PREFILL)
        for kind in kinds:
            names += [f"{kind}.{name}" for name in dir(getattr(flashinfer, kind)) if name in (
                "plan", "run", "begin_forward", "run_return_lse", "forward", "forward_return_lse")]
        self.assertEqual(set(documented()), set(names))
        public = {name for kind in (*kinds, GRAPH)
                  for name in dir(getattr(flashinfer, kind)) if name[0] != "_"}
        last = (REPOSITORY / "docs/replace-flashinfer.md").read_text(encoding="utf-8").rsplit("\n\n", 1)[1]
        self.assertEqual(public - {name.rpartition(".")[2] for name in names}, set(re.findall(r"`(\w+)`", last)))
        for kind in (*kinds, GRAPH):
            has = {name for name in ("is_cuda_graph_enabled", "end_forward", "reset_workspace_buffer") if hasattr(
                getattr(flashinfer, kind), name)}
            shared = kind in (SHARED_DECODE, SHARED_PREFILL)
            self.assertEqual(has, {"end_forward", "reset_workspace_buffer", *(() if shared else ("is_cuda_graph_enabled",))}, kind)
        self.assertIn("except the two for shared prefixes", " ".join(last.split()))

    def test_the_tables_have_every_argument(self):
        for name, table in documented().items():
            with self.subTest(name=name):
                self.assertEqual(set(table), set(signature_of(name).parameters))
                for state, values in (("refused", REFUSED), ("hint", HINTS)):
                    self.assertEqual({argument for argument in table if table[argument] == state},
                                     set(of(values, name)))
                self.assertLessEqual(set(table.values()), {"served", "hint", "refused"})

    def outcome(self, name, changes):
        """What a usual use of this gives, with these arguments changed, and which words reach the plain functions."""
        torch.manual_seed(7)
        del self.calls[:]
        pages, q = Pages([9, 4, 2]), randn(3, Q_HEADS, DIM)
        kind, _, method = name.partition(".")
        if kind in (DECODE, GRAPH):
            init = {"float_workspace_buffer": workspace()}
            if kind == GRAPH:
                names = ("workspace_buffer", "indptr_buffer", "indices_buffer", "last_page_len_buffer")
                init = dict(zip(names, (workspace(), *(one.clone() for one in pages.lists))))
            plan = dict(zip(("indptr", "indices", "last_page_len"), pages.lists), head_dim=DIM)
            run = {"q": q, "paged_kv_cache": pages.both}
        elif kind in (PREFILL, SINKS):
            init = {"float_workspace_buffer": workspace()}
            plan = dict(zip(("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"), pages.lists),
                        qo_indptr=ints(0, 1, 2, 3), head_dim_qk=DIM)
            run = {"q": q, "paged_kv_cache": pages.both}
            if kind == SINKS and method not in ("forward", "forward_return_lse"):
                run["args"] = (torch.ones(Q_HEADS), 0.25)
        elif kind in (SHARED_DECODE, SHARED_PREFILL):
            return self.outcome_of_shared_prefix(kind, method, changes, pages, q)
        elif kind == RAGGED:
            init = {"float_workspace_buffer": workspace()}
            plan = {"qo_indptr": ints(0, 1, 2, 3), "kv_indptr": ints(0, 9, 13, 15), "head_dim_qk": DIM}
            run = {"q": q, "k": torch.cat(pages.keys), "v": torch.cat(pages.values)}
        elif kind == CASCADE:
            init = {"num_levels": 1, "float_workspace_buffer": workspace()}
            plan = dict(zip(("paged_kv_indptr_arr", "paged_kv_indices_arr", "paged_kv_last_page_len"),
                            ([one] for one in pages.lists)), qo_indptr_arr=[ints(0, 1, 2, 3)], head_dim=DIM)
            run = {"q": q, "paged_kv_cache": pages.both}
        elif kind == MLA:
            batch = Latents([2, 1], [9, 4])
            init = {"float_workspace_buffer": workspace()}
            plan = dict(zip(("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr"), batch.lists), **batch.named)
            run = {"query": batch.q, "kv_cache": batch.cache}
        else:
            return self.outcome_of_function(kind, changes, pages, q)
        if kind != MLA:
            plan.update(num_qo_heads=Q_HEADS, num_kv_heads=KV_HEADS)
        if kind not in (MLA, RAGGED):
            plan["page_size"] = PAGE
        if method.startswith("forward") and kind == SINKS:
            kind = PREFILL  # whose run() takes no sinks: forward() passes none on
        stage = init if not method else plan if method in ("plan", "begin_forward") else run
        stage.update(changes)
        arguments = run.pop("args", ())
        wrapper = getattr(flashinfer, kind)(**init)
        getattr(wrapper, method if stage is plan else "plan")(**plan)
        first = [run.pop(argument) for argument in ("q", "k", "v", "paged_kv_cache") if argument in run]
        result = getattr(wrapper, method if stage is run and method else "run")(*first, *arguments, **run)
        return result, [(call, {word: value for word, value in words.items() if not torch.is_tensor(value)})
                        for call, _, words in self.calls]

    def outcome_of_shared_prefix(self, kind, method, changes, pages, q):
        decodes = kind == SHARED_DECODE
        names = [f"{'unique' if decodes else 'paged'}_kv_{name}" for name in ("indptr", "indices", "last_page_len")]
        init = {"float_workspace_buffer": workspace()}
        plan = dict(zip(names, pages.lists), num_qo_heads=Q_HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_size=PAGE)
        if not decodes:
            plan["qo_indptr"] = ints(0, 1, 2, 3)
        run = {"q": q, "k_shared": pages.keys[0], "v_shared": pages.values[0], "unique_kv_cache": pages.both}
        (init if not method else plan if method == "begin_forward" else run).update(changes)
        wrapper = getattr(flashinfer, kind)(**init)
        wrapper.begin_forward(**plan)
        return wrapper.forward(**run), [(call, {word: value for word, value in words.items() if not torch.is_tensor(value)})
                                        for call, _, words in self.calls]

    def outcome_of_function(self, name, changes, pages, q):
        if name == "fast_decode_plan":
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace())
            flashinfer.fast_decode_plan(wrapper, **{
                **dict(zip(("indptr", "indices", "last_page_len"), pages.lists)), "num_qo_heads": Q_HEADS,
                "num_kv_heads": KV_HEADS, "head_dim": DIM, "page_size": PAGE, **changes})
            return wrapper.run(q, pages.both), [(call, {word: value for word, value in words.items()
                                                       if not torch.is_tensor(value)}) for call, _, words in self.calls]
        if name.startswith("append"):
            place = {"batch_indices": ints(0), "positions": ints(3), "kv_indices": pages.indices,
                     "kv_indptr": pages.indptr, "kv_last_page_len": pages.last}
            rows, latents, cache = randn(1, KV_HEADS, DIM), randn(1, DIM), randn(9, PAGE, DIM)
            given = {"append_key": rows, "append_value": rows, "paged_kv_cache": pages.pair}
            if "mla" in name:
                given = {"append_ckv": latents, "append_kpe": latents, "ckv_cache": cache, "kpe_cache": cache}
            with unittest.mock.patch("attnsmith.functions.append") as append:
                result = getattr(flashinfer, name)(**{**given, **place, **changes})
            return result, append.call_args[1]["slot_mapping"].tolist()
        rows = q[0] if name.startswith("single_decode") else q
        result = getattr(flashinfer, name)(**{"q": rows, "k": pages.keys[0], "v": pages.values[0], **changes})
        return result, [(call, {word: value for word, value in words.items() if not torch.is_tensor(value)})
                        for call, _, words in self.calls]

    def test_what_the_tables_say_is_refused_is_refused(self):
        for name in documented():
            for argument, value in of(REFUSED, name).items():
                with self.subTest(name=name, argument=argument):
                    self.outcome(name, {})
                    self.refused(argument, self.outcome, name, {argument: value})
                    self.assertEqual(self.calls, [])

    def test_hints_change_nothing(self):
        for name in documented():
            for argument, value in of(HINTS, name).items():
                with self.subTest(name=name, argument=argument):
                    (wanted, words), (got, changed) = self.outcome(name, {}), self.outcome(name, {argument: value})
                    self.assertEqual(words, changed)
                    states = [state if isinstance(state, tuple) else (state,) for state in (wanted, got)]
                    for one, other in zip(*states):
                        self.assertTrue(one is None and other is None or torch.equal(one, other))

    def test_unknown_backends_are_refused(self):
        for kind in (DECODE, PREFILL, RAGGED, MLA):
            self.refused("backend", getattr(flashinfer, kind), workspace(), backend="fastest")
            if kind != MLA:
                self.refused("kv_layout", getattr(flashinfer, kind), workspace(), "HDN")

    def test_counts_of_a_plan_are_integers_from_1_on(self):
        counts = re.compile("num_.*heads|head_dim.*|page_size")
        for name in (f"{kind}.plan" for kind in (DECODE, PREFILL, RAGGED, MLA, CASCADE)):
            for argument in filter(counts.fullmatch, signature_of(name).parameters):
                for value in (2.0, "2", True, 0, -1, 1 << 40):
                    with self.subTest(name=name, argument=argument, value=value):
                        self.refused(argument, self.outcome, name, {argument: value})
                        self.assertEqual(self.calls, [])

    def test_docstrings_name_every_argument(self):
        for name in documented():
            if name.endswith("_return_lse") and "forward" not in name:
                continue
            found = flashinfer
            for part in name.split("."):
                found = getattr(found, part)
            with self.subTest(name=name):
                text = inspect.getdoc(found) or ""
                self.assertEqual([argument for argument in signature_of(name).parameters
                                  if not re.search(rf"\b{argument}\b", text)], [])


if __name__ == "__main__":
    unittest.main()
