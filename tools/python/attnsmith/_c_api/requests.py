"""The words of a request, as the JSON that the library reads: it checks them, and names the nearest to a wrong one."""

from __future__ import annotations

import json
import math
import numbers
import operator
import os
from ctypes import byref
from typing import Any, Callable, Iterable, List, Mapping, Optional, Tuple, get_args

from .._base import reports
from .._base.arguments import check_iterable, is_iterable, refuse_unknown
from .._base.integers import shown
from ..errors import InvalidRequest
from ..words import CacheOperation, ModelChoices, Request
from . import abi
from .library import Library, library

_MOST_MODEL_BYTES = 16 << 20  # the library takes no longer text
_MOST_RECORDED_BYTES = 64 << 20  # as much as the command reads


def _plain(name: str, value: Any, accepted: str = "a number, a bool or a word") -> Any:
    """As JSON has it: numbers of other libraries (numpy's) become Python's."""
    if name.endswith("dtype"):
        value = dtype_name(value) or value
        accepted = f'a dtype or its name, such as "{"int32" if name == "index_dtype" else "bf16"}"'
    if isinstance(value, (bool, str)):
        return value
    if hasattr(value, "__index__") and not isinstance(value, type):
        try:
            integer = operator.index(value)
        except TypeError:  # of a tensor that holds no single integer
            raise InvalidRequest(name, shown(value), accepted) from None
        _finite(name, integer)  # JSON's numbers are no longer
        return integer
    if isinstance(value, numbers.Real):
        return _finite(name, value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise InvalidRequest(name, shown(value), accepted)


def _finite(name: str, value: Any) -> float:
    """A number as a float. Raises InvalidRequest."""
    try:
        number = float(value)
    except OverflowError:
        raise InvalidRequest(name, shown(value), "a finite number") from None
    if not math.isfinite(number):
        raise InvalidRequest(name, str(number), "a finite number")
    return number


def _plain_values(name: str, value: Any) -> Any:
    """The same of a word that may have several values."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(name, one) for one in value]
    return _plain(name, value)


def dtype_name(value: Any) -> Optional[str]:
    """"bfloat16", of torch.bfloat16, a dtype of numpy's kind, or a class of such scalars (numpy.float16, jax.numpy.bfloat16);
    None for what is no dtype."""
    if isinstance(value, type):
        return dtype_name(getattr(value, "dtype", None)) or (value.__name__ if hasattr(value, "itemsize") else None)
    name = str(value).rpartition(".")[2] if type(value).__name__ == "dtype" else getattr(value, "name", None)
    return name if isinstance(name, str) and hasattr(value, "itemsize") else None


# What attention() and its like call a word of a request, and how a request has it.
_WORDS_OF_FUNCTIONS = {"causal": 'mask="causal"', "window": "window_left=..., window_right=...", "sinks": "sink=True",
                       "alibi_slopes": "alibi=True", "return_lse": "lse=True"}


_WORDS_FOR_MODELS = ("config", "model", "models")


def check_words(words: Mapping[str, Any]) -> None:
    """Refuses a word of the plain functions, or of those for models, which the library cannot know, with what takes it."""
    for name in _WORDS_FOR_MODELS:
        if words.get(name) is not None:
            raise InvalidRequest(name, "a model in a request", "plan_model(config) or prewarm(models=config) for a model")
    for name, remedy in _WORDS_OF_FUNCTIONS.items():
        if words.get(name) is not None:
            raise InvalidRequest(name, shown(words[name]), f"{remedy}, as a request has it")


def check_options(options: Mapping[str, Any], models: bool, arguments: Iterable[str]) -> None:
    """Refuses what prewarm() was given by name and no model takes, with the argument that it belongs to. `models`:
    whether there is a model to take any; `arguments`: those that prewarm() has."""
    for name in ("cache", "cache_dir", "cache_dirs"):
        if name in options:
            raise InvalidRequest(name, "an argument of prewarm()", "attnsmith.Runtime(cache_dirs=...).prewarm(...), or the "
                                 "variable ATTNSMITH_CACHE_DIR")
    if "model" in options:
        raise InvalidRequest("model", "an argument of prewarm()", "models=... (did you mean that?)")
    for name in options:
        if name in Request.__annotations__ and not (models and name in ModelChoices.__annotations__):
            also = "; as options of a model they need models=..." if name in ModelChoices.__annotations__ else ""
            raise InvalidRequest(name, "an argument of prewarm()",
                                 f"the words of a request in requests={{{name!r}: ...}}{also}")
    check_words(options)
    for name in options:
        if name not in ModelChoices.__annotations__:
            refuse_unknown(name, "prewarm", [*arguments, *ModelChoices.__annotations__])
    if options and not models:
        raise InvalidRequest(next(iter(options)), "an option of a model", "models=...: it is an option of theirs")


def to_json(words: Mapping[Any, Any]) -> bytes:
    """Words that are None are not given."""
    return json.dumps(_plain_words(words)).encode()


def _plain_words(words: Mapping[Any, Any]) -> "dict[str, Any]":
    return {str(name): _plain_values(str(name), value) for name, value in words.items() if value is not None}


def parse(opened: Library, words: Mapping[str, Any]) -> Tuple[abi.Spec, abi.Sizes]:
    """Raises InvalidRequest naming the field, Unsupported for what is not supported."""
    check_words(words)
    spec, sizes = abi.Spec(), abi.Sizes()
    opened.call(opened.functions.attnsmith_parse_request, to_json(words), byref(spec), byref(sizes))
    return spec, sizes


def filled_in(opened: Library, name: str, **words: Any) -> Any:
    """What the library makes of one word of a request that has these and is valid otherwise."""
    spec, _ = parse(opened, {"head_dim": 64, "q_heads": 1, **words})
    return opened.json(opened.functions.attnsmith_request_json, byref(spec), None)[name]


def text(name: str, value: Any) -> Optional[bytes]:
    """A path or word for the library; None where it is not given."""
    if value is None:
        return None
    try:
        encoded = os.fsencode(value)
    except (TypeError, ValueError):  # what is no text, or has characters that no path has
        raise InvalidRequest(name, shown(value), "a path") from None
    if b"\0" in encoded:
        raise InvalidRequest(name, shown(value), "text without a NUL character")
    return encoded


def path_of(name: str, value: Any) -> str:
    """A path as text. Raises InvalidRequest."""
    encoded = text(name, value)
    if encoded is None:
        raise InvalidRequest(name, "None", "a path")
    return os.fsdecode(encoded)


def cache_operation(operation: Any) -> Optional[bytes]:
    if not isinstance(operation, str) or "\0" in operation:
        known = get_args(CacheOperation)
        raise InvalidRequest("operation", shown(operation), f"{', '.join(known[:-1])} or {known[-1]}")
    return text("operation", operation)


def cache_options(options: Mapping[str, Any]) -> bytes:
    """The options of a cache operation; those that are None are not given."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("file", "oci"):
        if name in given:
            given[name] = path_of(name, given[name])
    if "sm" in given:
        given["sm"] = compute_capabilities(given["sm"])
    model = given.pop("model", None)
    plain = {name: _plain_words(value) if isinstance(value, Mapping) else _plain_values(name, value)
             for name, value in given.items()}
    if model is not None:
        plain["model"] = _model_json(model)
    return json.dumps(plain).encode()


def _model_json(model: Any) -> Any:
    """A model within other JSON, which has no NaN and Infinity: as words there, as the library reads them in a config.json."""
    try:
        return json.loads(model_text(model), parse_constant=str)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest("model", "a text", f"JSON ({error})") from error


def compute_capabilities(sm: Any) -> List[int]:
    """From what the library takes as sm: 90, "90a", "sm_90", "9.0", "80,90", "all", or a sequence of such. Empty for
    "native" alone. Warns of a suffix that says nothing, as in "90f". Raises InvalidRequest."""
    accepted = "compute capabilities such as sm=90, sm=\"9.0\" or sm=[80, 90]"
    if isinstance(sm, (bytes, bytearray, memoryview, Mapping)):  # which can be iterated over, but mean something else
        raise InvalidRequest("sm", shown(sm), accepted)
    if isinstance(sm, str) or not is_iterable(sm):
        given = _plain("sm", sm, accepted)
    else:
        given = [_plain("sm", one, accepted) for one in sm]
        if not given:
            raise InvalidRequest("sm", "an empty list", accepted)
    request = {"op": "merge", "head_dim_vo": 64, "q_heads": 1, "sm": given}  # any that is valid
    opened = library()
    covered = opened.json(opened.functions.attnsmith_request_coverage_json, json.dumps(request).encode())
    for warning in covered["warnings"]:
        reports.warn(warning["text"])
    found: List[int] = covered["attentions"][0]["request"]["sm"]
    return found


def each(name: str, given: Any, is_one: Callable[[Any], bool]) -> Iterable[Any]:
    """An argument that may be one thing or several, as several; None is nothing. Raises InvalidRequest."""
    if given is None:
        return ()
    if is_one(given) or isinstance(given, (str, bytes, os.PathLike)):
        return (given,)
    return check_iterable(name, given, f"one of the {name}, or a list of such")


def check_requests(requests: Iterable[Any]) -> None:
    """Refuses what prewarm() takes elsewhere: models, and an SM, which in a request would be passed over."""
    for request in requests:
        if not is_one_request(request):
            raise InvalidRequest("requests", shown(request), "a dict of words, or a list of such; prewarm(models=...) takes a "
                                 "model's config.json, prewarm(recorded=...) a file of records")
        if request.get("sm") is not None:
            raise InvalidRequest("sm", f"{shown(request['sm'])} in a request", "an argument of prewarm(), such as "
                                 "sm=[80, 90]")


def is_one_request(request: Any) -> bool:
    return isinstance(request, Mapping)


def is_one_model(models: Any) -> bool:
    """Whether this is a model, as model_text takes it, and not several."""
    return isinstance(models, (str, bytes, os.PathLike, Mapping)) or hasattr(models, "to_dict")


def _file_text(name: str, file: str, most_bytes: int, wanted: str, instead: str = "") -> bytes:
    """The text of a file, which is read no further than to one byte over the most. `wanted`: what it is to be; `instead`: what
    the caller can do when it cannot be read. Raises InvalidRequest naming the argument."""
    try:
        with open(file, "rb") as opened:
            text = opened.read(most_bytes + 1)
    except OSError as error:
        said = file if file.isprintable() else shown(file)
        raise InvalidRequest(name, said, f"{wanted} that can be read ({error.strerror}){instead}") from error
    if len(text) > most_bytes:
        raise InvalidRequest(name, f"{file} of over {most_bytes} bytes", f"{wanted} of at most {most_bytes} bytes")
    return text


def _refuse_nul(name: str, text: bytes, accepted: str, names_line: bool = False) -> None:
    """The library takes a text to end at a NUL character. Raises InvalidRequest naming the argument, or the line of a file."""
    at = text.find(b"\0")
    if at >= 0:
        line = text.count(b"\n", 0, at) + 1
        raise InvalidRequest(f"{name}:{line}" if names_line else name, f"a NUL character (byte {at + 1}, line {line})", accepted)


def recorded_text(file: Any) -> bytes:
    """What programs recorded in a file."""
    path = path_of("recorded", file)
    text = _file_text("recorded", path, _MOST_RECORDED_BYTES, "a file of lines of schema attnsmith.recorded/1")
    _refuse_nul(path, text, "lines of schema attnsmith.recorded/1", names_line=True)
    return text


def several(value: Any) -> List[Any]:
    """A thing or a list of things, as a list; None is nothing."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]


def model_text(model: Any) -> bytes:
    """The text of a config.json, from a dict, a config object of transformers, its text, its file or the model's
    folder."""
    text = _text_of_model(model)
    _refuse_nul("model", text, "JSON")
    return text


def _text_of_model(model: Any) -> bytes:
    if hasattr(model, "to_dict"):
        model = model.to_dict()
    if isinstance(model, Mapping):
        return _config_text(model)
    if isinstance(model, bytes):
        return model
    if isinstance(model, str) and model.lstrip("\ufeff").lstrip()[:1] in ("{", "["):
        try:
            return model.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("model", "a text with a lone surrogate", "text that UTF-8 has") from None
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidRequest("model", shown(model),
                             "a config.json's file, folder, text or dict, or a config object with to_dict()")
    file = path_of("model", model)
    return _file_text("model", os.path.join(file, "config.json") if os.path.isdir(file) else file, _MOST_MODEL_BYTES,
                      "a config.json", ", or its folder; nothing is downloaded: AutoConfig.from_pretrained(...) of "
                      "transformers will do")


def _config_text(config: Mapping[str, Any]) -> bytes:
    def plain(value: Any) -> Any:
        if hasattr(value, "to_dict"):
            return value.to_dict()
        if hasattr(value, "__index__"):
            return int(value)
        return dtype_name(value) or str(value)  # the library refuses by name what it would have to read

    try:
        return json.dumps(config, default=plain).encode()
    except (TypeError, ValueError, RecursionError) as error:  # keys that are no text, one that holds itself, or a deep one
        raise InvalidRequest("model", "a dict", f"what JSON can say ({error})") from error
