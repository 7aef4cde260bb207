"""The schemas of what commands print: each is sound, each is used, and they find what is wrong."""

import copy
import json
import re

from support import PARTIAL, REPOSITORY, SCHEMAS, SMALL, CliTest, check_schema, main, schemas, validator

# Schemas of files that the program writes or reads, not of what it prints.
FILES = {"attnsmith.bundle-signature/1", "attnsmith.bundle/1", "attnsmith.entry/2", "attnsmith.fields/2", "attnsmith.hint/1",
         "attnsmith.image/1", "attnsmith.manifest/1", "attnsmith.recorded/1", "attnsmith.remote/1", "attnsmith.tuning/1"}

# What other schemas refer to.
SHARED = ("common", "reports")


class Schemas(CliTest):
    def test_names(self):
        for file in SCHEMAS.glob("*.json"):
            with self.subTest(file=file.name):
                document = json.loads(file.read_text(encoding="utf-8"))
                name = file.name.removesuffix(".schema.json")
                self.assertEqual(document["$id"], f"urn:attnsmith:{name}/1")
                self.assertTrue(document["title"])
                if name not in SHARED:
                    self.assertEqual(document["properties"]["schema"]["const"], f"attnsmith.{name}/1")
                validator(document["$id"])  # it is sound

    def test_every_schema_that_sources_name_has_a_file(self):
        named = set()
        for folder in ("runtime", "cache", "tools/cli"):
            for file in (REPOSITORY / folder).rglob("*.[ch]pp"):
                named |= set(re.findall(r'"(attnsmith\.[a-z-]+/\d+)"', file.read_text(encoding="utf-8")))
                named |= set(re.findall(r'"schema":"(attnsmith\.[a-z-]+/\d+)"', file.read_text(encoding="utf-8")))
        self.assertIn("attnsmith.error/1", named)
        there = {document["$id"].replace("urn:", "").replace(":", ".") for document in schemas().values()}
        self.assertEqual(FILES - named, set())  # none that nothing writes or reads any more
        self.assertEqual((named - there) - FILES, set())
        self.assertEqual(there - named - {f"attnsmith.{name}/1" for name in SHARED} - FILES, set())

    def assert_wrong(self, document, *, change):
        wrong = copy.deepcopy(document)
        change(wrong)
        with self.assertRaises(AssertionError):
            check_schema(wrong)

    def test_what_is_wrong_is_found(self):
        if validator("urn:attnsmith:plan/1") is None:
            self.skipTest("jsonschema is not installed")
        plans = self.run_cli("plan", "--model", PARTIAL, "--sm", "90", "--json").json()
        self.assert_wrong(plans, change=lambda json: json["plans"][0]["device"].pop("sm"))
        self.assert_wrong(plans, change=lambda json: json["unsupported"][0].update(reason=""))
        for change in (lambda json: json.update(new=1), lambda json: json["plans"][0].update(new=1),
                       lambda json: json["plans"][0]["kernels"][0]["resources"]["predicted"].update(new=1),
                       lambda json: json["unsupported"][0].update(new=1)):
            self.assert_wrong(plans, change=change)  # a field that no schema describes
        error = json.loads(self.run_cli("plan", *SMALL, "--sm", "1", "--json").out)
        check_schema(error)
        self.assert_wrong(error, change=lambda json: json.pop("accepted"))
        self.assert_wrong(error, change=lambda json: json.update(code="other"))
        check_schema({"schema": "attnsmith.error/1", "exit_code": 2, "code": "bad_usage", "message": "m"})

    def test_a_plan_has_the_fields_of_requests(self):
        """A field of the library's table that the schema does not know would go unnoticed: others are allowed there."""
        paged = ["plan", *SMALL, "--kv", "paged", "--page-size", "16", "--sm", "90", "--json"]
        printed = self.assert_ok(self.run_cli(*paged)).json()["request"]
        self.assertGreater(len(printed), 20)
        latent = ["plan", "--op", "mla", "--head-dim-ckv", "512", "--head-dim-kpe", "64", "--q-heads", "8", "--scale", "1"]
        printed |= self.assert_ok(self.run_cli(*latent, "--sm", "90", "--json")).json()["request"]
        append = ["plan", "--op", "append", "--head-dim", "128", "--q-heads", "8", "--sm", "90", "--json"]
        printed |= self.assert_ok(self.run_cli(*append)).json()["request"]
        request = schemas()["urn:attnsmith:plan/1"]["properties"]["request"]
        self.assertEqual(set(request["properties"]), set(printed))

    def test_reports_of_the_cache(self):
        """Those that no other test reads as JSON."""
        self.prewarm_small("kernels")
        for command in (["ls"], ["stat"], ["verify"], ["gc"], ["export", "-o", "bundle"], ["export", "--oci", "image"], ["import", "bundle"],
                        ["explain", *SMALL, "--sm", "80,90"], ["clear", "--yes"]):
            with self.subTest(command=command):
                report = self.assert_ok(self.run_cli("cache", *command, "--cache", "kernels", "--json")).json()
                self.assertEqual(report["schema"], f"attnsmith.cache-{command[0]}/1")


if __name__ == "__main__":
    main()
