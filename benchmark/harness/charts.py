"""Bar charts as SVG, light and dark."""

from __future__ import annotations

from html import escape

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b2028 }
.quiet { fill: #626b7a } .title { font-weight: 600; font-size: 15px }
.bar { fill: #b9c2d0 } .ours { fill: #3d7be0 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ee } .quiet { fill: #98a1b0 } .bar { fill: #4a5362 } .ours { fill: #6ea3ff }
}
"""
LABEL, WIDTH, ROW, BAR = 250, 760, 24, 15


def bars(title: str, unit: str, groups: dict[str, list[tuple[str, float, str]]]) -> str:
    """Groups of bars: a label, a number and a class (``ours`` or ``bar``) each."""
    most = max((value for group in groups.values() for _, value, _ in group), default=1.0) or 1.0
    scale = (WIDTH - LABEL - 70) / most
    parts, y = [f'<text class="title" x="16" y="28">{escape(title)}</text>'], 46
    for name, group in groups.items():
        parts.append(f'<text class="quiet" x="16" y="{y + 14}">{escape(name)}</text>')
        y += ROW
        for label, value, kind in group:
            length = max(value * scale, 1)
            parts += [
                f'<text x="{LABEL - 10}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
                f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}"/>',
                f'<text class="quiet" x="{LABEL + length + 8:.1f}" y="{y + 12}">{value:.2f}</text>',
            ]
            y += ROW
        y += 8
    parts.append(
        f'<text class="quiet" x="{WIDTH - 16}" y="28" text-anchor="end">{escape(unit)}</text>'
    )
    size = f'width="{WIDTH}" height="{y + 8}" viewBox="0 0 {WIDTH} {y + 8}"'
    inside = "\n".join(parts)
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return f"{opened}\n<style>{STYLE}</style>\n{inside}\n</svg>\n"
