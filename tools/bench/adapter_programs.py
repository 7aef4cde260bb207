"""Two language models in plain torch, whose training loops many people copy: their attention is a call of torch's SDPA."""

import torch
from torch import nn
from torch.nn import functional


class GptBlock(nn.Module):
    """As in nanoGPT: layer norms with weights, GELU, q, k and v in one projection."""

    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width, bias=False) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norms[0](x)).split(width, 2))
        o = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class NanoGpt(nn.Module):
    """Learned positions, and the embedding's weights also for the logits."""

    def __init__(self, vocabulary, length, layers, heads, width):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([GptBlock(heads, width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _norm(x):
    return functional.rms_norm(x, (x.shape[-1],))


class ChatBlock(nn.Module):
    """As in nanochat: GQA, rotation, norms of q and k, squared ReLU, no weights in norms."""

    def __init__(self, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, width = heads, kv_heads, head_dim, heads * head_dim
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * head_dim, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape

        def rotated(x):
            a, b = x.chunk(2, -1)
            return _norm(torch.cat((a * cos + b * sin, b * cos - a * sin), -1))

        normed = _norm(x)
        q = rotated(self.q(normed).view(batch, length, self.heads, self.head_dim)).transpose(1, 2)
        k = rotated(self.k(normed).view(batch, length, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v(normed).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(o.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.relu(self.up(_norm(x))).square())


class NanoChat(nn.Module):
    """Logits have weights of their own and a softcap."""

    def __init__(self, vocabulary, length, layers, heads, kv_heads, head_dim):
        super().__init__()
        self.tokens, self.head = nn.Embedding(vocabulary, heads * head_dim), nn.Linear(heads * head_dim, vocabulary, bias=False)
        self.blocks = nn.ModuleList([ChatBlock(heads, kv_heads, head_dim) for _ in range(layers)])
        frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(length).float(), frequencies)[None, :, None]
        self.register_buffer("cos", angles.cos().bfloat16())
        self.register_buffer("sin", angles.sin().bfloat16())

    def forward(self, tokens):
        x = _norm(self.tokens(tokens))
        for block in self.blocks:
            x = block(x, self.cos[:, :tokens.shape[1]], self.sin[:, :tokens.shape[1]])
        return 15 * torch.tanh(self.head(_norm(x)) / 15)
