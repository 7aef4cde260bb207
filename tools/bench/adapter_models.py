"""The models of adapters.py: true widths and few layers, built from configurations with random weights. Nothing is downloaded.

A package is imported where a model of it is built, so the list itself needs none, torch included.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

PACKAGES = {"timm": "timm", "diffusers": "diffusers", "x_transformers": "x-transformers", "transformers": "transformers"}
VOCABULARY = 32000


class Program(NamedTuple):
    """A module with its inputs, which a case runs in each step."""

    module: Any
    inputs: Dict[str, Any]
    output: Callable[[Any], Any]  # the tensor of a result that is compared, and that the loss is made of
    labels: Any = None  # of a language model, whose output are logits
    target: Any = None  # of others, whose loss is the mean square of what they are off from it
    autocast: bool = False  # weights in fp32, as nanoGPT has them
    for_graphs: Dict[str, Any] = {}  # more inputs, where the forward is traced or captured

    def traced(self):
        return self._replace(inputs={**self.inputs, **self.for_graphs})

    def with_target(self):
        """Random numbers: with 0, a model that ends in a norm would have no gradients."""
        import torch
        with torch.no_grad():
            return self if self.labels is not None else self._replace(target=torch.randn_like(self.forward().float()))

    def forward(self, module=None):
        """By `module` where it is given: the same one, compiled."""
        import torch
        device = next(self.module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16) if self.autocast else contextlib.nullcontext():
            return self.output((self.module if module is None else module)(**self.inputs))

    def loss(self):
        import torch
        output = self.forward()
        if self.labels is None:
            return (output.float() - self.target).square().mean()
        return torch.nn.functional.cross_entropy(output.float().flatten(0, -2), self.labels.flatten())


class Model(NamedTuple):
    name: str
    module: str  # the Python module that it needs, next to torch
    make: Callable[[], Program]
    modes: Tuple[str, ...] = ("forward", "training")

    @property
    def ways(self):
        """How attnsmith is switched on."""
        return ("activate()", "attn_implementation") if self.module == "transformers" else ("activate()",)

    def missing(self):
        """Why it cannot be built here, or None."""
        if self.module == "torch" or importlib.util.find_spec(self.module) is not None:
            return None
        return "%s is not installed (pip install %s)" % ((PACKAGES[self.module],) * 2)


def versions():
    """Of the packages that models come from: None where one is not installed."""
    found: Dict[str, Optional[str]] = {}
    for package in PACKAGES.values():
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def build(model, device):
    """Its program on that device, in bf16, with random weights from a fixed seed."""
    import torch
    torch.manual_seed(0)
    if model.module == "diffusers":  # which warns of every Module.to
        importlib.import_module("diffusers.utils.logging").set_verbosity_error()
    with torch.device(device):
        program = model.make()
        program.module.eval().to(torch.float32 if program.autocast else torch.bfloat16)
        _draw(program.module)
    return program


def _draw(module):
    """Weights by which every layer shows in the output: many models start with branches or layer scales of about 0."""
    import torch
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, weight[0].numel() ** -0.5)
            elif name.endswith("gamma"):  # timm's layer scales
                weight.fill_(1)


def _images(batch, size, channels=3):
    import torch
    return torch.randn(batch, channels, size, size, dtype=torch.bfloat16)


def _randn(*shape):
    import torch
    return torch.randn(shape, dtype=torch.bfloat16)


def _tokens(batch, length):
    import torch
    return torch.randint(3, VOCABULARY, (batch, length))


def _ones(batch, length):
    import torch
    return torch.ones(batch, length, dtype=torch.long)


# ---- timm ----


def _timm(name, batch, size, **options):
    def make():
        timm = importlib.import_module("timm")
        return Program(timm.create_model(name, pretrained=False, **options), {"x": _images(batch, size)}, lambda logits: logits)

    return make


# ---- diffusers ----


def _sample(result):
    return result[0]


def _flux():
    import torch
    from diffusers import FluxTransformer2DModel
    side, text = 64, 512  # an image of 1024 x 1024
    module = FluxTransformer2DModel(num_layers=1, num_single_layers=2, guidance_embeds=True)
    places = torch.arange(side * side)
    ids = torch.stack((torch.zeros_like(places), places // side, places % side), -1).float()
    return Program(module, {
        "hidden_states": _randn(1, side * side, 64), "encoder_hidden_states": _randn(1, text, 4096),
        "pooled_projections": _randn(1, 768), "timestep": torch.full((1,), 0.5), "img_ids": ids,
        "txt_ids": torch.zeros(text, 3), "guidance": torch.full((1,), 3.5), "return_dict": False}, _sample)


def _sd3():
    import torch
    from diffusers import SD3Transformer2DModel
    module = SD3Transformer2DModel(sample_size=128, num_layers=4, num_attention_heads=24, attention_head_dim=64,
                                   joint_attention_dim=4096, caption_projection_dim=1536, pooled_projection_dim=2048,
                                   pos_embed_max_size=192)
    return Program(module, {
        "hidden_states": _images(2, 128, 16), "encoder_hidden_states": _randn(2, 333, 4096),
        "pooled_projections": _randn(2, 2048), "timestep": torch.full((2,), 500.0), "return_dict": False}, _sample)


def _pixart():
    import torch
    from diffusers import PixArtTransformer2DModel
    module = PixArtTransformer2DModel(sample_size=128, num_layers=4, caption_channels=4096, use_additional_conditions=False)
    return Program(module, {
        "hidden_states": _images(2, 128, 4), "encoder_hidden_states": _randn(2, 300, 4096),
        "timestep": torch.full((2,), 500), "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        "return_dict": False}, _sample)


def _wan():
    import torch
    from diffusers import WanTransformer3DModel
    module = WanTransformer3DModel(num_attention_heads=12, attention_head_dim=128, ffn_dim=8960, num_layers=2)
    return Program(module, {
        "hidden_states": _randn(1, 16, 5, 60, 104), "encoder_hidden_states": _randn(1, 512, 4096),
        "timestep": torch.full((1,), 500), "return_dict": False}, _sample)


def _unet(batch, side, context, **options):
    def make():
        import torch
        from diffusers import UNet2DConditionModel
        module = UNet2DConditionModel(sample_size=side, layers_per_block=1, cross_attention_dim=context, **options)
        return Program(module, {"sample": _images(batch, side, 4), "encoder_hidden_states": _randn(batch, 77, context),
                                "timestep": torch.full((batch,), 500), "return_dict": False}, _sample)

    return make


# ---- x-transformers ----


def _x_decoder():
    from x_transformers import Decoder, TransformerWrapper
    module = TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=2048, attn_layers=Decoder(
        dim=1024, depth=6, heads=16, attn_dim_head=64, attn_flash=True, rotary_pos_emb=True))
    return Program(module, {"x": _tokens(2, 2048)}, lambda logits: logits, _tokens(2, 2048))


def _x_encoder():
    from x_transformers import Encoder, ViTransformerWrapper
    module = ViTransformerWrapper(image_size=256, patch_size=16, num_classes=1000, attn_layers=Encoder(
        dim=768, depth=6, heads=12, attn_flash=True))
    return Program(module, {"img": _images(16, 256)}, lambda logits: logits)


# ---- transformers ----


def _class(transformers, name):
    if name == "WhisperEncoder":  # which the package itself does not export
        return importlib.import_module("transformers.models.whisper.modeling_whisper").WhisperEncoder
    return getattr(transformers, name)


def _of_transformers(module_class, config_class, config, inputs, output, labels=None, for_graphs=dict):
    """By the classes' names; inputs, labels and for_graphs: what makes them."""
    def make():
        import torch
        transformers = importlib.import_module("transformers")
        made = getattr(transformers, config_class)(**config)
        module = _class(transformers, module_class)._from_config(made, dtype=torch.bfloat16, attn_implementation="sdpa")
        return Program(module, inputs(), output, labels() if labels is not None else None,
                       for_graphs=for_graphs())

    return make


def _decoder(family, batch=2, length=2048, **config):
    fields = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, "pad_token_id": 0, "bos_token_id": 1,
              "eos_token_id": 2, "use_cache": False, **config}
    names = ("GPT2LMHeadModel", "GPT2Config") if family == "GPT2" else (f"{family}ForCausalLM", f"{family}Config")
    if family == "Gemma3":
        names = ("Gemma3ForCausalLM", "Gemma3TextConfig")
    # In a graph transformers cannot look whether sequences are packed, and takes them for it without a mask.
    return _of_transformers(*names, fields, lambda: {"input_ids": _tokens(batch, length), "use_cache": False},
                            lambda result: result.logits, lambda: _tokens(batch, length),
                            lambda: {"attention_mask": _ones(batch, length)})


def _widths(hidden, intermediate, heads, kv_heads, head_dim, layers, **others):
    return {"hidden_size": hidden, "intermediate_size": intermediate, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head_dim, "num_hidden_layers": layers, **others}


def _encoder(module_class, config_class, config, inputs):
    return _of_transformers(module_class, config_class, config, inputs, lambda result: result.last_hidden_state)


def _text_encoder(family, batch, length):
    config = {"vocab_size": VOCABULARY, "max_position_embeddings": 514, "pad_token_id": 1, "num_hidden_layers": 6}
    return _encoder(f"{family}Model", f"{family}Config", config, lambda: {"input_ids": _tokens(batch, length)})


def _padded_bert():
    """Rows of 512 tokens down to 160, as a batch of sentences has them. What stands at padding is no result."""
    import torch
    program = _text_encoder("Bert", 16, 512)()
    lens = torch.linspace(160, 512, 16).long()
    seen = (torch.arange(512)[None] < lens[:, None]).long()
    return program._replace(inputs={**program.inputs, "attention_mask": seen},
                            output=lambda result: result.last_hidden_state * seen[..., None])


# ---- plain torch ----


def _nanogpt():
    from adapter_programs import NanoGpt
    return Program(NanoGpt(VOCABULARY, length=1024, layers=6, heads=12, width=768), {"tokens": _tokens(8, 1024)},
                   lambda logits: logits, _tokens(8, 1024), autocast=True)


def _nanochat():
    from adapter_programs import NanoChat
    return Program(NanoChat(VOCABULARY, length=2048, layers=6, heads=10, kv_heads=5, head_dim=128), {"tokens": _tokens(4, 2048)},
                   lambda logits: logits, _tokens(4, 2048))


ALL_MODES = ("forward", "training", "compile", "graph")
WITH_GRAPH = ("forward", "training", "graph")

MODELS = (
    Model("nanoGPT, 12 heads of 64", "torch", _nanogpt),
    Model("nanochat, 10/5 heads of 128", "torch", _nanochat, ALL_MODES),
    Model("timm ViT-B/16", "timm", _timm("vit_base_patch16_224", 32, 224), ALL_MODES),
    Model("timm ViT-S/16", "timm", _timm("vit_small_patch16_224", 64, 224)),
    Model("timm DeiT-B/16 distilled", "timm", _timm("deit_base_distilled_patch16_224", 32, 224)),
    Model("timm DeiT III-S/16 at 384", "timm", _timm("deit3_small_patch16_384", 32, 384)),
    Model("timm EVA-02-S/14 at 336", "timm", _timm("eva02_small_patch14_336", 16, 336)),
    Model("timm SigLIP-B/16 at 256", "timm", _timm("vit_base_patch16_siglip_256", 32, 256, num_classes=1000)),
    Model("timm DINOv2-S/14 at 518", "timm", _timm("vit_small_patch14_reg4_dinov2", 8, 518, num_classes=1000)),
    Model("timm Hiera-T", "timm", _timm("hiera_tiny_224", 32, 224)),
    Model("timm PVTv2-B1", "timm", _timm("pvt_v2_b1", 32, 224)),
    Model("diffusers Flux, 1024 x 1024", "diffusers", _flux, WITH_GRAPH),
    Model("diffusers SD3, 1024 x 1024", "diffusers", _sd3),
    Model("diffusers PixArt, 1024 x 1024", "diffusers", _pixart),
    Model("diffusers Wan, 5 frames of 480 x 832", "diffusers", _wan),
    Model("diffusers SD 1.5 UNet, 512 x 512", "diffusers", _unet(4, 64, 768, attention_head_dim=8)),
    Model("diffusers SDXL UNet, 1024 x 1024", "diffusers", _unet(
        2, 128, 2048, attention_head_dim=(5, 10, 20), block_out_channels=(320, 640, 1280), use_linear_projection=True,
        transformer_layers_per_block=(1, 1, 2), down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"))),
    Model("x-transformers decoder", "x_transformers", _x_decoder),
    Model("x-transformers ViT", "x_transformers", _x_encoder),
    Model("Llama 3.2 1B", "transformers", _decoder("Llama", **_widths(2048, 8192, 32, 8, 64, 4)), ALL_MODES),
    Model("Qwen2 0.5B", "transformers", _decoder("Qwen2", **{
        name: value for name, value in _widths(896, 4864, 14, 2, 64, 6).items() if name != "head_dim"})),
    Model("Qwen3 0.6B", "transformers", _decoder("Qwen3", **_widths(1024, 3072, 16, 8, 128, 6)), WITH_GRAPH),
    Model("Mistral 7B, window 1024", "transformers", _decoder("Mistral", **_widths(
        4096, 14336, 32, 8, 128, 2, sliding_window=1024))),
    # SDPA has no softcap, so it is off in both.
    Model("Gemma 2 2B without softcap", "transformers", _decoder("Gemma2", **_widths(
        2304, 9216, 8, 4, 256, 4, sliding_window=4096, attn_logit_softcapping=None))),
    Model("Gemma 3 1B, windows of 512", "transformers", _decoder("Gemma3", **_widths(
        1152, 6912, 4, 1, 256, 6, sliding_window=512))),
    Model("Phi-3 mini", "transformers", _decoder("Phi3", **{
        name: value for name, value in _widths(3072, 8192, 32, 32, 96, 2, original_max_position_embeddings=4096).items()
        if name != "head_dim"})),
    Model("GPT-2", "transformers", _decoder("GPT2", batch=4, length=1024, n_embd=768, n_head=12, n_layer=6, n_positions=1024)),
    Model("BERT", "transformers", _text_encoder("Bert", 16, 512), WITH_GRAPH),
    Model("BERT, padded", "transformers", _padded_bert),
    Model("RoBERTa", "transformers", _text_encoder("Roberta", 16, 512)),
    Model("ViT-B/16", "transformers", _encoder(
        "ViTModel", "ViTConfig", {"num_hidden_layers": 6}, lambda: {"pixel_values": _images(32, 224)})),
    Model("CLIP text", "transformers", _encoder(
        "CLIPTextModel", "CLIPTextConfig", {"num_hidden_layers": 6}, lambda: {"input_ids": _tokens(32, 77)})),
    Model("CLIP vision", "transformers", _encoder(
        "CLIPVisionModel", "CLIPVisionConfig", {"patch_size": 14, "hidden_size": 1024, "intermediate_size": 4096,
                                                "num_attention_heads": 16, "num_hidden_layers": 6},
        lambda: {"pixel_values": _images(16, 224)})),
    Model("Whisper encoder", "transformers", _encoder(
        "WhisperEncoder", "WhisperConfig", {"d_model": 768, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
                                            "encoder_layers": 6, "pad_token_id": 0},
        lambda: {"input_features": _randn(8, 80, 3000)})),
)
