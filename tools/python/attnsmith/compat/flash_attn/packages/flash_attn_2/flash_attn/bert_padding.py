"""attnsmith's functions as flash_attn.bert_padding."""

from attnsmith.compat.flash_attn.bert_padding import *  # noqa: F403
