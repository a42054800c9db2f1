"""Checks of your own methods, models and data sets, in seconds: each raises AssertionError with a clear text.

import pytest
from fedweave.testing import check_method, method_checks

def test_my_method():
    check_method(MyMethod)

@pytest.mark.parametrize("check", method_checks(MyMethod))
def test_each_promise(check):
    check()
"""

from fedweave.testing.checks import check_dataset, check_model
from fedweave.testing.methods import check_method, method_checks
