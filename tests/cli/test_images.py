"""attnsmith cache export --oci: an image layout that a strict reader, skopeo and the command itself take."""

import hashlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import tarfile
import unittest

from support import SMALL, SMALL_LLAMA, CliTest, main

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())
IN_IMAGE = "opt/attnsmith/cache"


def tree_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Images(CliTest):
    def export(self, *flags, cache="kernels"):
        return self.run_cli("cache", "export", "--cache", cache, *flags)

    def exported(self, directory, *flags, cache="kernels"):
        return self.assert_ok(self.export("--oci", directory, "--json", *flags, cache=cache)).json()

    def read_blob(self, layout, descriptor, media_type):
        """The bytes that a descriptor names. Each of its members is held against them."""
        self.assertLessEqual(set(descriptor), {"mediaType", "digest", "size", "platform", "annotations"})
        self.assertEqual(descriptor["mediaType"], media_type)
        self.assertRegex(descriptor["digest"], "^sha256:[0-9a-f]{64}$")
        blob = (layout / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()
        self.assertEqual((len(blob), f"sha256:{hashlib.sha256(blob).hexdigest()}"), (descriptor["size"], descriptor["digest"]))
        return blob

    def read_image(self, name):
        """The index, manifest and config of a layout, and its layer unpacked: nothing may be there beside them."""
        layout = self.folder / name
        self.assertEqual(json.loads((layout / "oci-layout").read_bytes()), {"imageLayoutVersion": "1.0.0"})
        index = json.loads((layout / "index.json").read_bytes())
        self.assertEqual((index["schemaVersion"], index["mediaType"]), (2, "application/vnd.oci.image.index.v1+json"))
        [described] = index["manifests"]
        manifest = json.loads(self.read_blob(layout, described, MANIFEST_TYPE))
        self.assertEqual((manifest["schemaVersion"], manifest["mediaType"]), (2, MANIFEST_TYPE))
        config = json.loads(self.read_blob(layout, manifest["config"], "application/vnd.oci.image.config.v1+json"))
        [described_layer] = manifest["layers"]
        layer = self.read_blob(layout, described_layer, LAYER_TYPE)
        self.assertEqual(config["rootfs"], {"type": "layers", "diff_ids": [described_layer["digest"]]})
        self.assertEqual((config["os"], config["architecture"]), ("linux", ARCHITECTURE or config["architecture"]))
        self.assertEqual(described["platform"], {"os": "linux", "architecture": config["architecture"]})
        self.assertEqual(len(tree_of(layout)), 5)
        archive = self.write(f"{name}.tar", layer)
        unpacked = self.folder / f"{name}-unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as tar:
            for member in tar:
                self.assertTrue(member.isdir() or member.isreg(), member.name)
                self.assertEqual((member.mode, member.uid, member.gid, member.uname, member.gname, member.mtime),
                                 (0o755 if member.isdir() else 0o644, 0, 0, "", "", 0), member.name)
                self.assertTrue(f"{member.name}/".startswith(IN_IMAGE) or f"{IN_IMAGE}/".startswith(f"{member.name}/"))
                # What is in a directory comes behind it.
                self.assertTrue((unpacked / member.name).parent.is_dir() or member.name == "opt", member.name)
                tar.extract(member, unpacked)
        return index, manifest, config, unpacked / IN_IMAGE

    def test_a_layer_is_a_read_only_cache(self):
        made = self.prewarm_small("kernels")
        keys = {kernel["key"] for kernel in made["kernels"]}
        report = self.exported("image")
        index, manifest, config, cache = self.read_image("image")
        self.assertEqual((report["oci"], report["tag"], report["entries"], report["missing"]), ("image", "latest", len(keys), 0))
        self.assertEqual(report["digest"], index["manifests"][0]["digest"])
        self.assertEqual(report["bytes"], manifest["layers"][0]["size"])
        self.assertEqual(index["manifests"][0]["annotations"], {"org.opencontainers.image.ref.name": "latest"})
        entries = list(cache.rglob("*.entry"))
        labels = config["config"]["Labels"]
        self.assertEqual(labels["org.opencontainers.image.title"], "attnsmith kernels")
        self.assertIn(f"{len(keys)} compiled attention kernels for sm 90", labels["org.opencontainers.image.description"])
        listed = self.run_cli("cache", "ls", "--cache", "kernels", "--json").json()["entries"]
        self.assertEqual({name: text for name, text in labels.items() if name.startswith("io.attnsmith.")},
                         {"io.attnsmith.entries": str(len(keys)), "io.attnsmith.sms": "90",
                          "io.attnsmith.bytes": str(sum(entry.stat().st_size for entry in entries)),
                          "io.attnsmith.toolchains": ",".join(sorted({entry["toolchain"] for entry in listed})),
                          "io.attnsmith.directory": f"/{IN_IMAGE}"})
        self.assertEqual(manifest["annotations"], {**labels, "io.attnsmith.schema": "attnsmith.image/1"})
        self.assertEqual(config["config"]["Env"], [f"ATTNSMITH_CACHE_DIR=/var/cache/attnsmith:/{IN_IMAGE}"])

        both = ("--cache", "own", "--cache", str(cache))
        (self.folder / "own").mkdir()
        found = self.assert_ok(self.run_cli("cache", "ls", *both, "--json")).json()["entries"]
        self.assertEqual(({entry["key"] for entry in found}, {entry["layer"] for entry in found}), (keys, {1}))
        self.assertEqual(self.assert_ok(self.run_cli("cache", "verify", *both, "--json")).json()["checked"], len(keys))
        dry = self.assert_ok(self.run_cli("prewarm", *SMALL, "--sm", "90", *both, "--dry-run", "--json")).json()
        self.assertEqual({kernel["state"] for kernel in dry["kernels"]}, {"hit"})
        self.assertEqual(list((self.folder / "own").rglob("*.entry")), [])

    def test_the_same_kernels_give_the_same_bytes(self):
        self.prewarm_small("kernels")
        first = self.exported("first")
        self.assertEqual({**self.exported("again"), "oci": "first"}, first)
        self.assertEqual(tree_of(self.folder / "again"), tree_of(self.folder / "first"))
        # Another directory, filled in the opposite order.
        for entry in sorted((self.folder / "kernels").rglob("*.entry"), reverse=True):
            target = self.folder / "other" / entry.parent.name / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(entry, target)
            os.utime(target, (0, 0))
        self.exported("other-image/", cache="other")
        self.assertEqual(tree_of(self.folder / "other-image"), tree_of(self.folder / "first"))
        # Another tag is another name of the same image.
        tagged = self.exported("tagged", "--tag", "v1.0")
        self.assertEqual((tagged["digest"], tagged["tag"]), (first["digest"], "v1.0"))
        text = self.assert_ok(self.export("--oci", "first", "--tag", "v2")).out
        self.assertRegex(text, rf"^first:v2: {first['entries']} entries, .*\n{first['digest']}\n$")
        self.assertEqual(self.read_image("first")[0]["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "v2")

    def test_an_image_of_an_sm_or_of_a_model(self):
        self.prewarm_small("kernels")
        llama = self.write("llama.json", json.dumps({**SMALL_LLAMA, "hidden_size": 64}))
        self.assert_ok(self.run_cli("prewarm", "--op", "merge", "--head-dim-vo", "64", "--q-heads", "8", "--sm", "80,86",
                                    "--cache", "kernels", "--json"))
        self.assertEqual(self.exported("image", "--sm", "80,86")["entries"], 2)
        self.assertEqual(self.read_image("image")[2]["config"]["Labels"]["io.attnsmith.sms"], "80,86")
        self.assert_failed(self.export("--oci", "no", "--sm", "120"), "no kernels for sm 120 to export")
        self.assert_failed(self.export("--oci", "no", "--model", llama), "no kernels of the model to export")
        self.assertFalse((self.folder / "no").exists())
        # One kernel of the model is lacking.
        self.assert_ok(self.run_cli("prewarm", "--model", llama, "--sm", "90", "--cache", "model", "--json"))
        next((self.folder / "model").rglob("*.entry")).unlink()
        result = self.export("--oci", "image", "--model", llama, "--sm", "90", "--json", cache="model")
        self.assert_failed(result, "1 of the model's kernels", "prewarm")
        self.assertEqual(result.json()["missing"], 1)
        self.assertEqual(len(list(self.read_image("image")[3].rglob("*.entry"))), result.json()["entries"])

    def test_what_is_refused(self):
        self.prewarm_small("kernels")
        both_named = ("--output (-o)", "--oci")
        self.assert_refused(self.export(), "neither", *both_named)
        self.assert_refused(self.export("-o", "a.bundle", "--oci", "image"), "both", *both_named)
        self.assert_refused(self.export("-o", "a.bundle", "--tag", "v1"), "--tag is for --oci")
        self.assert_refused(self.export("--oci", ""), "--oci", "name of a directory")
        for tag in ("", "a b", "-v", "a/b", "t" * 129):
            self.assert_refused(self.export("--oci", "image", f"--tag={tag}"), "--tag")
        self.write("file", "text")
        (self.folder / "link").symlink_to("elsewhere")
        (self.folder / "full").mkdir()
        self.write("full/notes.txt", "text")
        for place, words in (("file", "something else than a directory"), ("link", "something else than a directory"),
                             ("full", '"notes.txt"'), (".", "not the name of a directory"), ("/", "not the name of")):
            self.assert_failed(self.export("--oci", place), "the export failed", words)
        self.assert_failed(self.export("--oci", "no/such/image"), "no/such", "No such file")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["file", "full", "kernels", "link"])
        # Another program's additions to an image make it one that is not replaced.
        self.exported("image")
        self.write("image/blobs/sha256/" + "0" * 64, "text")
        before = tree_of(self.folder / "image")
        self.assert_failed(self.export("--oci", "image"), "left alone", "0" * 64)
        self.assertEqual(tree_of(self.folder / "image"), before)

    @unittest.skipUnless(shutil.which("skopeo"), "skopeo is not installed")
    def test_skopeo_reads_and_copies_it(self):
        def skopeo(*words):
            done = subprocess.run(["skopeo", *words], cwd=self.folder, env={**os.environ, "HOME": str(self.folder)},
                                  capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        self.prewarm_small("kernels")
        report = self.exported("image", "--tag", "v1")
        inspected = json.loads(skopeo("inspect", "oci:image:v1"))
        config = self.read_image("image")[2]
        self.assertEqual((inspected["Digest"], inspected["Architecture"], inspected["Os"]),
                         (report["digest"], config["architecture"], "linux"))
        self.assertEqual((inspected["Labels"], inspected["Env"]), (config["config"]["Labels"], config["config"]["Env"]))
        self.assertEqual(inspected["Layers"], config["rootfs"]["diff_ids"])
        self.assertEqual(json.loads(skopeo("inspect", "--config", "oci:image:v1")), config)
        policy = self.write("policy.json", json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        skopeo("--policy", policy, "copy", "--preserve-digests", "oci:image:v1", "oci:copy:v1")
        self.assertEqual(json.loads(skopeo("inspect", "oci:copy:v1"))["Digest"], report["digest"])
        skopeo("--policy", policy, "copy", "oci:image:v1", "dir:files")
        layer = report["digest"], config["rootfs"]["diff_ids"][0].removeprefix("sha256:")
        self.assertEqual(f"sha256:{hashlib.sha256((self.folder / 'files/manifest.json').read_bytes()).hexdigest()}", layer[0])
        self.assertEqual((self.folder / "files" / layer[1]).stat().st_size, report["bytes"])
        # It is skopeo's then, and an export does not delete what it wrote.
        self.assertRegex(self.export("--oci", "copy").err, r"left alone")

    def test_files_that_may_not_grow_leave_nothing(self):
        self.prewarm_small("kernels")
        limited = self.finish(self.start(
            "cache", "export", "--cache", "kernels", "--oci", "image",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))))
        self.assert_failed(limited, "File too large", "image")
        self.assertEqual([path.name for path in self.folder.iterdir() if re.match("image", path.name)], [])


if __name__ == "__main__":
    main()
