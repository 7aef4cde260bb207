"""What each exception says, for programs that handle them. Needs no GPU."""

from typing import Any, Callable

import attnsmith


def explain(work: Callable[[], Any]) -> str:
    """One line about what went wrong, from the fields of the exception. The order is from the special to the general."""
    try:
        work()
    except attnsmith.InvalidRequest as error:  # also a ValueError
        return f"wrong argument {error.field}: {error.value}; expected {error.accepted}"
    except attnsmith.Unsupported as error:  # also a NotImplementedError
        return f"no kernel serves this: {error}; looked at {[refusal['candidate'] for refusal in error.refusals]}"
    except attnsmith.KernelMissing as error:
        return f"not in the cache: {error.key} for SM {error.sm}; run: {error.command}"
    except attnsmith.CompileError as error:
        return f"NVRTC refused the source with {error.options}: {error.log}"
    except attnsmith.DriverError as error:
        return f"{error.call} failed with {error.code}: {error.meaning}"
    except attnsmith.LibraryMissing as error:
        return f"{error.library} was not found; tried {error.tried}"
    except attnsmith.OutOfMemory:  # also a MemoryError
        return "the host has no memory left"
    except attnsmith.CacheError as error:
        return f"the cache: {error}"
    except attnsmith.Error as error:  # the base of all
        return f"{error.details.get('code', 'failed')}: {error}"
    return "done"


print(explain(lambda: attnsmith.plan(head_dim=128, sm=90)))
print(explain(lambda: attnsmith.plan(head_dim=512, q_heads=32, precision="high", sm=90)))
print(explain(lambda: attnsmith.Runtime(use_cache=False).cache("stat")))
print(explain(lambda: attnsmith.Runtime(driver_path="/nowhere/libcuda.so.1").prepare(head_dim=64, q_heads=4)))
closed = attnsmith.Runtime()
closed.close()
print(explain(closed.devices))
print(explain(lambda: attnsmith.plan(head_dim=128, q_heads=32, sm=90)))
