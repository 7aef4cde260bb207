"""What a provider is: something that may be installed, and that turns a case into a call."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any, Callable, Dict, Hashable, Optional, Sequence

from ..cases import Case
from ..tensors import Tensors


class Refused(Exception):
    """The provider does not do this case; the message says why."""


class Provider:
    name = ""  # the word of --provider and the column of the table
    title = ""
    install = ""  # what to pip install
    modules: Sequence[str] = ()  # the first that can be found is used
    needs: Sequence[str] = ()  # modules that it cannot be imported without
    distributions: Sequence[str] = ()  # whose versions are reported
    isolated = False  # runs in a process of its own: what is known to crash, or to be killed when it takes too long
    takes_8_bits = False  # K and V of 8 bits beside a Q of 16, which it may round itself
    rounds_q = False  # then computes with Q and the softmax's weights of 8 bits, and is held to what these can be
    compiles = False  # builds kernels at run time: done before anything is timed, within a limit

    def available(self) -> Optional[str]:
        """None, or why it is not. Loads no GPU code."""
        if importlib.util.find_spec("torch") is None:
            return "PyTorch is not installed"
        if self.modules and self.module_name() is None:
            return "not installed (pip install %s)" % self.install
        for name in self.needs:
            if importlib.util.find_spec(name) is None:
                return "installed without %s, which it needs" % name
        return None

    def module_name(self) -> Optional[str]:
        for name in self.modules:
            try:
                if importlib.util.find_spec(name) is not None:
                    return name
            except Exception:  # a parent package that is absent or broken
                continue
        return None

    def module(self) -> Any:
        name = self.module_name()
        if name is None:
            raise Refused("not installed")
        return importlib.import_module(name)

    def versions(self) -> Dict[str, str]:
        found = {}
        for name in self.distributions:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found

    def refuses(self, case: Case) -> Optional[str]:
        """Why the case is known not to be done here, without trying."""
        if case.kv_dtype and not self.takes_8_bits:
            return "K and V of 16 bits only"
        return None

    def compile_key(self, case: Case) -> Hashable:
        """Cases of one key share their kernels."""
        return case.family

    def make(self, case: Case, tensors: Tensors) -> Callable[[], Any]:
        """A call that launches on torch's current stream and returns the output, in q's layout.

        Everything that can be done once, for many layers or steps, is done here and not timed: plans and schedules
        that are made on the host or asked for by a function of their own. What the call itself launches is timed,
        schedule kernels too. Raises Refused.
        """
        raise NotImplementedError
