"""What the oracle does not hold against a plan, each with its reason."""

# The code multiplies q (or q and k) by the factor itself and calls attention with a scale of 1: the same logits.
PRESCALED = {
    "blip-2": "its language model is OPT",
    "esm": "multiplies q by head_dim ** -0.5",
    "instructblip": "its language model is OPT",
    "instructblipvideo": "its language model is OPT",
    "openai_privacy_filter": "multiplies q and k by head_dim ** -0.25 each",
    "opt": "multiplies q by head_dim ** -0.5",
    "whisper": "multiplies q by head_dim ** -0.5",
}

# Types whose code runs each layer several times.
REPEATED = {
    "hrm_text": "cycles through its layers",
    "longcat_flash": "has two attentions in each layer",
}

# (type, field or "" for the default configuration): why a difference is none of the reader's.
DIFFERENCES = {
    ("deepseek_v32", "num_key_value_heads"): "the class repeats keys that it has made for each query head: such a file "
                                             "runs nowhere",
    ("gemma3", "use_bidirectional_attention"): "the class of models that see images keeps causal masks and halves the "
                                               "window all the same; no published file says it",
}


def reason(model_type, field=""):
    return DIFFERENCES.get((model_type, field)) or DIFFERENCES.get(("*", field))
