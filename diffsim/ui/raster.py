"""The rasteriser of scenes: kernels that draw spheres, triangles and segments with depths and lights.

As in `gui/raster.py`, lanes are bands of rows, and what is no number is not drawn. All here is in the
camera's coordinates: x to the right, y up, z towards the viewer, in the units of the scene. Pixels are
counted from the upper left; the centre of a pixel has whole numbers.

A depth is 1 at the camera's near plane and 0 at the far one, and a pixel shows what has the largest.

- `lens` (`camera.Lens.numbers`): 1 for a perspective and 0 for a parallel projection; pixels for a unit
  along x and y (at distance 1); the pixel that the axis goes through, x and y; the depth's two numbers: of a
  point at distance d it is `a + b / d`, or `a + b * d`; the distance of the near plane.
- `screen`: of each vertex x and y in pixels, the depth, 1 / distance.
- `vertices`: of each vertex the place, the normal, the colour.
- `lights`: for each a place and a colour; `ambient`: a colour.
- `each`: 1 if there is a radius for each sphere, else 0; + 2 for colours.
"""

from __future__ import annotations

from diffsim.gui.host_kernel import HostKernel
from diffsim.gui.raster import beyond, blend, first, is_near, level_of, pixel_of
from diffsim.ir.ops import abs, floor, max, min, rsqrt, sqrt
from diffsim.ir.types import f32, i32, u32
from diffsim.lang.builtins.intrinsics import cast, ndrange
from diffsim.lang.host.func import func
from diffsim.lang.types.namespace import ndarray

_Pixels = ndarray(u32, 2)
_Rows = ndarray(f32, 2)
_Numbers = ndarray(f32, 1)
_Indices = ndarray(i32, 2)


@func
def _unit(x, y, z):
    """Return 1 over the length of a vector; of one without a length any number."""
    return rsqrt(max(x * x + y * y + z * z, 1e-30))


@func
def _lit(color, at, normal, lights, ambient, two_sided):
    """Return the pixel of a surface: Lambert's law for each light, and the ambient one."""
    x, y, z = at
    nx, ny, nz = normal
    red, green, blue = ambient[0], ambient[1], ambient[2]
    size = _unit(nx, ny, nz)
    for m in range(lights.shape[0]):
        lx, ly, lz = lights[m, 0] - x, lights[m, 1] - y, lights[m, 2] - z
        cosine = (nx * lx + ny * ly + nz * lz) * size * _unit(lx, ly, lz)
        part = abs(cosine) if two_sided != 0 else max(cosine, 0.0)
        red, green, blue = (
            red + part * lights[m, 3],
            green + part * lights[m, 4],
            blue + part * lights[m, 5],
        )
    return pixel_of(
        level_of(red * color[0], 255.0),
        level_of(green * color[1], 255.0),
        level_of(blue * color[2], 255.0),
    )


@HostKernel
def spheres(
    pixels: _Pixels,
    depths: _Rows,
    bands: i32,
    centers: _Rows,
    radius: _Numbers,
    colors: _Rows,
    each: i32,
    boxes: _Indices,
    lens: _Numbers,
    lights: _Rows,
    ambient: _Numbers,
) -> None:
    """Draw spheres, where the ray of each pixel hits them; `boxes`: first and last column and row."""
    height = pixels.shape[0]
    perspective, near = lens[0], lens[7]
    for band in range(bands):
        top, bottom = band * height // bands, (band + 1) * height // bands
        for k in range(centers.shape[0]):
            if boxes[k, 2] < bottom and boxes[k, 3] > top:
                r = radius[k * (each & 1)]
                x, y, d = centers[k, 0], centers[k, 1], -centers[k, 2]
                c = k * (each >> 1)
                # No part of it has a larger depth: most of what is behind others ends with this comparison.
                least = max(d - r, near)
                front = lens[5] + (lens[6] / least if perspective > 0 else lens[6] * least)
                for row in range(max(boxes[k, 2], top), min(boxes[k, 3], bottom)):
                    for column in range(boxes[k, 0], boxes[k, 1]):
                        if front > depths[row, column]:
                            u, v = (column - lens[3]) / lens[1], (lens[4] - row) / lens[2]
                            # The ray of this pixel: from (ox, oy, 0) along (ax, ay, -1).
                            ax, ay = u * perspective, v * perspective
                            ox, oy = u - ax, v - ay
                            square = ax * ax + ay * ay + 1.0
                            # Where it comes closest to the centre, and from the centre to there. Their
                            # difference keeps its digits where a sphere is small and far away.
                            s = ((x - ox) * ax + (y - oy) * ay + d) / square
                            ex, ey, ez = ox + s * ax - x, oy + s * ay - y, d - s
                            inside = r * r - (ex * ex + ey * ey + ez * ez)
                            if inside > 0:
                                back = sqrt(inside / square)
                                t = s - back
                                z = lens[5] + (lens[6] / t if perspective > 0 else lens[6] * t)
                                if t >= near and z > depths[row, column]:
                                    depths[row, column] = z
                                    at = (ox + t * ax, oy + t * ay, -t)
                                    normal = (ex - back * ax, ey - back * ay, ez + back)
                                    color = (colors[c, 0], colors[c, 1], colors[c, 2])
                                    pixels[row, column] = _lit(
                                        color, at, normal, lights, ambient, 0
                                    )


@HostKernel
def triangles(
    pixels: _Pixels,
    depths: _Rows,
    bands: i32,
    screen: _Rows,
    vertices: _Rows,
    faces: _Indices,
    lights: _Rows,
    ambient: _Numbers,
    two_sided: i32,
    wires: i32,
    tested: i32,
) -> None:
    """Fill triangles, of three vertices each, or draw their edges (`wires`); `tested`: by depths."""
    height, width = pixels.shape[0], pixels.shape[1]
    for band in range(bands):
        top, bottom = band * height // bands, (band + 1) * height // bands
        for k in range(faces.shape[0]):
            a, b, c = faces[k, 0], faces[k, 1], faces[k, 2]
            ax, ay, bx, by = screen[a, 0], screen[a, 1], screen[b, 0], screen[b, 1]
            cx, cy = screen[c, 0], screen[c, 1]
            low, high = min(ay, min(by, cy)), max(ay, max(by, cy))
            left, right = min(ax, min(bx, cx)), max(ax, max(bx, cx))
            area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
            near = area != 0 and is_near(ax, ay) and is_near(bx, by) and is_near(cx, cy)
            if near and low < bottom and high > top - 1 and left < width and right > -1:
                share = 1.0 / area
                # Lengths of the edges as parts of the area: what a pixel's distance is counted in.
                ea = sqrt((cx - bx) * (cx - bx) + (cy - by) * (cy - by)) * abs(share)
                eb = sqrt((ax - cx) * (ax - cx) + (ay - cy) * (ay - cy)) * abs(share)
                ec = sqrt((bx - ax) * (bx - ax) + (by - ay) * (by - ay)) * abs(share)
                # Shared edges may round apart: each triangle has a thousandth of a pixel more.
                slack = -1e-3 - 2e-7 * (right - left + high - low)
                for row in range(max(first(low), top), min(beyond(high, height), bottom)):
                    for column in range(first(left), beyond(right, width)):
                        # How much of each corner is here, on the screen.
                        wa = ((cx - bx) * (row - by) - (cy - by) * (column - bx)) * share
                        wb = ((ax - cx) * (row - cy) - (ay - cy) * (column - cx)) * share
                        wc = ((bx - ax) * (row - ay) - (by - ay) * (column - ax)) * share
                        seen = wa >= slack * ea and wb >= slack * eb and wc >= slack * ec
                        if seen and (wires == 0 or wa < ea or wb < eb or wc < ec):
                            z = wa * screen[a, 2] + wb * screen[b, 2] + wc * screen[c, 2]
                            if tested == 0 or (z > depths[row, column] and z <= 1.0):
                                if tested != 0:
                                    depths[row, column] = z
                                # And in the scene, where what is far is smaller.
                                wa *= screen[a, 3]
                                wb *= screen[b, 3]
                                wc *= screen[c, 3]
                                whole = 1.0 / (wa + wb + wc)
                                wa *= whole
                                wb *= whole
                                wc *= whole
                                at = (
                                    wa * vertices[a, 0] + wb * vertices[b, 0] + wc * vertices[c, 0],
                                    wa * vertices[a, 1] + wb * vertices[b, 1] + wc * vertices[c, 1],
                                    wa * vertices[a, 2] + wb * vertices[b, 2] + wc * vertices[c, 2],
                                )
                                normal = (
                                    wa * vertices[a, 3] + wb * vertices[b, 3] + wc * vertices[c, 3],
                                    wa * vertices[a, 4] + wb * vertices[b, 4] + wc * vertices[c, 4],
                                    wa * vertices[a, 5] + wb * vertices[b, 5] + wc * vertices[c, 5],
                                )
                                color = (
                                    wa * vertices[a, 6] + wb * vertices[b, 6] + wc * vertices[c, 6],
                                    wa * vertices[a, 7] + wb * vertices[b, 7] + wc * vertices[c, 7],
                                    wa * vertices[a, 8] + wb * vertices[b, 8] + wc * vertices[c, 8],
                                )
                                pixels[row, column] = _lit(
                                    color, at, normal, lights, ambient, two_sided
                                )


@HostKernel
def segments(
    pixels: _Pixels,
    depths: _Rows,
    bands: i32,
    screen: _Rows,
    colors: _Rows,
    pairs: _Indices,
    radius: f32,
    tested: i32,
) -> None:
    """Draw segments with round ends, `radius` pixels to each side; colours go from end to end."""
    height, width = pixels.shape[0], pixels.shape[1]
    r = radius + 0.5  # edges fade over one pixel
    for band in range(bands):
        top, bottom = band * height // bands, (band + 1) * height // bands
        for k in range(pairs.shape[0]):
            a, b = pairs[k, 0], pairs[k, 1]
            ax, ay, bx, by = screen[a, 0], screen[a, 1], screen[b, 0], screen[b, 1]
            dx, dy = bx - ax, by - ay
            low, high = min(ay, by) - r, max(ay, by) + r
            left, right = min(ax, bx) - r, max(ax, bx) + r
            near = is_near(ax, ay) and is_near(bx, by)
            if near and low < bottom and high > top - 1 and left < width and right > -1:
                square = max(dx * dx + dy * dy, 1e-20)
                slope = dx / dy if dy != 0 else 0.0
                for row in range(max(first(low), top), min(beyond(high, height), bottom)):
                    one, other = left, right
                    if dy != 0:
                        u, v = ax + (row - r - ay) * slope, ax + (row + r - ay) * slope
                        one, other = max(left, min(u, v) - r), min(right, max(u, v) + r)
                    for column in range(first(one), beyond(other, width)):
                        px, py = column - ax, row - ay
                        t = min(max((px * dx + py * dy) / square, 0.0), 1.0)
                        px, py = px - t * dx, py - t * dy
                        alpha = min(r - sqrt(px * px + py * py), 1.0)
                        z = screen[a, 2] + t * (screen[b, 2] - screen[a, 2])
                        if alpha > 0 and (tested == 0 or z > depths[row, column]):
                            if tested != 0 and alpha > 0.5:
                                depths[row, column] = z
                            t = t * screen[b, 3] / ((1.0 - t) * screen[a, 3] + t * screen[b, 3])
                            color = pixel_of(
                                level_of(colors[a, 0] + t * (colors[b, 0] - colors[a, 0]), 255.0),
                                level_of(colors[a, 1] + t * (colors[b, 1] - colors[a, 1]), 255.0),
                                level_of(colors[a, 2] + t * (colors[b, 2] - colors[a, 2]), 255.0),
                            )
                            pixels[row, column] = blend(pixels[row, column], color, alpha)


@func
def _mixed(image, x, y, channel, u, v):
    """Return a channel between four elements."""
    beside, above = min(x + 1, image.shape[0] - 1), min(y + 1, image.shape[1] - 1)
    lower = cast(image[x, y, channel], f32) * (1.0 - u) + cast(image[beside, y, channel], f32) * u
    upper = (
        cast(image[x, above, channel], f32) * (1.0 - u)
        + cast(image[beside, above, channel], f32) * u
    )
    return lower * (1.0 - v) + upper * v


@HostKernel
def stretched(pixels: _Pixels, image: ndarray(ndim=3), scale: f32) -> None:
    """Draw an image of one to four channels over all pixels, interpolated between its elements."""
    height, width = pixels.shape[0], pixels.shape[1]
    wide, high = image.shape[0], image.shape[1]
    second, third = min(image.shape[2] - 1, 1), min(image.shape[2] - 1, 2)
    for row, column in ndrange(height, width):
        across = (column + 0.5) * wide / width - 0.5
        up = (height - row - 0.5) * high / height - 0.5
        across = min(max(across, 0.0), cast(wide - 1, f32))
        up = min(max(up, 0.0), cast(high - 1, f32))
        x, y = cast(floor(across), i32), cast(floor(up), i32)
        u, v = across - floor(across), up - floor(up)
        red = level_of(_mixed(image, x, y, 0, u, v), scale)
        green = level_of(_mixed(image, x, y, second, u, v), scale)
        blue = level_of(_mixed(image, x, y, third, u, v), scale)
        # Of two channels the third is 0.
        pixels[row, column] = pixel_of(red, green, blue if image.shape[2] != 2 else cast(0, u32))
