"""Names of earlier versions: they work, and say what they are called now."""

from __future__ import annotations

import warnings

import pytest

from sparkdl_runner import DistributedRunner, HorovodRunner, RunConfig
from sparkdl_runner.base.renamed import renamed
from sparkdl_runner.horovod import SparkBackend

QUIET = RunConfig(tracking=False)


@renamed(old="new")
def taken(*, new: int = 0) -> int:
    return new


def test_an_earlier_name_works_and_is_told_of():
    with pytest.warns(
        FutureWarning, match="^old is called new now. The earlier name works"
    ) as told:
        assert taken(old=3) == 3
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert taken(new=4) == 4


def test_a_value_by_both_names_is_refused():
    with pytest.raises(TypeError, match="old is called new now, and both are given: leave one out"):
        taken(old=3, new=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda **given: DistributedRunner(num_proc=-1, **given).run_config,
        lambda **given: HorovodRunner(np=-1, **given)._runner.run_config,
        lambda **given: SparkBackend(-1, **given)._run_config,
    ],
    ids=["DistributedRunner", "HorovodRunner", "SparkBackend"],
)
def test_a_runner_takes_config_as_before(make):
    with pytest.warns(FutureWarning, match="config is called run_config now") as told:
        assert make(config=QUIET).tracking is False
    assert told[0].filename == __file__
