"""What every page keeps to: it is accessible, and fits on a phone and a desk, in light and dark."""

from typing import Any

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
LINK = "?token=x&email=ada@example.com"
HTML = "<b>Bobby</b> <img src=x onerror=alert(1)> <script>alert(1)</script>"
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def violations(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    # Targets of 24 pixels are no part of the rules that it has by itself.
    reported = Axe().run(page, options={"rules": {"target-size": {"enabled": True}}}).response["violations"]
    return [
        f"{violation['id']}: {node['html']} {node['failureSummary']}"
        for violation in reported
        for node in violation["nodes"]
    ]


def looks_well(page: Any) -> None:
    for size, scheme in ((PHONE, "light"), (DESK, "dark")):
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == [], (size, scheme)
        assert page.evaluate(WIDE) == 0, size
