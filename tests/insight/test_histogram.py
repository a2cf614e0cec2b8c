from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, strategies as st

from visibility.insight.histogram import FIRST, LAST, RATIO, TOP, Histogram, bucket_of, lower, upper

durations = st.floats(min_value=0.0011, max_value=80_000, allow_nan=False)
samples = st.lists(durations, min_size=1, max_size=300)


@given(durations)
def test_a_duration_lies_between_the_edges_of_its_bucket(seconds: float) -> None:
    index = bucket_of(seconds)
    assert lower(index) <= seconds * (1 + 1e-6)
    assert seconds <= upper(index) * (1 + 1e-6)


def test_out_of_range_lands_in_the_first_and_the_last_bucket() -> None:
    assert bucket_of(-1) == bucket_of(0) == bucket_of(FIRST) == 0
    assert bucket_of(LAST * 100) == bucket_of(math.inf) == TOP


@given(samples, st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_within_five_per_cent_of_the_sample_it_stands_for(values: list[float], q: float) -> None:
    exact = sorted(values)[math.ceil(q * len(values)) - 1]
    found = Histogram.of(values).quantile(q)
    assert found is not None
    assert exact / RATIO - 1e-9 <= found <= exact * RATIO + 1e-9


@given(samples, durations)
def test_the_share_within_a_target_is_off_by_the_cut_bucket_at_most(values: list[float], target: float) -> None:
    histogram = Histogram.of(values)
    exact = sum(value <= target for value in values)
    assert abs(histogram.within(target) - exact) <= histogram.buckets.get(bucket_of(target), 0) + 1e-6


@given(samples, samples)
def test_merging_is_the_same_as_counting_together(one: list[float], other: list[float]) -> None:
    merged = Histogram.of(one).merge(Histogram.of(other))
    assert merged.buckets == Histogram.of(one + other).buckets
    assert merged.count == len(one) + len(other)
    assert merged.minus(Histogram.of(other)).buckets == Histogram.of(one).buckets


@given(samples)
def test_it_survives_json(values: list[float]) -> None:
    histogram = Histogram.of(values)
    assert Histogram.from_json(json.loads(json.dumps(histogram.to_json())), histogram.total) == histogram


def test_an_empty_one_has_no_figures() -> None:
    empty = Histogram()
    assert not empty
    assert (empty.quantile(0.5), empty.mean, empty.within(1)) == (None, None, 0)


def test_cumulative_counts_whole_buckets() -> None:
    histogram = Histogram.of([0.01, 0.1, 1, 10])
    assert histogram.cumulative([upper(bucket_of(0.01)), upper(bucket_of(1)), LAST]) == [
        (pytest.approx(0.01, rel=0.05), 1),
        (pytest.approx(1, rel=0.05), 3),
        (LAST, 4),
    ]
