"""What a threshold promises is one sentence and one JSON form, wherever it comes from."""

import numpy as np
import pytest

from demerit.decide.detector import Detector, Schedule
from demerit.decide.guarantee import Guarantee, describe_cut
from demerit.decide.threshold import conformal_threshold
from demerit.models import load_model


def test_the_sentence_says_the_share_of_what_how_sure_and_from_how_many() -> None:
    guarantee = Guarantee(0.05, "failures are called a success", 30)
    sentence = (
        "At most 5.0% of failures are called a success (on average), if they resemble the 30 that it was calibrated on."
    )
    assert str(guarantee) == sentence
    assert guarantee.as_dict() == {
        "share": 0.05,
        "of": "failures are called a success",
        "n": 30,
        "confidence": None,
        "left_out": 0,
        "text": sentence,
    }
    assert "(90% sure)" in str(Guarantee(0.05, "failures are called a success", 45, 0.9))


@pytest.mark.parametrize("confidence", [None, 0.9])
def test_thresholds_and_detectors_promise_in_the_same_words(confidence: float | None) -> None:
    threshold = conformal_threshold(np.arange(60), 0.05, confidence)
    assert threshold.guarantee == Guarantee(0.05, "failures are called a success", 60, confidence)
    detector = Detector("clock", "", 0, 1, True, 0.05, confidence, {"": Schedule((0.5,), 0.5, 0.2, 60)})
    assert detector.guarantee == Guarantee(0.05, "successes have an alarm", 60, confidence)


def test_a_model_without_a_threshold_has_no_cut_to_describe() -> None:
    assert describe_cut(load_model("clock")) == ""
