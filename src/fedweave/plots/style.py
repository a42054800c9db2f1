"""The style of all figures: small SVG whose colours are CSS variables, so one drawing serves light and dark pages.

While drawing, each role has a placeholder colour; `to_svg` turns placeholders into variables. A series has one of six
hues, distinct under red-green colour blindness (OKLab distance checked after Machado's simulation), and one of three
dashes.
"""

import io
import re
import warnings
import zlib
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from fedweave.files.atomic import write_atomic
from fedweave.processes.parallel import gather

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIGHT = ("#2438b8", "#ee6a12", "#12937f", "#b53fa5", "#65500f", "#2a8cf0")
DARK = ("#7079f2", "#c8702a", "#6aeed2", "#f2628f", "#f2b727", "#3cb0f5")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
LABEL_SIZE = 10.5  # of the names of series, in points
HEAT = (0.23, 0.49, 0.92)  # opacity carries the value, so it reads on both backgrounds

INK, MUTED, GRID, SURFACE = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
GAIN, LOSS = "#0a0b05", "#0a0b06"
ROLES = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)", SURFACE: "var(--surface)"}
ROLES |= {GAIN: "var(--win)", LOSS: "var(--loss)"}
SERIES = tuple(f"#0a0b{16 + i:02x}" for i in range(len(LIGHT)))
ROLES |= {color: f"var(--s{i})" for i, color in enumerate(SERIES)}

RC: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.titlecolor"), INK),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), MUTED),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), GRID),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "xtick.minor.size", "ytick.minor.size"), 0),
    **dict.fromkeys(("text.parse_math", "axes.unicode_minus", "axes.formatter.useoffset"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **dict.fromkeys(("figure.dpi", "savefig.dpi"), 72),
    **dict.fromkeys(("font.size", "axes.titlesize"), 11),
    "svg.fonttype": "none",
    "svg.hashsalt": "fedweave",
    "grid.linewidth": 0.8,
    "axes.titlelocation": "left",
    "lines.linewidth": 1.8,
    "path.simplify_threshold": 0.3,
    "axes.titley": 1.0,  # a fixed place of titles; searching for it takes a fifth of the time of a drawing
}


# Drawings that `draw_in_parallel` still has to make; None outside of it.
_PENDING: ContextVar[list[Callable[[], str]] | None] = ContextVar("pending", default=None)


class SeriesStyle(NamedTuple):
    """How a method is drawn everywhere: number of its series, placeholder colour, dash pattern."""

    series: int
    color: str
    dash: Any


def assign_styles(methods: Sequence[str], first: Sequence[str] = ()) -> dict[str, SeriesStyle]:
    """A style for each method, the same in every figure of a study: first the methods of `first`, in order, then the
    others by name.

    Hues repeat after six methods with another dash, so `first` should be the methods that readers compare most.
    """
    ahead = [name for name in dict.fromkeys(first) if name in set(methods)]
    ordered = [*ahead, *sorted(set(methods) - set(ahead), key=str.casefold)]
    return {name: SeriesStyle(i, SERIES[i % 6], DASHES[i // 6 % 3]) for i, name in enumerate(ordered)}


def drawing(draw: Callable[..., "Figure"]) -> Callable[..., str]:
    """Turn a function that returns a Figure into one that returns inline SVG in the common style."""

    @wraps(draw)
    def wrapper(*args: Any, **options: Any) -> str:
        pending, job = _PENDING.get(), partial(_draw_svg, draw, *args, **options)
        if pending is None:
            return job()
        pending.append(job)
        return f"\0{len(pending) - 1}\0"

    return wrapper


def _draw_svg(draw: Callable[..., "Figure"], *args: Any, **options: Any) -> str:
    import matplotlib as mpl

    with mpl.rc_context(cast(Any, RC)):
        return to_svg(draw(*args, **options), draw.__name__)


def draw_in_parallel(render: Callable[[], str]) -> str:
    """The text that `render` returns; the drawings in it are made at the end, on all cores."""
    pending: list[Callable[[], str]] = []
    token = _PENDING.set(pending)
    try:
        text = render()
    finally:
        _PENDING.reset(token)
    # The first one is drawn in this process, so that the others share its imports and caches.
    drawings = [job() for job in pending[:1]] + gather(pending[1:])
    return re.sub("\0(\\d+)\0", lambda match: drawings[int(match[1])], text)


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, gaps: tuple[float, float] = (3.0, 3.0), **grid: Any
) -> tuple["Figure", np.ndarray]:
    """A figure of `width` x `height` points without pyplot's global state, and its axes as an array [rows, columns].

    `gaps` are the paddings between axes, vertical and horizontal, in points.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(h_pad=gaps[0] / 72, w_pad=gaps[1] / 72)
    figure = Figure(figsize=(width / 72, height / 72), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **grid)


def shade(values: np.ndarray, top: float) -> np.ndarray:
    """RGBA image [..., 4] of one hue whose opacity is value / top, so that it reads on light and dark."""
    alpha = np.clip(np.nan_to_num(values) / (top or 1.0), 0.0, 1.0)
    return np.concatenate([np.broadcast_to(HEAT, (*alpha.shape, 3)), alpha[..., None]], axis=-1)


def to_svg(figure: "Figure", salt: str) -> str:
    """The figure as an `<svg>` element for a page that defines --ink, --muted, --grid, --surface, --s0 .. --s5."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": salt}), warnings.catch_warnings():
        # Texts stay texts, which the browser draws in fonts of its own.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # `savefig` would draw everything twice
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"', "", text)
    text = re.sub(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', _opening_tag, text, count=1)
    text = re.sub(r"(font: |font-size: )?(\d+\.?\d*)px[^;\"]*", _font_size, text)
    text = re.sub(r"; font-family: [^;\"]*| transform=\"rotate\(-?0 [^\"]*\"|<g/>", "", text)
    text = re.sub(r'\b(d|x|y|points|transform)="([^"]*)"', _round_numbers, text)
    text = re.sub(r"#0a0b[0-9a-f]{2}", lambda m: ROLES.get(m[0], m[0]), text)
    text = re.sub(r'<g id="series-(\d+)[^"]*"', r'<g class="series" data-series="\1"', text)
    return re.sub(r"\s*\n\s*", "\n", _unique_ids(text)).strip()


def _unique_ids(text: str) -> str:
    """Drop ids that nothing refers to and mark the rest, so that two drawings on one page do not share any."""
    used, tag = set(re.findall(r'(?:href="|url\()#([^")]+)', text)), f"{zlib.crc32(text.encode()):x}"
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{m[1]}-{tag}"' if m[1] in used else "", text)
    return re.sub(r'(href="|url\()#([^")]+)', rf"\1#\2-{tag}", text)


def _opening_tag(match: re.Match[str]) -> str:
    """The opening tag: as wide as its place, but never so small or so large that text stops reading well."""
    width, height = float(match[1]), float(match[2])
    limits = f"min-width:calc(var(--least,.85)*{width:.0f}px);max-width:{1.25 * width:.0f}px"
    return f'<svg viewBox="0 0 {width:g} {height:g}" style="{limits}" role="img">'


def _font_size(match: re.Match[str]) -> str:
    return f"font-size: {float(match[2]):g}px" if match[1] else match[0]


def _round_numbers(match: re.Match[str]) -> str:
    digits = 3 if match[1] == "transform" else 1
    numbers = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.{digits}f}".rstrip("0").rstrip("."), match[2])
    return f'{match[1]}="{" ".join(numbers.split())}"'


def save(path: Path | str, svg: str) -> None:
    """Write an inline drawing as a file of its own."""
    write_atomic(path, standalone(svg))


def standalone(svg: str) -> str:
    """An inline drawing as the text of a file of its own, which follows the viewer's light or dark preference.

    It has a background of its own, as the page around it, such as that of `dvc plots show`, may be light all the same.
    """

    def theme(ink: str, muted: str, grid: str, surface: str, series: Sequence[str]) -> str:
        hues = "".join(f"--s{i}:{color};" for i, color in enumerate(series))
        return f"svg{{color:{ink};background:{surface};--muted:{muted};--grid:{grid};--surface:{surface};{hues}}}"

    light = theme("#1b1d22", "#5c616b", "#dcdfe4", "#ffffff", LIGHT)
    dark = theme("#eceef2", "#a2a8b3", "#353a44", "#15171c", DARK)
    font = "text{font-family:system-ui,sans-serif}"
    style = f"<style>{font}{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    # Without a size of its own, a viewer such as that of `dvc plots show` draws a picture of a few pixels.
    opening = re.compile(r'<svg (viewBox="0 0 (\S+) (\S+)"[^>]*)>')
    return opening.sub(rf'<svg {names} width="\2" height="\3" \1>{style}', svg, count=1) + "\n"


def space_labels(targets: ArrayLike, gap: float, low: float, high: float) -> np.ndarray:
    """Positions near `targets`, in the same order, at least `gap` from each other and inside [low, high] if they
    fit.
    """
    from scipy.optimize import isotonic_regression

    positions = np.asarray(targets, dtype=np.float64)
    if not len(positions):
        return positions
    order = np.argsort(positions, kind="stable")
    steps = gap * np.arange(len(positions))
    fitted = isotonic_regression(positions[order] - steps).x.clip(low, max(low, high - gap * (len(positions) - 1)))
    placed = np.empty_like(positions)
    placed[order] = fitted + steps
    return placed


def name_ends(axes: "Axes", ends: Sequence[tuple[str, float, SeriesStyle]], grey: Collection[str] = ()) -> None:
    """Write each label right of the axes at its y, moved so that no two overlap, with a line in its colour.

    Labels in `grey` are grey.
    """
    ends = [end for end in ends if np.isfinite(end[1])]
    low, high = axes.get_ylim()
    scale = axes.yaxis.get_transform()  # names are spread evenly on the page, on a logarithmic axis too
    bottom, top, *heights = scale.transform(np.array([low, high, *(end[1] for end in ends)], dtype=np.float64))
    gap = (top - bottom) * LABEL_SIZE * 1.2 / max(axes.get_window_extent().height, 1)
    positions = scale.inverted().transform(space_labels(heights, gap, bottom, top))
    transform = axes.get_yaxis_transform()
    per_point = 1.0 / max(axes.get_window_extent().width, 1)
    for (label, y, style), height in zip(ends, positions, strict=True):
        color, ink, dash = (MUTED, MUTED, "-") if label in grey else (style.color, INK, style.dash)
        options: dict[str, Any] = {"color": color, "clip_on": False, "transform": transform}
        start = np.clip(y, low, high)  # without this, a diverged method would have a line far outside of the figure
        (lead,) = axes.plot([1.0, 1.0 + 14 * per_point], [start, height], linewidth=0.6, alpha=0.6, **options)
        (sample,) = axes.plot(1.0 + per_point * np.array([16, 32]), [height, height], linestyle=dash, **options)
        look: dict[str, Any] = {"fontsize": LABEL_SIZE, "va": "center", "color": ink}
        text = axes.text(1.0 + 36 * per_point, height, label, transform=transform, **look)
        for part, artist in enumerate((lead, sample, text)):
            artist.set_gid(f"series-{style.series}-end{part}")
    axes.set_ylim(low, high)


def name_below(axes: "Axes", styles: Sequence[tuple[str, SeriesStyle]]) -> None:
    """Write each label below the axes, with a line in its colour."""
    from matplotlib.lines import Line2D

    samples = [Line2D([], [], color=style.color, linestyle=style.dash) for _, style in styles]
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.16), "borderpad": 0, "frameon": False}
    look: dict[str, Any] = {"ncols": 2, "columnspacing": 1.2, "handlelength": 1.6, "fontsize": LABEL_SIZE}
    axes.legend(samples, [label for label, _ in styles], labelcolor=INK, **place, **look)
