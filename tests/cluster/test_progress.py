"""Tests of progress files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.cluster.progress import PROGRESS_LIMIT_BYTES, Progress, decode_progress

AMOUNT = st.integers(0, 10**18 - 1)


@given(AMOUNT, AMOUNT)
def test_valid_progress_is_decoded(done: int, whole: int) -> None:
    text = f"{done}/{whole}\n".encode()
    assert len(text) <= PROGRESS_LIMIT_BYTES
    progress = decode_progress(text)
    assert progress == (Progress(done, whole) if whole > 0 and done <= whole else None)
    if progress is not None:
        assert 0 <= progress.ppm <= 1_000_000
        assert (progress.ppm == 1_000_000) == progress.is_complete == (done == whole)


@given(st.binary(max_size=PROGRESS_LIMIT_BYTES))
def test_arbitrary_bytes_do_not_raise(text: bytes) -> None:
    progress = decode_progress(text)
    assert progress is None or 0 <= progress.done <= progress.whole


@given(st.integers(1, 10**6), st.data())
def test_incomplete_file_has_no_progress(whole: int, data: st.DataObject) -> None:
    text = f"{data.draw(st.integers(0, whole))}/{whole}\n".encode()
    assert decode_progress(text[: data.draw(st.integers(0, len(text) - 1))]) is None


@pytest.mark.parametrize("text", [b"", b"\n", b"1\n", b"1/0\n", b"2/1\n", b"-1/2\n", b"0.5\n", b"50%\n", b"1/2/3\n"])
def test_invalid_text_has_no_progress(text: bytes) -> None:
    assert decode_progress(text) is None
