"""The rasteriser: kernels that draw shapes into an image of packed colours.

Images are arrays of u32, row by row from the top, a pixel being 0xAABBGGRR: in memory red, green, blue,
alpha. A shape covers a pixel by ``radius - distance`` of the pixel's centre, between 0 and 1: its edge fades
over the last pixel inside the radius, as Taichi users know it. Colours given by users are 0xRRGGBB.

Shapes are drawn in their order, later ones over earlier ones. The lanes are bands of rows: each goes through
all shapes and draws what of them lies in its rows, so no two lanes write one pixel.

Coordinates may be any floats: NaN and infinities are no pixel. So bounds are clipped as floats, before they
are converted to integers.
"""

from __future__ import annotations

from diffsim.gui.host_kernel import HostKernel
from diffsim.ir.ops import abs, ceil, floor, max, min, sqrt
from diffsim.ir.types import f32, i32, u32
from diffsim.lang.builtins.intrinsics import cast, ndrange
from diffsim.lang.host.func import func
from diffsim.lang.types.namespace import ndarray

_Pixels = ndarray(u32, 2)
_Colors = ndarray(u32, 1)
_Numbers = ndarray(f32, 1)
_Points = ndarray(f32, 2)


@func
def _mix(under, over, shift, alpha):
    """Return one channel of two mixed colours, at its place in a pixel."""
    a = cast((under >> shift) & 255, f32)
    b = cast((over >> shift) & 255, f32)
    return cast(a + alpha * (b - a) + 0.5, u32) << shift


@func
def blend(under, over, alpha):
    """Return the pixel `under` after a colour was laid over it with this opacity."""
    opaque = cast(255, u32) << 24
    return (
        opaque
        | _mix(under, over, 0, alpha)
        | _mix(under, over, 8, alpha)
        | _mix(under, over, 16, alpha)
    )


@func
def pixel_of(red, green, blue):
    """Return the opaque pixel of three channels, 0 to 255."""
    return (cast(255, u32) << 24) | (blue << 16) | (green << 8) | red


@func
def _packed(color):
    """Return the pixel of a colour 0xRRGGBB."""
    return pixel_of((color >> 16) & 255, (color >> 8) & 255, color & 255)


@func
def is_near(x, y):
    """Return whether a place can be a corner: no NaN, no infinity, nothing that f32 cannot resolve."""
    return abs(x) < 1e9 and abs(y) < 1e9


@func
def first(x):
    """Return the first pixel from a place on."""
    return cast(max(ceil(x), 0.0), i32)


@func
def beyond(x, size):
    """Return the pixel behind the last one up to a place."""
    return cast(min(floor(x) + 1.0, cast(size, f32)), i32)


@HostKernel
def circles(
    pixels: _Pixels, bands: i32, centers: _Points, radius: _Numbers, color: _Colors, each: i32
) -> None:
    """Draw discs. `each`: 1 if there is a radius for each, else 0; + 2 for colours."""
    height, width = pixels.shape[0], pixels.shape[1]
    for band in range(bands):
        top, bottom = band * height // bands, (band + 1) * height // bands
        for k in range(centers.shape[0]):
            r = radius[k * (each & 1)]
            x = centers[k, 0] * width - 0.5
            y = (1.0 - centers[k, 1]) * height - 0.5
            if y + r > top - 1 and y - r < bottom and x + r > -1 and x - r < width:
                over = _packed(color[k * (each >> 1)])
                for row in range(max(first(y - r), top), min(beyond(y + r, height), bottom)):
                    for column in range(first(x - r), beyond(x + r, width)):
                        dx, dy = column - x, row - y
                        alpha = min(r - sqrt(dx * dx + dy * dy), 1.0)
                        if alpha > 0:
                            pixels[row, column] = blend(pixels[row, column], over, alpha)


@HostKernel
def lines(
    pixels: _Pixels,
    bands: i32,
    begin: _Points,
    end: _Points,
    radius: _Numbers,
    color: _Colors,
    each: i32,
) -> None:
    """Draw segments with round ends; `each` as for `circles`."""
    height, width = pixels.shape[0], pixels.shape[1]
    for band in range(bands):
        top, bottom = band * height // bands, (band + 1) * height // bands
        for k in range(begin.shape[0]):
            r = radius[k * (each & 1)]
            ax, ay = begin[k, 0] * width - 0.5, (1.0 - begin[k, 1]) * height - 0.5
            bx, by = end[k, 0] * width - 0.5, (1.0 - end[k, 1]) * height - 0.5
            dx, dy = bx - ax, by - ay
            low, high = min(ay, by) - r, max(ay, by) + r
            left, right = min(ax, bx) - r, max(ax, bx) + r
            near = is_near(ax, ay) and is_near(bx, by)
            if near and low < bottom and high > top - 1 and left < width and right > -1:
                over = _packed(color[k * (each >> 1)])
                square = max(dx * dx + dy * dy, 1e-20)
                slope = dx / dy if dy != 0 else 0.0
                for row in range(max(first(low), top), min(beyond(high, height), bottom)):
                    # The part of the segment that is near this row; all of it where it is horizontal.
                    one, other = left, right
                    if dy != 0:
                        u, v = ax + (row - r - ay) * slope, ax + (row + r - ay) * slope
                        one, other = max(left, min(u, v) - r), min(right, max(u, v) + r)
                    for column in range(first(one), beyond(other, width)):
                        px, py = column - ax, row - ay
                        t = min(max((px * dx + py * dy) / square, 0.0), 1.0)
                        px, py = px - t * dx, py - t * dy
                        alpha = min(r - sqrt(px * px + py * py), 1.0)
                        if alpha > 0:
                            pixels[row, column] = blend(pixels[row, column], over, alpha)


@HostKernel
def triangles(
    pixels: _Pixels, bands: i32, a: _Points, b: _Points, c: _Points, color: _Colors, each: i32
) -> None:
    """Fill triangles: the pixels whose centres are inside or on an edge."""
    height, width = pixels.shape[0], pixels.shape[1]
    for band in range(bands):
        top, bottom = band * height // bands, (band + 1) * height // bands
        for k in range(a.shape[0]):
            ax, ay = a[k, 0] * width - 0.5, (1.0 - a[k, 1]) * height - 0.5
            bx, by = b[k, 0] * width - 0.5, (1.0 - b[k, 1]) * height - 0.5
            cx, cy = c[k, 0] * width - 0.5, (1.0 - c[k, 1]) * height - 0.5
            low, high = min(ay, min(by, cy)), max(ay, max(by, cy))
            left, right = min(ax, min(bx, cx)), max(ax, max(bx, cx))
            # Twice its area, with a sign: with it all edges count inside as positive.
            area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
            near = area != 0 and is_near(ax, ay) and is_near(bx, by) and is_near(cx, cy)
            if near and low < bottom and high > top - 1 and left < width and right > -1:
                turn = 1.0 if area > 0 else -1.0
                pixel = _packed(color[k * (each >> 1)])
                for row in range(max(first(low), top), min(beyond(high, height), bottom)):
                    for column in range(first(left), beyond(right, width)):
                        e = turn * ((bx - ax) * (row - ay) - (by - ay) * (column - ax))
                        f = turn * ((cx - bx) * (row - by) - (cy - by) * (column - bx))
                        g = turn * ((ax - cx) * (row - cy) - (ay - cy) * (column - cx))
                        if e >= 0 and f >= 0 and g >= 0:
                            pixels[row, column] = pixel


@func
def level_of(value, scale):
    """Return a channel as an integer of 0 to 255; NaN is 0."""
    x = cast(value, f32) * scale
    x = x if x > 0.0 else 0.0
    return cast((x if x < 255.0 else 255.0) + 0.5, u32)


_TILE = 16
"""Images lie column by column, pixels row by row: copied in tiles, both stay in the cache."""


@HostKernel
def gray(pixels: _Pixels, image: ndarray(ndim=2), scale: f32) -> None:
    """Copy an image of numbers, whose first axis is x (to the right) and second y (up)."""
    height, width = pixels.shape[0], pixels.shape[1]
    for i, j in ndrange((height + _TILE - 1) // _TILE, (width + _TILE - 1) // _TILE):
        for column in range(j * _TILE, min((j + 1) * _TILE, width)):
            for row in range(i * _TILE, min((i + 1) * _TILE, height)):
                level = level_of(image[column, height - 1 - row], scale)
                pixels[row, column] = pixel_of(level, level, level)


@HostKernel
def colored(pixels: _Pixels, image: ndarray(ndim=3), scale: f32) -> None:
    """Copy an image of two, three or four channels; where there is no blue, it is 0."""
    height, width = pixels.shape[0], pixels.shape[1]
    # Loaded from a channel that is there, whichever way the compiler takes.
    third = min(image.shape[2] - 1, 2)
    for i, j in ndrange((height + _TILE - 1) // _TILE, (width + _TILE - 1) // _TILE):
        for column in range(j * _TILE, min((j + 1) * _TILE, width)):
            for row in range(i * _TILE, min((i + 1) * _TILE, height)):
                y = height - 1 - row
                red, green = (
                    level_of(image[column, y, 0], scale),
                    level_of(image[column, y, 1], scale),
                )
                blue = level_of(image[column, y, third], scale) if third == 2 else cast(0, u32)
                pixels[row, column] = pixel_of(red, green, blue)
