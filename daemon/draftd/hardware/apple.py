"""Raw system answers on macOS, through ctypes and subprocesses. Nothing is decoded here, and nothing has run on a Mac
yet.

Every called function has declared argument and result types: on arm64 a missing declaration corrupts the call.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cached_property
from typing import Any

_SYSTEM = "/usr/lib/libSystem.dylib"
_OBJC = "/usr/lib/libobjc.A.dylib"
_FOUNDATION = "/System/Library/Frameworks/Foundation.framework/Foundation"

_THERMAL_PRESSURE = b"com.apple.system.thermalpressurelevel"
_HOST_VM_INFO64 = 4
_VM_WORDS = 64  # room for struct vm_statistics64, which has 38 words of 32 bits and may grow
_SYSCTL_ROOM = 64  # bytes; the largest answer asked for is 32
_COMMAND_SECONDS = 2.0


class SystemApple:
    """Raw system answers on a real Mac. Methods raise OSError if there is no answer.

    Libraries are opened on first use, so a missing one costs only the readings that need it. Objects that would leak if
    requested with every sample are kept."""

    def __init__(self) -> None:
        self.page_size = os.sysconf("SC_PAGE_SIZE")

    @cached_property
    def _system(self) -> ctypes.CDLL:
        system = ctypes.CDLL(_SYSTEM, use_errno=True)
        text, number, word = ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32
        words, size = ctypes.POINTER(word), ctypes.POINTER(ctypes.c_size_t)
        _declare(system.notify_register_check, word, text, ctypes.POINTER(number))
        _declare(system.notify_get_state, word, number, ctypes.POINTER(ctypes.c_uint64))
        _declare(system.sysctlbyname, number, text, ctypes.c_void_p, size, ctypes.c_void_p, ctypes.c_size_t)
        _declare(system.mach_host_self, word)
        _declare(system.host_statistics64, number, word, number, words, words)
        return system

    @cached_property
    def _process_info(self) -> _ProcessInfo:
        return _ProcessInfo()

    @cached_property
    def _host(self) -> int:
        return int(self._system.mach_host_self())

    @cached_property
    def _thermal_token(self) -> int:
        token = ctypes.c_int()
        _check("notify_register_check", self._system.notify_register_check(_THERMAL_PRESSURE, ctypes.byref(token)))
        return token.value

    def thermal_pressure(self) -> int:
        state = ctypes.c_uint64()
        _check("notify_get_state", self._system.notify_get_state(self._thermal_token, ctypes.byref(state)))
        return state.value

    def thermal_state(self) -> int:
        return int(self._process_info.ask(b"thermalState", ctypes.c_long))

    def low_power(self) -> bool:
        return bool(self._process_info.ask(b"isLowPowerModeEnabled", ctypes.c_bool))

    def sysctl(self, name: str) -> bytes:
        buffer = ctypes.create_string_buffer(_SYSCTL_ROOM)
        size = ctypes.c_size_t(_SYSCTL_ROOM)
        if self._system.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
        return buffer.raw[: size.value]

    def vm_statistics(self) -> bytes:
        words = (ctypes.c_uint32 * _VM_WORDS)()
        count = ctypes.c_uint32(_VM_WORDS)
        answer = self._system.host_statistics64(self._host, _HOST_VM_INFO64, words, ctypes.byref(count))
        _check("host_statistics64", answer)
        return bytes(words)[: 4 * count.value]

    def run(self, command: tuple[str, ...]) -> str:
        """Returns a command's output, within a time limit."""
        # With a full path and close_fds=False Python spawns instead of forking: gRPC and Metal do not survive a fork.
        # Python's own files are closed in the child anyway.
        try:
            said = subprocess.check_output(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, timeout=_COMMAND_SECONDS
            )
        except subprocess.SubprocessError as error:
            raise OSError(str(error)) from error
        return said.decode(errors="replace")


class _ProcessInfo:
    """This process's NSProcessInfo."""

    def __init__(self) -> None:
        ctypes.CDLL(_FOUNDATION)
        self._objc = ctypes.CDLL(_OBJC)
        _declare(self._objc.objc_getClass, ctypes.c_void_p, ctypes.c_char_p)
        _declare(self._objc.sel_registerName, ctypes.c_void_p, ctypes.c_char_p)
        # It is never freed, so it needs no autorelease pool and may be kept.
        self._info = self._send(self._objc.objc_getClass(b"NSProcessInfo"), b"processInfo", ctypes.c_void_p)
        if not self._info:  # a message to nil answers 0, which would read as nominal
            raise OSError("no NSProcessInfo")

    def ask(self, selector: bytes, result: Any) -> Any:
        """Returns the property with this name; `result` is its C type."""
        return self._send(self._info, selector, result)

    def _send(self, receiver: int, selector: bytes, result: Any) -> Any:
        message = ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_void_p)(("objc_msgSend", self._objc))
        return message(receiver, self._objc.sel_registerName(selector))


def _declare(function: Any, result: Any, *arguments: Any) -> None:
    function.restype, function.argtypes = result, arguments


def _check(function: str, status: int) -> None:
    if status != 0:
        raise OSError(f"{function} answered {status}")
