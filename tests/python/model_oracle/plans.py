"""What `attnsmith plan --model` says of a config.json."""

import dataclasses
import json
import subprocess

from .recording import Attention


@dataclasses.dataclass(frozen=True)
class Plan:
    exit_code: int
    layers: dict  # Attention -> layers, of the prefill
    unsupported: tuple  # texts
    warnings: tuple  # (kind, field, text)
    error: str = ""

    def names(self, field):
        """Whether a warning, or a part that is not supported, names the field."""
        name = field.split(".")[-1]
        texts = [self.error, *self.unsupported] + [f"{where} {text}" for _, where, text in self.warnings]
        return any(name in text for text in texts)


def mask_of(request):
    left, right, chunk = request["window_left"], request["window_right"], request["attention_chunk"]
    if request["mask"] == "full":
        return "full" if left is None and right is None else f"full window {left} {right}"
    if chunk:
        return f"causal chunk {chunk}"
    return "causal" if left is None else f"causal window {left}"


def plan_model(command, file):
    """A request of few tokens, so that models whose indexer selects keys are planned as dense attention."""
    run = subprocess.run([command, "plan", "--model", str(file), "--sm", "90", "--json", "--q-len", "128", "--kv-len",
                          "128", "--batch", "1"], capture_output=True, text=True, timeout=60)
    if not run.stdout.strip():
        return Plan(run.returncode, {}, (), (), run.stderr.strip())
    answer = json.loads(run.stdout)
    if "plans" not in answer:
        return Plan(run.returncode, {}, (), (), run.stderr.strip() or run.stdout.strip())
    layers = {}
    for plan in answer["plans"]:
        request, model = plan["request"], plan["model"]
        if model["phase"] != "prefill":
            continue
        mask = "alibi" if request["alibi"] else mask_of(request)
        attention = Attention(request["q_heads"], request["kv_heads"], request["head_dim_qk"], request["head_dim_vo"],
                              request["scale"], mask, request["softcap"], request["sink"])
        layers[attention] = layers.get(attention, 0) + model["layers"]
    parts = [*answer["unsupported"], *answer.get("skipped", [])]
    return Plan(run.returncode, layers, tuple(json.dumps(part) for part in parts),
                tuple((each["kind"], each["field"], each["text"]) for each in answer["warnings"]))
