"""What all tests share."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile("efhc", deadline=None, max_examples=100)
hypothesis.settings.load_profile("efhc")
