"""The page of a profiling run: one self-contained HTML file, a module a view."""

from __future__ import annotations

from pages.profile.document import MAX_PAGE_BYTES, POLICY, render_page

__all__ = ["MAX_PAGE_BYTES", "POLICY", "render_page"]
