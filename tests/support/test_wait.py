from __future__ import annotations

import time

import pytest

from tests.support import await_for, lacking, need, wait_for


def test_returns_what_the_condition_answers() -> None:
    answers = iter([None, 0, "", [1]])
    assert wait_for(lambda: next(answers)) == [1]


def test_says_what_did_not_happen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: the moon is blue \(last: False\)"):
        wait_for(lambda: False, 0.05, "the moon is blue")


def test_an_assertion_in_the_condition_means_not_yet() -> None:
    begin = time.monotonic()

    def condition() -> bool:
        assert time.monotonic() > begin + 0.05, "too early"
        return True

    assert wait_for(condition, 2)
    with pytest.raises(AssertionError, match="too early"):
        begin = time.monotonic() + 60
        wait_for(condition, 0.05)


def test_other_errors_end_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_for(lambda: 1 / 0, 60)


async def test_on_an_event_loop_the_condition_may_be_a_coroutine() -> None:
    answers = iter([False, True])

    async def condition() -> bool:
        return next(answers)

    assert await await_for(condition)
    with pytest.raises(AssertionError, match="never"):
        await await_for(lambda: False, 0.05, "never")


def test_what_is_lacking_skips_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support import needs

    monkeypatch.setitem(needs.PARTS, "unicorn", (lambda: None, "there are none"))
    monkeypatch.delenv("VISIBILITY_REQUIRE_ALL", raising=False)
    assert lacking("unicorn") == "there are none"
    with pytest.raises(pytest.skip.Exception, match="needs unicorn: there are none"):
        need("unicorn")
    monkeypatch.setenv("VISIBILITY_REQUIRE_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match="needs unicorn"):
        need("unicorn")
    needs._find.cache_clear()
