"""What `make golden` says of two results; the results themselves take minutes."""

import pytest

from golden import TREE, make_results, show


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_results_are_the_same_again_and_a_changed_one_is_found(capsys):
    results, again = make_results(TREE, TREE)
    assert show(results, again, "HEAD~1") == 0
    changed = "methods/mib/step-1/network tensors"
    assert show(results | {changed: "0" * 64}, results, "HEAD~1") == 1
    shown = capsys.readouterr().out
    assert f"1 of {len(results)} results are not those of HEAD~1" in shown
    assert f"{changed} differs" in shown
