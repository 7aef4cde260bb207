"""Builds a configuration's model on the meta device and runs it once."""

import contextlib
import inspect
import signal

import torch
from transformers.models.auto import modeling_auto

from . import recording
from .configs import WINDOWS

SECONDS = 60
LONGEST = 9000
# The heads that a published file of the type would have, in order of preference.
MAPPINGS = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
            "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", "MODEL_FOR_MULTIMODAL_LM_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING",
            "MODEL_FOR_MASKED_LM_MAPPING", "MODEL_FOR_PRETRAINING_MAPPING", "MODEL_MAPPING")


def classes_of(config):
    names = MAPPINGS
    if not config.is_encoder_decoder and getattr(config, "is_decoder", None) is False:
        names = ("MODEL_FOR_MASKED_LM_MAPPING", "MODEL_MAPPING", *MAPPINGS)
    for name in names:
        mapping = getattr(modeling_auto, name, None)
        if mapping is None or type(config) not in mapping:
            continue
        found = mapping[type(config)]
        yield found[0] if isinstance(found, tuple) else found


@contextlib.contextmanager
def time_limit(seconds):
    def expire(*_):
        raise TimeoutError(f"takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def configs_within(config):
    yield config
    for name in getattr(config, "sub_configs", {}):
        inner = getattr(config, name, None)
        if inner is not None and hasattr(inner, "to_dict"):
            yield from configs_within(inner)


def sequence_length(config):
    """Longer than any window."""
    longest = 512
    for part in configs_within(config):
        for name in WINDOWS:
            value = getattr(part, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                longest = max(longest, value + 112)
    if longest > LONGEST:
        raise recording.Unjudgeable(f"a window of {longest - 112} keys")
    positions = getattr(config, "max_position_embeddings", None)
    if longest > 512 or not isinstance(positions, int) or positions <= 0:
        return longest  # a window must show, and positions that rotate have no end
    return min(longest, positions)


def pixels(model, config):
    """An input of a model that sees, or hears."""
    name = model.main_input_name
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return {name: torch.empty(1, getattr(config, "num_channels", 3), height, width, device="meta", dtype=torch.bfloat16)}
    if name == "input_values":
        return {name: torch.empty(1, 16000, device="meta", dtype=torch.bfloat16)}
    if name == "input_features" and hasattr(config, "num_mel_bins"):
        return {name: torch.empty(1, config.num_mel_bins, 3000, device="meta", dtype=torch.bfloat16)}
    raise recording.Unjudgeable(f"needs {name}")


def inputs_of(model, config, length):
    ids = torch.zeros(1, length, dtype=torch.long, device="meta")
    if config.is_encoder_decoder:
        other = torch.zeros(1, length + 16, dtype=torch.long, device="meta")
        if model.main_input_name == "input_ids":
            return {"input_ids": other, "decoder_input_ids": ids}
        return {**pixels(model, config), "decoder_input_ids": ids}
    if model.main_input_name == "input_ids":
        return {"input_ids": ids}
    return pixels(model, config)


# transformers' name of an implementation, and whether its masks are made on the CPU, where they have values.
WAYS = ((recording.NAME, True), ("sdpa", True), ("sdpa", False), ("eager", True), ("eager", False))


class WithoutValues(torch.overrides.TorchFunctionMode):
    """Gives the values that routers of experts and the like ask for: tensors on the meta device have none."""

    def __torch_function__(self, function, types, arguments=(), words=None):
        tensor = arguments[0] if arguments else None
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
            if function in (torch.nonzero, torch.Tensor.nonzero):
                return torch.empty(0, tensor.dim(), dtype=torch.long, device="meta")
            if function is torch.Tensor.item:
                return False if tensor.dtype == torch.bool else 0
        return function(*arguments, **(words or {}))


def run(config, cls, way, cpu_masks, length):
    """The attentions of one forward pass of a class."""
    with recording.recording(length, way, cpu_masks) as recorder:
        config._attn_implementation = way
        model = cls._from_config(config, attn_implementation=way, dtype=torch.bfloat16).eval()
        inputs = inputs_of(model, config, length)
        if "input_ids" not in inputs and "decoder_input_ids" not in inputs:
            recorder.queries = None
        words = inspect.signature(model.forward).parameters
        with WithoutValues():
            model(**inputs, use_cache=False) if "use_cache" in words else model(**inputs)
    if not recorder.calls:
        raise recording.Unjudgeable("nothing was recorded")
    return recorder.calls


def runnable(config):
    """The classes that have the file's attention, the likeliest first; of a wrapper, those of its language model, too."""
    for cls in dict.fromkeys(classes_of(config)):
        yield config, cls
    inner = config.get_text_config(decoder=True)
    if inner is not config:
        for cls in dict.fromkeys(classes_of(inner)):
            yield inner, cls


def record(config):
    """The attentions of one forward pass, one for each layer, by the first class and way that can be run."""
    errors = []
    with time_limit(SECONDS), torch.device("meta"), torch.no_grad():
        for config, cls in runnable(config):
            length = sequence_length(config)
            for way, cpu_masks in WAYS:
                try:
                    return run(config, cls, way, cpu_masks, length)
                except TimeoutError as error:
                    raise recording.Unjudgeable(str(error)) from error
                except Exception as error:  # whatever transformers' code throws, the next way may work
                    lines = str(error).splitlines() or [""]
                    errors.append(f"{type(error).__name__}: {lines[0][:160]}")
    raise recording.Unjudgeable("; ".join(list(dict.fromkeys(errors))[:2]) or "no class of a model")
