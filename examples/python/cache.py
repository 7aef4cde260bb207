"""The kernel cache: python cache.py FOLDER [REMOTE]. Fills the cache in FOLDER, looks at it, ships it as a bundle and an
image, and empties it. Needs no GPU; it needs NVRTC, and a key file to sign what is pushed to REMOTE (attnsmith cache keygen writes one)."""

import pathlib
import sys

import attnsmith

folder = pathlib.Path(sys.argv[1])
remotes = sys.argv[2:]
sign_key = folder / "release.key"
runtime = attnsmith.Runtime([folder / "cache", *remotes], cache_max_bytes=1 << 30, log_level="error",
                            cache_trust="all" if remotes else "owner", sign_key_file=sign_key if sign_key.exists() else None)
request: attnsmith.Request = {"head_dim": 8, "q_heads": 1}
report = runtime.prewarm(request, sm=90)
if not report["summary"]["ok"]:
    sys.exit(f"this example needs NVRTC: {report['kernels'][0].get('error')}")

directories = runtime.cache("dir")
print(f"kernels are in {directories['directories'][0]}, named by {directories['named_by']}")
statistics = runtime.cache("stat")
print(f"{statistics['entries']} entries, {statistics['allocated_bytes']} bytes on the disk, "
      f"{statistics['counters']['hits']} hits")
listing = runtime.cache("ls")
entry = listing["entries"][0]
print(f"{entry['key']}: {entry['name']} for SM {entry['sm']}, {entry['bytes']} bytes, {entry['age_s']} s old")

# Why a kernel is not in the cache: the entry that comes nearest to it, and the fields that differ.
for kernel in runtime.cache("explain", request={"head_dim": 16, "q_heads": 1, "sm": 90})["kernels"]:
    nearest = kernel.get("nearest")
    if nearest is not None:
        print(f"{kernel['name']} is a {kernel['state']}; differs in {[one['label'] for one in nearest['differences']]}")
print(f"{runtime.cache('verify')['unusable']} entries are damaged")
print(f"{runtime.cache('gc', max_bytes=1 << 20)['entries']} entries did not fit into 1 MiB")

# To another machine: one file, or an image for a registry of containers.
bundle = runtime.cache("export", file=folder / "kernels.bundle", sm=90)
print(f"{bundle['entries']} kernels in {bundle.get('file')}")
print(f"an image {runtime.cache('export', oci=folder / 'image', tag='kernels').get('digest')}")
if remotes:
    pushed = runtime.cache("push")
    print(f"{pushed['pushed']} kernels pushed to {pushed['remotes']}, {pushed['present']} were there")

print(f"{runtime.cache('rm', key=entry['key'])['entries']} entry deleted")
print(f"{runtime.cache('clear')['entries']} more entries deleted")
print(f"{runtime.cache('import', file=folder / 'kernels.bundle')['imported']} kernels imported")

# A program that must not compile: what is not in the cache is an error with the command that builds it.
strict = attnsmith.Runtime(folder / "cache", on_miss="error", log_level="error")
attnsmith.set_default_runtime(strict)
print(f"{attnsmith.cache()['entries']} entries for the program")
print(f"planning finds a {strict.plan(**request, sm=90)['kernels'][0]['cache']['state']}")
print(f"{attnsmith.prewarm(request, sm=90, compile=False)['summary']['hits']} kernels are ready")
try:
    strict.cache("import", file=folder / "none.bundle")
except attnsmith.CacheError as error:
    print(error)
attnsmith.set_default_runtime(None)
