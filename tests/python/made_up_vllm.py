"""A small package named vllm, made up for tests of tools/engines/contract.py: it has what the tool looks for, in few lines."""

import zipfile

BACKEND = '''
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, Protocol, TypeVar
import torch
T = TypeVar("T")
class AttentionType(str, Enum):
    DECODER = "decoder"
@dataclass(frozen=True)
class MultipleOf:
    base: int
class AttentionBackend(ABC):
    """Words that no table has."""
    supported_dtypes: ClassVar[list] = [torch.float16, torch.bfloat16]
    takes_update: bool = True
    @staticmethod
    @abstractmethod
    def get_name():
        raise NotImplementedError
    @staticmethod
    def get_supported_kernel_block_sizes():
        return [MultipleOf(16)]
    @classmethod
    def supports_sink(cls) -> bool:
        """Words that no table has."""
        return False
    @classmethod
    def supports_head_size(cls, head_size, /, default=torch.int8, *, limit=-1, table={1: (2, 3)}, other=1 + 1, **rest):
        return head_size
class AttentionMetadata:
    pass
@dataclass
class CommonAttentionMetadata:
    num_reqs: int
    kind: ClassVar[int] = 3
    causal: bool = True
    @property
    def seq_lens_cpu(self):
        return self.x + 1
class AttentionCGSupport(Enum):
    ALWAYS = 3
    NEVER = 0
class AttentionMetadataBuilder(ABC, Generic[T]):
    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names):
        self.kv_cache_spec, self._hidden = kv_cache_spec, layer_names
    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...
class AttentionLayer(Protocol):
    _k_scale: torch.Tensor
    def forward(self, query): ...
class AttentionImplBase(ABC, Generic[T]):
    num_heads: int
    can_return_lse_for_decode: bool = False
    def __new__(cls, *args, **kwargs):
        self = super().__new__(cls)
        self.dcp_rank = 0
        return self
class AttentionImpl(AttentionImplBase[T], Generic[T]):
    @abstractmethod
    def forward(self, layer, query, attn_type=AttentionType.DECODER, output=None): ...
class MLAAttentionImpl(AttentionImplBase[T], Generic[T]):
    @abstractmethod
    def forward_mqa(self, q): ...
'''
REGISTRY = '''
from enum import Enum
class AttentionBackendEnum(Enum):
    FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
    CUSTOM = None
def register_backend(backend, class_path=None, is_mamba=False):
    return backend
'''
MLA = '''
from dataclasses import dataclass, field
from enum import Enum, auto
from vllm.v1.attention.backend import (AttentionBackend, AttentionMetadata, AttentionMetadataBuilder, MLAAttentionImpl)
class QueryLenSupport(Enum):
    SINGLE_ONLY = auto()
class MLACommonBackend(AttentionBackend):
    @classmethod
    def is_mla(cls):
        return True
@dataclass
class MLACommonPrefillMetadata:
    @dataclass
    class Chunk:
        starts: list = field(default_factory=list)
        total: int = field(default=0, kw_only=True)
        cached: int = field(init=False, default=0)
    block_table: object
@dataclass
class MLACommonDecodeMetadata:
    seq_lens: object
@dataclass
class MLACommonMetadata(AttentionMetadata):
    num_reqs: int
class MLACommonMetadataBuilder(AttentionMetadataBuilder):
    pass
class MLABase(MLAAttentionImpl):
    def __init__(self, num_heads):
        self.num_heads = num_heads
class MLACommonImpl(MLABase):
    pass
class MLAAttention:
    def __init__(self):
        self.impl.forward_mqa(1)
'''
SPECS = '''
from dataclasses import dataclass
from enum import IntEnum
class KVQuantMode(IntEnum):
    NONE = 0
    FP8 = 1
@dataclass(frozen=True)
class KVCacheSpec:
    block_size: int
@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    num_kv_heads: int
    kv_quant_mode: KVQuantMode = KVQuantMode.NONE
class WindowSpec(AttentionSpec):
    pass
class MambaSpec(KVCacheSpec):
    pass
'''
FLASH = '''
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_dcp_group
from vllm.platforms import current_platform
from vllm.utils.math import cdiv
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder
class FlashAttentionBackend(AttentionBackend):
    takes_update = False
    @staticmethod
    def get_name(): return "FLASH_ATTN"
    @staticmethod
    def get_impl_cls(): return FlashAttentionImpl
    @staticmethod
    def get_builder_cls(): return FlashAttentionMetadataBuilder
class FlashAttentionMetadataBuilder(AttentionMetadataBuilder):
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): pass
class FlashAttentionImpl(AttentionImpl):
    def forward(self, layer, query, attn_type=1, output=None): pass
    def do_kv_cache_update(self, layer, key, value): pass
    def not_read(self): pass
'''
OTHER = '''
from vllm.model_executor.layers.attention.mla_attention import MLACommonBackend, MLACommonImpl, MLACommonMetadataBuilder
class %sBackend(MLACommonBackend):
    @staticmethod
    def get_impl_cls(): return %sImpl
    @staticmethod
    def get_builder_cls(): return MLACommonMetadataBuilder
class %sImpl(MLACommonImpl):
    pass
'''
LAYER = '''
class Attention:
    def __init__(self, backend):
        self.impl = backend.get_impl_cls()(1)
        if self.attn_backend.takes_update:
            own = self.attn_backend
            own.get_name()
    def forward(self, query):
        self.impl.forward(self, *query, output=None)
        self.impl.num_heads = 3
        return getattr(self.impl, "dcp_rank", 0), hasattr(self.impl, "do_kv_cache_update"), self.impl.unknown
'''
RUNNER = '''
def run(attn_group, metadata):
    builder = attn_group.get_metadata_builder(0)
    return builder.build(0, metadata, fast_build=True), builder.layers, metadata.build()
'''
CAPABILITY = '''
from typing import NamedTuple
class DeviceCapability(NamedTuple):
    major: int
    minor: int = 0
'''
FILES = {
    "envs.py": "VLLM_BATCH_INVARIANT: bool = False\n",
    "__init__.py": "",
    "_version.py": "__version__ = version = '1.2.3'\n",
    "config/__init__.py": "from .vllm import VllmConfig\n",
    "config/vllm.py": "class VllmConfig:\n    pass\n",
    "config/cache.py": "from typing import Literal\nCacheDType = Literal['auto', 'fp8']\n",
    "distributed/parallel_state.py": "def get_dcp_group():\n    return _GROUP.get()\n",
    "model_executor/layers/attention/attention.py": LAYER,
    "model_executor/layers/attention/cross_attention.py": "class CrossAttention:\n    pass\n",
    "model_executor/layers/attention/encoder_only_attention.py": "class EncoderOnlyAttention:\n    pass\n",
    "model_executor/layers/attention/mla_attention.py": MLA,
    "platforms/__init__.py": "current_platform = None\n",
    "platforms/interface.py": CAPABILITY,
    "plugins/__init__.py": "DEFAULT_PLUGINS_GROUP = 'vllm.general_plugins'\n",
    "third_party/backend.py": "class AttentionBackend:\n    pass\n",
    "utils/math.py": "def cdiv(a, b):\n    return -(-a // b)\n",
    "v1/attention/backend.py": BACKEND,
    "v1/attention/backends/flash_attn.py": FLASH,
    "v1/attention/backends/mla/flashattn_mla.py": OTHER.replace("%s", "FlashAttnMLA"),
    "v1/attention/backends/registry.py": REGISTRY,
    "v1/attention/backends/triton_attn.py": OTHER.replace("%s", "TritonAttention"),
    "v1/kv_cache_interface.py": SPECS,
    "v1/worker/runner.py": RUNNER,
}


def write(folder, changes=None):
    """Writes the package into a folder. changes: {file: text, or None for a file to leave out}. Gives the folder."""
    for file, text in {**FILES, **(changes or {})}.items():
        if text is not None:
            path = folder / "vllm" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return folder


def write_wheel(path):
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in FILES.items():
            archive.writestr("vllm/" + file, text)
        archive.writestr("vllm/_C.abi3.so", b"\x7fELF")
        archive.writestr("vllm-1.2.3.dist-info/METADATA", "Name: vllm\n")
    return path
