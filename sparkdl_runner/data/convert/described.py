"""The converter of a directory that this process has described."""

from __future__ import annotations

from collections.abc import Callable

from sparkdl_runner.base.filesystem import join_url
from sparkdl_runner.data.consumers.petastorm.unischema import Unischema
from sparkdl_runner.data.consumers.spark_dataset_converter import SparkDatasetConverter
from sparkdl_runner.data.dataset.converted import Converted
from sparkdl_runner.data.dataset.dataset import Dataset
from sparkdl_runner.data.dataset.files import Files


def converter_of(
    url: str,
    dataset: Dataset,
    *,
    checked: Dataset | None = None,
    embedded: bool = False,
    unischema: Unischema | None = None,
    delete: Callable[[], None] | None = None,
) -> SparkDatasetConverter:
    """The converter of a data set. It carries the manifest if that is ``embedded``.

    ``checked`` is what ``VerifiedFiles.check_all`` returned, where the files were checked.
    """
    manifest = dataset.manifest
    return SparkDatasetConverter(
        url,
        [join_url(url, path) for path in Files.of(manifest.files).paths()],
        manifest.rows,
        manifest=manifest if embedded else None,
        converted=Converted.of(dataset, checked),
        unischema=unischema,
        delete=delete,
    )
