"""Compares what was recorded with what was planned."""

import collections
import json
import math

from . import configs, exceptions, models, plans, recording


def fits(recorded, planned, prescaled):
    same_scale = math.isclose(recorded.scale, planned.scale, rel_tol=1e-3)
    if prescaled and recorded.scale == 1.0:
        same_scale = math.isclose(planned.scale, planned.head_dim_qk ** -0.5, rel_tol=1e-3)
    return (same_scale and recorded.q_heads == planned.q_heads
            and recorded.kv_heads in (None, planned.kv_heads)
            and (recorded.head_dim_qk, recorded.head_dim_vo) == (planned.head_dim_qk, planned.head_dim_vo)
            and recorded.mask in ("unknown", planned.mask)
            and recorded.sink == planned.sink
            and math.isclose(recorded.softcap or 0.0, planned.softcap or 0.0))


def differences(recorded, plan, model_type):
    """(layers that only the code has, layers that only the plan has)."""
    prescaled = model_type in exceptions.PRESCALED
    left, rest = dict(collections.Counter(recorded)), dict(plan.layers)
    if model_type in exceptions.REPEATED:
        left = {attention: 1 for attention in left}
        rest = {attention: 1 for attention in rest}
    for attention in left:
        for planned in rest:
            if fits(attention, planned, prescaled):
                both = min(left[attention], rest[planned])
                left[attention] -= both
                rest[planned] -= both
    return ({attention: layers for attention, layers in left.items() if layers},
            {attention: layers for attention, layers in rest.items() if layers})


class Verdict:
    """What became of one configuration: "agrees", "refused", "named", "excepted", "silent" or "not judged"."""

    def __init__(self, model_type, change, word, text=""):
        self.model_type, self.change, self.word, self.text = model_type, change, word, text

    def __str__(self):
        change = f" with {self.change}" if self.change else ""
        return f"{self.model_type}{change}: {self.word}{': ' + self.text if self.text else ''}"


def layers_text(layers):
    return ", ".join(f"{count} x [{attention}]" for attention, count in layers.items()) or "nothing"


def judge(command, folder, file, field="", change=""):
    """`field` is the one that was changed. Returns the verdict and the file's plan."""
    model_type = file["model_type"]
    path = folder / "config.json"
    path.write_text(json.dumps(file))
    plan = plans.plan_model(command, path)
    try:
        recorded = models.record(configs.load(file))
    except recording.Unjudgeable as error:
        return Verdict(model_type, change, "not judged", str(error)), plan
    except Exception as error:  # a configuration that transformers itself refuses
        lines = str(error).splitlines() or [""]
        return Verdict(model_type, change, "not judged", f"{type(error).__name__}: {' '.join(lines)[:200]}"), plan
    only_code, only_plan = differences(recorded, plan, model_type)
    refused = plan.exit_code != 0
    if not only_plan and (refused or not only_code):
        return Verdict(model_type, change, "refused" if refused and only_code else "agrees"), plan
    text = f"the code has {layers_text(only_code)}, the plan {layers_text(only_plan)}"
    reason = exceptions.reason(model_type, field)
    if reason:
        return Verdict(model_type, change, "excepted", f"{reason} ({text})"), plan
    if field and plan.names(field):
        return Verdict(model_type, change, "named", text), plan
    return Verdict(model_type, change, "silent", text), plan
