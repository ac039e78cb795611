"""The library that draws the charts of an HTML report, in the version that Altair writes for.

`python docs/generate_vega.py` writes it: Vega, Vega-Lite and vega-embed as one script. To make it anew for each report
would take longer than the analysis.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import vl_convert

from warplens.report.charts.base import vega_lite_version

SCRIPT = Path(__file__).resolve().parent.parent / "src" / "warplens" / "report" / "assets" / "vega.js.xz"


def script() -> str:
    """Vega, Vega-Lite and vega-embed as one script that can stand inside a page."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())
    return bundle.replace("</script", "<\\/script")


if __name__ == "__main__":
    SCRIPT.write_bytes(lzma.compress(script().encode(), preset=9 | lzma.PRESET_EXTREME))
