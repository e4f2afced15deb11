"""Toolkits as installers and people leave them on a disk: only the files that are looked at, with made-up content."""

import struct
from collections.abc import Mapping
from pathlib import Path


def write(path: Path, content: str | bytes = "", *, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def elf(interpreter: str) -> bytes:
    """A 64-bit ELF program of nothing but its headers and the name of its loader."""
    name = interpreter.encode() + b"\0"
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 64, 64, 4096)
    interp = struct.pack("<IIQQQQQQ", 3, 4, 64 + 2 * 56, 0, 0, len(name), len(name), 1)
    return header + load + interp + name


def ddk(
    folder: Path, *, name: str = "DDK-tools-next-6.1.1.0", platforms: tuple[str, ...] = ("kirinx90",), mode: int = 0o755
) -> Path:
    """An unpacked DDK in ``folder``; returns its ``tools``."""
    tools = folder / name / "tools"
    loader = write(folder / "loader.so")
    write(tools / "tools_omg" / "omg", "#!/bin/sh\n", mode=mode)
    write(tools / "tools_omg" / "master" / "omg", elf(str(loader)), mode=mode)
    for platform in platforms:
        (tools / "platform" / platform / "lib64").mkdir(parents=True)
    return tools


def cann(
    root: Path,
    *,
    versions: Mapping[str, str] | None = None,
    cfg: str = "",
    install: str = "",
    platforms: tuple[str, ...] = ("Ascend310B4", "KirinX90"),
) -> Path:
    """CANN in ``root``: ``versions`` are the ``Version=`` of its parts."""
    for part, version in (versions if versions is not None else {"compiler": "7.6.0.1.220"}).items():
        write(root / part / "version.info", f"Version={version}\nversion_dir=x\n")
    write(root / "bin" / "atc", "#!/bin/sh\n", mode=0o755)
    if cfg:
        write(root / "version.cfg", cfg)
    if install:
        write(root / "x86_64-linux" / "ascend_toolkit_install.info", install)
    for platform in platforms:
        write(root / "x86_64-linux" / "data" / "platform_config" / f"{platform}.ini")
    return root
