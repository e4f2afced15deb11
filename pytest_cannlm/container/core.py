"""Open an ``.om`` or ``.omc``: check the container, list its partitions, read what is asked for and nothing else.

Checks run in a fixed order, so that one broken file always gives one error name, and no number of the file is used
before it is bounded. Standard library only; valid for Python 3.10: this module travels to the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from pytest_cannlm.container import graph, inoutinfo, modelattrs, taskinfo
from pytest_cannlm.container.inoutinfo import InOutInfo
from pytest_cannlm.container.layout import (
    KIRIN_COMPILED,
    MODEL_DEF,
    MODEL_INOUT_INFO,
    SIMULATED_MARK,
    TASK_INFO,
    WEIGHTS_DATA,
    Dialect,
    Header,
    Layout,
    field_text,
    model_type_name,
)
from pytest_cannlm.container.modelattrs import AttributeValue
from pytest_cannlm.container.partitions import PartitionEntry, read_partitions
from pytest_cannlm.container.source import CountedSource, FileSource, PartSource, Source
from pytest_cannlm.container.validate import check_length, notes_on, read_header
from pytest_cannlm.container.wire import WireError
from pytest_cannlm.errors import ContainerError

T = TypeVar("T")


class Container:
    """An opened container. It holds no file handle: every read opens the file, counts its bytes, and closes it."""

    def __init__(
        self,
        source: CountedSource,
        header: Header,
        models: tuple[tuple[PartitionEntry, ...], ...],
        notes: tuple[str, ...],
    ):
        self._source = source
        self.header = header
        self.models = models
        """Per model its partitions, in table order."""
        self.notes = notes
        """Oddities that are no errors, such as an empty partition."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._source.path

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._source.size

    @property
    def bytes_read(self) -> int:
        """Bytes read from the file so far."""
        return self._source.bytes_read

    @property
    def layout(self) -> Layout:
        """Header layout: A1, A2 or K."""
        return self.header.layout

    @property
    def dialect(self) -> Dialect:
        """Who reads this: ascend or kirin."""
        return self.header.dialect

    @property
    def partitions(self) -> tuple[PartitionEntry, ...]:
        """Partitions of model 0, the only model of most files."""
        return self.models[0]

    @property
    def partition_base(self) -> int:
        """File offset that the offsets of model 0 count from."""
        return self.partitions[0].start - self.partitions[0].offset

    @property
    def model_name(self) -> str:
        """Name in the header."""
        return field_text(self.header.name)

    @property
    def model_type_name(self) -> str | None:
        """Name of the model type, None where the dialect has none."""
        return model_type_name(self.dialect, self.header.modeltype)

    @property
    def simulated(self) -> bool:
        """Written by our simulated converter: only the simulated NPU can run it."""
        return self.header.userdefineinfo.startswith(SIMULATED_MARK)

    @property
    def external_weights(self) -> bool:
        """A compiled Kirin model that carries no weights inside."""
        compiled = self.dialect == "kirin" and self.header.modeltype == KIRIN_COMPILED
        return compiled and not any(entry.type == WEIGHTS_DATA and entry.size for entry in self.partitions)

    def find(self, kind: int, model: int = 0) -> PartitionEntry | None:
        """The first partition of that type in a model, None if there is none."""
        return next((entry for entry in self.models[model] if entry.type == kind), None)

    def read(self, entry: PartitionEntry) -> bytes:
        """All bytes of a partition."""
        with self._source as source:
            return source.at(entry.start, entry.size) if entry.size else b""

    def scan(self, entry: PartitionEntry, read: Callable[[Source, int, int], T]) -> T:
        """What ``read(source, start, end)`` makes of a partition without having all of it in memory."""
        with self._source as source:
            return read(source, entry.start, entry.end)

    def has_model_def(self, model: int = 0) -> bool:
        """Whether a model has a MODEL_DEF; a bundle or a model for a small executor can be without."""
        return self._model_def(model) is not None

    def read_model_def(self, read: Callable[[Source, int, int], T], model: int = 0) -> T:
        """What ``read(source, start, end)`` makes of the MODEL_DEF of a model.

        Raises ``ContainerError`` OM_MODEL_DEF_UNREADABLE where there is none, or for a ``WireError`` of ``read``.
        """
        entry = self._model_def(model)
        if entry is None:
            raise ContainerError(
                "this kind of container has no MODEL_DEF to read attributes from",
                file=self.path,
                field="MODEL_DEF",
                found=self.model_type_name,
                expected="a model, not what is made of one or of several",
                remedy="Look at it with cannlm inspect",
                code="OM_MODEL_DEF_UNREADABLE",
            )
        try:
            return self.scan(entry, read)
        except WireError as error:
            raise ContainerError(
                f"MODEL_DEF of model {entry.model} ({entry.size} bytes) is not readable: {error}",
                file=self.path,
                field="MODEL_DEF",
                found=f"{entry.size} bytes at offset {entry.start}",
                expected="a protobuf message ModelDef with a graph",
                remedy="Convert the model again",
                code="OM_MODEL_DEF_UNREADABLE",
            ) from error

    def attributes(
        self, names: Collection[str] | None = None, *, max_value: int = modelattrs.MAX_VALUE, model: int = 0
    ) -> dict[str, AttributeValue]:
        """Top-level attributes of a model: text as str, other bytes as bytes, numbers, booleans, lists of them.

        The graph is seeked past, as is every value longer than ``max_value`` bytes; such attributes and attributes of
        other kinds (tensors, graphs) are left out. ``names`` restricts the answer, and the reading, to some of them.
        Raises ``ContainerError`` OM_MODEL_DEF_UNREADABLE.
        """
        return self.read_model_def(
            lambda source, start, end: modelattrs.read_attributes(source, start, end, names=names, max_value=max_value),
            model,
        )

    def external_weight_size(self) -> int | None:
        """Bytes that the compiled graph expects in its external weight file; None where the graph does not say."""
        return self.read_model_def(modelattrs.read_graphop_weight_size)

    def input_shapes(self, names: Collection[str]) -> tuple[dict[str, tuple[int, ...]], bool]:
        """Shapes that the main graph declares for some inputs by name (-1 = dynamic), and whether all of it was read.

        Where it was not, because of the read limit, the graph may have the missing ones. Stops where all are found.
        Raises ``ContainerError`` OM_MODEL_DEF_UNREADABLE.
        """
        return self.read_model_def(lambda source, start, end: graph.read_input_shapes(source, start, end, names))

    def inout_info(self, model: int = 0) -> InOutInfo | None:
        """The record of inputs and outputs that converters for Ascend write since CANN 7; None if there is none.

        Raises ``ContainerError`` OM_BAD_TLV.
        """
        entry = self.find(MODEL_INOUT_INFO, model) if self.dialect == "ascend" else None
        if entry is None or not entry.size:
            return None
        with self._source as source:
            try:
                return inoutinfo.read_inout_info(source, entry.start, entry.size)
            except inoutinfo.InOutInfoError as error:
                raise self._bad_tlv(entry, str(error)) from error

    def nested(self, start: int, size: int) -> Container:
        """The container inside this one at ``start``, as in a flow or a bundle; raises as ``open_container`` does."""
        return open_source(PartSource(self._source, start, size))

    def task_sections(self) -> tuple[tuple[int, int], ...]:
        """(type, length) of the records of a Kirin TASK_INFO; empty where it is no record list.

        Raises ``ContainerError`` OM_BAD_TLV.
        """
        entry = self._task_info()
        if entry is None:
            return ()
        with self._source as source:
            try:
                return tuple((r.type, r.size) for r in taskinfo.read_records(source, entry.start, entry.size))
            except taskinfo.TaskInfoError as error:
                raise self._bad_tlv(entry, str(error)) from error

    def kirin_platform(self) -> tuple[int, tuple[int, ...]] | None:
        """Platform code and ids that a compiled Kirin model was built for; None where it does not say.

        Raises ``ContainerError`` OM_BAD_TLV. Codes with a known name: ``taskinfo.PLATFORM_CODES``.
        """
        entry = self._task_info()
        if entry is None:
            return None
        with self._source as source:
            try:
                return taskinfo.read_platform(source, taskinfo.read_records(source, entry.start, entry.size))
            except taskinfo.TaskInfoError as error:
                raise self._bad_tlv(entry, str(error)) from error

    def _task_info(self) -> PartitionEntry | None:
        if self.dialect != "kirin" or self.header.modeltype != KIRIN_COMPILED:
            return None
        return self.find(TASK_INFO)

    def _model_def(self, model: int) -> PartitionEntry | None:
        return next((entry for entry in self.models[model] if entry.type == MODEL_DEF and entry.size), None)

    def _bad_tlv(self, entry: PartitionEntry, reason: str) -> ContainerError:
        return ContainerError(
            f"{entry.name} is broken: {reason}",
            file=self.path,
            field=entry.name,
            found=f"{entry.size} bytes at offset {entry.start}",
            expected="records that fit each other and the partition",
            remedy="Convert the model again",
            code="OM_BAD_TLV",
        )


def open_container(path: str | Path, *, read_limit: int | None = None) -> Container:
    """Check header and partition tables of ``path`` and return what is in it.

    ``read_limit`` bounds the bytes read, now and by everything asked of the container later. Raises ``ContainerError``
    whose ``code`` is the name of the first thing that is wrong: OM_IO, OM_EMPTY, OM_CUSTOM_DATA_PREFIX, OM2_ZIP,
    OM_BAD_MAGIC, OM_TRUNCATED_HEADER, OM_BAD_HEADER, OM_UNSUPPORTED_CONTAINER, OM_ENCRYPTED, OM_TRUNCATED,
    OM_OVER_4GIB, OM_LENGTH_MISMATCH and those of ``partitions.read_partitions``.
    """
    return open_source(FileSource(Path(path), limit=read_limit))


def open_source(source: CountedSource) -> Container:
    """:func:`open_container` for a caller that counts the bytes itself, those of a failed attempt too."""
    with source:
        header = read_header(source)
        payload_end = check_length(source, header)
        models = read_partitions(source, header, payload_end)
    return Container(source, header, models, tuple(notes_on(header, models)))
