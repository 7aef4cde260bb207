#!/usr/bin/env python3
"""Holds `attnsmith plan --model` against transformers' own code.

Each type's default configuration is built on the meta device and run once with an attention function that records
what it gets; then so are seeded changes of one field. A difference is silent where the plan exits 0 and no warning
names the field. Exits 1 where any is.

    PYTHONPATH=TRANSFORMERS_5.24 python tests/python/model_oracle/oracle.py --command build/release/bin/attnsmith --all
"""

import argparse
import collections
import hashlib
import logging
import os
import pathlib
import random
import sys
import tempfile
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

VERSION = "5.24.0"
# What CI judges: types of each way in which a file says what its layers are.
SAMPLE = ("llama", "gemma3_text", "gpt_oss", "qwen2_moe", "mimo_v2_flash", "granite_swa", "minimax", "cohere2",
          "deepseek_v3", "gpt_neox", "mbart", "eurobert", "gemma2", "exaone4", "llama4_text", "qwen3_next", "falcon",
          "granite", "modernbert", "step3p7", "gemma4_unified_text", "glm4", "smollm3", "mistral4", "bert", "vit", "phi3",
          "t5gemma", "olmo3", "starcoder2", "recurrent_gemma", "lfm2")


def types_of(config_mapping, options):
    types = options.types or (sorted(config_mapping) if options.all else SAMPLE)
    return types[options.shard::options.shards]


def seed_of(model_type, seed):
    """The same in every process."""
    return int(hashlib.sha256(f"{model_type}/{seed}".encode()).hexdigest()[:12], 16)


def judge_type(options, folder, model_type, verdicts):
    """The default; of a known type, changes of one field, too. Returns whether the reader knows the type."""
    from model_oracle import configs, judge, models, recording

    try:
        file = configs.default_file(model_type)
        cls = next(models.classes_of(configs.load(file)), None)
    except Exception as error:  # some defaults are refused by their own class
        verdicts.append(judge.Verdict(model_type, "", "not judged", f"{type(error).__name__}: {error}"[:200]))
        return False
    if cls is not None:
        file["architectures"] = [cls.__name__]
    verdict, plan = judge.judge(options.command, folder, file)
    verdicts.append(verdict)
    known = not plan.error and not any(kind == "unknown_type" for kind, _, _ in plan.warnings)
    if not known or verdict.word not in ("agrees", "refused") or not plan.layers:
        return known
    rng = random.Random(seed_of(model_type, options.seed))
    changes = list(configs.changes(file, rng))
    rng.shuffle(changes)
    judged = 0
    for field, change, changed in changes:
        if judged == options.changes or time.monotonic() > options.deadline:
            break
        verdict, _ = judge.judge(options.command, folder, changed, field, change)
        verdicts.append(verdict)
        judged += verdict.word != "not judged"
    return known


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default=os.environ.get("ATTNSMITH_BIN", "attnsmith"))
    parser.add_argument("--all", action="store_true", help="every type; else a sample, as CI has it")
    parser.add_argument("--types", nargs="*", default=[], help="these types alone")
    parser.add_argument("--changes", type=int, default=None, help="judged changes of each known type")
    parser.add_argument("--seconds", type=float, default=None, help="begin nothing after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print every verdict")
    options = parser.parse_args(arguments)
    if options.changes is None:
        options.changes = 10 if options.all or options.types else 3
    if options.seconds is None:
        options.seconds = float("inf") if options.all or options.types else 60
    options.deadline = time.monotonic() + options.seconds
    return options


def run(options):
    """All verdicts, and the known types."""
    import transformers

    if transformers.__version__ != VERSION:
        raise SystemExit(f"oracle: transformers is {transformers.__version__}; the list of exceptions is of {VERSION}")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    verdicts, known = [], []
    with tempfile.TemporaryDirectory() as folder:
        for model_type in types_of(transformers.CONFIG_MAPPING, options):
            if time.monotonic() > options.deadline:
                break
            before = len(verdicts)
            if judge_type(options, pathlib.Path(folder), model_type, verdicts):
                known.append(model_type)
            for verdict in verdicts[before:]:
                if verdict.word in ("silent", "excepted") or options.verbose:
                    print(verdict, flush=True)
    return verdicts, known


def summary(verdicts, known):
    defaults = [verdict for verdict in verdicts if not verdict.change]
    changes = [verdict for verdict in verdicts if verdict.change]
    lines = []
    for name, group in (("known types", [each for each in defaults if each.model_type in known]),
                        ("unknown types", [each for each in defaults if each.model_type not in known]),
                        ("changes of one field", changes)):
        words = collections.Counter(verdict.word for verdict in group)
        judged = sum(count for word, count in words.items() if word != "not judged")
        lines.append(f"{name}: {judged} judged of {len(group)}: "
                     + (", ".join(f"{count} {word}" for word, count in sorted(words.items())) or "none"))
    return "\n".join(lines)


def main(arguments=None):
    options = parse(arguments)
    verdicts, known = run(options)
    for verdict in verdicts:
        if verdict.word == "not judged" and not verdict.change and verdict.model_type in known:
            print(verdict)
    print(summary(verdicts, known))
    return 1 if any(verdict.word == "silent" for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
