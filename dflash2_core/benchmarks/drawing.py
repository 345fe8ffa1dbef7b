"""A drawing of boxes, lines and words, as SVG and, by Pillow, as PNG: the same picture twice."""

import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape
from typing import Literal

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
PILLOW_ANCHOR = {"start": "ls", "middle": "ms", "end": "rs"}
FONT = "system-ui,sans-serif"


@dataclass(frozen=True)
class Box:
    """A filled rectangle; sizes in pixels, y downwards."""

    left: float
    top: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True)
class Line:
    """Through all its points."""

    points: tuple[Point, ...]
    colour: str
    width: float = 1.0


@dataclass(frozen=True)
class Words:
    """One line of text whose baseline begins, has its middle or ends at (x, y)."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: Anchor = "start"
    colour: str = "#1a1a1a"


Shape = Box | Line | Words


@dataclass(frozen=True)
class Drawing:
    """title: what it shows, in words, for those who cannot see it."""

    title: str
    width: int
    height: int
    shapes: tuple[Shape, ...]


def stacked(drawings: Iterable[Drawing]) -> Drawing:
    """One below the other, on a white ground."""
    drawings = list(drawings)
    shapes: list[Shape] = []
    top = 0
    for drawing in drawings:
        shapes += [_moved(shape, top) for shape in drawing.shapes]
        top += drawing.height
    width = max(drawing.width for drawing in drawings)
    ground = Box(0, 0, width, top, "#ffffff")
    return Drawing("; ".join(drawing.title for drawing in drawings), width, top, (ground, *shapes))


def svg(drawing: Drawing) -> str:
    """To stand in an HTML page."""
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    parts = "".join(_element(shape) for shape in drawing.shapes)
    return f'<svg {size} role="img" aria-label="{escape(drawing.title)}">{parts}</svg>'


def png(drawing: Drawing, scale: int = 2) -> bytes:
    """scale: pixels of the image to one of the drawing. ImportError without Pillow (the extra `bench`)."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (scale * drawing.width, scale * drawing.height), "#ffffff")
    pen = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            corners = (shape.left, shape.top, shape.left + shape.width, shape.top + shape.height)
            pen.rectangle([scale * each for each in corners], fill=shape.colour)
        elif isinstance(shape, Line):
            points = [(scale * x, scale * y) for x, y in shape.points]
            pen.line(points, fill=shape.colour, width=round(scale * shape.width), joint="curve")
        else:
            font = ImageFont.load_default(scale * shape.size)
            place = (scale * shape.x, scale * shape.y)
            pen.text(place, shape.text, fill=shape.colour, font=font, anchor=PILLOW_ANCHOR[shape.anchor])
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _moved(shape: Shape, down: float) -> Shape:
    if isinstance(shape, Box):
        return replace(shape, top=shape.top + down)
    if isinstance(shape, Line):
        return replace(shape, points=tuple((x, y + down) for x, y in shape.points))
    return replace(shape, y=shape.y + down)


def _element(shape: Shape) -> str:
    if isinstance(shape, Box):
        place = f'x="{shape.left:.1f}" y="{shape.top:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f'<rect {place} fill="{shape.colour}"/>'
    if isinstance(shape, Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polyline points="{points}" fill="none" stroke="{shape.colour}" stroke-width="{shape.width}"/>'
    style = f"font:{shape.size:g}px {FONT}"
    place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}" fill="{shape.colour}" style="{style}"'
    return f"<text {place}>{escape(shape.text)}</text>"
