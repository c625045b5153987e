"""Without a sandbox, tests are skipped, or fail if a sandbox is required."""

import pytest
from tests.sandbox import needed

from gdpo.lab.sandbox import SandboxError


def test_a_missing_sandbox_is_a_reason_to_skip_or_a_failure(monkeypatch):
    def none_here():
        raise SandboxError("no backend works here")

    monkeypatch.setattr(needed, "find_backend", none_here)
    monkeypatch.delenv("GDPO_REQUIRE_SANDBOX", raising=False)
    assert needed.why_none() == "no backend works here"
    monkeypatch.setenv("GDPO_REQUIRE_SANDBOX", "1")
    with pytest.raises(SandboxError, match="no backend works"):
        needed.why_none()
