"""The ledger of PyTorch's memory: what each block that was live at the peak was for, and which line and module took it.

The extension (``cpp/ledger.hpp``) follows PyTorch's allocator. Here is what only Python can see: which tensors are
parameters, gradients and the state of optimizers, and the names of modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import re
import site
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..._util.imports import after_import
from ...errors import ArenaError
from .. import source
from .build import built_extension

__all__ = ["TorchLedger"]

# As `Kind` in cpp/ledger.hpp.
PARAMETERS, BUFFERS, GRADIENTS, STATE = 1, 2, 3, 4
ROOT = "model"  # the name of a module that is called, if it has none
_ID = ctypes.c_ulonglong
_NAME = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_int)


class TorchLedger:
    """Of this process, from the import of PyTorch on."""

    def __init__(self, *, depth: int, entries: int) -> None:
        self.depth, self.entries = depth, entries
        self.process = os.getpid()
        self.extension: Any = None
        self.problem = ""
        """Why nothing is known; empty if something is, or PyTorch is not used."""
        self.is_followed = False
        self.modules: Modules | None = None

    def wait(self) -> None:
        after_import("torch", self.imported)

    def imported(self, torch: Any) -> None:
        if getattr(getattr(torch, "version", None), "cuda", None) is None:
            return
        try:
            self.extension = prepared(ctypes.PyDLL(str(built_extension(torch))))
        except (ArenaError, OSError) as error:
            self.problem = str(error)
            return
        self.extension.arena_ledger_begin(*map(os.fsencode, folders(torch)), self.depth)
        self.modules = Modules(self.extension, torch)
        torch.cuda._lazy_call(self.follow)
        steps = sys.modules.get("torch.optim.optimizer")  # torch.optim removes this attribute of its own
        if steps is not None and hasattr(steps, "register_optimizer_step_pre_hook"):  # since PyTorch 2.1
            steps.register_optimizer_step_pre_hook(self.modules.before_step)
            steps.register_optimizer_step_post_hook(self.modules.after_step)

    def follow(self) -> None:
        """When PyTorch opens the device: not earlier, as a program may fork first."""
        if os.getpid() == self.process and not self.is_followed:
            self.is_followed = bool(self.extension.arena_ledger_follow(self.entries))

    def through(self, allocate: int, free: int) -> tuple[str, str, str] | None:
        """The file and the functions to give PyTorch instead of these, for an allocator that is plugged in."""
        if self.extension is None:
            return None
        self.extension.arena_ledger_connect(allocate, free)
        self.is_followed = True
        return self.extension._name, "arena_ledger_alloc", "arena_ledger_free"

    def look(self) -> None:
        """Label what is there: at the end, or when an error ends the program."""
        if self.modules is not None and self.is_followed and os.getpid() == self.process:
            with contextlib.suppress(Exception):  # it walks objects of the program, whatever they are
                self.modules.look()

    def live(self) -> int:
        """The most that was live at a time."""
        return int(self.extension.arena_ledger_live())

    def facts(self) -> dict[str, Any] | None:
        """``peak`` and ``failure`` with their rows; none if nothing was followed."""
        if self.modules is None or not self.is_followed:
            return None
        self.look()
        self.clear_workspaces()
        found: dict[str, Any] = json.loads(self.extension.arena_ledger_facts().decode(errors="replace"))
        for name in ("peak", "failure"):
            if found[name] is not None:
                found[name]["rows"] = [self.row(found["lines"], *one) for one in found[name]["rows"]]
        del found["lines"]
        return found if found["peak"] is not None else None

    def row(
        self, lines: list[Any], size: int, blocks: int, line: int, module: int, kind: str, backward: bool
    ) -> dict[str, Any]:
        assert self.modules is not None
        name = self.modules.names[module] if module < len(self.modules.names) else ""
        return {
            "bytes": size, "blocks": blocks, "line": lines[line], "module": name, "kind": kind, "backward": backward,
        }  # fmt: skip

    def clear_workspaces(self) -> None:
        """What is freed by this are workspaces of cuBLAS, which PyTorch keeps."""
        clear = getattr(sys.modules["torch"]._C, "_cuda_clearCublasWorkspaces", None)
        if clear is None:
            return
        self.extension.arena_ledger_clearing(1)
        with contextlib.suppress(RuntimeError):
            clear()
        self.extension.arena_ledger_clearing(0)


class Modules:
    """The names of modules, and the tensors that they and optimizers own."""

    def __init__(self, extension: Any, torch: Any) -> None:
        self.extension, self.torch = extension, torch
        self.names = [""]  # by number
        self.known: dict[int, tuple[Any, int]] = {}  # by id(): a weak reference, and the number
        self.calls: dict[int, int] = {}  # of modules that are not called by others, by number
        self.owners: dict[int, int] = {}  # the module of a parameter, by its id()
        self.labelled_before = self.labelled_after = self.steps = 0
        self.name = _NAME(self.number_of)  # kept: the extension has only its address
        call = torch.nn.Module.__call__
        torch.nn.Module.__call__ = extension.arena_ledger_watch(call, self.name)

    def number_of(self, module: Any, parent: int) -> int:
        """For the extension: a module is called that it does not know, or that no other calls."""
        try:
            number = self.number_at(module)
            if number is None:
                name = name_in_caller() if parent == 0 else self.name_below(parent, module)
                number = self.add_all(module, name)
            if parent == 0:
                calls = self.calls[number] = self.calls.get(number, 0) + 1
                if calls & (calls - 1) == 0:  # now and then: parameters may be replaced
                    self.label_module(module)
            return number
        except Exception:  # modules can be anything: this one's memory has no module, and the program goes on
            return parent

    def number_at(self, module: Any) -> int | None:
        found = self.known.get(id(module))
        return found[1] if found is not None and found[0]() is module else None

    def add_all(self, module: Any, name: str) -> int:
        """A module, and all that are in it."""
        name = self.unused(name)
        for path, one in module.named_modules():
            if self.number_at(one) is None:
                self.add(one, f"{name}.{path}" if path else name)
        number = self.number_at(module)
        assert number is not None
        return number

    def unused(self, name: str) -> str:
        taken = set(self.names)
        return next(one for one in (name, *(f"{name} ({i})" for i in range(2, len(taken) + 3))) if one not in taken)

    def add(self, module: Any, name: str) -> None:
        key, number = id(module), len(self.names)
        self.names.append(name)

        def forget(_: Any) -> None:
            self.known.pop(key, None)
            self.extension.arena_ledger_forget(key)

        self.known[key] = (weakref.ref(module, forget), number)
        self.extension.arena_ledger_number(key, number)

    def name_below(self, parent: int, module: Any) -> str:
        return f"{self.names[parent]}.{type(module).__name__}"

    def label_module(self, module: Any) -> None:
        for one in module.modules():
            number = self.number_at(one) or 0
            for tensor in one._parameters.values():
                self.owners[id(tensor)] = number
                self.label(tensor, PARAMETERS, number)
            for tensor in one._buffers.values():
                self.label(tensor, BUFFERS, number)

    def label(self, tensor: Any, kind: int, module: int, line: int = 0) -> None:
        if tensor is None or not tensor.is_cuda:
            return
        with contextlib.suppress(RuntimeError, NotImplementedError):  # a sparse one, say
            self.extension.arena_ledger_label(tensor.untyped_storage().data_ptr(), kind, module, line)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """Parameters and gradients, if the peak is another than at the last step that was looked at."""
        with contextlib.suppress(Exception):
            if (peak := self.extension.arena_ledger_peak()) == self.labelled_before:
                return
            self.labelled_before = peak
            self.label_parameters(optimizer)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """The same for the optimizer's state, which was taken in its step, whatever line of the optimizer took it."""
        with contextlib.suppress(Exception):
            self.steps += 1
            if self.steps == 1:
                self.look_for_modules()
            if (peak := self.extension.arena_ledger_peak()) == self.labelled_after:
                return
            self.labelled_after = peak
            self.label_state(optimizer, self.extension.arena_ledger_here())

    def label_parameters(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                owner = self.owners.get(id(tensor), 0)
                self.label(tensor, PARAMETERS, owner)
                self.label(tensor.grad, GRADIENTS, owner)

    def label_state(self, optimizer: Any, line: int) -> None:
        for tensor, state in optimizer.state.items():
            owner = self.owners.get(id(tensor), 0)
            for one in tensors_in(state, self.torch.Tensor):
                self.label(one, STATE, owner, line)

    def look(self) -> None:
        """Label what modules and optimizers own now."""
        self.look_for_modules()
        optimizers = self.torch.optim.Optimizer
        for one in gc.get_objects():
            if issubclass(type(one), optimizers):
                self.label_parameters(one)
                self.label_state(one, 0)

    def look_for_modules(self) -> None:
        kind = self.torch.nn.Module
        found = [one for one in gc.get_objects() if issubclass(type(one), kind)]
        inner = {id(part) for one in found for part in one._modules.values() if part is not None}
        for one in found:
            if id(one) in inner:
                continue
            if self.number_at(one) is None:
                self.add_all(one, name_in_main(one) or type(one).__name__)
            self.label_module(one)


def tensors_in(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one, kind)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one, kind)


def name_in_caller() -> str:
    """What a module is called where it is called: ``model`` in ``loss = model(tokens)``.

    From the source: reading a frame's variables would keep tensors alive.
    """
    place = source.here()
    called = re.match(r"(?:self\.)?([A-Za-z_][\w.]*)\(", source.text_at(place, 200)) if place is not None else None
    return ROOT if called is None else called[1]


def name_in_main(module: Any) -> str:
    variables = vars(sys.modules["__main__"])
    return next((name for name, value in variables.items() if value is module and not name.startswith("_")), "")


@functools.cache
def folders(torch: Any) -> tuple[str, str, str, str]:
    """Of frameworks, of what else is installed, of Python itself with arena, and of PyTorch's optimizers."""
    paths = sysconfig.get_paths()
    sites = {*site.getsitepackages(), site.getusersitepackages(), paths["purelib"], paths["platlib"]}
    installed = [f"{path}{os.sep}" for path in sites if path]
    home = f"{Path(torch.__file__).parent}{os.sep}"
    frameworks = [home, *(f"{path}{name}{os.sep}" for path in installed for name in source.FRAMEWORKS)]
    python = ["<", f"{paths['stdlib']}{os.sep}", f"{Path(__file__).parent.parent.parent}{os.sep}"]
    return "\n".join(frameworks), "\n".join(installed), "\n".join(python), f"{home}optim{os.sep}"


def prepared(extension: Any) -> Any:
    """Declare what the functions take and return. They hold Python's lock: they are short and never wait."""
    text, number = ctypes.c_char_p, ctypes.c_int
    types: dict[str, tuple[Any, list[Any]]] = {
        "begin": (None, [text, text, text, text, number]),
        "follow": (number, [_ID]),
        "watch": (ctypes.py_object, [ctypes.py_object, _NAME]),
        "number": (None, [_ID, number]),
        "forget": (None, [_ID]),
        "label": (None, [_ID, number, ctypes.c_uint, ctypes.c_uint]),
        "here": (ctypes.c_uint, []),
        "peak": (_ID, []),
        "live": (ctypes.c_longlong, []),
        "clearing": (None, [number]),
        "facts": (text, []),
        "connect": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(extension, f"arena_ledger_{name}")
        function.restype, function.argtypes = result, arguments
    return extension
