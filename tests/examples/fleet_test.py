"""The files of examples/fleet are sound, by the programs that read them where they are installed, and do what they say."""

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import unittest

try:
    import yaml
except ImportError:
    yaml = None

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FLEET = REPOSITORY / "examples/fleet"
MODEL = REPOSITORY / "tests/models/llama-3.1-8b.json"
ATTNSMITH = os.environ.get("ATTNSMITH_BIN", "")
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
SMALL = ["--head-dim", "64", "--q-heads", "8", "--mask", "causal", "--sm", "90"]

INSTRUCTIONS = {"ARG", "CMD", "COPY", "ENV", "FROM", "RUN", "USER"}  # those that the Dockerfile has use of
PUBLIC_IMAGES = {"busybox", "debian", "nginx", "python"}


def instructions_of(dockerfile):
    """The instructions of a Dockerfile, each with its words' text: comments and continued lines as Docker reads them."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, words = line.partition(" ")
            yield name, words.strip()


def libraries_of(*programs):
    """All shared libraries that a program or library needs, its loader among them."""
    found = set()
    for program in programs:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=60, check=True).stdout
        found |= {pathlib.Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.MULTILINE)}
    return found


class Fleet(unittest.TestCase):
    def setUp(self):
        os.umask(0o022)  # a cache that the group may write to is not trusted
        folder = tempfile.TemporaryDirectory(prefix="attnsmith-fleet-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.folder.chmod(0o755)  # for the user that nginx runs as

    def run_command(self, *command, **environment):
        path = f"{pathlib.Path(ATTNSMITH).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ATTNSMITH_") or "NVRTC" in name}
        done = subprocess.run([str(word) for word in command], cwd=self.folder, env={**kept, "PATH": path, **environment},
                              capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def image_names(self):
        """The names of all images that the examples take from elsewhere."""
        stages = {"${KERNELS}"}
        for name, words in instructions_of((FLEET / "Dockerfile").read_text(encoding="utf-8")):
            if name == "FROM":
                image, _, stage = words.partition(" AS ")
                if image not in stages:
                    yield image
                stages.add(stage)
        yield from re.findall(r"^\s+(?:- )?image: (nginx\S*)$", (FLEET / "compose.yaml").read_text(encoding="utf-8"), re.MULTILINE)

    def test_images_are_public_ones_of_a_version(self):
        images = list(self.image_names())
        self.assertEqual({image.partition(":")[0] for image in images}, {"busybox", "nginx", "python"})
        for image in images:
            name, _, tag = image.partition(":")
            self.assertIn(name, PUBLIC_IMAGES)
            self.assertRegex(tag, r"^\d+\.\d+")

    def test_the_dockerfile_is_sound(self):
        stages, arguments, started = [], {}, False
        for name, words in instructions_of((FLEET / "Dockerfile").read_text(encoding="utf-8")):
            with self.subTest(instruction=f"{name} {words}"):
                self.assertIn(name, INSTRUCTIONS)
                self.assertTrue(words)
                if name == "ARG":
                    argument, _, value = words.partition("=")
                    arguments[f"${{{argument}}}"] = value
                    self.assertFalse(started, "an ARG of FROM stands before the first FROM")
                    continue
                if name == "FROM":
                    started = True
                    self.assertRegex(words, r"^\S+ AS [a-z]+$")
                    image, _, stage = words.partition(" AS ")
                    if image.startswith("$"):
                        self.assertIn(arguments[image], stages)
                    self.assertNotIn(stage, stages)
                    stages.append(stage)
                self.assertTrue(started)
                if name == "COPY":
                    *sources, target = shlex.split(words)
                    self.assertTrue(target.startswith("/"))
                    if sources[0].startswith("--"):
                        self.assertIn(sources.pop(0).removeprefix("--from="), stages[:-1])
                        self.assertEqual((sources, target), (["/opt/attnsmith/cache"], "/opt/attnsmith/cache"))
                    else:
                        self.assertLessEqual(set(sources), {"dist", "config.json"})
                if name == "ENV":
                    self.assertRegex(words, r"^ATTNSMITH_[A-Z_]+=\S+$")
                if name == "CMD":
                    self.assertTrue(all(isinstance(word, str) for word in json.loads(words)))
                if name == "RUN":
                    subprocess.run(["sh", "-n", "-c", words], check=True, timeout=60)
                    if "nvrtc" in words:
                        self.assertEqual(stages, ["base", "compiled"], "what serves has no NVRTC")
        self.assertEqual(stages, ["base", "compiled", "cache", "kernels", "serve"])

    @unittest.skipIf(yaml is None, "PyYAML is not installed")
    def test_the_composition_is_sound(self):
        compose = yaml.safe_load((FLEET / "compose.yaml").read_text(encoding="utf-8"))
        self.assertEqual(set(compose), {"services", "volumes"})
        dockerfile = (FLEET / "Dockerfile").read_text(encoding="utf-8")
        for service in compose["services"].values():
            self.assertEqual("image" in service, "build" not in service)
            self.assertLessEqual(set(service.get("depends_on", [])), set(compose["services"]))
            if "build" in service:
                build = service["build"]
                self.assertTrue((FLEET / build["context"] / build["dockerfile"]).samefile(FLEET / "Dockerfile"))
                self.assertIn(f" AS {build['target']}\n", dockerfile)
            for volume in service["volumes"]:
                source, target, *mode = volume.split(":")
                if source.startswith("."):
                    file = (FLEET / source).resolve()
                    self.assertTrue(file.is_file() or file == REPOSITORY / "config.json", volume)
                else:
                    self.assertIn(source, compose["volumes"])
                self.assertTrue(target.startswith("/") and mode in ([], ["ro"]), volume)
        # It mounts what the configuration and the image name.
        conf = (FLEET / "nginx.conf").read_text(encoding="utf-8")
        self.assertIn("remote-cache:/srv/attnsmith", compose["services"]["remote-cache"]["volumes"])
        self.assertIn(" /srv/attnsmith/tmp;", conf)
        self.assertIn("ENV ATTNSMITH_CACHE_DIR=/var/cache/attnsmith:/opt/attnsmith/cache\n", dockerfile)

    @unittest.skipIf(yaml is None, "PyYAML is not installed")
    def test_what_fills_and_what_serves_name_one_remote_and_one_key(self):
        services = yaml.safe_load((FLEET / "compose.yaml").read_text(encoding="utf-8"))["services"]
        fill, serve = services["fill"], services["serve"]
        script, environment = fill["command"][-1], serve["environment"]
        subprocess.run(["sh", "-n", "-c", script], check=True, timeout=60)
        own, _, address = environment["ATTNSMITH_CACHE_DIR"].partition(":")
        self.assertEqual(address, "http://remote-cache:8080/attnsmith")
        self.assertIn(f"--cache {address} --push ", " ".join(script.replace("\\", "").split()))
        self.assertIn(f"own-cache:{own}", serve["volumes"])
        folder, _, key = environment["ATTNSMITH_CACHE_TRUST_KEYS"].rpartition("/")
        self.assertIn(f"trusted:{folder}:ro", serve["volumes"])
        self.assertIn(f"cp /secret/{key} /trusted/", script)
        self.assertNotIn("secret", " ".join(serve["volumes"]))
        # Both speak HTTP, and the images that they are made from have no libcurl.
        stages = [words for name, words in instructions_of((FLEET / "Dockerfile").read_text(encoding="utf-8"))
                  if name == "FROM" or "libcurl4" in words]
        self.assertIn("install", stages[stages.index("python:3.12-slim AS base") + 1])
        self.assertLessEqual({"base AS compiled", "base AS serve"}, set(stages))

    def pod(self):
        return yaml.safe_load((FLEET / "kubernetes.yaml").read_text(encoding="utf-8"))["spec"]["template"]["spec"]

    @unittest.skipIf(yaml is None, "PyYAML is not installed")
    def test_the_deployment_is_sound(self):
        deployment = yaml.safe_load((FLEET / "kubernetes.yaml").read_text(encoding="utf-8"))
        self.assertEqual((deployment["apiVersion"], deployment["kind"]), ("apps/v1", "Deployment"))
        spec = deployment["spec"]
        self.assertEqual(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"])
        pod = self.pod()
        volumes = {volume["name"] for volume in pod["volumes"]}
        dockerfile = (FLEET / "Dockerfile").read_text(encoding="utf-8")
        for container in pod["initContainers"] + pod["containers"]:
            stage = container["image"].removeprefix("attnsmith-").removesuffix(":latest")
            self.assertIn(f" AS {stage}\n", dockerfile)
            self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
        self.assertEqual(str(pod["securityContext"]["runAsUser"]), re.search(r"^USER (\d+):", dockerfile, re.MULTILINE).group(1))

    @unittest.skipUnless(ATTNSMITH, "the command is not built")
    @unittest.skipIf(yaml is None, "PyYAML is not installed")
    def test_the_init_container_copies_an_exported_layer(self):
        """Its command, on the layer of an image, gives a directory that the program's container trusts and reads."""
        self.run_command("attnsmith", "prewarm", *SMALL, "--cache", "kernels", "--json")
        self.run_command("attnsmith", "cache", "export", "--cache", "kernels", "--oci", "image")
        manifest = self.blob(json.loads((self.folder / "image/index.json").read_bytes())["manifests"][0])
        layer = json.loads(manifest.read_bytes())["layers"][0]
        with tarfile.open(self.blob(layer)) as tar:
            tar.extractall(self.folder / "root")
        pod = self.pod()
        (self.folder / "volume").mkdir()
        (self.folder / "volume").chmod(0o777)  # as an emptyDir is
        places = {"/opt/attnsmith": str(self.folder / "root/opt/attnsmith"), "/kernels": str(self.folder / "volume"),
                  "/var/cache/attnsmith": str(self.folder / "own")}

        def here(text):
            return re.sub("|".join(places), lambda found: places[found.group()], text)

        *shell, script = pod["initContainers"][0]["command"]
        for _ in range(2):  # it may be started again
            self.run_command(*shell, here(script))
        directories = next(one["value"] for one in pod["containers"][0]["env"] if one["name"] == "ATTNSMITH_CACHE_DIR")
        listed = json.loads(self.run_command("attnsmith", "prewarm", *SMALL, "--dry-run", "--json",
                                             ATTNSMITH_CACHE_DIR=here(directories)))
        self.assertEqual((listed["summary"]["misses"], listed["summary"]["hits"]), (0, listed["summary"]["total"]))

    def blob(self, descriptor):
        file = self.folder / "image/blobs/sha256" / descriptor["digest"].removeprefix("sha256:")
        self.assertEqual(f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}", descriptor["digest"])
        return file

    @unittest.skipUnless(ATTNSMITH, "the command is not built")
    def test_the_first_stage_compiles_a_models_kernels(self):
        """Its last command, run here, leaves entries alone, which everybody may read."""
        dockerfile = (FLEET / "Dockerfile").read_text(encoding="utf-8")
        script = next(words for name, words in instructions_of(dockerfile) if name == "RUN" and "prewarm" in words)
        cache = self.folder / "cache"
        self.assertIn("--sm 80,90", script)
        for theirs, ours in (("/opt/attnsmith/cache", cache), ("/config.json", MODEL), ("--sm 80,90", "--sm 90")):
            script = script.replace(theirs, str(ours))
        self.run_command("sh", "-c", script)
        found = list(cache.rglob("*"))
        self.assertTrue(found)
        for path in found:
            self.assertEqual(path.stat().st_mode & 0o777, 0o755 if path.is_dir() else 0o644)
            self.assertTrue(path.is_dir() or path.suffix == ".entry", path)


@unittest.skipUnless(NGINX, "nginx is not installed")
class RemoteCache(unittest.TestCase):
    """nginx with nginx.conf, of which places and port alone are others."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="attnsmith-nginx-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "srv/attnsmith").mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def configure(self, *changes):
        conf = (FLEET / "nginx.conf").read_text(encoding="utf-8")
        for theirs, ours in (("listen 8080;", f"listen 127.0.0.1:{self.port};"), ("root /srv;", f"root {self.folder}/srv;"),
                             (" /srv/attnsmith/tmp;", f" {self.folder}/srv/attnsmith/tmp;"),
                             ("pid /run/nginx.pid;", f"pid {self.folder}/nginx.pid;"), *changes):
            self.assertEqual(conf.count(theirs), 1, theirs)
            conf = conf.replace(theirs, ours)
        (self.folder / "nginx.conf").write_text(conf, encoding="utf-8")
        # Root's workers would be another user, who may not write here.
        own_user = ["-g", "user root;"] if os.geteuid() == 0 else []
        return [NGINX, "-p", str(self.folder), "-e", str(self.folder / "start.log"), "-c", str(self.folder / "nginx.conf"), *own_user]

    def start(self, *changes):
        command = self.configure(*changes)
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertNotIn("[warn]", checked.stderr)
        command[command.index("-g") + 1 if "-g" in command else len(command):] = (
            ["user root; daemon off;"] if "-g" in command else ["-g", "daemon off;"])
        # pylint: disable-next=consider-using-with
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait, 60)
        self.addCleanup(server.terminate)
        self.server = server
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            self.assertIsNone(server.poll(), (self.folder / "start.log").read_text(encoding="utf-8"))
            time.sleep(0.05)
        self.fail("nginx does not answer")

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self.addCleanup(connection.close)
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()

    def container(self):
        """A root with the program and what it needs to ask a remote, and nothing else; what runs in it."""
        ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        known = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, timeout=60, check=True).stdout if ldconfig else ""
        opened = [match.group(1) for name in ("libcurl.so.4", "libcrypto.so.3")
                  if (match := re.search(rf"^\s+{re.escape(name)} .*=> (\S+)$", known, re.MULTILINE))]
        if len(opened) != 2:
            self.skipTest("libcurl.so.4 and libcrypto.so.3 are not both installed")
        libraries = libraries_of(ATTNSMITH, *opened) | {pathlib.Path(path) for path in opened}
        if any(re.search("lib[at]san", library.name) for library in libraries):
            self.skipTest("a sanitizer's run-time library reads /proc, which is not in the container")
        root = self.folder / "root"
        for library in libraries:
            place = root / str(library).lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
        shutil.copy(ATTNSMITH, root / "attnsmith")
        # Root may change its root; anybody else is root of a namespace of users, where the system has them.
        enter = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
        command = [*enter, shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin"), str(root), "/attnsmith"]

        def run(*arguments, **environment):
            folders = ":".join(sorted({f"/{library.parent.relative_to('/')}" for library in libraries}))
            return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False,
                                  env={"HOME": "/", "LD_LIBRARY_PATH": folders, **environment})

        if (tried := run("--version")).returncode != 0:
            self.skipTest(f"a program cannot be run in a root of its own here: {tried.stderr.strip()}")
        return root, run

    @unittest.skipUnless(ATTNSMITH, "the command is not built")
    def test_a_container_without_nvrtc_is_filled_from_the_remote(self):
        root, run = self.container()
        self.start()
        remote = f"http://127.0.0.1:{self.port}/attnsmith"
        here = {name: value for name, value in os.environ.items() if not name.startswith("ATTNSMITH_") or "NVRTC" in name}
        for command in (["cache", "keygen", "-o", "key"],
                        ["prewarm", *SMALL, "--cache", "kernels", "--cache", remote, "--push", "--sign-key", "key",
                         "--trust-key", "key.pub"]):
            done = subprocess.run([ATTNSMITH, *command], cwd=self.folder, env=here, capture_output=True, text=True, timeout=600,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        shutil.copy(self.folder / "key.pub", root / "key.pub")

        environment = {"ATTNSMITH_CACHE_DIR": f"/cache:{remote}", "ATTNSMITH_CACHE_TRUST_KEYS": "/key.pub"}

        def report(*command):
            done = run(*command, "--json", **environment)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return json.loads(done.stdout)

        doctor = run("doctor", "--json", **environment)
        states = {check["name"]: check["state"] for check in json.loads(doctor.stdout)["checks"]}
        self.assertEqual((states["nvrtc"], doctor.returncode), ("fail", 1), "there is an NVRTC in the container")
        self.assertEqual({kernel["cache"]["state"] for kernel in report("plan", *SMALL)["kernels"]}, {"miss"})
        filled = report("prewarm", *SMALL)["summary"]
        self.assertGreater(filled["total"], 1)
        self.assertEqual((filled["remote"], filled["compiled"]), (filled["total"], 0))
        # All is kept: the server is gone.
        self.server.terminate()
        self.server.wait(60)
        again = report("prewarm", *SMALL)["summary"]
        self.assertEqual((again["hits"], again["total"]), (filled["total"], filled["total"]))
        self.assertEqual({kernel["cache"]["state"] for kernel in report("plan", *SMALL)["kernels"]}, {"hit"})

    def test_blobs_are_put_and_got(self):
        self.start()
        blob = bytes(range(256)) * 4096  # over what nginx keeps in memory
        digest = hashlib.sha256(blob).hexdigest()
        for path in (f"/attnsmith/cas/{digest}", f"/attnsmith/ac/{digest}", f"/attnsmith/cas/{digest[:2]}/{digest}",
                     "/attnsmith/ac/0123/13.0.88.json"):
            with self.subTest(path=path):
                self.assertEqual(self.ask("GET", path)[0], 404)
                self.assertEqual(self.ask("PUT", path, blob)[0], 201)
                self.assertEqual(self.ask("GET", path), (200, blob))
                self.assertEqual(self.ask("HEAD", path), (200, b""))
                self.assertEqual(self.ask("PUT", path, b"again")[0], 204)
                self.assertEqual(self.ask("GET", path), (200, b"again"))
                self.assertEqual(self.ask("DELETE", path)[0], 405)
                self.assertEqual(self.ask("MKCOL", f"{path}-folder/")[0], 404)
        stored = self.folder / "srv/attnsmith/cas" / digest
        self.assertEqual((stored.read_bytes(), stored.stat().st_mode & 0o777), (b"again", 0o644))

    def test_nothing_else_is_stored_or_read(self):
        self.start()
        (self.folder / "srv/secret").write_text("secret", encoding="utf-8")
        (self.folder / "srv/attnsmith/secret").write_text("secret", encoding="utf-8")
        for path in ("/", "/secret", "/attnsmith/secret", "/attnsmith/other/blob", "/ac/blob", "/attnsmith/ac/", "/attnsmith/cas/a/",
                     "/attnsmith/ac/../secret", "/attnsmith/ac/%2e%2e/secret", "/attnsmith/ac/.hidden", "/attnsmith/tmp/blob",
                     "/attnsmith/acx/blob"):
            with self.subTest(path=path):
                before = sorted(self.folder.rglob("*"))
                self.assertIn(self.ask("PUT", path, b"blob")[0], (400, 403, 404, 405))
                self.assertIn(self.ask("GET", path)[0], (400, 403, 404))
                self.assertEqual(sorted(self.folder.rglob("*")), before)
        # Larger than any entry: refused by its length, before it is sent.
        self.assertEqual(self.ask("PUT", "/attnsmith/cas/blob", b"", **{"Content-Length": str((256 << 20) + 1)})[0], 413)

    def test_other_networks_only_read(self):
        self.start(("allow 127.0.0.1;", ""))
        (self.folder / "srv/attnsmith/cas").mkdir()
        (self.folder / "srv/attnsmith/cas/blob").write_bytes(b"there")
        self.assertEqual(self.ask("GET", "/attnsmith/cas/blob"), (200, b"there"))
        self.assertEqual(self.ask("HEAD", "/attnsmith/cas/blob")[0], 200)
        for method in ("PUT", "DELETE", "POST"):
            self.assertIn(self.ask(method, "/attnsmith/cas/blob", b"theirs")[0], (403, 405))
        self.assertEqual((self.folder / "srv/attnsmith/cas/blob").read_bytes(), b"there")


if __name__ == "__main__":
    unittest.main()
