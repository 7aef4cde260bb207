"""The declarations for ctypes against the header that they restate."""

import ctypes
import re
import subprocess
import unittest

from support import INCLUDE, INCLUDES, PythonTest, compiler

from attnsmith._c_api import abi
from attnsmith._tensors import blocks, views as _views

HEADER = INCLUDE / "attnsmith/attnsmith.h"
CONSTANTS = {
    "ATTNSMITH_ABI_VERSION": abi.ABI_VERSION, "ATTNSMITH_OK": abi.OK,
    "ATTNSMITH_CURRENT_DEVICE": abi.CURRENT_DEVICE, "ATTNSMITH_DL_CUDA": abi.DL_CUDA,
    "ATTNSMITH_DL_CUDA_MANAGED": abi.DL_CUDA_MANAGED, "ATTNSMITH_DL_INT": abi.DL_INT,
    "ATTNSMITH_DL_UINT": abi.DL_UINT, "ATTNSMITH_DL_FLOAT": abi.DL_FLOAT,
    "ATTNSMITH_DL_BFLOAT": abi.DL_BFLOAT, "ATTNSMITH_DL_E4M3FN": abi.DL_E4M3FN,
    "ATTNSMITH_DL_E5M2": abi.DL_E5M2,
    "ATTNSMITH_STATUS_Q_LEN_CLAMPED": abi.Q_LEN_CLAMPED, "ATTNSMITH_STATUS_KV_LEN_CLAMPED": abi.KV_LEN_CLAMPED,
    "ATTNSMITH_STATUS_PAGE_OUT_OF_RANGE": abi.PAGE_OUT_OF_RANGE,
    "ATTNSMITH_STATUS_WORKSPACE_NOT_ZEROED": abi.WORKSPACE_NOT_ZEROED,
    "ATTNSMITH_STATUS_SCALE_NOT_POSITIVE": abi.SCALE_NOT_POSITIVE,
    "ATTNSMITH_STATUS_SLOT_OUT_OF_RANGE": abi.SLOT_OUT_OF_RANGE,
    "ATTNSMITH_STATUS_POSITION_OUT_OF_RANGE": abi.POSITION_OUT_OF_RANGE,
    "ATTNSMITH_STATUS_SLOT_WRITTEN_TWICE": abi.SLOT_WRITTEN_TWICE,
    "ATTNSMITH_WORKSPACE_ZEROED_BYTES": abi.WORKSPACE_ZEROED_BYTES,
    **{f"ATTNSMITH_LOG_{level.upper()}": number for number, level in enumerate(abi.LOG_LEVELS) if number},
    "ATTNSMITH_CODE_INVALID_REQUEST": 1, "ATTNSMITH_CODE_UNSUPPORTED": 2, "ATTNSMITH_CODE_COMPILE_ERROR": 3,
    "ATTNSMITH_CODE_DRIVER_ERROR": 4, "ATTNSMITH_CODE_LIBRARY_MISSING": 5, "ATTNSMITH_CODE_CACHE_ERROR": 6,
    "ATTNSMITH_CODE_OUT_OF_MEMORY": 7, "ATTNSMITH_CODE_FAILED": 8, "ATTNSMITH_CODE_KERNEL_MISSING": 9,
    **{f"ATTNSMITH_CACHE_TRUST_{word.upper()}": number for number, word in enumerate(abi.CACHE_TRUSTS)},
    **{f"ATTNSMITH_TOOLCHAIN_{word.upper()}": number for number, word in enumerate(abi.TOOLCHAINS)},
    **{f"ATTNSMITH_ON_MISS_{word.upper()}": number for number, word in enumerate(abi.ON_MISSES) if number},
}


def fields_of(struct):
    return [name for base in reversed(struct.__mro__) for name, *_ in base.__dict__.get("_fields_", ())]


def declared_functions():
    """Name -> number of arguments, as the header has them."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"ATTNSMITH_API\s+[\w\s*]*?\b(attnsmith_\w+)\s*\(([^)]*)\)\s*ATTNSMITH_NOEXCEPT;", text)
    return {name: 0 if arguments.strip() == "void" else arguments.count(",") + 1 for name, arguments in found}


class Abi(PythonTest):
    def test_structs_and_constants(self):
        if compiler() is None:
            self.skipTest("no C compiler")
        lines = [f'printf("%lld\\n", (long long){name});' for name in CONSTANTS]
        wanted = list(CONSTANTS.values())
        for name, struct in abi.STRUCTS.items():
            lines.append(f'printf("%zu\\n", sizeof({name}));')
            wanted.append(ctypes.sizeof(struct))
            for field in fields_of(struct):
                place = getattr(struct, field)
                lines.append(f'printf("%zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));')
                wanted.append((place.offset, place.size))
        for name, room in abi.ROOMS.items():
            lines.append(f'printf("%d\\n", sizeof({name}) <= {ctypes.sizeof(room)});')
            wanted.append(1)
        source = "#include <stdio.h>\n#include <attnsmith/attnsmith.h>\nint main(void) {\n" + "\n".join(lines) + "\n}\n"
        program = self.folder / "layout"
        subprocess.run([compiler(), *(f"-I{folder}" for folder in INCLUDES), "-x", "c", "-", "-o", str(program)], input=source, text=True,
                       check=True)
        printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
        got = [tuple(map(int, line.split())) if " " in line else int(line) for line in printed]
        self.assertEqual(got, wanted)

    def test_every_constant(self):
        """Each of the enumerations that the package restates is whole; requests say theirs in words."""
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
        declared = set(re.findall(r"#define (ATTNSMITH_\w+)[ \t]+\S", text))
        for body in re.findall(r"\benum\b[^{;]*\{(.*?)\}", text, re.DOTALL):
            names = set(re.findall(r"\bATTNSMITH_\w+", body))
            if names & set(CONSTANTS):
                declared |= names
        self.assertEqual(declared, set(CONSTANTS))

    def test_every_field_of_every_struct(self):
        """The layout's test cannot see a field that was added at an end."""
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
        structs = re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.DOTALL)
        self.assertEqual({name for name, _ in structs}, {*abi.STRUCTS, *abi.ROOMS})
        for name, body in structs:
            if name in abi.ROOMS:
                continue
            declared = []
            for statement in filter(str.strip, body.split(";")):
                first, *others = statement.split(",")
                declared += [re.search(r"(\w+)\s*$", part).group(1) for part in (first, *others)]
            self.assertEqual(declared, fields_of(abi.STRUCTS[name]), name)

    def test_every_function(self):
        """But attnsmith_error_code, which is what every function returns."""
        declared = declared_functions()
        del declared["attnsmith_error_code"]
        ours = {name: len(arguments) for name, (_, arguments) in abi.PLAIN.items()}
        ours.update({name: len(arguments) + 1 for name, arguments in abi.CHECKED.items()})
        self.assertEqual(ours, declared)

    def test_packed_structs(self):
        """What is packed by hand reads as the structs that it stands for."""
        fields = abi.TENSOR_FIELDS + abi.BATCH_FIELDS
        views = [(4096 * (i + 1), (3, i, 5), (50, 10, 1), _views.BF16, _views.on_device(2))
                 for i, _ in enumerate(fields)]
        views[4] = views[9] = None
        block = blocks.AttentionBlock()
        block.fill(views, 11, 12, 0xABC00, 999)
        tensors, batch = abi.Tensors.from_address(block.tensors), abi.Batch.from_address(block.batch)
        workspace = abi.Workspace.from_address(block.workspace)
        self.assertEqual((tensors.size, batch.size, workspace.size),
                         tuple(map(ctypes.sizeof, (abi.Tensors, abi.Batch, abi.Workspace))))
        self.assertEqual((batch.max_q_len, batch.max_kv_len, workspace.data, workspace.bytes), (11, 12, 0xABC00, 999))
        self.assertEqual(block.failure(), 0)
        addresses = [getattr(tensors, name) for name in abi.TENSOR_FIELDS]
        addresses += [getattr(batch, name) for name in abi.BATCH_FIELDS]
        self.assertEqual(len(addresses), len(views))
        for view, address in zip(views, addresses):
            if view is None:
                self.assertIsNone(address)
            else:
                self.assert_tensor(abi.Tensor.from_address(address), view)

    def test_packed_merges(self):
        def view(i):
            return 4096 * (i + 1), (i, 2), (2, 1), _views.FP32, _views.on_device(0)
        block = blocks.MergeBlock(3)
        block.fill([view(i) for i in range(3)], [view(i) for i in range(3, 6)], view(6), None)
        merge = abi.MergeTensors.from_address(block.address)
        self.assertEqual((merge.size, merge.state_count, merge.lse), (ctypes.sizeof(merge), 3, None))
        states = [*(ctypes.c_void_p * 3).from_address(merge.o_states),
                  *(ctypes.c_void_p * 3).from_address(merge.lse_states), merge.o]
        for i, address in enumerate(states):
            self.assert_tensor(abi.Tensor.from_address(address), view(i))

    def assert_tensor(self, tensor, view):
        pointer, shape, strides, kind, device = view
        self.assertEqual((tensor.data, tensor.ndim, tensor.byte_offset), (pointer, len(shape), 0))
        self.assertEqual((tuple(tensor.shape[:tensor.ndim]), tuple(tensor.strides[:tensor.ndim])), (shape, strides))
        self.assertEqual(tensor.dtype.code | tensor.dtype.bits << 8 | tensor.dtype.lanes << 16, kind >> 32)
        self.assertEqual((tensor.device.device_type, tensor.device.device_id), (device & 0xFFFFFFFF, device >> 32))


if __name__ == "__main__":
    unittest.main()
