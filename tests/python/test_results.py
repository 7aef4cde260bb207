"""The types of results against the library's JSON schemas, and against what the functions really give."""

import ast
import inspect
import json
import typing
import unittest

from launch_case import LaunchTest
from support import FAKE_CUDA, MODELS, PACKAGE, REPOSITORY, SMALL, PythonTest, attnsmith

from attnsmith import results
from attnsmith._adapters.served import Served

SCHEMAS = {text["$id"]: text for text in (json.loads(file.read_text(encoding="utf-8"))
                                           for file in sorted((REPOSITORY / "runtime/schemas").glob("*.schema.json")))}
# Python names what the C API gives the place of.
NAMED = SCHEMAS["urn:attnsmith:reports/1"]["definitions"]["unsupported"]["items"]
NAMED["required"] = ["name", "reason"]
del NAMED["properties"]["spec"]
# What the library and the command say otherwise than Python.
OF_PYTHON = {
    # An error of the C API: no report, and no exit code.
    "urn:attnsmith:error/1": lambda schema: {
        **schema, "required": [],
        "properties": {name: field for name, field in schema["properties"].items() if name not in ("schema", "exit_code")}},
}
PLAIN = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}


def types_of_results():
    return {name: kind for name, kind in vars(results).items() if typing.is_typeddict(kind) and not name.startswith("_")}


def members(annotation):
    return list(typing.get_args(annotation)) if typing.get_origin(annotation) is typing.Union else [annotation]


class Comparison:
    """Where an annotation differs from a schema, one text each; and the types that were met."""

    def __init__(self):
        self.found, self.met = [], set()

    def compare(self, annotation, schema, root, path):
        if "$ref" in schema:
            name, _, inner = schema["$ref"].partition("#/definitions/")
            root = SCHEMAS[name.rstrip("#")] if name else root
            schema = root["definitions"][inner] if inner else root
        schema = OF_PYTHON.get(schema.get("$id"), lambda same: same)(schema)
        if typing.is_typeddict(annotation):
            self.fields(annotation, schema, root, path)
        elif "anyOf" in schema:
            self.each(annotation, schema["anyOf"], root, path)
        elif isinstance(schema.get("type"), list):
            self.each(annotation, [{**schema, "type": one} for one in schema["type"]], root, path)
        elif "enum" in schema or "const" in schema:
            self.same(set(typing.get_args(annotation)), set(schema.get("enum", [schema.get("const")])), path)
        elif schema.get("type") == "array":
            if self.same(typing.get_origin(annotation), list, path):
                self.compare(typing.get_args(annotation)[0], schema["items"], root, f"{path}[]")
        elif "properties" not in schema and schema.get("type") == "object":
            self.same(typing.get_origin(annotation), dict, path)
        else:
            self.same(annotation, PLAIN.get(schema.get("type")), path)

    def fields(self, annotation, schema, root, path):
        self.met.add(annotation)
        properties, required = dict(schema.get("properties", {})), set(schema.get("required", ()))
        for part in schema.get("allOf", ()):
            if "$ref" in part:
                name, _, inner = part["$ref"].partition("#/definitions/")
                whole = SCHEMAS[name]["definitions"][inner]
                properties.update({field: {**one, **({"$ref": name + one["$ref"]} if one.get("$ref", "").startswith("#") else {})}
                                   for field, one in whole["properties"].items()})
                required |= set(whole["required"])
        hints = typing.get_type_hints(annotation)
        self.same(set(hints), set(properties), f"{path}: fields")
        self.same(set(annotation.__required_keys__), required, f"{path}: fields that are always there")
        for name in hints.keys() & properties.keys():
            self.compare(hints[name], properties[name], root, f"{path}.{name}")

    def each(self, annotation, schemas, root, path):
        kinds = members(annotation)
        self.same(len(kinds), len(schemas), path)
        for kind, schema in zip(kinds, schemas):
            self.compare(kind, schema, root, path)

    def same(self, typed, said, path):
        if typed != said:
            self.found.append(f"{path}: {typed} here, {said} in the schema")
        return typed == said


def misfits(value, annotation, path="result"):
    """Where a value is not of its type."""
    if annotation is typing.Any:
        return []
    if typing.is_typeddict(annotation):
        if not isinstance(value, dict):
            return [f"{path}: {value!r} is no dict"]
        hints = typing.get_type_hints(annotation)
        wrong = [f"{path}: {name} is missing" for name in annotation.__required_keys__ - value.keys()]
        wrong += [f"{path}: {name} is in no type" for name in value.keys() - hints.keys()]
        return wrong + [text for name in hints.keys() & value.keys()
                        for text in misfits(value[name], hints[name], f"{path}.{name}")]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union:
        return [] if any(not misfits(value, one) for one in arguments) else [f"{path}: {value!r} is no {annotation}"]
    if origin is list:
        return [text for i, one in enumerate(value) for text in misfits(one, arguments[0], f"{path}[{i}]")]
    if origin is dict:
        return [text for one in value.values() for text in misfits(one, arguments[1], f"{path}.*")]
    if origin is typing.Literal:
        return [] if value in arguments else [f"{path}: {value!r} is no {annotation}"]
    fits = isinstance(value, (int, float) if annotation is float else annotation)
    return [] if fits and (annotation is bool or not isinstance(value, bool)) else [f"{path}: {value!r} is no {annotation}"]


class Schemas(unittest.TestCase):
    maxDiff = None

    def test_types_are_those_of_the_schemas(self):
        comparison = Comparison()
        for name, kind in types_of_results().items():
            schema = typing.get_type_hints(kind).get("schema")
            if schema is not None:
                said = "urn:attnsmith:" + typing.get_args(schema)[0].removeprefix("attnsmith.")
                comparison.compare(kind, {"$ref": said}, None, name)
        comparison.compare(results.ErrorDetails, {"$ref": "urn:attnsmith:error/1"}, None, "ErrorDetails")
        self.assertEqual(comparison.found, [], "tools/python/attnsmith/results.py has the types")
        self.assertGreater(len(comparison.met), 40)

    def test_a_field_that_a_type_lacks_is_found(self):
        plan = json.loads(json.dumps(SCHEMAS["urn:attnsmith:plan/1"]))
        plan["properties"]["kernels"]["items"] = {"$ref": "#/definitions/kernel"}
        plan["definitions"]["kernel"]["properties"]["registers"] = {"type": "integer"}
        plan["definitions"]["kernel"]["properties"]["tile_q"] = {"type": "string"}
        plan["definitions"]["kernel"]["properties"]["role"]["enum"].append("no_such_role")
        plan["definitions"]["kernel"]["required"].remove("warps")
        comparison = Comparison()
        comparison.compare(results.PlannedKernel, {"$ref": "#/definitions/kernel"}, plan, "kernel")
        found = sorted(text.split(": ")[0] for text in comparison.found)
        self.assertEqual(found, ["kernel", "kernel", "kernel.role", "kernel.tile_q"])


class Overloads(unittest.TestCase):
    def signatures(self, file):
        """Of cache(), without self and its body."""
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "cache"]
        for node in found:
            node.args.args = [one for one in node.args.args if one.arg != "self"]
        return [(ast.unparse(node.args), ast.unparse(node.returns)) for node in found]

    def test_the_function_has_the_method_s(self):
        self.assertEqual(self.signatures("__init__.py"), self.signatures("runtime.py"))

    def test_there_is_one_for_each_operation(self):
        operations = [word for arguments, _ in self.signatures("runtime.py")[:-1]
                      for word in typing.get_args(attnsmith.words.CacheOperation) if f"'{word}'" in arguments]
        self.assertEqual(set(operations), set(typing.get_args(attnsmith.words.CacheOperation)))


class Real(PythonTest):
    def check(self, value, kind):
        self.assertEqual(misfits(value, kind), [])
        return value

    def test_plans(self):
        self.check(attnsmith.plan(**SMALL, sm=90), results.Plan)
        for words in ({"op": "top_k"}, {"op": "merge", "head_dim": 64, "q_heads": 4}, {**SMALL, "op": "append"},
                      {"op": "mla", "head_dim_ckv": 512, "head_dim_kpe": 64, "q_heads": 16, "scale": 0.1},
                      {**SMALL, "kv_len": 65536}, {**SMALL, "kv_len": 4096, "consistency": "bitwise"},
                      {**SMALL, "kv_dtype": "e4m3", "q_len": 4096, "kv_len": 4096}):
            with self.subTest(**words):
                self.check(attnsmith.plan(**words, sm=90), results.Plan)

    def test_models(self):
        runtime, seen = self.runtime(use_cache=False), 0
        for file in sorted(MODELS.glob("*.json")):
            with self.subTest(file.name):
                self.check(runtime.model(file), results.ModelReport)
                self.check(runtime.coverage(model=file, kv=["paged", "dense"]), results.CoverageReport)
                seen += len(self.check(runtime.plan_model(file, sm="80,90,100"), results.ModelPlans)["plans"])
        self.assertGreater(seen, 50)
        self.check(runtime.coverage(SMALL, kv=["dense", "paged"], page_size=16), results.CoverageReport)

    def test_the_cache(self):
        runtime = self.runtime()
        with self.assertWarns(RuntimeWarning):
            report = self.check(runtime.prewarm({**SMALL, "head_dim": 8}, sm=90, compile=False), results.PrewarmReport)
        for operation, kind, options in (
                ("stat", results.CacheStatistics, {}), ("ls", results.CacheListing, {}), ("dir", results.CacheDirectories, {}),
                ("explain", results.CacheExplanations, {"request": {**SMALL, "sm": 90}}),
                ("verify", results.CacheVerification, {}), ("gc", results.CacheGcReport, {"max_bytes": 1 << 20}),
                ("clear", results.CacheClearReport, {})):
            with self.subTest(operation, **options):
                self.check(runtime.cache(operation, **options), kind)
        self.assertEqual({kernel["state"] for kernel in report["kernels"]}, {"missing"})

    def test_details_of_errors(self):
        for function in (lambda: attnsmith.plan(head_dim=128, sm=90), lambda: attnsmith.plan(head_dim=100, q_heads=4, sm=90),
                         lambda: self.runtime(on_miss="error", driver_path=FAKE_CUDA or None).prepare(**SMALL)):
            with self.assertRaises(attnsmith.Error) as caught:
                function()
            self.check(caught.exception.details, results.ErrorDetails)

    def test_reports_of_adapters(self):
        served = Served("its own kernel")
        served.count("attention")
        with self.assertWarns(UserWarning):
            served.pass_on("attention", "dropout")
        self.check(served.report(), results.AdapterReport)

    def test_what_does_not_fit_is_found(self):
        plan = attnsmith.plan(**SMALL, sm=90)
        del plan["kernels"][0]["name"]
        plan["device"]["sm_count"] = "132"
        plan["request"]["no_such_word"] = True
        self.assertEqual(len(misfits(plan, results.Plan)), 3)


class Devices(LaunchTest):
    def test_devices_and_kernels(self):
        device, *_ = self.rt.devices()
        self.assertEqual(misfits(device, results.DeviceInfo), [])
        kernel = self.rt.prepare(**SMALL)
        self.assertEqual(misfits(kernel.plan(), results.Plan), [])
        self.assertEqual(misfits(kernel.spec, results.NormalizedRequest), [])
        told = []
        report = self.rt.prewarm({**SMALL, "head_dim": 8}, sm=90, progress=lambda kernel, done, total: told.append(kernel))
        self.assertEqual(misfits(report, results.PrewarmReport), [])
        self.assertEqual([misfits(kernel, results.PrewarmedKernel) for kernel in told], [[]] * len(report["kernels"]))
        listing = self.rt.cache("ls")
        self.assertEqual(misfits(listing, results.CacheListing), [])
        file, key = self.folder / "kernels.bundle", listing["entries"][0]["key"]
        self.assertEqual(misfits(self.rt.cache("export", file=file), results.CacheExportReport), [])
        self.assertEqual(misfits(self.rt.cache("export", oci=self.folder / "image"), results.CacheExportReport), [])
        self.assertEqual(misfits(self.rt.cache("import", file=file), results.CacheImportReport), [])
        self.assertEqual(misfits(self.rt.cache("explain", key=key), results.CacheExplanations), [])
        self.assertEqual(misfits(self.rt.cache("rm", key=key), results.CacheRemoveReport), [])


class Documented(unittest.TestCase):
    def test_every_type_says_what_it_is(self):
        for name, kind in types_of_results().items():
            self.assertTrue((inspect.getdoc(kind) or "").endswith("."), name)


if __name__ == "__main__":
    unittest.main()
